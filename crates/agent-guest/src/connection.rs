//! One connection with the host, read and written with blocking calls: what an operation in a process of its own
//! uses. (The event loops of `serve`, `process` and `forward` read and write the same frames without blocking.)

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use moltis_agent_protocol::frame::{self, HEADER_BYTES, Header, Kind};
use moltis_agent_protocol::message::Reply;

/// A connection whose hello and request have been read.
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Takes over a connected socket, which must be in blocking mode.
    pub fn new(socket: OwnedFd) -> Self {
        Self { stream: UnixStream::from(socket) }
    }

    /// The socket, to become raw or non-blocking.
    pub fn into_socket(self) -> OwnedFd {
        self.stream.into()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        let frame = frame::encode_control(reply).map_err(io::Error::other)?;
        self.stream.write_all(&frame)
    }

    /// Sends raw bytes in one frame; `bytes` must not be longer than [`frame::MAX_RAW`].
    ///
    /// # Errors
    /// When the host is gone.
    pub fn send(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let header = Header { kind, length: bytes.len() }.encode();
        let mut sent = self.stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(bytes)])?;
        if sent < HEADER_BYTES {
            self.stream.write_all(&header[sent..])?;
            sent = HEADER_BYTES;
        }
        self.stream.write_all(&bytes[sent - HEADER_BYTES..])
    }

    /// Reads the next header; `None` when the host closed between frames.
    ///
    /// # Errors
    /// When the host is gone, or the bytes are no frame.
    pub fn header(&mut self) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES];
        let mut have = 0;
        while have < HEADER_BYTES {
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Header::decode(bytes).map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Reads a payload into the front of `buffer`, which must be at least as long.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn payload<'a>(&mut self, header: Header, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let target = &mut buffer[..header.length];
        self.stream.read_exact(target)?;
        Ok(target)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
