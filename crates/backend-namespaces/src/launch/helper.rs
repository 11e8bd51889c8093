//! The launch helper as a process, and the socket pair with it.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::launch::{
    CHUNK_BYTES, CONTROL_FD, GO, Header, MAX_DESCRIPTORS, MAX_REPORT_BYTES, Report,
};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::Descriptors;
use crate::error::{Error, Result};

/// How long any single step of a launch may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running helper. Dropping it reaps it; its child, if it has one, is a child of this process and reaped elsewhere.
#[derive(Debug)]
pub struct Helper {
    pid: libc::pid_t,
    control: Option<OwnedFd>,
}

impl Helper {
    /// Starts the guest binary in mode `launch`. However big this process is, nothing of it is copied.
    pub fn spawn(guest: BorrowedFd<'_>) -> Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::Spawn(errno.into()))?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, direction, Some(PATIENCE))
                .map_err(|errno| Error::Spawn(errno.into()))?;
        }
        let pid = posix_spawn(guest, &theirs).map_err(Error::Spawn)?;
        Ok(Self { pid, control: Some(ours) })
    }

    /// Sends the header with its descriptors, then the plan.
    pub fn hand_over(&self, plan: &[u8], descriptors: Descriptors) -> Result<()> {
        let header = Header {
            plan_bytes: plan.len() as u32,
            lifeline: descriptors.lifeline.is_some(),
            cgroup: descriptors.cgroup.is_some(),
        };
        let mut fds = vec![descriptors.listener.as_fd()];
        fds.extend(descriptors.lifeline.as_ref().map(AsFd::as_fd));
        fds.extend(descriptors.cgroup.as_ref().map(AsFd::as_fd));
        fds.extend(descriptors.sources.iter().map(AsFd::as_fd));
        if fds.len() > MAX_DESCRIPTORS {
            return Err(Error::system("the sandbox has too many mounts")(Errno::TOOBIG));
        }
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        self.send(&header.encode(), &mut ancillary)?;
        for chunk in plan.chunks(CHUNK_BYTES) {
            self.send(chunk, &mut SendAncillaryBuffer::default())?;
        }
        Ok(())
    }

    /// Lets the child go on.
    pub fn go(&self) -> Result<()> {
        self.send(&GO, &mut SendAncillaryBuffer::default())
    }

    fn send(&self, bytes: &[u8], ancillary: &mut SendAncillaryBuffer<'_, '_, '_>) -> Result<()> {
        let Some(control) = &self.control else { return Err(Error::Died) };
        loop {
            match sendmsg(control, &[IoSlice::new(bytes)], ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Error::TimedOut(PATIENCE.as_secs())),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Died),
                Err(errno) => return Err(Error::system("the launch helper cannot be told")(errno)),
            }
        }
    }

    /// The next report; `None` when the helper and its child are gone.
    pub fn report(&self) -> Result<Option<(Report, Vec<OwnedFd>)>> {
        let Some(control) = &self.control else { return Ok(None) };
        let mut bytes = vec![0; MAX_REPORT_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(control, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                // A child that ends with our word unread resets the connection, once; its last word is still there.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Err(Error::TimedOut(PATIENCE.as_secs())),
                answer => break answer.map_err(Error::system("the launch helper cannot be heard"))?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let fds = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        postcard::from_bytes(&bytes[..received.bytes])
            .map(|report| Some((report, fds)))
            .map_err(|_| Error::Died)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Without the connection a helper that still waits for something ends.
        self.control = None;
        let start = Instant::now();
        loop {
            // SAFETY: the helper is a child of this process that nothing else reaps.
            let answer = unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) };
            if answer == 0 && start.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            if answer == 0 {
                // SAFETY: as above; it has not been reaped, so the number is still its own.
                unsafe {
                    libc::kill(self.pid, libc::SIGKILL);
                    libc::waitpid(self.pid, std::ptr::null_mut(), 0);
                }
            }
            return;
        }
    }
}

/// Spawns the helper with `control` as [`CONTROL_FD`], `/dev/null` as its standard streams, no environment, and no
/// signal blocked or ignored, in a session of its own.
fn posix_spawn(guest: BorrowedFd<'_>, control: &OwnedFd) -> io::Result<libc::pid_t> {
    // The kernel looks this up in the new process, which still has the descriptor: its number is above those that the
    // actions below replace.
    let path = CString::new(format!("/proc/self/fd/{}", guest.as_raw_fd())).map_err(io::Error::other)?;
    let argv = [c"moltis-guest".as_ptr().cast_mut(), c"launch".as_ptr().cast_mut(), std::ptr::null_mut()];
    let envp = [std::ptr::null_mut()];
    let mut actions = Actions::new()?;
    for fd in 0..3 {
        actions.open_null(fd)?;
    }
    actions.duplicate(control.as_raw_fd(), CONTROL_FD)?;
    let attributes = Attributes::new()?;
    let mut pid = 0;
    // SAFETY: all pointers are to values that outlive the call, and the arrays end with a null pointer.
    let answer = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv.as_ptr(),
            envp.as_ptr(),
        )
    };
    match answer {
        0 => Ok(pid),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Self> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call fills the value, which is used only if it did.
        unsafe {
            check(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
            Ok(Self(actions.assume_init()))
        }
    }

    fn open_null(&mut self, fd: libc::c_int) -> io::Result<()> {
        // SAFETY: the value is initialised and the path is copied.
        check(unsafe {
            libc::posix_spawn_file_actions_addopen(
                &raw mut self.0,
                fd,
                c"/dev/null".as_ptr(),
                libc::O_RDWR,
                0,
            )
        })
    }

    fn duplicate(&mut self, from: libc::c_int, to: libc::c_int) -> io::Result<()> {
        // SAFETY: the value is initialised. Equal numbers only lose their close-on-exec flag.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, from, to) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: the value was initialised and is not used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF | SETSID;
        let mut attributes = MaybeUninit::uninit();
        let mut signals = MaybeUninit::uninit();
        // SAFETY: each value is filled by the first call on it and used only if that succeeded.
        unsafe {
            check(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
            let mut attributes = Self(attributes.assume_init());
            check(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags as libc::c_short))?;
            libc::sigemptyset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigmask(&raw mut attributes.0, signals.as_ptr()))?;
            libc::sigfillset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, signals.as_ptr()))?;
            Ok(attributes)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the value was initialised and is not used again.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// `POSIX_SPAWN_SETSID` of `<spawn.h>`: a Ctrl-C at the caller's terminal must not reach the sandbox.
const SETSID: libc::c_int = 0x80;
