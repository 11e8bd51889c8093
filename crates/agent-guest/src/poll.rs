//! A set of descriptors to wait for, built anew for each turn of an event loop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Readable, or at its end.
pub const READ: i16 = libc::POLLIN;
/// Writable.
pub const WRITE: i16 = libc::POLLOUT;
/// The peer of a socket has closed at least its sending half.
pub const PEER_CLOSED: i16 = libc::POLLRDHUP;
/// What is reported whether asked for or not: an error, or both halves closed.
pub const GONE: i16 = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;

/// Descriptors and what to wait for on each.
#[derive(Default)]
pub struct PollSet {
    fds: Vec<libc::pollfd>,
}

/// A descriptor's place in a [`PollSet`], until the set is cleared.
#[derive(Clone, Copy, Debug)]
pub struct Slot(usize);

impl PollSet {
    /// Forgets all descriptors.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// Adds a descriptor; with no events only [`GONE`] is noticed. It must stay open until [`PollSet::wait`] is over.
    pub fn add(&mut self, fd: BorrowedFd<'_>, events: i16) -> Slot {
        self.fds.push(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
        Slot(self.fds.len() - 1)
    }

    /// Waits until something happens or `until` has come.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        loop {
            let timeout = until.map_or(-1, |until| millis(until.saturating_duration_since(Instant::now())));
            // SAFETY: the array is as long as stated and lives through the call.
            let ready = unsafe { libc::poll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, timeout) };
            if ready >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// What happened to a descriptor: the events asked for, and [`GONE`].
    pub fn happened(&self, slot: Slot) -> i16 {
        self.fds.get(slot.0).map_or(0, |fd| fd.revents)
    }

    /// Whether anything of `events`, or [`GONE`], happened to a descriptor that may not be in the set.
    pub fn any(&self, slot: Option<Slot>, events: i16) -> bool {
        slot.is_some_and(|slot| self.happened(slot) & (events | GONE) != 0)
    }
}

/// Whole milliseconds, rounded up so that a wait never ends just before its time.
pub fn millis(duration: Duration) -> i32 {
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX)
}
