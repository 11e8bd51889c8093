//! Watchers of a background command: each reads from the kept output at its own pace, so that one which does not read
//! holds nothing back and costs no memory beyond its own small buffer.

use std::os::fd::{AsFd, OwnedFd};

use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::{Exited, Reply};
use moltis_agent_protocol::{FrameError, Kind};

use crate::input::{Fed, Input};
use crate::poll::{PEER_CLOSED, PollSet, READ, Slot, WRITE};
use crate::ring::Ring;
use crate::stream::{Incoming, Outbox};

/// Watchers of one command at most.
pub const MAX_WATCHERS: usize = 64;

/// Bytes that are taken from a ring at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// The kept output of a command: standard output and standard error.
pub type Rings = [Ring; 2];

/// From where on, and whether beyond what is there.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Offsets into standard output and standard error.
    pub offsets: [u64; 2],
    /// Whether to go on until the command is over.
    pub follow: bool,
}

/// One watcher.
pub struct Watcher {
    conn: OwnedFd,
    incoming: Incoming,
    outbox: Outbox,
    wish: Wish,
    /// Input of this watcher that the command does not take now.
    full: bool,
    /// The last message is in the outbox.
    told: bool,
}

impl Watcher {
    /// Begins to watch.
    pub fn new(conn: OwnedFd, wish: Wish, process: u32, pid: u32) -> Self {
        let mut outbox = Outbox::default();
        outbox.push(&hello::hello());
        outbox.reply(&Reply::Started { process, pid });
        Self { conn, incoming: Incoming::default(), outbox, wish, full: false, told: false }
    }

    /// Adds what this watcher waits for.
    pub fn wait_for(&self, set: &mut PollSet) -> Slot {
        let read = if self.full { 0 } else { READ };
        let write = if self.outbox.is_empty() { 0 } else { WRITE };
        set.add(self.conn.as_fd(), read | write | PEER_CLOSED)
    }

    /// Whether it waits until the command reads its input.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether it has everything, the last message among it.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Reads what it sent. `None` when the watcher is gone.
    pub fn receive(&mut self) -> Option<()> {
        self.incoming.fill(&self.conn).ok().filter(|open| *open).map(|_| ())
    }

    /// Hands all that it sent before it closed its end to the command, up to an order; `All` means that there is no
    /// more.
    ///
    /// # Errors
    /// When it sent what it may not send.
    pub fn drain(&mut self, input: &mut Input) -> Result<Fed, FrameError> {
        loop {
            // What a read leaves in the socket comes with the next one.
            let open = self.receive().is_some();
            match self.feed(input)? {
                Fed::All if open => {}
                fed => return Ok(fed),
            }
        }
    }

    /// Sends it nothing more and forgets it at the next turn.
    pub fn dismiss(&mut self) {
        self.outbox.release();
        self.full = false;
        self.told = true;
    }

    /// Hands what it sent to the command, up to an order.
    ///
    /// # Errors
    /// When it sent what it may not send.
    pub fn feed(&mut self, input: &mut Input) -> Result<Fed, FrameError> {
        let fed = input.feed(&mut self.incoming)?;
        self.full = fed == Fed::Full;
        Ok(fed)
    }

    /// Sends what there is and what it takes; `false` when it has everything or is gone.
    pub fn advance(&mut self, rings: &Rings, exited: Option<&Exited>) -> bool {
        loop {
            match self.outbox.flush(&self.conn) {
                Err(_) => return false,
                Ok(false) => return true,
                Ok(true) if self.told => return false,
                Ok(true) => {}
            }
            self.refill(rings);
            if !self.outbox.is_empty() {
                continue;
            }
            match exited {
                Some(exited) => self.outbox.reply(&Reply::Exited(exited.clone())),
                None if !self.wish.follow => self.outbox.reply(&Reply::Done),
                None => return true,
            }
            self.told = true;
        }
    }

    fn refill(&mut self, rings: &Rings) {
        let mut missed = [0; 2];
        for ((ring, offset), missed) in rings.iter().zip(&mut self.wish.offsets).zip(&mut missed) {
            *missed = ring.start().saturating_sub(*offset);
            *offset += *missed;
        }
        if missed != [0, 0] {
            self.outbox.reply(&Reply::Missed { stdout: missed[0], stderr: missed[1] });
        }
        let kinds = [Kind::Stdout, Kind::Stderr];
        for ((ring, offset), kind) in rings.iter().zip(&mut self.wish.offsets).zip(kinds) {
            if *offset < ring.end() {
                self.outbox.frame(kind, |payload| {
                    *offset += ring.copy(*offset, CHUNK_BYTES, payload) as u64;
                });
            }
        }
    }
}
