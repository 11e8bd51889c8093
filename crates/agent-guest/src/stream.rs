//! Frames in and out without blocking.

use std::io;
use std::os::fd::AsFd;

use moltis_agent_protocol::frame::{self, FrameError, HEADER_BYTES, Header, Kind, MAX_RAW};
use moltis_agent_protocol::message::{Order, Reply};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes that are read from a host at once.
const INCOMING_BYTES: usize = 64 * 1024;

/// Longest order in bytes; the longest that exists is far below.
const MAX_ORDER: usize = 64;

/// What a host sends while a command runs.
#[derive(Default)]
pub struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    current: Option<Header>,
}

/// What comes next from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until more is read.
    More,
    /// Bytes of standard input: see [`Incoming::data`].
    Data,
    /// The end of standard input; [`Incoming::pass`] goes on.
    Eof,
    /// An order. It has been consumed.
    Order(Order),
}

impl Incoming {
    /// Reads what there is; `false` at the end of the connection.
    ///
    /// # Errors
    /// When the host is gone. That there is nothing now is no error.
    pub fn fill(&mut self, socket: impl AsFd) -> io::Result<bool> {
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.len() >= INCOMING_BYTES {
            return Ok(true);
        }
        self.buffer.reserve_exact(INCOMING_BYTES - self.buffer.len());
        loop {
            match rustix::net::recv(&socket, spare_capacity(&mut self.buffer), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(false),
                Ok(_) | Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What comes next.
    ///
    /// # Errors
    /// When the bytes are no frame that a host may send here; the connection must end then.
    pub fn next(&mut self) -> Result<Next, FrameError> {
        loop {
            let Some(header) = self.current else {
                let Some(bytes) = self.buffer[self.start..].first_chunk::<HEADER_BYTES>() else {
                    return Ok(Next::More);
                };
                let header = Header::decode(*bytes)?;
                let limit = if header.kind == Kind::Control { MAX_ORDER } else { MAX_RAW };
                if header.length > limit {
                    return Err(FrameError::TooLong { kind: header.kind, length: header.length, limit });
                }
                self.start += HEADER_BYTES;
                self.current = Some(header);
                continue;
            };
            match header.kind {
                Kind::Data if header.length == 0 => self.current = None,
                Kind::Data if self.start == self.buffer.len() => return Ok(Next::More),
                Kind::Data => return Ok(Next::Data),
                Kind::Eof => return Ok(Next::Eof),
                Kind::Control => {
                    let Some(payload) = self.buffer.get(self.start..self.start + header.length) else {
                        return Ok(Next::More);
                    };
                    let order = frame::decode_control(payload)?;
                    self.start += header.length;
                    self.current = None;
                    return Ok(Next::Order(order));
                }
                Kind::Stdout | Kind::Stderr => return Err(FrameError::Kind(header.kind as u8)),
            }
        }
    }

    /// The bytes of the current `Data` frame that have been read.
    pub fn data(&self) -> &[u8] {
        let left = self.current.map_or(0, |header| header.length);
        let end = self.buffer.len().min(self.start + left);
        &self.buffer[self.start..end]
    }

    /// Takes `count` bytes off the front of [`Incoming::data`].
    pub fn consume(&mut self, count: usize) {
        if let Some(header) = &mut self.current {
            header.length -= count;
            self.start += count;
        }
    }

    /// Goes past an `Eof`.
    pub fn pass(&mut self) {
        self.current = None;
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        *self = Self::default();
    }
}

/// What is on its way to a host. It is filled only while little is left in it, so that a host that does not read holds
/// its command back.
#[derive(Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Bytes that the host has not taken yet.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Whether the host has taken everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds a message.
    pub fn reply(&mut self, reply: &Reply) {
        // A reply is far below the limit by construction: nothing in it grows with what a command does.
        if let Ok(frame) = frame::encode_control(reply) {
            self.push(&frame);
        }
    }

    /// Adds a frame whose payload `fill` appends.
    pub fn frame(&mut self, kind: Kind, fill: impl FnOnce(&mut Vec<u8>)) {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER_BYTES]);
        fill(&mut self.buffer);
        let length = self.buffer.len() - at - HEADER_BYTES;
        self.seal(at, kind, length);
    }

    /// Reads once from `source`, at most `limit` bytes and [`MAX_RAW`], and adds what came as one frame. 0 at the end
    /// of the source.
    ///
    /// # Errors
    /// What the read says; nothing is added then.
    pub fn read_frame(&mut self, kind: Kind, source: impl AsFd, limit: usize) -> Result<usize, Errno> {
        let at = self.buffer.len();
        let limit = limit.min(MAX_RAW);
        self.buffer.reserve(HEADER_BYTES + limit);
        self.buffer.extend_from_slice(&[0; HEADER_BYTES]);
        match read_onto(&mut self.buffer, source, limit) {
            Ok(0) => {
                self.buffer.truncate(at);
                Ok(0)
            }
            Ok(length) => {
                self.seal(at, kind, length);
                Ok(length)
            }
            Err(error) => {
                self.buffer.truncate(at);
                Err(error)
            }
        }
    }

    fn seal(&mut self, at: usize, kind: Kind, length: usize) {
        self.buffer[at..at + HEADER_BYTES].copy_from_slice(&Header { kind, length }.encode());
    }

    /// Sends what the host takes now; whether everything is sent.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn flush(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.sent < self.buffer.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&socket, &self.buffer[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Gives the memory back, with whatever was not sent.
    pub fn release(&mut self) {
        *self = Self::default();
    }
}

/// Reads once, at most `limit` bytes, onto the end of `buffer`.
///
/// # Errors
/// What the read says.
pub fn read_onto(buffer: &mut Vec<u8>, source: impl AsFd, limit: usize) -> Result<usize, Errno> {
    buffer.reserve(limit);
    let at = buffer.len();
    let spare = buffer.spare_capacity_mut();
    let limit = limit.min(spare.len());
    // Not retried: a read that does not wait is not interrupted.
    let (read, _) = rustix::io::read(&source, &mut spare[..limit])?;
    let count = read.len();
    // SAFETY: the kernel has just written `count` bytes there, within the capacity.
    unsafe { buffer.set_len(at + count) };
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn frame_of(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut frame = Header { kind, length: payload.len() }.encode().to_vec();
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn frames_arrive_in_any_cuts() {
        let mut bytes = frame_of(Kind::Data, b"hello");
        bytes.extend(frame_of(Kind::Data, b""));
        bytes.extend(frame::encode_control(&Order::Signal(2)).unwrap());
        bytes.extend(frame_of(Kind::Eof, b""));
        bytes.extend(frame::encode_control(&Order::Cancel).unwrap());
        for cut in 1..bytes.len() {
            let (mut host, ours) = UnixStream::pair().unwrap();
            let mut incoming = Incoming::default();
            let mut seen = Vec::new();
            let mut data = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                host.write_all(part).unwrap();
                assert!(incoming.fill(&ours).unwrap());
                loop {
                    match incoming.next().unwrap() {
                        Next::More => break,
                        Next::Data => {
                            data.push(incoming.data()[0]);
                            incoming.consume(1);
                        }
                        Next::Eof => {
                            seen.push(Next::Eof);
                            incoming.pass();
                        }
                        order => seen.push(order),
                    }
                }
            }
            assert_eq!(data, b"hello");
            assert_eq!(seen, [Next::Order(Order::Signal(2)), Next::Eof, Next::Order(Order::Cancel)]);
            drop(host);
            assert!(!incoming.fill(&ours).unwrap());
        }
    }

    #[test]
    fn what_a_host_may_not_send_is_an_error() {
        for bytes in [
            frame_of(Kind::Stdout, b"x"),
            frame_of(Kind::Control, &[200]),
            frame_of(Kind::Control, &[0; 65]),
            vec![7, 0, 0, 0, 0],
        ] {
            let (mut host, ours) = UnixStream::pair().unwrap();
            host.write_all(&bytes).unwrap();
            let mut incoming = Incoming::default();
            assert!(incoming.fill(&ours).unwrap());
            assert!(incoming.next().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn output_is_framed_and_waits_for_the_host() {
        let (mut host, ours) = UnixStream::pair().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"abc").unwrap();
        let mut outbox = Outbox::default();
        assert_eq!(outbox.read_frame(Kind::Stderr, &reader, 2), Ok(2));
        drop(writer);
        assert_eq!(outbox.read_frame(Kind::Stderr, &reader, 9), Ok(1));
        assert_eq!(outbox.read_frame(Kind::Stderr, &reader, 9), Ok(0));
        assert!(outbox.flush(&ours).unwrap());
        let mut got = [0; 13];
        host.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"\x04\x02\0\0\0ab\x04\x01\0\0\0c");

        outbox.push(&vec![0; 4 << 20]);
        assert!(!outbox.flush(&ours).unwrap());
        drop(host);
        assert!(outbox.flush(&ours).is_err());
    }
}
