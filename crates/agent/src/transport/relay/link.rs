//! The two ends of a relay's pipes, and the streams on them.
//!
//! One task reads and one writes, each with its half and nothing else; all that they share is behind one lock that is
//! held for as long as copying a few bytes takes. The reader never waits for a stream: each has room for its window.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::{Buf, BytesMut};
use moltis_agent_protocol::HelloError;
use moltis_agent_protocol::hello::{self, HELLO_BYTES};
use moltis_agent_protocol::relay::{Credit, Decoder, Header, Kind, MAX_STREAMS, Part, RelayError, Window};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::secret::RelaySecret;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::transport::Reader;

/// Where bytes for the relay go.
type Pipe = Box<dyn AsyncWrite + Send + Unpin>;

/// Bytes that are read from the relay at once.
const READ_BYTES: usize = 128 * 1024;

/// Bytes on their way to the relay from which on streams wait.
pub(super) const FULL: usize = 1024 * 1024;

/// A relay, while anybody uses it.
pub(super) struct Link {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

/// How far a relay has come.
#[derive(Clone, Debug)]
enum Phase {
    /// It has said nothing yet.
    Starting,
    /// It carries streams.
    Serving,
    /// It carries nothing any more.
    Over(Reason),
}

/// Why a relay is over.
#[derive(Clone, Debug)]
enum Reason {
    /// One of its pipes has ended.
    Ended,
    /// It speaks another version.
    Version(HelloError),
    /// It does not keep to the protocol.
    Protocol(String),
}

pub(super) struct Shared {
    state: Mutex<State>,
    phase: watch::Sender<Phase>,
    /// There is something to write.
    outgoing: Notify,
    /// There is room for a stream.
    room: Notify,
}

/// What is behind the lock.
pub(super) struct State {
    pub(super) out: BytesMut,
    pub(super) is_over: bool,
    /// The last stream that was opened.
    last: u32,
    pub(super) streams: HashMap<u32, Side>,
}

/// Our side of one stream.
#[derive(Default)]
pub(super) struct Side {
    pub(super) incoming: BytesMut,
    pub(super) window: Window,
    pub(super) credit: Credit,
    /// The agent sends no more.
    pub(super) is_read: bool,
    /// We send no more.
    pub(super) is_finished: bool,
    /// It is over in both directions.
    pub(super) is_reset: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl State {
    pub(super) fn push(&mut self, stream: u32, kind: Kind, length: u32) {
        self.out.extend_from_slice(&Header { stream, kind, length }.encode());
    }

    fn take(&mut self, part: Part<'_>) -> Result<Option<Waker>, RelayError> {
        let header = match part {
            Part::Data(number, data) => {
                let Some(side) = self.streams.get_mut(&number) else { return Ok(None) };
                side.incoming.extend_from_slice(data);
                return Ok(side.reader.take());
            }
            Part::Header(header) => header,
        };
        let Header { stream: number, kind, length } = header;
        if kind == Kind::Open || number > self.last {
            return Err(RelayError::Stream(kind, number));
        }
        // One that was let go here is still spoken of on the way.
        let Some(side) = self.streams.get_mut(&number) else { return Ok(None) };
        if side.is_reset || (side.is_read && matches!(kind, Kind::Data | Kind::Eof)) {
            return Err(RelayError::Stream(kind, number));
        }
        Ok(match kind {
            Kind::Data => {
                side.window.received(number, length)?;
                None
            }
            Kind::Credit => {
                side.credit.grant(number, length)?;
                side.writer.take()
            }
            Kind::Eof => {
                side.is_read = true;
                side.reader.take()
            }
            Kind::Reset => {
                side.is_reset = true;
                if let Some(writer) = side.writer.take() {
                    writer.wake();
                }
                side.reader.take()
            }
            Kind::Open => None,
        })
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to write.
    pub(super) fn stir(&self) {
        self.outgoing.notify_one();
    }

    /// A stream was let go.
    pub(super) fn make_room(&self) {
        self.room.notify_one();
    }

    fn end(&self, reason: Reason) {
        let wakers: Vec<Waker> = {
            let mut state = self.lock();
            state.is_over = true;
            state.out = BytesMut::new();
            state
                .streams
                .values_mut()
                .flat_map(|side| [side.reader.take(), side.writer.take()])
                .flatten()
                .collect()
        };
        self.phase.send_if_modified(|phase| {
            let is_first = !matches!(phase, Phase::Over(_));
            if is_first {
                *phase = Phase::Over(reason);
            }
            is_first
        });
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify_waiters();
        self.stir();
    }

    async fn read(&self, mut reader: Reader) -> Reason {
        let mut theirs = [0; HELLO_BYTES];
        if reader.read_exact(&mut theirs).await.is_err() {
            return Reason::Ended;
        }
        match hello::check(theirs) {
            Ok(()) => {
                self.phase.send_if_modified(|phase| {
                    let is_first = matches!(phase, Phase::Starting);
                    if is_first {
                        *phase = Phase::Serving;
                    }
                    is_first
                });
            }
            Err(error @ HelloError::Version { .. }) => return Reason::Version(error),
            Err(error @ HelloError::Magic) => return Reason::Protocol(error.to_string()),
        }
        let mut buffer = vec![0; READ_BYTES];
        let mut decoder = Decoder::default();
        let mut wakers = Vec::new();
        loop {
            let count = match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => return Reason::Ended,
                Ok(count) => count,
            };
            let mut bytes = &buffer[..count];
            {
                let mut state = self.lock();
                loop {
                    match decoder.next(&mut bytes) {
                        Ok(Some(part)) => match state.take(part) {
                            Ok(waker) => wakers.extend(waker),
                            Err(error) => return Reason::Protocol(error.to_string()),
                        },
                        Ok(None) => break,
                        Err(error) => return Reason::Protocol(error.to_string()),
                    }
                }
            }
            wakers.drain(..).for_each(Waker::wake);
        }
    }

    async fn write(&self, mut writer: Pipe, secret: RelaySecret) -> io::Result<()> {
        let opening = [&hello::hello()[..], secret.as_bytes()].concat();
        writer.write_all(&opening).await?;
        writer.flush().await?;
        loop {
            let mut bytes = {
                let mut state = self.lock();
                if state.is_over {
                    return Ok(());
                }
                state.out.split()
            };
            if bytes.is_empty() {
                self.outgoing.notified().await;
                continue;
            }
            let was_full = bytes.len() >= FULL;
            while bytes.has_remaining() {
                writer.write_buf(&mut bytes).await?;
            }
            writer.flush().await?;
            if was_full {
                let mut state = self.lock();
                let wakers: Vec<Waker> =
                    state.streams.values_mut().filter_map(|side| side.writer.take()).collect();
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }
}

impl Link {
    pub(super) fn new(reader: Reader, writer: Pipe, secret: &RelaySecret) -> Self {
        let state = State { out: BytesMut::new(), is_over: false, last: 0, streams: HashMap::new() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            phase: watch::Sender::new(Phase::Starting),
            outgoing: Notify::new(),
            room: Notify::new(),
        });
        let (reading, writing, secret) = (Arc::clone(&shared), Arc::clone(&shared), secret.clone());
        let tasks = [
            tokio::spawn(async move {
                let reason = reading.read(reader).await;
                reading.end(reason);
            })
            .abort_handle(),
            tokio::spawn(async move {
                let _ = writing.write(writer, secret).await;
                writing.end(Reason::Ended);
            })
            .abort_handle(),
        ];
        Self { shared, tasks }
    }

    pub(super) async fn greeted(&self) -> Result<()> {
        let mut phase = self.shared.phase.subscribe();
        match phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await.as_deref() {
            Ok(Phase::Over(reason)) => Err(error(reason)),
            _ => Ok(()),
        }
    }

    pub(super) async fn ended(&self) {
        let mut phase = self.shared.phase.subscribe();
        let _ = phase.wait_for(|phase| matches!(phase, Phase::Over(_))).await;
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Over(_))
    }

    /// Opens a stream, once there is room for one.
    pub(super) async fn open(link: &Arc<Self>) -> Result<Stream> {
        let shared = &link.shared;
        loop {
            let room = shared.room.notified();
            {
                let mut state = shared.lock();
                if state.is_over {
                    // A relay of another version is told from one that is gone.
                    return Err(match &*shared.phase.borrow() {
                        Phase::Over(reason @ Reason::Version(_)) => error(reason),
                        _ => Error::Gone,
                    });
                }
                if state.streams.len() < MAX_STREAMS {
                    let number = state.last.checked_add(1).ok_or(Error::Gone)?;
                    state.last = number;
                    state.streams.insert(number, Side::default());
                    state.push(number, Kind::Open, 0);
                    drop(state);
                    // Not stirred: the first bytes on it follow at once, or its end.
                    return Ok(Stream { link: Arc::clone(link), number });
                }
            }
            room.await;
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

fn error(reason: &Reason) -> Error {
    match reason {
        Reason::Ended => Error::Gone,
        Reason::Version(error) => Error::Version(*error),
        Reason::Protocol(problem) => Error::Protocol(format!("its relay: {problem}")),
    }
}
