//! A connection to a server, kept for the next request of the same connection from inside.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::connect::AbortOnDrop;
use crate::host::Target;
use crate::http::exchange::Sent;
use crate::journal::Counts;
use crate::judge::Judge;
use crate::limits::ProxyLimits;
use crate::refusal::Refusal;

/// A connection to a server, between requests or within one.
pub(crate) struct Kept {
    pub(crate) target: Target,
    /// Where it leads to; absent: through the proxy in front of ours.
    pub(crate) address: Option<IpAddr>,
    /// The policy by which it may lead there.
    pub(crate) judge: Arc<Judge>,
    pub(crate) sender: SendRequest<Sent>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) driver: AbortOnDrop,
}

impl Kept {
    pub(crate) async fn new(
        stream: TcpStream,
        target: Target,
        address: Option<IpAddr>,
        judge: &Arc<Judge>,
        limits: &ProxyLimits,
    ) -> Result<Self, Refusal> {
        let counts = Arc::<Counts>::default();
        let counted = Counted { stream, counts: Arc::clone(&counts) };
        let (sender, connection) = Builder::new()
            .title_case_headers(true)
            .max_buf_size(limits.header_bytes)
            .handshake(TokioIo::new(counted))
            .await
            .map_err(|_| Refusal::Answer)?;
        let driver = tokio::spawn(async move {
            // What goes wrong is told to whoever waits for an answer.
            let _ = connection.with_upgrades().await;
        });
        let (judge, driver) = (Arc::clone(judge), AbortOnDrop(driver.abort_handle()));
        Ok(Self { target, address, judge, sender, counts, driver })
    }
}

/// Counts what goes through.
struct Counted {
    stream: TcpStream,
    counts: Arc<Counts>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.counts.received.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl Counted {
    fn wrote(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(length) = &result {
            self.counts.sent.fetch_add(*length as u64, Ordering::Relaxed);
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
