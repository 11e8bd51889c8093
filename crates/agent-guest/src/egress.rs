//! The proxy port: programs inside connect to it, and hosts that stand behind it take their connections over.
//!
//! PID 1 opens the port before any code of the sandbox runs and keeps it for the sandbox's life, so that nobody inside
//! can have it. A forwarder, one process for all connections, is forked when a host or the first connection comes, and
//! again should code inside kill it. While no host stands there every connection is answered that there is none.

mod doors;
mod forwarder;
mod fresh;
mod hosts;
mod refusal;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::{Failure, FailureCode, PROXY_PORT};
use rustix::io::Errno;

use doors::Door;

pub use forwarder::Forwarder;

/// Connections that wait in the kernel's queue, at most; the kernel may shorten it.
const BACKLOG: i32 = 4096;

/// Time between a forwarder's end and the next one that a connection may start.
const REST: Duration = Duration::from_millis(50);

/// The port, as PID 1 keeps it.
pub struct Port {
    sockets: Vec<OwnedFd>,
    number: u16,
    /// The forwarder's process, while there is one.
    pub forwarder: Option<i32>,
    /// When to listen for connections that nobody forwards.
    pub rest: Option<Instant>,
}

impl Port {
    /// Opens it: the usual one if it is free, else another one; for both address families where there are both.
    ///
    /// # Errors
    /// When there is no loopback.
    pub fn open() -> Result<Self, Errno> {
        let (number, sockets) = Door::open(PROXY_PORT).or_else(|_| Door::open(0))?.into_parts();
        Ok(Self { sockets, number, forwarder: None, rest: None })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// What listens.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// The same as numbers.
    pub fn raw(&self) -> Vec<RawFd> {
        self.sockets.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// What listens, for a forwarder.
    pub fn into_sockets(self) -> Vec<OwnedFd> {
        self.sockets
    }

    /// There is no forwarder, and for a moment no connection starts one.
    pub fn rest(&mut self, now: Instant) {
        self.forwarder = None;
        self.rest = Some(now + REST);
    }
}

/// What is said where there is no such port.
pub fn unsupported() -> Failure {
    Failure {
        code: FailureCode::Unsupported,
        message: "this sandbox has no proxy port".to_owned(),
        errno: None,
    }
}
