//! Connections that were offered to a host and that it has not yet taken over.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame;
use moltis_agent_protocol::message::{Reply, TAKEN};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// Time that a host has to take over what it was offered.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a program that go along with the offer, at most: few enough that the socket takes them all at once.
pub const EARLY: usize = 4096;

/// How often one connection is offered, at most, to hosts that are there.
const MAX_OFFERS: u8 = 32;

/// A connection of a program, and what it has said already.
pub struct Inside {
    /// The connection.
    pub conn: OwnedFd,
    /// What was read of it.
    pub early: Vec<u8>,
    /// Number of the listening socket that it came by.
    pub socket: usize,
    offers: u8,
}

/// Such a connection, offered to a host.
pub struct Fresh {
    /// The host's connection.
    pub host: OwnedFd,
    inside: Inside,
    /// When the host must have taken it.
    pub until: Instant,
}

/// What has become of an offer.
pub enum Answer {
    /// Nothing yet.
    Waiting(Fresh),
    /// It was taken: the two to be joined.
    Taken(OwnedFd, OwnedFd),
    /// It was not, and never will be.
    Left(Inside),
}

impl Inside {
    /// A connection just accepted, with what has come on it already; `None` when it is over.
    pub fn new(conn: OwnedFd, socket: usize) -> Option<Self> {
        let mut early = [0; EARLY];
        let early = match rustix::net::recv(&conn, &mut early, RecvFlags::DONTWAIT) {
            Ok((count, _)) => early[..count].to_vec(),
            Err(Errno::AGAIN | Errno::INTR) => Vec::new(),
            Err(_) => return None,
        };
        Some(Self { conn, early, socket, offers: 0 })
    }

    /// Whether it may be offered once more. Hosts that take nothing are not asked for ever.
    pub fn may_be_offered(&self) -> bool {
        self.offers < MAX_OFFERS
    }

    /// Offers it to a host; comes back if that host is gone.
    pub fn offer(mut self, host: OwnedFd, now: Instant) -> Result<Fresh, Self> {
        let Ok(mut message) = frame::encode_control(&Reply::Connected) else { return Err(self) };
        message.extend_from_slice(&self.early);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::io::retry_on_intr(|| rustix::net::send(&host, &message, flags)) {
            Ok(count) if count == message.len() => {
                self.offers += 1;
                Ok(Fresh { host, inside: self, until: now + PATIENCE })
            }
            _ => Err(self),
        }
    }
}

impl Fresh {
    /// Looks whether the host has taken it.
    pub fn answer(self) -> Answer {
        let mut byte = [0];
        match rustix::net::recv(&self.host, &mut byte, RecvFlags::DONTWAIT) {
            Ok((1, _)) if byte == TAKEN => Answer::Taken(self.host, self.inside.conn),
            Err(Errno::AGAIN | Errno::INTR) => Answer::Waiting(self),
            Ok(_) | Err(_) => Answer::Left(self.inside),
        }
    }

    /// The time is up: whether it was taken in time. From here on the host cannot say any more that it takes it, so that
    /// nothing is done twice. `None` when it has said so at this very moment: then it is broken for both.
    pub fn give_up(self) -> Option<Answer> {
        let fresh = match self.answer() {
            Answer::Waiting(fresh) => fresh,
            answer => return Some(answer),
        };
        let _ = rustix::net::shutdown(&fresh.host, Shutdown::Read);
        match fresh.answer() {
            Answer::Waiting(Self { inside, .. }) | Answer::Left(inside) => Some(Answer::Left(inside)),
            Answer::Taken(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inside(said: &[u8]) -> (UnixStream, Inside) {
        let (mut program, ours) = UnixStream::pair().unwrap();
        program.write_all(said).unwrap();
        (program, Inside::new(ours.into(), 0).unwrap())
    }

    fn offered(said: &[u8]) -> (UnixStream, UnixStream, Fresh) {
        let (program, inside) = inside(said);
        let (host, ours) = UnixStream::pair().unwrap();
        let Ok(fresh) = inside.offer(ours.into(), Instant::now()) else { panic!("not offered") };
        (program, host, fresh)
    }

    #[test]
    fn what_was_said_goes_along_and_is_kept_until_it_is_taken() {
        let (_program, mut host, fresh) = offered(b"early");
        let Answer::Waiting(fresh) = fresh.answer() else { panic!("not waiting") };
        let mut expected = frame::encode_control(&Reply::Connected).unwrap();
        expected.extend_from_slice(b"early");
        let mut got = vec![0; expected.len()];
        host.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
        drop(host);
        let Answer::Left(inside) = fresh.answer() else { panic!("not left") };
        assert_eq!((inside.early.as_slice(), inside.may_be_offered()), (&b"early"[..], true));
        let (mut next, ours) = UnixStream::pair().unwrap();
        let Ok(fresh) = inside.offer(ours.into(), Instant::now()) else { panic!("not offered") };
        next.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
        next.write_all(&TAKEN).unwrap();
        assert!(matches!(fresh.answer(), Answer::Taken(..)));
    }

    #[test]
    fn a_host_that_is_too_late_knows_it() {
        let (_program, mut host, fresh) = offered(b"");
        assert!(matches!(fresh.give_up(), Some(Answer::Left(_))));
        assert!(host.write_all(&TAKEN).is_err());
        let (_program, mut host, fresh) = offered(b"");
        host.write_all(&TAKEN).unwrap();
        assert!(matches!(fresh.give_up(), Some(Answer::Taken(..))), "in time after all");
        let (_program, mut host, fresh) = offered(b"");
        host.write_all(b"?").unwrap();
        assert!(matches!(fresh.answer(), Answer::Left(_)), "another word is none");
    }

    #[test]
    fn nobody_is_asked_for_ever() {
        let (_program, mut inside) = inside(b"");
        for _ in 0..MAX_OFFERS {
            assert!(inside.may_be_offered());
            // One that has gone already is none.
            let (host, ours) = UnixStream::pair().unwrap();
            drop(host);
            let Err(back) = inside.offer(ours.into(), Instant::now()) else { panic!("offered to nobody") };
            let (host, ours) = UnixStream::pair().unwrap();
            let Ok(fresh) = back.offer(ours.into(), Instant::now()) else { panic!("not offered") };
            drop(host);
            let Answer::Left(back) = fresh.answer() else { panic!("not left") };
            inside = back;
        }
        assert!(!inside.may_be_offered());
    }
}
