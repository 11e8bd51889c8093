//! One client over a pair of streams, such as standard input and output.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::server::{GRACE, Server};

/// Time that calls have to be answered once the client has said all that it will: a program that writes its requests and
/// closes its end is answered still. What takes longer ends, before the client loses patience and kills us.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why serving ended otherwise than by the client's leaving.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The client did not begin as the protocol says.
    #[error("the client did not begin with `initialize`: {0}")]
    Begin(String),
}

/// Serves one client until it closes its end, or until `stop` comes. Then commands that it waits for are ended, and a
/// sandbox of the server's own with them.
///
/// # Errors
/// The client does not speak the protocol.
pub async fn serve<R, W>(
    server: &Server,
    read: R,
    write: W,
    stop: impl Future<Output = ()>,
) -> Result<(), Broken>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (gone, broken, service) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let read = Watched { stream: read, at_end: gone.clone() };
    let write = Watched { stream: write, at_end: broken.clone() };
    let transport = AsyncRwTransport::<RoleServer, _, _>::new_server(read, write);
    let served = async {
        match serve_server_with_ct(server.clone(), transport, service.clone()).await {
            Ok(running) => {
                // However it ends, it has ended.
                let _ = running.waiting().await;
                Ok(())
            }
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
            Err(_) if gone.is_cancelled() || broken.is_cancelled() => Ok(()),
            Err(error) => Err(Broken::Begin(error.to_string())),
        }
    };
    let ending = async {
        tokio::select! {
            () = stop => {}
            () = broken.cancelled() => {}
            () = gone.cancelled() => {
                server.quiet(LAST_ANSWERS).await;
            }
        }
        server.end_calls();
        server.quiet(GRACE).await;
        // By now what could be answered is on its way, which the service waits for.
        service.cancel();
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        result = served => result,
        () = ending => Ok(()),
    };
    server.end_calls();
    result
}

/// A stream that says when it has come to its end, or broke.
struct Watched<S> {
    stream: S,
    at_end: CancellationToken,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let is_over = match &polled {
            Poll::Ready(Ok(())) => buf.filled().len() == before && buf.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_over {
            self.at_end.cancel();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    fn seen<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(polled, Poll::Ready(Err(_))) {
            self.at_end.cancel();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.seen(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.seen(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.seen(polled)
    }
}
