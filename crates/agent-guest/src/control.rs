//! The socket pair between PID 1 and one operation: requests that name a living operation go down it, together with
//! the connection they came on; what the operation has to say about itself comes up.
//!
//! Each message is one packet: the payload of a control frame, without its header. Down go [`Request`]s (among them
//! `Shutdown`, without a connection: nobody will ask for this command any more), up go [`Report`]s. Nothing here ever
//! blocks.
//!
//! [`Request`]: moltis_agent_protocol::Request

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use moltis_agent_protocol::frame::{self, HEADER_BYTES};
use moltis_agent_protocol::message::{ENDS, Exited, MAX_ENDS};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

/// Longest packet in bytes, either way.
pub const MAX_PACKET: usize = 64 * 1024;

/// What an operation tells PID 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// How many things it does now that count as use of the sandbox; 0 also lifts its deadline. An operation counts
    /// as one from the start.
    Use(u32),
    /// A background command runs.
    Started {
        /// Its process id.
        pid: u32,
    },
    /// A command is over, but its operation stays: it was a background one, or has left children. It no longer counts
    /// as use.
    Exited {
        /// Its process id.
        pid: u32,
        /// Its end.
        exited: Exited,
    },
}

/// Makes a pair: PID 1's end and the operation's.
///
/// # Errors
/// When descriptors or memory run out.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Sends one packet, with a descriptor if there is one.
///
/// # Errors
/// `WouldBlock` when the other side does not read, `BrokenPipe` when it is gone.
pub fn send_with_fd(control: BorrowedFd<'_>, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(control, &[IoSlice::new(packet)], &mut ancillary, flags)
    })?;
    Ok(())
}

/// Receives one packet into `buffer`, which should hold [`MAX_PACKET`]: its length and the descriptor that came with
/// it. `None` when the other side is gone.
///
/// # Errors
/// `WouldBlock` when there is none now, `InvalidData` when it is longer than the buffer.
pub fn recv_with_fd(
    control: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(control, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)
    })?;
    let mut descriptor = None;
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = item {
            descriptor = fds.last().or(descriptor);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((message.bytes, descriptor)))
}

/// Receives a few bytes of a stream, and the descriptors that came with them: at most [`MAX_ENDS`]. `None` at its end.
/// Some may be missing, where the kernel's rules keep this process from having them.
///
/// # Errors
/// `WouldBlock` when there is nothing now, `InvalidData` when it is anything but [`ENDS`].
pub fn recv_ends(stream: BorrowedFd<'_>) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ENDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut said = [0; ENDS.len()];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut said)], &mut ancillary, flags)
    })?;
    let mut ends = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = item {
            ends.extend(fds);
        }
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    match said == ENDS && (!ends.is_empty() || message.flags.contains(ReturnFlags::CTRUNC)) {
        true => Ok(Some(ends)),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Tells PID 1 something. A report that finds no room is lost: PID 1 does not depend on any for the sandbox's safety.
pub fn report(control: BorrowedFd<'_>, report: &Report) {
    if let Ok(frame) = frame::encode_control(report) {
        let _ = send_with_fd(control, &frame[HEADER_BYTES..], None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_packet_arrives_whole_and_with_its_descriptor() {
        let (ours, theirs) = pair().unwrap();
        let mut buffer = vec![0; MAX_PACKET];
        let nothing = recv_with_fd(theirs.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);

        let (mut near, far) = UnixStream::pair().unwrap();
        send_with_fd(ours.as_fd(), b"first", Some(far.as_fd())).unwrap();
        send_with_fd(ours.as_fd(), b"second", None).unwrap();
        drop(far);
        let (length, fd) = recv_with_fd(theirs.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"first");
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        UnixStream::from(fd.unwrap()).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let (length, fd) = recv_with_fd(theirs.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..length], fd.is_none()), (&b"second"[..], true));

        drop(ours);
        // A process that another test forks at this moment holds our end a little longer.
        let end = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            recv_with_fd(theirs.as_fd(), &mut buffer).ok()
        });
        assert!(end.unwrap().is_none());
    }

    #[test]
    fn ends_come_with_their_word_and_nothing_else_is_taken() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let kind = |result: io::Result<Option<Vec<OwnedFd>>>| result.unwrap_err().kind();
        assert_eq!(kind(recv_ends(theirs.as_fd())), io::ErrorKind::WouldBlock);
        let (near, far) = UnixStream::pair().unwrap();
        for end in [&near, &far] {
            send_with_fd(ours.as_fd(), &ENDS, Some(end.as_fd())).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(recv_ends(theirs.as_fd()).unwrap().unwrap().len(), 1);
        }
        send_with_fd(ours.as_fd(), &ENDS, None).unwrap();
        assert_eq!(kind(recv_ends(theirs.as_fd())), io::ErrorKind::InvalidData);
        send_with_fd(ours.as_fd(), b"?", Some(near.as_fd())).unwrap();
        assert_eq!(kind(recv_ends(theirs.as_fd())), io::ErrorKind::InvalidData);
        rustix::net::shutdown(&ours, rustix::net::Shutdown::Write).unwrap();
        assert!(recv_ends(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_side_that_does_not_read_is_noticed_and_not_waited_for() {
        let (ours, _theirs) = pair().unwrap();
        let full = (0..100_000).find_map(|_| send_with_fd(ours.as_fd(), &[1; 1024], None).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
