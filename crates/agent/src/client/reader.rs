//! Frames from the agent, read into one buffer that is used again and again.
//!
//! Raw bytes are handed out as slices of that buffer and as they come, not frame by frame: a slow reader holds one
//! buffer, whatever the length of the frames. The buffer starts small and grows while reads fill it.

use std::future::Future;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use moltis_agent_protocol::frame::{self, HEADER_BYTES, Header, Kind};
use moltis_agent_protocol::message::Reply;
use tokio::io::AsyncReadExt;

use crate::error::{Error, Result, Subject};
use crate::transport::Reader;

/// Size of the buffer of a connection that has brought little.
const SMALL: usize = 8 * 1024;

/// Size of the buffer of a connection that brings much.
const LARGE: usize = 256 * 1024;

/// Raw bytes below this length are copied out, so that a reader who keeps them does not keep a whole buffer.
const COPIED: usize = 4 * 1024;

/// Longest reply that is taken unless more is asked for. The longest that agents send are parts of listings, 64 KiB.
const REPLY: usize = 256 * 1024;

/// What arrives.
#[derive(Debug)]
pub(crate) enum Part {
    /// A whole control frame's payload.
    Control(Bytes),
    /// Raw bytes of this kind, never none.
    Raw(Kind, Bytes),
    /// The end of the raw bytes.
    Eof,
}

/// Reads frames.
pub(crate) struct FrameReader {
    reader: Reader,
    buffer: BytesMut,
    /// Size that the buffer should have at the next read.
    size: usize,
    /// Kind and missing bytes of a raw frame that has begun.
    raw: Option<(Kind, usize)>,
    /// Longest control payload that is taken.
    limit: usize,
}

impl FrameReader {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, buffer: BytesMut::new(), size: SMALL, raw: None, limit: REPLY }
    }

    /// Takes replies up to the protocol's own limit.
    pub(crate) fn take_long_replies(&mut self) {
        self.limit = frame::MAX_CONTROL;
    }

    /// The next part; `None` when the agent closed between frames.
    pub(crate) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Part>>> {
        loop {
            if let Some(part) = self.take()? {
                return Poll::Ready(Ok(Some(part)));
            }
            let got = ready!(self.poll_fill(cx)).map_err(Error::Lost)?;
            if got == 0 {
                return Poll::Ready(match self.buffer.is_empty() && self.raw.is_none() {
                    true => Ok(None),
                    false => Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
                });
            }
        }
    }

    /// As [`poll_part`](Self::poll_part). Nothing is lost when the future is dropped.
    pub(crate) async fn part(&mut self) -> Result<Option<Part>> {
        std::future::poll_fn(|cx| self.poll_part(cx)).await
    }

    /// The next part, which must be a reply; `Failed` becomes an error about `subject`.
    pub(crate) async fn reply(&mut self, subject: Subject) -> Result<Reply> {
        match self.part().await? {
            Some(Part::Control(payload)) => decode(&payload, subject),
            Some(_) => Err(Error::unexpected("raw bytes instead of a reply")),
            None => Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The stream beneath, and what has been read from it already.
    pub(crate) fn into_raw(self) -> (Reader, Bytes) {
        (self.reader, self.buffer.freeze())
    }

    /// What the buffer holds already, if it is enough for a part.
    fn take(&mut self) -> Result<Option<Part>> {
        if self.raw.is_none() {
            let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let header = Header::decode(*bytes)?;
            match header.kind {
                Kind::Control => return self.take_control(header),
                Kind::Eof => {
                    self.buffer.advance(HEADER_BYTES);
                    return Ok(Some(Part::Eof));
                }
                // A side that sends nothing, again and again, would keep the reader busy for ever.
                _ if header.length == 0 => return Err(Error::Protocol("an empty raw frame".to_owned())),
                kind => {
                    self.buffer.advance(HEADER_BYTES);
                    self.raw = Some((kind, header.length));
                }
            }
        }
        let Some((kind, missing)) = self.raw else { return Ok(None) };
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let length = missing.min(self.buffer.len());
        self.raw = (length < missing).then_some((kind, missing - length));
        let bytes = if length < COPIED {
            let copy = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length);
            copy
        } else {
            self.buffer.split_to(length).freeze()
        };
        Ok(Some(Part::Raw(kind, bytes)))
    }

    fn take_control(&mut self, header: Header) -> Result<Option<Part>> {
        if header.length > self.limit {
            return Err(Error::Protocol(format!("a reply of {} bytes", header.length)));
        }
        let whole = HEADER_BYTES + header.length;
        if self.buffer.len() < whole {
            // Make room for the rest of it, at the next read.
            self.size = self.size.max(whole);
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(Part::Control(self.buffer.split_to(header.length).freeze())))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buffer.capacity() == self.buffer.len() || self.buffer.capacity() < self.size / 2 {
            // Takes the old memory again if nobody holds a slice of it.
            self.buffer.reserve(self.size.saturating_sub(self.buffer.len()).max(1));
        }
        let before = self.buffer.len();
        {
            // `read_buf` holds no state: dropping and making it again at every poll loses nothing.
            let read = std::pin::pin!(self.reader.read_buf(&mut self.buffer));
            ready!(read.poll(cx))?;
        }
        let got = self.buffer.len() - before;
        if self.buffer.len() == self.buffer.capacity() {
            self.size = self.size.max((self.size * 4).min(LARGE));
        }
        Poll::Ready(Ok(got))
    }
}

/// A reply from a control frame's payload; `Failed` becomes an error about `subject`.
pub(crate) fn decode(payload: &[u8], subject: Subject) -> Result<Reply> {
    match frame::decode_control(payload)? {
        Reply::Failed(failure) => Err(Error::Failed(subject, failure)),
        reply => Ok(reply),
    }
}
