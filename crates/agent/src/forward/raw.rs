//! A connection that has become a raw stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::{FrameReader, FrameWriter};
use crate::transport::{Reader, Writer};

/// Raw bytes in both directions. Shutting it down ends the outgoing direction alone; dropping it closes both.
pub struct RawStream {
    early: Bytes,
    reader: Reader,
    writer: Writer,
}

impl RawStream {
    pub(crate) fn new(reader: FrameReader, writer: FrameWriter) -> Self {
        let (reader, early) = reader.into_raw();
        // Copied out, so that a connection which is idle does not keep the buffer of its beginning.
        let early = Bytes::copy_from_slice(&early);
        Self { early, reader, writer: writer.into_raw() }
    }
}

impl AsyncRead for RawStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.has_remaining() {
            // What came in the same read as the agent's answer.
            let length = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for RawStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.writer).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.writer).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.writer).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }
}
