//! Behind the sandbox's proxy port: connections that programs inside make to it arrive here.
//!
//! A few ways wait there, each to carry one of a program, so that none of these has to wait until one is made. What is
//! taken is replaced. Over a Unix socket they are pairs of sockets whose other ends the agent is passed (`pairs`), else
//! connections to the agent. What code inside can do to all this is to keep its own
//! connections from coming: the number of those that wait or are open is bounded, and what fails is tried again ever
//! more slowly.

mod carried;
mod pairs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agent_protocol::message::{FailureCode, Reply, Request, TAKEN};
use moltis_sandbox::{Duplex, Forwarder};

use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::client::{Connection, Patience};
use crate::error::{Error, Result, Subject};
use crate::forward::RawStream;
use crate::transport::Transport;

use carried::Carried;
use pairs::Pairs;

/// Ways that wait to carry one, while few come.
const FEW: usize = 8;

/// The same while many come, at most.
const MANY: usize = 64;

/// Time between two connections within which many come.
const BUSY: Duration = Duration::from_millis(20);

/// Time without any after which fewer wait again.
const QUIET: Duration = Duration::from_secs(10);

/// Pause before the first new attempt at what has failed; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Pause after which there may be room for pairs again.
const FULL: Duration = Duration::from_millis(50);

/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Pairs that are lost, one after another, before connections are made instead: something keeps the forwarder from
/// getting descriptors.
const LOST: u32 = FEW as u32;

/// Time after which something that works has worked.
const SETTLED: Duration = Duration::from_secs(10);

/// Time after which a sandbox that is there, but lets nobody stand behind its port, is given up.
const GIVE_UP: Duration = Duration::from_secs(60);

/// Stands behind the proxy port of a sandbox. Must be called within a tokio runtime.
///
/// # Errors
/// [`Error::Failed`] with `Unsupported` where there is no such port; the errors of [`Connection::open`].
pub async fn stand(transport: &Arc<dyn Transport>, patience: Patience) -> Result<Standing> {
    let place = Place::take(&**transport, 0, patience).await?;
    Ok(Standing {
        transport: Arc::clone(transport),
        patience,
        port: place.port,
        place,
        pairs: Pairs::default(),
        lost: 0,
        again: None,
        parked: JoinSet::new(),
        wanted: FEW,
        came: Instant::now(),
        room: Arc::new(Semaphore::new(transport.room())),
        failures: 0,
        moves: 0,
    })
}

/// One attendance, which ends with its connection.
struct Place {
    connection: Connection,
    host: u64,
    port: u16,
    since: Instant,
}

impl Place {
    /// Takes one, behind this port if it can be had; 0 for any.
    async fn take(transport: &dyn Transport, port: u16, patience: Patience) -> Result<Self> {
        let mut connection = Connection::open(transport, &Request::Egress { port }, patience).await?;
        match connection.answer(Subject::Port).await? {
            Reply::Standing { host, port } if port != 0 => {
                Ok(Self { connection, host, port, since: Instant::now() })
            }
            _ => Err(Error::unexpected("instead of a place behind the proxy port")),
        }
    }

    /// Waits until it ends.
    async fn ended(&mut self) -> Result<()> {
        match self.connection.reader.part().await {
            Ok(None) | Err(Error::Lost(_)) => Ok(()),
            Ok(Some(_)) => Err(Error::unexpected("from the proxy port")),
            Err(error) => Err(error),
        }
    }
}

/// A connection that carries one, or waits to.
type Parked = (Connection, OwnedSemaphorePermit);

/// A place behind the proxy port. Dropping it gives it up; what has been accepted goes on.
pub struct Standing {
    transport: Arc<dyn Transport>,
    patience: Patience,
    port: u16,
    place: Place,
    pairs: Pairs,
    /// Pairs that were lost since the last one that was not.
    lost: u32,
    /// When to make pairs again, after it failed.
    again: Option<Instant>,
    parked: JoinSet<Result<Parked>>,
    /// How many should wait now.
    wanted: usize,
    /// When the last connection came.
    came: Instant,
    room: Arc<Semaphore>,
    /// Attempts to wait that have failed since the last one that did not.
    failures: u32,
    /// Places that were lost soon, one after another.
    moves: u32,
}

impl Standing {
    async fn next(&mut self) -> Result<Box<dyn Duplex>> {
        loop {
            self.refill();
            let (quiet, again) = (self.came + QUIET, self.again);
            let waiting = self.pairs.len().max(self.parked.len());
            tokio::select! {
                // First, lest what goes with it is taken for something else.
                biased;
                ended = self.place.ended() => {
                    ended?;
                    self.move_on().await?;
                }
                pair = self.pairs.next(), if !self.pairs.is_empty() => match pair {
                    Some(carried) => {
                        self.lost = 0;
                        self.count();
                        return Ok(Box::new(carried));
                    }
                    None => {
                        self.lost = self.lost.saturating_add(1);
                        self.fail();
                    }
                },
                Some(parked) = self.parked.join_next() => match parked {
                    Ok(Ok((connection, permit))) => {
                        self.count();
                        if let Some(stream) = take_over(connection).await {
                            return Ok(Box::new(Carried::new(Bytes::new(), stream, permit)));
                        }
                    }
                    Ok(Err(_)) | Err(_) => self.failures = self.failures.saturating_add(1),
                },
                () = tokio::time::sleep_until(again.unwrap_or(quiet).into()), if again.is_some() => {
                    self.again = None;
                }
                // What one of them has been offered meanwhile, another one is.
                () = tokio::time::sleep_until(quiet.into()), if waiting > FEW => {
                    self.pairs.truncate(FEW);
                    (self.parked, self.wanted) = (JoinSet::new(), FEW);
                }
            }
        }
    }

    /// A connection has come: the sooner after the last one, the more ways are to wait.
    fn count(&mut self) {
        self.failures = 0;
        let now = Instant::now();
        match now.duration_since(self.came) < BUSY {
            true => self.wanted = (self.wanted * 2).min(MANY),
            false => self.wanted = (self.wanted / 2).max(FEW),
        }
        self.came = now;
        // Before anything is waited for.
        self.refill();
    }

    /// Pairs have failed: none are made for a while.
    fn fail(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.again = Some(Instant::now() + pause_after(self.failures));
    }

    /// Sees to it that enough ways wait.
    fn refill(&mut self) {
        let socket = match self.lost < LOST {
            true => self.place.connection.writer.socket(),
            false => None,
        };
        let Some(socket) = socket else {
            while self.parked.len() < self.wanted {
                self.park();
            }
            return;
        };
        // Not one by one.
        if self.again.is_some() || self.pairs.len() > self.wanted / 2 {
            return;
        }
        let missing = self.wanted - self.pairs.len();
        if self.pairs.add(missing, &self.room, socket).is_err() {
            self.fail();
        } else if self.pairs.is_empty() {
            // As many are open as may be.
            self.again = Some(Instant::now() + FULL);
        }
    }

    /// One more connection that waits, once there is room for it.
    fn park(&mut self) {
        let (transport, room) = (Arc::clone(&self.transport), Arc::clone(&self.room));
        let (host, patience, pause) = (self.place.host, self.patience, pause_after(self.failures));
        self.parked.spawn(async move {
            let permit = room.acquire_owned().await.map_err(|_| Error::Gone)?;
            tokio::time::sleep(pause).await;
            let mut connection = Connection::open(&*transport, &Request::Carry { host }, patience).await?;
            // However long that takes: until a program connects.
            match connection.reader.reply(Subject::Port).await? {
                Reply::Connected => Ok((connection, permit)),
                _ => Err(Error::unexpected("instead of a connection")),
            }
        });
    }

    /// Takes a new place after the old one was lost: code inside may have killed the process that gave it.
    async fn move_on(&mut self) -> Result<()> {
        let began = Instant::now();
        if self.place.since.elapsed() >= SETTLED {
            self.moves = 0;
        }
        loop {
            self.moves = self.moves.saturating_add(1);
            tokio::time::sleep(pause_after(self.moves)).await;
            match Place::take(&*self.transport, self.port, self.patience).await {
                Ok(place) if place.port == self.port => {
                    (self.pairs, self.parked) = (Pairs::default(), JoinSet::new());
                    (self.place, self.failures, self.lost, self.again) = (place, 0, 0, None);
                    return Ok(());
                }
                Ok(_) => return Err(Error::Protocol("its proxy port has changed".to_owned())),
                Err(error) if began.elapsed() >= GIVE_UP || !may_pass(&error) => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Whether another attempt may bring something else.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Lost(_) | Error::Silent(_) | Error::Busy(_) => true,
        Error::Failed(_, failure) => matches!(failure.code, FailureCode::Exhausted | FailureCode::NotFound),
        _ => false,
    }
}

fn pause_after(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        more => FIRST_PAUSE.saturating_mul(1 << (more - 1).min(16)).min(LONGEST_PAUSE),
    }
}

/// Says that a connection is taken; `None` when it has been given to somebody else by now, or is gone.
async fn take_over(connection: Connection) -> Option<RawStream> {
    let mut stream = RawStream::new(connection.reader, connection.writer);
    stream.write_all(&TAKEN).await.ok()?;
    stream.flush().await.ok()?;
    Some(stream)
}

#[async_trait]
impl Forwarder for Standing {
    fn port(&self) -> u16 {
        self.port
    }

    async fn accept(&mut self) -> moltis_sandbox::Result<Box<dyn Duplex>> {
        Ok(self.next().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        let millis = |failures| pause_after(failures).as_millis();
        assert_eq!([0, 1, 2, 5, 8, u32::MAX].map(millis), [0, 10, 20, 160, 1000, 1000]);
    }
}
