//! Pairs of sockets, of which the agent's forwarder is passed one end each: ways for connections that need no connecting.
//!
//! The forwarder uses them in their order, so that only the first has to be watched. One that uses another first, or
//! closes them, keeps its own connections from coming and harms nobody else.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as Pair;
use std::sync::Arc;

use bytes::Bytes;
use moltis_agent_protocol::frame;
use moltis_agent_protocol::message::{ENDS, MAX_ENDS, Reply, TAKEN};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::carried::Carried;

/// Room for the offer and for all that goes along with it; whatever is more is read later.
const OFFER: usize = 5 * 1024;

/// Our ends, and the room that each takes.
#[derive(Default)]
pub struct Pairs {
    ends: VecDeque<(UnixStream, OwnedSemaphorePermit)>,
}

impl Pairs {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Makes so many at most, as there is room for them, and passes their other ends over `socket`.
    ///
    /// # Errors
    /// When descriptors run out or the other side takes no more of them now.
    pub fn add(&mut self, count: usize, room: &Arc<Semaphore>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut ours = Vec::with_capacity(count.min(MAX_ENDS));
        let mut theirs = Vec::with_capacity(count.min(MAX_ENDS));
        while theirs.len() < count.min(MAX_ENDS) {
            let Ok(permit) = Arc::clone(room).try_acquire_owned() else { break };
            let (near, far) = Pair::pair()?;
            near.set_nonblocking(true)?;
            ours.push((UnixStream::from_std(near)?, permit));
            theirs.push(far);
        }
        if !theirs.is_empty() {
            pass(&theirs, socket)?;
        }
        self.ends.extend(ours);
        Ok(())
    }

    /// Keeps so many of those that come first.
    pub fn truncate(&mut self, count: usize) {
        self.ends.truncate(count);
    }

    /// Waits until the first of them is offered a connection, and takes it; `None` when that end was lost instead. Nothing
    /// is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Carried<UnixStream>> {
        loop {
            let (first, _) = self.ends.front()?;
            let _ = first.readable().await;
            if let Some(early) = offered(first) {
                let (stream, room) = self.ends.pop_front()?;
                // Nothing was said on it yet, so there is room; or it has been given to somebody else by now.
                let taken = stream.try_write(&TAKEN).is_ok_and(|count| count == TAKEN.len());
                return early.filter(|_| taken).map(|early| Carried::new(early, stream, room));
            }
        }
    }
}

/// What a program had said already that is offered on `end`; `Some(None)` for what is no offer, `None` while there is
/// nothing.
fn offered(end: &UnixStream) -> Option<Option<Bytes>> {
    let mut said = [0; OFFER];
    let count = match end.try_read(&mut said) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => 0,
        Ok(count) => count,
    };
    let offer = frame::encode_control(&Reply::Connected).ok();
    Some(offer.and_then(|offer| said[..count].strip_prefix(offer.as_slice()).map(Bytes::copy_from_slice)))
}

fn pass(ends: &[Pair], socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ENDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = ends.iter().map(AsFd::as_fd).collect();
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&ENDS)], &mut ancillary, flags)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read, Write};
    use std::time::Duration;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    use tokio::io::AsyncReadExt;

    use super::*;

    /// The ends that came in one message.
    fn passed(socket: &Pair) -> Vec<Pair> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ENDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut said = [0; 8];
        let message = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut said)],
            &mut ancillary,
            RecvFlags::empty(),
        );
        assert_eq!(&said[..message.unwrap().bytes], ENDS);
        let mut ends = Vec::new();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = item {
                ends.extend(fds.map(Pair::from));
            }
        }
        ends
    }

    fn offer(early: &[u8]) -> Vec<u8> {
        [&frame::encode_control(&Reply::Connected).unwrap(), early].concat()
    }

    #[tokio::test]
    async fn offers_are_taken_in_order_with_what_was_said() {
        let (ours, theirs) = Pair::pair().unwrap();
        let room = Arc::new(Semaphore::new(3));
        let mut pairs = Pairs::default();
        pairs.add(100, &room, ours.as_fd()).unwrap();
        assert_eq!((pairs.len(), room.available_permits()), (3, 0));
        let mut ends = passed(&theirs);
        assert_eq!(ends.len(), 3);
        let none = tokio::time::timeout(Duration::from_millis(20), pairs.next()).await;
        assert!(none.is_err() && pairs.len() == 3);
        ends[0].write_all(&offer(b"early")).unwrap();
        let mut carried = pairs.next().await.unwrap();
        let mut taken = [0];
        ends[0].read_exact(&mut taken).unwrap();
        assert_eq!(taken, TAKEN);
        ends[0].write_all(b" late").unwrap();
        drop(ends.remove(0));
        let mut got = Vec::new();
        carried.read_to_end(&mut got).await.unwrap();
        assert_eq!((got.as_slice(), room.available_permits()), (&b"early late"[..], 0));
        drop(carried);
        assert_eq!(room.available_permits(), 1);
        pairs.truncate(1);
        assert_eq!(room.available_permits(), 2);
        assert_eq!(ends[1].read(&mut taken).unwrap(), 0);
    }

    #[tokio::test]
    async fn what_is_no_offer_is_none() {
        let (ours, theirs) = Pair::pair().unwrap();
        let room = Arc::new(Semaphore::new(8));
        let mut pairs = Pairs::default();
        let half = offer(b"");
        for said in [&b""[..], b"?", &half[..half.len() - 1]] {
            pairs.add(1, &room, ours.as_fd()).unwrap();
            let mut end = passed(&theirs).remove(0);
            end.write_all(said).unwrap();
            drop(end);
            assert!(pairs.next().await.is_none());
            assert_eq!((pairs.len(), room.available_permits()), (0, 8));
        }
        drop(theirs);
        assert!(pairs.add(1, &room, ours.as_fd()).is_err());
        assert_eq!((pairs.len(), room.available_permits()), (0, 8));
    }
}
