//! A connection that has been accepted and whose hello and request have not arrived in full.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame::{self, FrameError, HEADER_BYTES, Header, Kind};
use moltis_agent_protocol::hello::{self, HELLO_BYTES, HelloError};
use moltis_agent_protocol::message::Request;
use moltis_agent_protocol::relay::{self, PREFACE_BYTES, Secret};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Time that a host has for its hello and its request.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that a payload's buffer grows by: never by what a header merely claims.
const GROWTH_BYTES: usize = 64 * 1024;

/// A connection on its way to becoming an operation.
pub struct Pending {
    conn: OwnedFd,
    /// When patience ends.
    until: Instant,
    /// What a peer inside says first, and how much of it has come; until it is trusted.
    preface: Option<([u8; PREFACE_BYTES], usize)>,
    opening: [u8; HELLO_BYTES + HEADER_BYTES],
    opened: usize,
    /// The request's header, once it has been read.
    header: Option<Header>,
    payload: Vec<u8>,
}

/// What reading brought.
pub enum Arrival {
    /// Not everything yet.
    Waiting,
    /// What a peer inside shows as the relay's secret. Nothing after it is read until the peer is
    /// [trusted](Pending::trust).
    Secret(Secret),
    /// The request, and its payload as it came. Not one byte after it has been read.
    Request(Request, Vec<u8>),
    /// The other side is gone, or is no host of ours: nothing to say.
    Hopeless,
    /// It is a host that should be told what is wrong.
    Refused(Refusal),
}

/// What is wrong with a host's opening.
#[derive(Debug)]
pub enum Refusal {
    /// It speaks another version; our hello tells it.
    Version,
    /// Its request is none.
    Request(FrameError),
}

impl Pending {
    /// A connection that was accepted at `now`.
    pub fn new(conn: OwnedFd, now: Instant) -> Self {
        Self {
            conn,
            until: now + PATIENCE,
            preface: None,
            opening: [0; HELLO_BYTES + HEADER_BYTES],
            opened: 0,
            header: None,
            payload: Vec::new(),
        }
    }

    /// The same of a peer inside, which has to show a secret first.
    pub fn inside(conn: OwnedFd, now: Instant) -> Self {
        Self { preface: Some(([0; PREFACE_BYTES], 0)), ..Self::new(conn, now) }
    }

    /// Whether it comes from somebody who may speak to the agent.
    pub fn is_trusted(&self) -> bool {
        self.preface.is_none()
    }

    /// Its secret was the right one.
    pub fn trust(&mut self) {
        self.preface = None;
    }

    /// The connection.
    pub fn conn(&self) -> &OwnedFd {
        &self.conn
    }

    /// The connection, to become an operation's.
    pub fn into_conn(self) -> OwnedFd {
        self.conn
    }

    /// When patience ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Reads what has come, without waiting, and nothing beyond the request.
    pub fn advance(&mut self) -> Arrival {
        if let Some((preface, have)) = &mut self.preface {
            while *have < PREFACE_BYTES {
                match rustix::net::recv(&self.conn, &mut preface[*have..], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Arrival::Hopeless,
                    Ok((count, _)) => *have += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Arrival::Waiting,
                    Err(_) => return Arrival::Hopeless,
                }
            }
            return relay::secret_of(preface).map_or(Arrival::Hopeless, |secret| Arrival::Secret(*secret));
        }
        let header = loop {
            if let Some(header) = self.header {
                break header;
            }
            match rustix::net::recv(&self.conn, &mut self.opening[self.opened..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Arrival::Hopeless,
                Ok((count, _)) => self.opened += count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Arrival::Waiting,
                Err(_) => return Arrival::Hopeless,
            }
            match self.open() {
                Ok(()) => {}
                Err(arrival) => return arrival,
            }
        };
        while self.payload.len() < header.length {
            let have = self.payload.len();
            self.payload.resize(header.length.min(have + GROWTH_BYTES), 0);
            let received = rustix::net::recv(&self.conn, &mut self.payload[have..], RecvFlags::DONTWAIT);
            self.payload.truncate(have + received.map_or(0, |(count, _)| count));
            match received {
                Ok((0, _)) => return Arrival::Hopeless,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Arrival::Waiting,
                Err(_) => return Arrival::Hopeless,
            }
        }
        match frame::decode_control(&self.payload) {
            Ok(request) => Arrival::Request(request, std::mem::take(&mut self.payload)),
            Err(error) => Arrival::Refused(Refusal::Request(error)),
        }
    }

    /// Judges what has been read of the opening.
    fn open(&mut self) -> Result<(), Arrival> {
        let (hello, header) = self.opening.split_at(HELLO_BYTES);
        if let Some(hello) = hello.first_chunk().filter(|_| self.opened >= HELLO_BYTES) {
            match hello::check(*hello) {
                Ok(()) => {}
                Err(HelloError::Magic) => return Err(Arrival::Hopeless),
                Err(HelloError::Version { .. }) => return Err(Arrival::Refused(Refusal::Version)),
            }
        }
        if self.opened < self.opening.len() {
            return Ok(());
        }
        let refuse = |error| Arrival::Refused(Refusal::Request(error));
        let Some(header) = header.first_chunk() else { return Ok(()) };
        let header = Header::decode(*header).map_err(refuse)?;
        if header.kind != Kind::Control {
            return Err(refuse(FrameError::Kind(header.kind as u8)));
        }
        self.header = Some(header);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn opening(request: &Request) -> Vec<u8> {
        [&hello::hello()[..], &frame::encode_control(request).unwrap()].concat()
    }

    #[test]
    fn a_request_arrives_in_any_cuts_and_nothing_after_it_is_read() {
        let bytes = opening(&Request::Configure { idle_millis: 70_000 });
        for cut in 1..bytes.len() {
            let (mut host, ours) = UnixStream::pair().unwrap();
            let mut pending = Pending::new(ours.into(), Instant::now());
            assert!(matches!(pending.advance(), Arrival::Waiting));
            host.write_all(&bytes[..cut]).unwrap();
            assert!(matches!(pending.advance(), Arrival::Waiting), "{cut}");
            host.write_all(&bytes[cut..]).unwrap();
            host.write_all(b"after").unwrap();
            let Arrival::Request(request, payload) = pending.advance() else { panic!("{cut}") };
            assert_eq!(request, Request::Configure { idle_millis: 70_000 });
            assert_eq!(payload, bytes[HELLO_BYTES + HEADER_BYTES..]);
            let mut after = [0; 5];
            UnixStream::from(pending.into_conn()).read_exact(&mut after).unwrap();
            assert_eq!(&after, b"after");
        }
    }

    #[test]
    fn a_peer_inside_is_heard_once_it_is_trusted() {
        let secret = [7; relay::SECRET_BYTES];
        let bytes = [&relay::preface(&secret)[..], &opening(&Request::Status)].concat();
        for cut in 1..bytes.len() {
            let (mut host, ours) = UnixStream::pair().unwrap();
            let mut pending = Pending::inside(ours.into(), Instant::now());
            host.write_all(&bytes[..cut]).unwrap();
            if cut < PREFACE_BYTES {
                assert!(matches!(pending.advance(), Arrival::Waiting), "{cut}");
            }
            host.write_all(&bytes[cut..]).unwrap();
            for _ in 0..2 {
                assert!(matches!(pending.advance(), Arrival::Secret(shown) if shown == secret), "{cut}");
            }
            assert!(!pending.is_trusted());
            pending.trust();
            assert!(pending.is_trusted());
            assert!(matches!(pending.advance(), Arrival::Request(Request::Status, _)), "{cut}");
        }
        let (mut host, ours) = UnixStream::pair().unwrap();
        host.write_all(&opening(&Request::Configure { idle_millis: 1 })).unwrap();
        host.write_all(&[0; PREFACE_BYTES]).unwrap();
        let arrival = Pending::inside(ours.into(), Instant::now()).advance();
        assert!(matches!(arrival, Arrival::Hopeless), "a request without a secret");
    }

    #[test]
    fn what_is_no_opening_is_told_apart() {
        let mut version = opening(&Request::Status);
        version[6] = 99;
        let mut long = opening(&Request::Status);
        long[HELLO_BYTES + 1..HELLO_BYTES + 5].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut data = opening(&Request::Status);
        data[HELLO_BYTES] = Kind::Data as u8;
        let mut unknown = opening(&Request::Status);
        *unknown.last_mut().unwrap() = 250;
        for (bytes, hopeless) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), true),
            (version, false),
            (long, false),
            (data, false),
            (unknown, false),
        ] {
            let (mut host, ours) = UnixStream::pair().unwrap();
            host.write_all(&bytes).unwrap();
            let arrival = Pending::new(ours.into(), Instant::now()).advance();
            assert_eq!(matches!(arrival, Arrival::Hopeless), hopeless, "{bytes:?}");
            assert_eq!(matches!(arrival, Arrival::Refused(_)), !hopeless, "{bytes:?}");
        }
        let (host, ours) = UnixStream::pair().unwrap();
        drop(host);
        assert!(matches!(Pending::new(ours.into(), Instant::now()).advance(), Arrival::Hopeless));
    }
}
