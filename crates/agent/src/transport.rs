//! How a sandbox's agent is reached: a connection for every operation.

mod relay;
#[cfg(target_os = "linux")]
mod unix;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, WriteHalf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

use crate::error::Result;

pub use relay::{RelaySecret, RelayTransport};
#[cfg(target_os = "linux")]
pub use unix::UnixTransport;

/// Reaches the agent of one sandbox.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Makes a new connection to the agent and makes sure that it is the agent. No byte has been sent on it.
    ///
    /// # Errors
    /// [`Unreachable`](crate::Error::Unreachable), [`Gone`](crate::Error::Gone) or [`Busy`](crate::Error::Busy) when
    /// there is no connection to be had, [`Impostor`](crate::Error::Impostor) when it is not the agent that answers.
    async fn connect(&self) -> Result<Channel>;

    /// Connections that programs inside may keep open through this at once; what else is done here needs some, too.
    fn room(&self) -> usize {
        4096
    }
}

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn Outward>;

/// The half of a channel that is written.
pub(crate) trait Outward: AsyncWrite + Send + Unpin {
    /// The Unix socket that it is, over which descriptors can be passed.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Outward for OwnedWriteHalf {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        let stream: &UnixStream = self.as_ref();
        Some(stream.as_fd())
    }
}

impl<T: AsyncWrite + Send> Outward for WriteHalf<T> {}

/// A connection to the agent in two halves that can be used at the same time. Dropping both closes it.
pub struct Channel {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl Channel {
    /// A channel over any two-way stream. `poll_shutdown` must end the outgoing direction alone.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }

    /// A channel over a Unix socket; cheaper than [`new`](Self::new), since its halves share no lock, and descriptors can
    /// be passed over it.
    pub fn unix(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}
