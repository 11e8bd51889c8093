//! A relay beside an agent: a program of ours that the engine runs in the container, and that carries all connections
//! to the agent over its standard streams. One that has ended is replaced by another.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::container::relay_args;
use moltis_agent::transport::{RelaySecret, RelayTransport};
use moltis_agent::{Channel, Error, Transport};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Mutex, mpsc};

use crate::engine::{Engine, ExecSpec, Output, Stream};
use crate::opening::{GUEST, SOCKET_INSIDE};

/// User and group of relays: nobody whom a command runs as, so that none can trace or signal one.
const RELAY: (u32, u32) = (65533, 65533);

/// How long a relay may take to reach the agent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pieces of output that wait for whoever reads them.
const DEPTH: usize = 16;

/// The way to an agent through the engine.
pub struct RelayWay {
    engine: Arc<dyn Engine>,
    container: String,
    secret: RelaySecret,
    current: Mutex<Option<Arc<RelayTransport>>>,
}

impl RelayWay {
    /// To the agent in this container, which knows the secret, or will know it from the first relay.
    pub fn new(engine: Arc<dyn Engine>, container: String, secret: RelaySecret) -> Self {
        Self { engine, container, secret, current: Mutex::new(None) }
    }

    /// Waits until the agent knows the secret.
    ///
    /// # Errors
    /// When the relay does not reach it.
    pub async fn ready(&self) -> moltis_agent::error::Result<()> {
        let mut current = self.current.lock().await;
        let relay = match current.as_ref().filter(|relay| !relay.has_ended()) {
            Some(relay) => Arc::clone(relay),
            None => self.begin().await?,
        };
        *current = Some(Arc::clone(&relay));
        relay.ready(PATIENCE).await
    }

    async fn begin(&self) -> moltis_agent::error::Result<Arc<RelayTransport>> {
        let mut argv = vec![GUEST.to_owned()];
        argv.extend(relay_args(SOCKET_INSIDE));
        let directory = Some("/".to_owned());
        let spec = ExecSpec { argv, user: Some(RELAY), directory, env: Vec::new(), terminal: None };
        let unreachable = |error: String| Error::Unreachable(io::Error::other(error));
        let running =
            self.engine.exec(&self.container, &spec).await.map_err(|error| unreachable(error.to_string()))?;
        let (sender, pieces) = mpsc::channel(DEPTH);
        tokio::spawn(pump(running.output, sender));
        let reader = Pieces { pieces, left: VecDeque::new() };
        Ok(Arc::new(RelayTransport::new(reader, running.stdin, &self.secret)))
    }
}

#[async_trait]
impl Transport for RelayWay {
    async fn connect(&self) -> moltis_agent::error::Result<Channel> {
        let mut current = self.current.lock().await;
        if let Some(relay) = current.as_ref() {
            match relay.connect().await {
                // It has ended: perhaps not the agent.
                Err(Error::Gone) => {}
                connected => return connected,
            }
        }
        let relay = self.begin().await?;
        let connected = relay.connect().await;
        *current = Some(relay);
        connected
    }

    fn room(&self) -> usize {
        RelayTransport::ROOM
    }
}

/// A secret as it was written down.
pub fn secret_of(hex: &str) -> Option<RelaySecret> {
    let mut secret = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in secret.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(RelaySecret::from_bytes(secret))
}

/// Passes on what the relay writes, until nobody reads it any more.
async fn pump(mut output: Box<dyn Output>, pieces: mpsc::Sender<io::Result<Vec<u8>>>) {
    loop {
        let piece = match output.next().await {
            Ok(Some((Stream::Stdout, piece))) => Ok(piece),
            // What it complains of is nothing that a machine reads.
            Ok(Some((Stream::Stderr, _))) => continue,
            Ok(None) => return,
            Err(error) => Err(io::Error::other(error)),
        };
        if pieces.send(piece).await.is_err() {
            return;
        }
    }
}

/// What the relay wrote, to be read.
struct Pieces {
    pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    left: VecDeque<u8>,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.left.is_empty() {
            match ready!(self.pieces.poll_recv(context)) {
                Some(Ok(piece)) => self.left = piece.into(),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
        let (front, _) = self.left.as_slices();
        let count = front.len().min(buffer.remaining());
        buffer.put_slice(&front[..count]);
        self.left.drain(..count);
        Poll::Ready(Ok(()))
    }
}
