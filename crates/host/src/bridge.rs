//! Between streams and blocking work: bytes go through a short queue in both directions, so that neither side runs
//! ahead of the other and no asynchronous thread waits for a disk.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use moltis_sandbox::{ByteStream, Diagnosis, Error, Result};
use tokio::sync::mpsc;

/// Pieces that may wait; a piece has at most 256 KiB.
const WAITING: usize = 4;

/// Bytes of a piece.
pub const PIECE: usize = 256 * 1024;

enum Part<T> {
    Some(Result<T>),
    End,
}

/// What blocking work gives out. Its reader may be gone.
pub struct Out<T> {
    send: mpsc::Sender<Part<T>>,
}

impl<T> Out<T> {
    /// Gives one piece; waits while the reader is behind.
    ///
    /// # Errors
    /// When nobody reads any more: the work is to end.
    pub fn give(&self, piece: T) -> Result<()> {
        self.send.blocking_send(Part::Some(Ok(piece))).map_err(|_| broken())
    }
}

/// What follows the last piece.
fn last<T>(done: Result<()>) -> Part<T> {
    match done {
        Ok(()) => Part::End,
        Err(error) => Part::Some(Err(error)),
    }
}

/// Runs work that gives out pieces as they are read. They end with its error, if it has one.
pub fn produce<T: Send + 'static>(
    work: impl FnOnce(&Out<T>) -> Result<()> + Send + 'static,
) -> Pin<Box<dyn Stream<Item = Result<T>> + Send>> {
    let (send, receive) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let out = Out { send };
        let done = work(&out);
        // The reader may be gone.
        let _ = out.send.blocking_send(last(done));
    });
    Box::pin(Produced { receive: Some(receive) })
}

/// A stream that comes out of work on another one.
pub fn pass(
    content: ByteStream,
    work: impl FnOnce(&mut Inflow, &Out<Bytes>) -> Result<()> + Send + 'static,
) -> ByteStream {
    let (send, receive) = mpsc::channel(WAITING);
    let end = send.clone();
    tokio::spawn(async move {
        let out = Out { send };
        let done = consume(content, move |inflow| work(inflow, &out)).await;
        // As above.
        let _ = end.send(last(done)).await;
    });
    Box::pin(Produced { receive: Some(receive) })
}

struct Produced<T> {
    receive: Option<mpsc::Receiver<Part<T>>>,
}

impl<T> Stream for Produced<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(receive) = &mut self.receive else { return Poll::Ready(None) };
        let item = match std::task::ready!(receive.poll_recv(cx)) {
            Some(Part::Some(Ok(piece))) => return Poll::Ready(Some(Ok(piece))),
            Some(Part::Some(Err(error))) => Some(Err(error)),
            Some(Part::End) => None,
            // Without an end it is not all.
            None => Some(Err(broken())),
        };
        self.receive = None;
        Poll::Ready(item)
    }
}

/// What blocking work takes in.
pub struct Inflow {
    receive: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    over: bool,
}

impl Inflow {
    /// The next bytes, `limit` at most and at least one; `None` at the end.
    ///
    /// # Errors
    /// When the stream broke off before its end.
    pub fn next(&mut self, limit: u64) -> Result<Option<Bytes>> {
        while self.piece.is_empty() {
            if self.over {
                return Ok(None);
            }
            match self.receive.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.over = true,
                None => return Err(broken()),
            }
        }
        let count = usize::try_from(limit).map_or(self.piece.len(), |limit| limit.min(self.piece.len()));
        Ok(Some(self.piece.split_to(count)))
    }

    /// Fills `target` as far as there is content, and says how far.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn fill(&mut self, target: &mut [u8]) -> Result<usize> {
        let mut have = 0;
        while have < target.len() {
            let Some(bytes) = self.next((target.len() - have) as u64)? else { break };
            target[have..have + bytes.len()].copy_from_slice(&bytes);
            have += bytes.len();
        }
        Ok(have)
    }
}

/// Runs work that takes a stream in, and waits until it is over: on an error of the stream too, so that nothing of it
/// is left half done. When the future is dropped the work ends by itself.
///
/// # Errors
/// The stream's, else the work's.
pub async fn consume<T: Send + 'static>(
    mut content: ByteStream,
    work: impl FnOnce(&mut Inflow) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::channel(WAITING);
    let mut task =
        tokio::task::spawn_blocking(move || work(&mut Inflow { receive, piece: Bytes::new(), over: false }));
    let pumped = {
        let pump = async {
            while let Some(piece) = content.next().await {
                let piece = piece?;
                if !piece.is_empty() && send.send(Some(piece)).await.is_err() {
                    // The work is over; its answer says why.
                    return Ok(());
                }
            }
            // As above.
            let _ = send.send(None).await;
            Ok(())
        };
        tokio::select! {
            done = &mut task => return joined(done),
            pumped = pump => pumped,
        }
    };
    drop(send);
    let done = joined(task.await);
    pumped.and(done)
}

fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|_| Err(broken()))
}

fn broken() -> Error {
    Error::Unavailable(
        Diagnosis::new("stream-broken", "the transfer broke off before its end")
            .fix("try again; if it stays, report it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pieces: Vec<Result<Bytes>>) -> ByteStream {
        Box::pin(futures_util::stream::iter(pieces))
    }

    fn all(inflow: &mut Inflow) -> Result<Vec<u8>> {
        let mut whole = Vec::new();
        while let Some(piece) = inflow.next(3)? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    #[tokio::test]
    async fn what_goes_in_arrives_whole_or_not_at_all() {
        let pieces = ["ab", "", "cdefg"].map(|piece| Ok(Bytes::from(piece)));
        assert_eq!(consume(stream(pieces.into()), all).await, Ok(b"abcdefg".to_vec()));
        let wrong = Error::Refused(Diagnosis::new("no", "no"));
        let pieces = vec![Ok(Bytes::from("ab")), Err(wrong.clone())];
        assert_eq!(consume(stream(pieces), all).await, Err(wrong.clone()));
        // Work that ends early is not waited for by way of a stream that goes on.
        let endless: ByteStream = Box::pin(futures_util::stream::repeat(Ok(Bytes::from("x"))));
        assert_eq!(consume(endless, move |_| Err::<(), _>(wrong)).await.unwrap_err().code(), "no");
        let silent: ByteStream = Box::pin(futures_util::stream::pending());
        assert_eq!(consume(silent, |_| Ok(7)).await, Ok(7));
    }

    #[tokio::test]
    async fn what_comes_out_ends_with_its_error_or_says_that_it_broke_off() {
        let three = produce(|out: &Out<u8>| (1..=3).try_for_each(|piece| out.give(piece)));
        assert_eq!(three.collect::<Vec<_>>().await, [Ok(1), Ok(2), Ok(3)]);
        let wrong = Error::Refused(Diagnosis::new("no", "no"));
        let mut failing = produce(move |_: &Out<u8>| Err(wrong));
        assert_eq!(failing.next().await.unwrap().unwrap_err().code(), "no");
        assert_eq!(failing.next().await, None);
        let mut panicking = produce(|_: &Out<u8>| panic!("on purpose"));
        assert_eq!(panicking.next().await.unwrap().unwrap_err().code(), "stream-broken");
    }
}
