//! The streams of a program that an engine runs: its input, and its output with the frames that engines put around it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use super::http::{Client, Running};
use crate::engine::{Bytes, Output, Result, Stream};

/// Largest piece of output.
const PIECE: usize = 64 << 10;

/// The input of a program. Shutting it down, or dropping it, is its end; its output stays open.
pub(super) struct Input {
    stream: Option<WriteHalf<TokioIo<Upgraded>>>,
}

/// Both halves of a stream.
pub(super) fn halves(stream: TokioIo<Upgraded>) -> (Input, ReadHalf<TokioIo<Upgraded>>) {
    let (output, input) = tokio::io::split(stream);
    (Input { stream: Some(input) }, output)
}

impl AsyncWrite for Input {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_write(cx, bytes),
            None => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        let result = std::task::ready!(Pin::new(stream).poll_shutdown(cx));
        self.stream = None;
        Poll::Ready(result)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        // A socket is shut down at once; TLS has a farewell to send, which may have to wait.
        let mut context = Context::from_waker(std::task::Waker::noop());
        if Pin::new(&mut stream).poll_shutdown(&mut context).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { stream.shutdown().await });
        }
    }
}

/// Output without a terminal: each piece has a head of eight bytes, which names the stream and the length.
pub(super) struct Frames {
    client: Arc<Client>,
    reader: Bytes,
    stream: Stream,
    head: [u8; 8],
    /// How much of the head is read; it is kept, so that a call that is dropped half-way loses nothing.
    have: usize,
    /// What is left of the frame.
    left: u32,
    ended: bool,
    _connection: Option<Running>,
}

impl Frames {
    pub(super) fn new(client: Arc<Client>, reader: Bytes, connection: Option<Running>) -> Self {
        Self {
            client,
            reader,
            stream: Stream::Stdout,
            head: [0; 8],
            have: 0,
            left: 0,
            ended: false,
            _connection: connection,
        }
    }

    /// Reads the head of the next frame; false at the end.
    async fn head(&mut self) -> Result<bool> {
        while self.have < self.head.len() {
            match self.reader.read(&mut self.head[self.have..]).await {
                Ok(0) if self.have == 0 => return Ok(false),
                Ok(0) => return Err(self.client.connector().unreachable("the output broke off")),
                Ok(count) => self.have += count,
                Err(error) => return Err(self.client.connector().unreachable(error)),
            }
        }
        let head = self.head;
        self.have = 0;
        self.stream = match head {
            [0 | 1, 0, 0, 0, ..] => Stream::Stdout,
            [2, 0, 0, 0, ..] => Stream::Stderr,
            _ => return Err(self.client.nonsense(&"the output of a program has no frames")),
        };
        self.left = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        Ok(true)
    }
}

#[async_trait]
impl Output for Frames {
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        while self.left == 0 {
            if self.ended || !self.head().await? {
                self.ended = true;
                return Ok(None);
            }
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(self.left).unwrap_or(PIECE))];
        match self.reader.read(&mut piece).await {
            Ok(0) => Err(self.client.connector().unreachable("the output broke off")),
            Ok(count) => {
                piece.truncate(count);
                self.left -= u32::try_from(count).unwrap_or(self.left);
                Ok(Some((self.stream, piece)))
            }
            Err(error) => Err(self.client.connector().unreachable(error)),
        }
    }
}

/// Output of a terminal: bytes as they come.
pub(super) struct Raw<R> {
    pub client: Arc<Client>,
    pub reader: R,
    pub _connection: Running,
}

#[async_trait]
impl<R: AsyncRead + Send + Unpin> Output for Raw<R> {
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        let mut piece = vec![0; PIECE];
        match self.reader.read(&mut piece).await {
            Ok(0) => Ok(None),
            Ok(count) => {
                piece.truncate(count);
                Ok(Some((Stream::Stdout, piece)))
            }
            Err(error) => Err(self.client.connector().unreachable(error)),
        }
    }
}
