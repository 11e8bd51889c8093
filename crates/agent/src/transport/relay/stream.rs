//! One stream of a relay: a connection to the agent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;
use moltis_agent_protocol::relay::{Header, Kind, MAX_DATA};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::link::{FULL, Link, State};
use crate::transport::Outward;

/// A stream. Dropping it closes both directions.
pub(super) struct Stream {
    pub(super) link: Arc<Link>,
    pub(super) number: u32,
}

/// The half that is read.
pub(super) struct StreamReader(pub(super) Arc<Stream>);

/// The half that is written to. Dropping it ends the outgoing direction, as with a Unix socket's.
pub(super) struct StreamWriter(pub(super) Arc<Stream>);

impl Stream {
    fn finish(&self) {
        let shared = self.link.shared();
        let mut state = shared.lock();
        let is_over = state.is_over;
        let Some(side) = state.streams.get_mut(&self.number) else { return };
        if is_over || side.is_reset || std::mem::replace(&mut side.is_finished, true) {
            return;
        }
        state.push(self.number, Kind::Eof, 0);
        drop(state);
        shared.stir();
    }

    fn read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let shared = self.link.shared();
        let mut state = shared.lock();
        let State { streams, is_over, .. } = &mut *state;
        let Some(side) = streams.get_mut(&self.number) else { return Poll::Ready(Ok(())) };
        if side.incoming.has_remaining() {
            let count = side.incoming.len().min(buf.remaining());
            buf.put_slice(&side.incoming.split_to(count));
            // Whoever sends no more needs no credit.
            let credit =
                side.window.passed_on(count).filter(|_| !side.is_read && !side.is_reset && !*is_over);
            if let Some(credit) = credit {
                state.push(self.number, Kind::Credit, credit);
                drop(state);
                shared.stir();
            }
            return Poll::Ready(Ok(()));
        }
        if side.is_read {
            return Poll::Ready(Ok(()));
        }
        if side.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if *is_over {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the relay has ended")));
        }
        side.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn write(&self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let shared = self.link.shared();
        let mut state = shared.lock();
        let State { streams, is_over, out, .. } = &mut *state;
        let side =
            streams.get_mut(&self.number).filter(|side| !side.is_reset && !side.is_finished && !*is_over);
        let Some(side) = side else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let count = wanted.min(side.credit.left()).min(MAX_DATA);
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        if count == 0 || out.len() >= FULL {
            side.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        side.credit.spend(count);
        let header = Header { stream: self.number, kind: Kind::Data, length: count as u32 };
        out.extend_from_slice(&header.encode());
        let mut left = count;
        for buf in bufs {
            let part = &buf[..left.min(buf.len())];
            out.extend_from_slice(part);
            left -= part.len();
        }
        drop(state);
        shared.stir();
        Poll::Ready(Ok(count))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let shared = self.link.shared();
        let mut state = shared.lock();
        let Some(side) = state.streams.remove(&self.number) else { return };
        let has_ended = side.is_reset || (side.is_read && side.is_finished);
        if !has_ended && !state.is_over {
            state.push(self.number, Kind::Reset, 0);
        }
        drop(state);
        shared.stir();
        shared.make_room();
    }
}

impl AsyncRead for StreamReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.read(cx, buf)
    }
}

impl Outward for StreamWriter {}

impl AsyncWrite for StreamWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.write(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was written goes out by itself.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.finish();
        Poll::Ready(Ok(()))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.0.finish();
    }
}
