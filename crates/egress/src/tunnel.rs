//! Bytes both ways, once a connection is let through. An idle tunnel holds no buffer.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

use crate::hello::{Greeting, Sniffer};
use crate::journal::Passage;
use crate::limits::ProxyLimits;
use crate::refusal::Refusal;
use crate::session::Watch;

/// What is read at once when much comes, and when little does.
const MOST: usize = 128 * 1024;
const LEAST: usize = 8 * 1024;
/// How much may be held for slow readers, in all tunnels together, before each gets little.
const HELD: usize = 32 * 1024 * 1024;
/// How often one direction is served before the other has its turn.
const TURNS: usize = 8;
/// How long the decision waits to be written down for the first bytes, which say what kind of tunnel it is.
const FIRST: Duration = Duration::from_secs(1);
/// How many times within the idle time it is looked whether something moved.
const LOOKS: u32 = 4;

/// What slow readers have not taken yet, in all tunnels of the process.
static HOLDING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Where bytes are on their way from one side to the other. One for all tunnels of a thread.
    static SPACE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Lends this thread's space.
fn with_space<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut space = SPACE.take().unwrap_or_else(|| vec![0; MOST].into_boxed_slice());
    let done = work(&mut space);
    SPACE.set(Some(space));
    done
}

/// Bytes that could not be written at once.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    at: usize,
}

impl Rest {
    fn hold(&mut self, bytes: Vec<u8>) {
        HOLDING.fetch_add(bytes.len(), Ordering::Relaxed);
        self.release();
        self.bytes = bytes;
    }

    fn release(&mut self) {
        HOLDING.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        *self = Self { bytes: Vec::new(), at: 0 };
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

/// One direction.
struct Half {
    rest: Rest,
    chunk: usize,
    ended: bool,
    flush: bool,
    done: bool,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.rest.release();
    }
}

/// Which of its ends broke off.
enum Broken {
    From,
    To,
}

/// How serving one direction for a while went on.
enum Served {
    /// It waits for one of its ends.
    Waits,
    /// There is more to do: the other direction has its turn first.
    Again,
    /// Bytes came and are in the rest, to be looked at.
    Held,
    /// It is over.
    Over,
}

impl Half {
    fn new() -> Self {
        Self { rest: Rest::default(), chunk: LEAST, ended: false, flush: false, done: false }
    }

    /// Moves bytes. `moved` is told how many were written. With `hold` nothing is written: what comes is kept in the rest. `last`
    /// says that the other direction has come to its end.
    fn serve<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        (hold, last): (bool, bool),
        mut moved: impl FnMut(usize),
    ) -> Result<Served, Broken>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..TURNS {
            while !self.rest.left().is_empty() {
                match Pin::new(&mut *to).poll_write(cx, self.rest.left()) {
                    Poll::Ready(Ok(0) | Err(_)) => return Err(Broken::To),
                    Poll::Ready(Ok(written)) => {
                        self.rest.at += written;
                        self.flush = true;
                        moved(written);
                    }
                    Poll::Pending => return Ok(Served::Waits),
                }
            }
            if !self.rest.bytes.is_empty() {
                self.rest.release();
            }
            if self.ended {
                if hold {
                    return Ok(Served::Held);
                }
                // The last to end need not be told so: it is closed.
                let told = match last {
                    true => Pin::new(&mut *to).poll_flush(cx),
                    false => Pin::new(&mut *to).poll_shutdown(cx),
                };
                return Ok(match told {
                    Poll::Ready(_) => Served::Over,
                    Poll::Pending => Served::Waits,
                });
            }
            let most = if HOLDING.load(Ordering::Relaxed) < HELD { self.chunk } else { LEAST };
            let read = with_space(|space| {
                let mut buffer = ReadBuf::new(&mut space[..most]);
                match Pin::new(&mut *from).poll_read(cx, &mut buffer) {
                    Poll::Pending => return Ok(None),
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Err(Broken::From),
                }
                let mut bytes = buffer.filled();
                let length = bytes.len();
                while !bytes.is_empty() && !hold {
                    match Pin::new(&mut *to).poll_write(cx, bytes) {
                        Poll::Ready(Ok(0) | Err(_)) => return Err(Broken::To),
                        Poll::Ready(Ok(written)) => {
                            bytes = &bytes[written..];
                            self.flush = true;
                            moved(written);
                        }
                        Poll::Pending => break,
                    }
                }
                if !bytes.is_empty() {
                    self.rest.hold(bytes.to_vec());
                }
                Ok(Some(length))
            })?;
            match read {
                None => {
                    if self.flush {
                        match Pin::new(&mut *to).poll_flush(cx) {
                            Poll::Ready(Ok(())) => self.flush = false,
                            Poll::Ready(Err(_)) => return Err(Broken::To),
                            Poll::Pending => {}
                        }
                    }
                    return Ok(Served::Waits);
                }
                Some(0) => self.ended = true,
                Some(length) if length == most => self.chunk = (self.chunk * 2).min(MOST),
                Some(length) if length < LEAST => self.chunk = LEAST,
                Some(_) => {}
            }
            if hold {
                return Ok(Served::Held);
            }
        }
        Ok(Served::Again)
    }
}

/// What happened in a tunnel that has to be seen to.
enum Seen {
    /// The first bytes from inside, or their end.
    First(Vec<u8>, bool),
    /// The host has spoken.
    Host,
    /// Both directions are over.
    Over,
}

/// Both directions.
struct Relay<'a, C, S> {
    client: &'a mut C,
    server: &'a mut S,
    up: Half,
    down: Half,
    holding: bool,
    quiet: bool,
}

impl<C, S> Relay<'_, C, S>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll(&mut self, cx: &mut Context<'_>, passage: &Passage) -> Poll<Seen> {
        let mut again = false;
        if !self.up.done {
            let sent = |length: usize| passage.moved(length, 0);
            match self.up.serve(cx, self.client, self.server, (self.holding, self.down.done), sent) {
                Ok(Served::Waits) => {}
                Ok(Served::Again) => again = true,
                Ok(Served::Held) => {
                    let bytes = self.up.rest.left().to_vec();
                    self.up.rest.release();
                    return Poll::Ready(Seen::First(bytes, self.up.ended));
                }
                // If the host takes no more, what it still says is still wanted.
                Ok(Served::Over) | Err(Broken::To) => self.up.done = true,
                Err(Broken::From) => return Poll::Ready(Seen::Over),
            }
        }
        if !self.down.done {
            let mut spoke = false;
            let received = |length: usize| {
                passage.moved(0, length);
                spoke = true;
            };
            match self.down.serve(
                cx,
                self.server,
                self.client,
                (false, self.up.done && self.up.ended),
                received,
            ) {
                Ok(Served::Waits) => {}
                Ok(Served::Again) => again = true,
                Ok(Served::Held) => {}
                Ok(Served::Over) => self.down.done = true,
                // Nobody is there any more to tell it to, or it broke off, which the program inside has to see.
                Err(_) => return Poll::Ready(Seen::Over),
            }
            if spoke && std::mem::replace(&mut self.quiet, false) {
                return Poll::Ready(Seen::Host);
            }
        }
        if self.up.done && self.down.done {
            return Poll::Ready(Seen::Over);
        }
        if again {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Moves bytes both ways until both are done, nothing moves any more, or it is no longer let through.
pub(crate) async fn run<C, S>(
    client: &mut C,
    server: &mut S,
    mut watch: Watch,
    passage: &mut Passage,
    limits: &ProxyLimits,
) where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay { client, server, up: Half::new(), down: Half::new(), holding: true, quiet: true };
    let mut sniffer = Some(Sniffer::default());
    let names = watch.names();
    let revoked = watch.revoked();
    tokio::pin!(revoked);
    let mut greeting = None;
    let mut opened = false;
    let (mut before, mut still) = ((0, 0), 0);
    let timer = sleep_until(Instant::now() + FIRST);
    tokio::pin!(timer);
    loop {
        tokio::select! {
            biased;
            why = &mut revoked => {
                passage.refuse(why);
                return;
            }
            seen = std::future::poll_fn(|cx| relay.poll(cx, passage)) => match seen {
                Seen::Over => return,
                Seen::Host => {
                    passage.open();
                    opened = true;
                }
                Seen::First(bytes, ended) => {
                    let Some(first) = &mut sniffer else { return };
                    let known = match first.take(&bytes) {
                        Greeting::Unfinished if ended && !first.is_empty() => {
                            Greeting::Broken("it ends within the greeting")
                        }
                        Greeting::Unfinished if ended => Greeting::Other,
                        known => known,
                    };
                    match known {
                        Greeting::Unfinished => {
                            if greeting.is_none() {
                                let until = Instant::now() + limits.hello_time;
                                greeting = Some(until);
                                timer.as_mut().reset(until);
                            }
                            continue;
                        }
                        Greeting::Other => {}
                        Greeting::Tls(name) => {
                            if let Err(why) = names.sni(name) {
                                passage.refuse(why);
                                return;
                            }
                            passage.is_tls();
                        }
                        Greeting::Broken(why) => {
                            passage.refuse(Refusal::Hello(why));
                            return;
                        }
                    }
                    passage.open();
                    opened = true;
                    greeting = None;
                    relay.holding = false;
                    if let Some(first) = sniffer.take() {
                        relay.up.rest.hold(first.into_bytes());
                    }
                }
            },
            () = &mut timer => {
                let now = Instant::now();
                if greeting.is_some_and(|until| until <= now) {
                    passage.refuse(Refusal::Slow);
                    return;
                }
                if greeting.is_none() && !opened {
                    passage.open();
                    opened = true;
                } else if greeting.is_none() {
                    let moved = passage.counts().now();
                    still = if moved == before { still + 1 } else { 0 };
                    before = moved;
                    if still >= LOOKS {
                        passage.counts().idle.store(true, Ordering::Relaxed);
                        return;
                    }
                }
                let next = match greeting {
                    Some(until) => until,
                    None => now + limits.tunnel_idle / LOOKS,
                };
                timer.as_mut().reset(next);
            }
        }
    }
}
