//! The way into a machine whose root file system and kernel are somebody's own: SSH as the user `sandbox`. Our agent is
//! brought along by it, and each operation is a channel to the agent's Unix socket.
//!
//! A channel whose reader stalls holds up all of its SSH connection. So an operation has a connection of its own while it
//! runs, and those that are free again are kept for the next one.

mod agent;
mod host;
mod key;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::{Channel, Error as AgentError, Transport};
use russh::client::{self, Handle, Msg};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg};
use russh::{ChannelOpenFailure, ChannelStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle as Runtime;

use crate::error::{Error, Result};
use host::Host;

pub use agent::move_in;
pub use key::read as read_key;

pub use crate::reach::{PORT, Reach, Settings, USER};

/// How long a new connection may take, from the first packet until the user is known.
const LOGS_IN_WITHIN: Duration = Duration::from_secs(30);

/// How long the opening of a channel may take.
const OPENS_WITHIN: Duration = Duration::from_secs(20);

/// Time between two attempts at a server that does not listen yet.
const PAUSE: Duration = Duration::from_millis(20);

/// Time between the two attempts at an agent that takes no connection, and how long its machine may take to say whether
/// the agent is there.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(300);
const SAYS_WITHIN: Duration = Duration::from_secs(20);

/// Free connections that are kept.
const KEPT: usize = 4;

/// A connection on which nothing was heard for this long is asked whether it is there, and how often in vain.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVES: usize = 6;

/// Whose server it is.
#[derive(Clone)]
pub struct Login {
    /// Where it listens.
    pub address: SocketAddr,
    /// Our key.
    pub key: Arc<PrivateKey>,
    /// The server's key in OpenSSH's form, once it is known.
    pub known: Option<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoLogin {
    /// Nobody listens there, or what listens breaks off: it may be about to begin.
    #[error("its SSH server cannot be reached: {0}")]
    Unreachable(String),
    /// Another server than the one that was there first.
    #[error("its SSH server shows another key than when the machine was made")]
    OtherKey,
    /// The server does not take our key.
    #[error("its SSH server does not let `{USER}` in with the key")]
    Refused,
}

impl Login {
    /// A connection on which the user is known, and the key that the server showed.
    async fn connect(&self) -> Result<(Handle<Host>, String), NoLogin> {
        let seen = Arc::new(Mutex::new(None));
        let unreachable = |why: &dyn std::fmt::Display| NoLogin::Unreachable(why.to_string());
        let logging_in = async {
            let stream = TcpStream::connect(self.address).await.map_err(|why| unreachable(&why))?;
            stream.set_nodelay(true).map_err(|why| unreachable(&why))?;
            let host = Host { known: self.known.clone(), seen: Arc::clone(&seen) };
            let config = client::Config {
                keepalive_interval: Some(KEEPALIVE),
                keepalive_max: KEEPALIVES,
                // What waits for a reader who stalls.
                channel_buffer_size: 16,
                ..client::Config::default()
            };
            let connected = client::connect_stream(Arc::new(config), stream, host).await;
            let mut handle = connected.map_err(|why| match why {
                russh::Error::UnknownKey => NoLogin::OtherKey,
                why => unreachable(&why),
            })?;
            let key = PrivateKeyWithHashAlg::new(Arc::clone(&self.key), None);
            let known = handle.authenticate_publickey(USER, key).await.map_err(|why| unreachable(&why))?;
            if known.success() { Ok(handle) } else { Err(NoLogin::Refused) }
        };
        let handle = match tokio::time::timeout(LOGS_IN_WITHIN, logging_in).await {
            Ok(handle) => handle?,
            Err(_) => return Err(unreachable(&format!("no answer within {} s", LOGS_IN_WITHIN.as_secs()))),
        };
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok((handle, seen.ok_or(NoLogin::OtherKey)?))
    }

    /// The first connection to a machine that has just been started, for as long as that may take.
    async fn first(&self, within: Duration) -> Result<(Handle<Host>, String), NoLogin> {
        let until = Instant::now() + within;
        let mut pause = PAUSE;
        loop {
            match self.connect().await {
                Err(NoLogin::Unreachable(_)) if Instant::now() < until => {}
                connected => return connected,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

/// Free connections to one machine.
#[derive(Default)]
struct Kept(Mutex<Vec<Handle<Host>>>);

impl Kept {
    fn take(&self) -> Option<Handle<Host>> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(handle) = free.pop() {
            if !handle.is_closed() {
                return Some(handle);
            }
        }
        None
    }

    fn put(&self, handle: Handle<Host>) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !handle.is_closed() && free.len() < KEPT {
            free.push(handle);
        }
    }
}

/// Reaches the agent of one machine by SSH.
pub struct SshTransport {
    login: Login,
    socket: String,
    kept: Arc<Kept>,
}

impl SshTransport {
    /// To the agent that was brought there.
    pub fn new(address: SocketAddr, key: Arc<PrivateKey>, reach: &Reach) -> Self {
        let login = Login { address, key, known: Some(reach.host_key.clone()) };
        Self { login, socket: reach.socket.clone(), kept: Arc::default() }
    }

    /// A channel on this connection, or why there is none.
    async fn open(&self, handle: &Handle<Host>) -> Result<ChannelStream<Msg>, russh::Error> {
        let opening = handle.channel_open_direct_streamlocal(self.socket.as_str());
        match tokio::time::timeout(OPENS_WITHIN, opening).await {
            Ok(opened) => opened.map(russh::Channel::into_stream),
            Err(_) => Err(russh::Error::ConnectionTimeout),
        }
    }

    /// The same, with a second attempt where the agent takes no connection: it may have been busy for a moment.
    async fn open_twice(&self, handle: &Handle<Host>) -> Result<ChannelStream<Msg>, russh::Error> {
        match self.open(handle).await {
            Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed)) => {
                tokio::time::sleep(ASKS_AGAIN_AFTER).await;
                self.open(handle).await
            }
            opened => opened,
        }
    }

    /// Whether the machine has no process any more that is the agent. A server says the same of a socket whose agent is
    /// over, of one whose agent is busy, and of one that it may not connect to.
    async fn is_over(&self, handle: &Handle<Host>) -> bool {
        let asked = tokio::time::timeout(SAYS_WITHIN, agent::is_over(handle, &self.socket)).await;
        asked.unwrap_or(false)
    }
}

#[async_trait]
impl Transport for SshTransport {
    async fn connect(&self) -> moltis_agent::error::Result<Channel> {
        loop {
            let (handle, is_new) = match self.kept.take() {
                Some(handle) => (handle, false),
                None => {
                    let connected = self.login.connect().await;
                    let (handle, _) = connected.map_err(|why| match why {
                        NoLogin::OtherKey => AgentError::Impostor(why.to_string()),
                        why => AgentError::Unreachable(io::Error::other(why)),
                    })?;
                    (handle, true)
                }
            };
            match self.open_twice(&handle).await {
                Ok(stream) => {
                    let way = Way {
                        stream: Some(stream),
                        handle: Some(handle),
                        kept: Arc::clone(&self.kept),
                        runtime: Runtime::current(),
                    };
                    return Ok(Channel::new(way));
                }
                Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed)) => {
                    let is_over = self.is_over(&handle).await;
                    self.kept.put(handle);
                    return Err(match is_over {
                        true => AgentError::Gone,
                        false => AgentError::Unreachable(io::Error::other(
                            "its SSH server finds no way to the agent's Unix socket, and it is not certain that the \
                             agent is over",
                        )),
                    });
                }
                Err(russh::Error::ChannelOpenFailure(why)) => {
                    let why = format!(
                        "its SSH server opens no way to a Unix socket ({why:?}): `AllowStreamLocalForwarding yes` \
                         in its sshd_config allows it"
                    );
                    return Err(AgentError::Unreachable(io::Error::other(why)));
                }
                // It broke while it was kept. Nothing has been said.
                Err(_) if !is_new => {}
                Err(why) => return Err(AgentError::Unreachable(io::Error::other(why.to_string()))),
            }
        }
    }

    /// Each has a connection of its own, and the server two processes for it.
    fn room(&self) -> usize {
        48
    }
}

/// A channel with the connection that it is alone on.
struct Way {
    stream: Option<ChannelStream<Msg>>,
    handle: Option<Handle<Host>>,
    kept: Arc<Kept>,
    runtime: Runtime,
}

impl Drop for Way {
    fn drop(&mut self) {
        // Closing a channel takes a task.
        let _entered = self.runtime.enter();
        drop(self.stream.take());
        if let Some(handle) = self.handle.take() {
            self.kept.put(handle);
        }
    }
}

impl Way {
    fn stream(&mut self) -> io::Result<Pin<&mut ChannelStream<Msg>>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncRead for Way {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, into)
    }
}

impl AsyncWrite for Way {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}

impl From<NoLogin> for Error {
    fn from(why: NoLogin) -> Self {
        Self::Ssh { why: why.to_string(), said: String::new() }
    }
}
