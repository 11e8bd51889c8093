//! The near end of a connection: what a program inside sends and is answered.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use moltis_sandbox::Duplex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The most that is read and thrown away after the last answer, and for how long.
const LEFT: usize = 256 * 1024;
const LINGER: Duration = Duration::from_secs(1);

/// What is read ahead at most of a program that waits.
const AHEAD: usize = 64 * 1024;

/// A stream of which the first bytes have been looked at.
pub(crate) struct Client(Arc<Mutex<Stream>>);

/// Looks after a program while nothing else reads what it sends.
pub(crate) struct Presence(Arc<Mutex<Stream>>);

fn locked(stream: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stream {
    stream: Box<dyn Duplex>,
    early: Vec<u8>,
    at: usize,
    /// Whether to take what still comes when closing, so that the last answer is not lost with it.
    lingers: bool,
    closing: Option<(Pin<Box<Sleep>>, usize)>,
    /// Whether its end was read ahead.
    ended: bool,
}

impl Presence {
    /// Waits until the program has ended its side. To be asked by the task that serves the connection. What it sends
    /// meanwhile stays to be read.
    pub(crate) async fn gone(&self) {
        std::future::poll_fn(|cx| locked(&self.0).poll_gone(cx)).await;
    }
}

impl Client {
    /// Waits for the first bytes. They stay to be read. `None` if none came.
    pub(crate) async fn begun(mut stream: Box<dyn Duplex>) -> io::Result<Option<(u8, Self)>> {
        let mut first = [0; 1024];
        let length = stream.read(&mut first).await?;
        let early = first[..length].to_vec();
        let Some(byte) = early.first().copied() else { return Ok(None) };
        let stream = Stream { stream, early, at: 0, lingers: true, closing: None, ended: false };
        Ok(Some((byte, Self(Arc::new(Mutex::new(stream))))))
    }

    /// Looks after the program at its other end.
    pub(crate) fn presence(&self) -> Presence {
        Presence(Arc::clone(&self.0))
    }

    /// From here on it is closed at once. These bytes were read too many: they come before all others.
    pub(crate) fn becomes_tunnel(&self, back: &[u8]) {
        let mut stream = locked(&self.0);
        stream.lingers = false;
        if !back.is_empty() {
            stream.early = [back, &stream.early[stream.at..]].concat();
            stream.at = 0;
        }
    }
}

impl Stream {
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 1024];
        while !self.ended {
            if self.early.len() - self.at >= AHEAD {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.early.extend_from_slice(buffer.filled()),
                Ok(()) | Err(_) => self.ended = true,
            }
        }
        Poll::Ready(())
    }

    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = &mut self.stream;
        let (time, left) = self.closing.get_or_insert_with(|| (Box::pin(tokio::time::sleep(LINGER)), LEFT));
        let mut space = [0; 4096];
        while *left > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return time.as_mut().poll(cx).map(Ok),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *locked(&self.0)).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *locked(&self.0)).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        locked(&self.0).is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_shutdown(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at < self.early.len() {
            let rest = &self.early[self.at..];
            let length = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..length]);
            self.at += length;
            if self.at == self.early.len() {
                (self.early, self.at) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.lingers {
                return Poll::Ready(Ok(()));
            }
        }
        self.linger(cx)
    }
}
