//! What a server may do to us: show its key, and answer.

use std::sync::{Arc, Mutex, PoisonError};

use russh::Channel;
use russh::client::{self, ChannelOpenHandle, Msg, Session};

/// How a connection ends on which the server opened a channel.
const UNASKED: russh::Error = russh::Error::WrongChannel;

/// Looks at the server's key. Nobody asks the server for a channel of its own: the first one ends the connection, and
/// nothing is kept of it.
pub(super) struct Host {
    /// The key that it has to have, once it is known.
    pub known: Option<String>,
    /// The key that it showed.
    pub seen: Arc<Mutex<Option<String>>>,
}

impl client::Handler for Host {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &russh::keys::PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let russh::keys::PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        let mut bare = key.clone();
        bare.set_comment("");
        let Ok(text) = bare.to_openssh() else { return Ok(false) };
        let good = self.known.as_ref().is_none_or(|known| *known == text);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        Ok(good)
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }

    async fn server_channel_open_unknown(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        Err(UNASKED)
    }
}
