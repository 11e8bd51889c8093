//! Frames to the agent.
//!
//! A frame that has begun is always finished, also when the future that began it is dropped: the next one to write
//! sends the rest first.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use moltis_agent_protocol::frame::{self, HEADER_BYTES, Header, Kind};
use moltis_agent_protocol::message::Order;

use crate::error::Result;
use crate::transport::Writer;

/// Something to send, shrinking while it is sent.
pub(crate) enum Outgoing {
    /// Raw bytes, sent as `Data` frames.
    Data(Bytes),
    /// One whole frame, encoded.
    Frame(Bytes),
}

impl Outgoing {
    pub(crate) fn eof() -> Self {
        Self::Frame(Bytes::copy_from_slice(&Header { kind: Kind::Eof, length: 0 }.encode()))
    }

    pub(crate) fn order(order: Order) -> Result<Self> {
        Ok(Self::Frame(frame::encode_control(&order)?.into()))
    }

    /// The next frame of it: header and payload.
    fn next(&mut self) -> Option<(Bytes, Bytes)> {
        match self {
            Self::Data(bytes) if bytes.is_empty() => None,
            Self::Data(bytes) => {
                let payload = bytes.split_to(bytes.len().min(frame::MAX_RAW));
                let header = Header { kind: Kind::Data, length: payload.len() }.encode();
                Some((Bytes::copy_from_slice(&header), payload))
            }
            Self::Frame(bytes) if bytes.is_empty() => None,
            Self::Frame(bytes) => Some((bytes.split_to(HEADER_BYTES), bytes.split_off(0))),
        }
    }
}

/// Writes frames.
pub(crate) struct FrameWriter {
    writer: Writer,
    header: Bytes,
    payload: Bytes,
}

impl FrameWriter {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer, header: Bytes::new(), payload: Bytes::new() }
    }

    /// Sends what is left of an earlier frame, and then all of `outgoing`.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        outgoing: &mut Outgoing,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_rest(cx))?;
            match outgoing.next() {
                Some((header, payload)) => (self.header, self.payload) = (header, payload),
                None => return Pin::new(&mut *self.writer).poll_flush(cx),
            }
        }
    }

    /// As [`poll_send`](Self::poll_send).
    pub(crate) async fn send(&mut self, mut outgoing: Outgoing) -> io::Result<()> {
        poll_fn(|cx| self.poll_send(cx, &mut outgoing)).await
    }

    /// The Unix socket beneath, if it is one.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.writer.socket()
    }

    /// The stream beneath.
    pub(crate) fn into_raw(self) -> Writer {
        self.writer
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.header.has_remaining() || self.payload.has_remaining() {
            let parts = [IoSlice::new(&self.header), IoSlice::new(&self.payload)];
            let sent = ready!(Pin::new(&mut *self.writer).poll_write_vectored(cx, &parts))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_header = sent.min(self.header.len());
            self.header.advance(of_header);
            self.payload.advance(sent - of_header);
        }
        Poll::Ready(Ok(()))
    }
}
