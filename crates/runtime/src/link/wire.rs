//! Frames on a link. Reading and writing may be broken off at any moment and go on later where they were.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use moltis_agent_protocol::frame::{HEADER_BYTES, Header, Kind, MAX_CONTROL};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// Why a link cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other side is gone.
    #[error("the other side is gone")]
    Gone,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came is none of it.
    #[error("what came makes no sense")]
    Nonsense,
}

/// Both ends of a stream that has become a link.
pub fn wire<S: AsyncRead + AsyncWrite>(stream: S) -> (Reader<ReadHalf<S>>, Writer<WriteHalf<S>>) {
    let (reader, writer) = tokio::io::split(stream);
    (Reader { stream: reader, buffer: BytesMut::new() }, Writer { stream: writer, left: BytesMut::new() })
}

/// The end that reads.
pub struct Reader<R> {
    stream: R,
    buffer: BytesMut,
}

/// What was read.
#[derive(Debug)]
pub enum Read<M> {
    /// A message.
    Message(M),
    /// Bytes of standard input, output or error.
    Raw(Kind, Bytes),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// The same after bytes that were read already.
    #[must_use]
    pub fn after(self, buffer: BytesMut) -> Self {
        Self { buffer, ..self }
    }

    /// The next frame. Breaking this off loses nothing.
    ///
    /// # Errors
    /// When the other side is gone, or what it sent is no frame.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Result<Read<M>, Broken> {
        loop {
            if let Some(read) = self.take()? {
                return Ok(read);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(Broken::Gone);
            }
        }
    }

    /// A frame that is there as a whole.
    fn take<M: DeserializeOwned>(&mut self) -> Result<Option<Read<M>>, Broken> {
        let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let Header { kind, length } = Header::decode(*head).map_err(|_| Broken::Nonsense)?;
        if self.buffer.len() < HEADER_BYTES + length {
            self.buffer.reserve(HEADER_BYTES + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        if kind != Kind::Control {
            return Ok(Some(Read::Raw(kind, payload)));
        }
        serde_json::from_slice(&payload)
            .map(|message| Some(Read::Message(message)))
            .map_err(|_| Broken::Nonsense)
    }
}

/// The end that writes.
pub struct Writer<W> {
    stream: W,
    /// What of the frames that were begun is not written yet.
    left: BytesMut,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Sends a message.
    ///
    /// # Errors
    /// When it cannot be written; `InvalidInput` when it is too large, and then nothing was.
    pub async fn message<M: Serialize>(&mut self, message: &M) -> Result<(), Broken> {
        let mut frame = vec![0; HEADER_BYTES];
        serde_json::to_writer(&mut frame, message).map_err(io::Error::from)?;
        let length = frame.len() - HEADER_BYTES;
        if length > MAX_CONTROL {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        frame[..HEADER_BYTES].copy_from_slice(&Header { kind: Kind::Control, length }.encode());
        self.left.extend_from_slice(&frame);
        self.all().await
    }

    /// Sends bytes, in pieces.
    ///
    /// # Errors
    /// When they cannot be written.
    pub async fn raw(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), Broken> {
        let mut pieces = bytes.chunks(super::PIECE);
        // Nothing is a frame too: it ends what came before.
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            let head = Header { kind, length: piece.len() }.encode();
            self.left.reserve(head.len() + piece.len());
            self.left.extend_from_slice(&head);
            self.left.extend_from_slice(piece);
            self.all().await?;
            match pieces.next() {
                Some(next) => piece = next,
                None => return Ok(()),
            }
        }
    }

    async fn all(&mut self) -> Result<(), Broken> {
        while !self.left.is_empty() {
            if self.stream.write_buf(&mut self.left).await? == 0 {
                return Err(Broken::Gone);
            }
        }
        Ok(self.stream.flush().await?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::Ask;

    #[tokio::test]
    async fn a_frame_survives_that_reading_it_is_broken_off() {
        let (here, there) = tokio::io::duplex(7);
        let (mut reader, _keep) = wire(there);
        let (_keep_too, mut writer) = wire(here);
        let sent = tokio::spawn(async move {
            writer.raw(Kind::Data, &[7; 100_000]).await.unwrap();
            writer.raw(Kind::Eof, &[]).await.unwrap();
            writer.message(&Ask::Signal(15)).await.unwrap();
            (writer, _keep_too)
        });
        let mut got = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_micros(50), reader.next::<Ask>()).await;
            match next {
                Err(_) => {}
                Ok(Ok(Read::Raw(Kind::Data, bytes))) => got.extend(bytes),
                Ok(Ok(Read::Raw(Kind::Eof, _))) => break,
                Ok(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(got, [7; 100_000]);
        assert!(matches!(reader.next::<Ask>().await, Ok(Read::Message(Ask::Signal(15)))));
        drop(sent.await.unwrap());
        assert!(matches!(reader.next::<Ask>().await, Err(Broken::Gone)));
    }

    #[tokio::test]
    async fn a_frame_survives_that_writing_it_is_broken_off() {
        let (here, there) = tokio::io::duplex(16);
        let (mut reader, _keep) = wire(there);
        let (_keep_too, mut writer) = wire(here);
        let begun = writer.raw(Kind::Stdout, &[9; 1000]);
        assert!(tokio::time::timeout(Duration::from_millis(5), begun).await.is_err());
        let rest = tokio::spawn(async move {
            writer.message(&Ask::PutAway).await.unwrap();
            (writer, _keep_too)
        });
        match reader.next::<Ask>().await {
            Ok(Read::Raw(Kind::Stdout, bytes)) => assert_eq!(bytes, [9; 1000][..]),
            other => panic!("{other:?}"),
        }
        assert!(matches!(reader.next::<Ask>().await, Ok(Read::Message(Ask::PutAway))));
        drop(rest.await.unwrap());
    }

    #[tokio::test]
    async fn nonsense_ends_a_link() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[1, 2, 0, 0, 0, b'{', b'}'], &[2, 0xff, 0xff, 0xff, 0xff]]
        {
            let (mut here, there) = tokio::io::duplex(64);
            let (mut reader, _keep) = wire(there);
            here.write_all(bytes).await.unwrap();
            assert!(matches!(reader.next::<Ask>().await, Err(Broken::Nonsense)), "{bytes:?}");
        }
    }
}
