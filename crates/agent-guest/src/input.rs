//! Standard input of a command: what the host sends, as fast as the command reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::FrameError;
use moltis_agent_protocol::message::Order;
use rustix::io::Errno;

use crate::pty;
use crate::stream::{Incoming, Next};

/// Where a command's input goes.
pub enum Input {
    /// Nowhere: there is none, or the command has closed it.
    Closed,
    /// Our end of a pipe, which does not block.
    Pipe {
        /// The end.
        pipe: OwnedFd,
        /// Whether it has been enlarged.
        enlarged: bool,
    },
    /// A terminal's master, which does not block.
    Terminal(OwnedFd),
}

/// Why feeding a command stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// There is no more now.
    All,
    /// The command does not read now.
    Full,
    /// An order came.
    Order(Order),
}

impl Input {
    /// Input by way of a pipe.
    pub fn pipe(pipe: OwnedFd) -> Self {
        Self::Pipe { pipe, enlarged: false }
    }

    /// What to wait for when the command does not read.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Closed => None,
            Self::Pipe { pipe, .. } => Some(pipe.as_fd()),
            Self::Terminal(master) => Some(master.as_fd()),
        }
    }

    /// Hands on what a host has sent, until it sends an order or the command does not read.
    ///
    /// # Errors
    /// When the host sent what it may not send.
    pub fn feed(&mut self, incoming: &mut Incoming) -> Result<Fed, FrameError> {
        loop {
            match incoming.next()? {
                Next::More => return Ok(Fed::All),
                Next::Order(order) => return Ok(Fed::Order(order)),
                Next::Data => match self.write(incoming.data()) {
                    Some(count) => incoming.consume(count),
                    None => return Ok(Fed::Full),
                },
                Next::Eof => match self.end() {
                    Some(()) => incoming.pass(),
                    None => return Ok(Fed::Full),
                },
            }
        }
    }

    /// How many bytes were taken, or dropped because nobody will read them; `None` when the command does not read now.
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            let target = match &*self {
                Self::Closed => return Some(bytes.len()),
                Self::Pipe { pipe, .. } => pipe.as_fd(),
                Self::Terminal(master) => master.as_fd(),
            };
            match rustix::io::write(target, bytes) {
                Ok(count) => return Some(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Self::Pipe { pipe, enlarged } = self
                        && !*enlarged
                    {
                        *enlarged = true;
                        if rustix::pipe::fcntl_setpipe_size(pipe, super::process::PIPE_BYTES).is_ok() {
                            continue;
                        }
                    }
                    return None;
                }
                // A command that does not read its input is no error.
                Err(_) => {
                    *self = Self::Closed;
                    return Some(bytes.len());
                }
            }
        }
    }

    /// Ends the input: closes a pipe, types Ctrl-D on a terminal. `None` when the terminal takes nothing now.
    fn end(&mut self) -> Option<()> {
        match self {
            Self::Closed => {}
            Self::Pipe { .. } => *self = Self::Closed,
            Self::Terminal(master) => {
                let end = [pty::eof_character(&*master)];
                self.write(&end)?;
            }
        }
        Some(())
    }
}
