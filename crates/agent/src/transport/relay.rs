//! An agent that is reached through a relay: a process beside it, whose standard input and output an engine carries.
//! What comes from there is as hostile as what comes from an agent.

mod link;
mod secret;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent_protocol::relay::MAX_STREAMS;
use tokio::io::{AsyncRead, AsyncWrite};

pub use secret::RelaySecret;

use super::{Channel, Transport};
use crate::error::{Error, Result};
use link::Link;
use stream::{StreamReader, StreamWriter};

/// How long a relay that carries as many streams as it can is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reaches an agent through a relay's standard input and output. Dropping it and all its channels closes them, which
/// ends the relay.
pub struct RelayTransport {
    link: Arc<Link>,
}

impl RelayTransport {
    /// Connections that programs inside may keep open through one relay, which carries so many streams and no more.
    pub const ROOM: usize = MAX_STREAMS / 2;

    /// Talks to the relay whose standard output and input these are; it must have been started for this and nothing may
    /// have been said. `secret` is the sandbox's. Must be called within a tokio runtime.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        secret: &RelaySecret,
    ) -> Self {
        Self { link: Arc::new(Link::new(Box::new(reader), Box::new(writer), secret)) }
    }

    /// Waits until the relay has reached the agent, which from then on knows the secret. Only then may a first command
    /// run in the sandbox.
    ///
    /// # Errors
    /// [`Error::Gone`] when the relay ended instead (it says why on its standard error), [`Error::Version`] when it is
    /// of another version, [`Error::Silent`] when it does neither in time.
    pub async fn ready(&self, patience: Duration) -> Result<()> {
        match tokio::time::timeout(patience, self.link.greeted()).await {
            Ok(greeted) => greeted,
            Err(_) => Err(Error::Silent(patience)),
        }
    }

    /// Waits until the relay has ended; from then on every connection fails with [`Error::Gone`].
    pub async fn ended(&self) {
        self.link.ended().await;
    }

    /// Whether the relay has ended.
    pub fn has_ended(&self) -> bool {
        self.link.has_ended()
    }
}

#[async_trait]
impl Transport for RelayTransport {
    async fn connect(&self) -> Result<Channel> {
        let opened = tokio::time::timeout(PATIENCE, Link::open(&self.link)).await;
        let stream = Arc::new(opened.map_err(|_| Error::Busy(PATIENCE))??);
        Ok(Channel {
            reader: Box::new(StreamReader(Arc::clone(&stream))),
            writer: Box::new(StreamWriter(stream)),
        })
    }

    fn room(&self) -> usize {
        Self::ROOM
    }
}

impl std::fmt::Debug for RelayTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RelayTransport")
    }
}
