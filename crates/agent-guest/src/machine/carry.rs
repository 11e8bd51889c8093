//! One connection of the host's, carried to the agent: pieces on the one side, a plain stream with half-close on the other.
//! What one side does not take is not read from the other.

use std::os::fd::{AsFd, OwnedFd};

use moltis_agent_protocol::machine::{MAX_PIECE, PIECE_HEADER, Piece};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use crate::poll::{PollSet, READ, Slot, WRITE};

/// A connection on its way.
pub struct Carried {
    host: OwnedFd,
    /// Absent where the agent takes none any more.
    agent: Option<OwnedFd>,
    inward: Inward,
    outward: Outward,
}

/// From the host.
#[derive(Default)]
struct Inward {
    /// What the agent has not taken yet, and how much of it it has.
    waiting: Vec<u8>,
    taken: usize,
    /// The beginning of a header.
    header: Vec<u8>,
    /// Bytes of the current piece that are to come.
    due: usize,
    /// The host has said that this direction ends.
    ended: bool,
}

/// To the host.
#[derive(Default)]
struct Outward {
    /// What the host has not taken yet, headers included.
    waiting: Vec<u8>,
    taken: usize,
    /// Whether anything came from the agent.
    began: bool,
    /// The last header is said.
    ended: bool,
}

/// It is over, for whatever reason.
struct Over;

const QUIET: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

impl Carried {
    /// Of these two, both in non-blocking mode.
    pub fn new(host: OwnedFd, agent: Option<OwnedFd>) -> Self {
        let mut this = Self { host, agent, inward: Inward::default(), outward: Outward::default() };
        if this.agent.is_none() {
            this.outward.end(Piece::Unread);
        }
        this
    }

    /// Adds what it waits for.
    pub fn watch(&self, set: &mut PollSet) -> [Option<Slot>; 2] {
        let mut host = 0;
        // Also once it has ended its direction: that the host is gone must be noticed.
        if self.inward.waiting.is_empty() {
            host |= READ;
        }
        if !self.outward.waiting.is_empty() {
            host |= WRITE;
        }
        let host = Some(set.add(self.host.as_fd(), host));
        let mut events = 0;
        if !self.inward.waiting.is_empty() {
            events |= WRITE;
        }
        if self.outward.waiting.is_empty() && !self.outward.ended {
            events |= READ;
        }
        let agent = self.agent.as_ref().filter(|_| events != 0).map(|agent| set.add(agent.as_fd(), events));
        [host, agent]
    }

    /// Moves what can be moved; whether it goes on.
    pub fn advance(&mut self, set: &PollSet, [host, agent]: [Option<Slot>; 2]) -> bool {
        self.step(set.any(host, READ | WRITE), set.any(agent, READ | WRITE)).is_ok()
    }

    fn step(&mut self, host: bool, agent: bool) -> Result<(), Over> {
        if host || agent {
            self.write_host()?;
        }
        if host {
            self.read_host()?;
        }
        if host || agent {
            self.write_agent();
        }
        if agent {
            self.read_agent();
            self.write_host()?;
        }
        Ok(())
    }

    /// Reads from the host while nothing of it waits for the agent.
    fn read_host(&mut self) -> Result<(), Over> {
        if !self.inward.waiting.is_empty() {
            return Ok(());
        }
        let mut buffer = [0; MAX_PIECE];
        match rustix::io::read(&self.host, &mut buffer) {
            Ok(0) => Err(Over),
            Ok(count) => self.inward.take(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Over),
        }
    }

    fn write_agent(&mut self) {
        let Some(agent) = &self.agent else {
            // There is nobody who would.
            self.inward.waiting.clear();
            return;
        };
        while self.inward.taken < self.inward.waiting.len() {
            match rustix::net::send(agent, &self.inward.waiting[self.inward.taken..], QUIET) {
                Ok(count) => self.inward.taken += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // It takes no more of this; what it still says goes on to the host.
                Err(_) => self.inward.taken = self.inward.waiting.len(),
            }
        }
        self.inward.waiting.clear();
        self.inward.taken = 0;
        if self.inward.ended {
            let _ = rustix::net::shutdown(agent, Shutdown::Write);
        }
    }

    fn read_agent(&mut self) {
        let Some(agent) = &self.agent else { return };
        if !self.outward.waiting.is_empty() || self.outward.ended {
            return;
        }
        let mut buffer = vec![0; PIECE_HEADER + MAX_PIECE];
        match rustix::io::read(agent, &mut buffer[PIECE_HEADER..]) {
            Ok(0) => self.outward.end(Piece::End),
            Ok(count) => {
                buffer[..PIECE_HEADER].copy_from_slice(&Piece::Data(count).encode());
                buffer.truncate(PIECE_HEADER + count);
                self.outward.waiting = buffer;
                self.outward.began = true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The kernel says so of a connection that was closed with unread bytes in it.
            Err(_) if !self.outward.began => self.outward.end(Piece::Unread),
            Err(_) => self.outward.end(Piece::End),
        }
    }

    fn write_host(&mut self) -> Result<(), Over> {
        let outward = &mut self.outward;
        while outward.taken < outward.waiting.len() {
            match rustix::net::send(&self.host, &outward.waiting[outward.taken..], QUIET) {
                Ok(count) => outward.taken += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Over),
            }
        }
        outward.waiting = Vec::new();
        outward.taken = 0;
        Ok(())
    }
}

impl Outward {
    fn end(&mut self, piece: Piece) {
        self.waiting.extend_from_slice(&piece.encode());
        self.ended = true;
    }
}

impl Inward {
    /// Takes headers out of what came.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            if self.ended {
                return Err(Over);
            }
            if self.due > 0 {
                let (now, rest) = bytes.split_at(self.due.min(bytes.len()));
                self.waiting.extend_from_slice(now);
                self.due -= now.len();
                bytes = rest;
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let Ok(header) = <[u8; PIECE_HEADER]>::try_from(&self.header[..]) {
                self.header.clear();
                match Piece::decode(header) {
                    Some(Piece::Data(length)) => self.due = length,
                    Some(Piece::End) => self.ended = true,
                    Some(Piece::Unread) | None => return Err(Over),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown as Half;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    /// Carries between two pairs until it is over, in a thread of its own.
    fn carried(agent: bool) -> (UnixStream, UnixStream, std::thread::JoinHandle<()>) {
        let (host, host_end) = UnixStream::pair().unwrap();
        let (agent_side, agent_end) = UnixStream::pair().unwrap();
        for end in [&host_end, &agent_end] {
            end.set_nonblocking(true).unwrap();
        }
        host.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        agent_side.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let thread = std::thread::spawn(move || {
            let mut one = Carried::new(host_end.into(), agent.then(|| agent_end.into()));
            let mut set = PollSet::default();
            loop {
                set.clear();
                let slots = one.watch(&mut set);
                set.wait(Some(Instant::now() + Duration::from_secs(30))).unwrap();
                if !one.advance(&set, slots) {
                    return;
                }
            }
        });
        (host, agent_side, thread)
    }

    fn piece(bytes: &[u8]) -> Vec<u8> {
        [&Piece::Data(bytes.len()).encode()[..], bytes].concat()
    }

    fn read_pieces(mut from: &UnixStream) -> (Vec<u8>, Piece) {
        let mut all = Vec::new();
        loop {
            let mut header = [0; 2];
            from.read_exact(&mut header).unwrap();
            match Piece::decode(header).unwrap() {
                Piece::Data(length) => {
                    let mut bytes = vec![0; length];
                    from.read_exact(&mut bytes).unwrap();
                    all.extend(bytes);
                }
                end => return (all, end),
            }
        }
    }

    #[test]
    fn each_direction_ends_by_itself() {
        let (mut host, mut agent, thread) = carried(true);
        host.write_all(&[piece(b"ask"), Piece::End.encode().to_vec()].concat()).unwrap();
        let mut asked = Vec::new();
        agent.read_to_end(&mut asked).unwrap();
        assert_eq!(asked, b"ask");
        let answer = vec![7; 3 << 20];
        let sent = answer.clone();
        let writer = std::thread::spawn(move || {
            agent.write_all(&sent).unwrap();
            agent.shutdown(Half::Write).unwrap();
            agent
        });
        assert_eq!(read_pieces(&host), (answer, Piece::End));
        drop(writer.join().unwrap());
        drop(host);
        thread.join().unwrap();
    }

    #[test]
    fn pieces_may_come_in_any_parts() {
        let (mut host, mut agent, thread) = carried(true);
        let whole = [piece(b"one"), piece(b"two"), Piece::End.encode().to_vec()].concat();
        for byte in whole {
            host.write_all(&[byte]).unwrap();
        }
        let mut asked = Vec::new();
        agent.read_to_end(&mut asked).unwrap();
        assert_eq!(asked, b"onetwo");
        drop(agent);
        assert_eq!(read_pieces(&host), (Vec::new(), Piece::End));
        drop(host);
        thread.join().unwrap();
    }

    #[test]
    fn the_loss_of_the_host_is_the_agent_s() {
        let (mut host, mut agent, thread) = carried(true);
        host.write_all(&piece(b"ask")).unwrap();
        let mut asked = [0; 3];
        agent.read_exact(&mut asked).unwrap();
        drop(host);
        assert_eq!(agent.read(&mut asked).unwrap(), 0);
        thread.join().unwrap();
        for broken in [&[0xfe, 0xff, 1][..], &[0xff, 0xff], &[0, 0, 1]] {
            let (mut host, mut agent, thread) = carried(true);
            host.write_all(broken).unwrap();
            assert_eq!(agent.read(&mut asked).unwrap(), 0, "{broken:?}");
            thread.join().unwrap();
        }
    }

    #[test]
    fn an_agent_that_read_nothing_is_told_from_one_that_did() {
        let (host, _agent, thread) = carried(false);
        assert_eq!(read_pieces(&host), (Vec::new(), Piece::Unread));
        drop(host);
        thread.join().unwrap();
        let (mut host, agent, thread) = carried(true);
        host.write_all(&piece(b"ask")).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let mut waits = [rustix::event::PollFd::new(&agent, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        rustix::event::poll(&mut waits, Some(&limit)).unwrap();
        assert!(Instant::now() < until);
        // Closed with the question unread in it.
        drop(agent);
        assert_eq!(read_pieces(&host), (Vec::new(), Piece::Unread));
        drop(host);
        thread.join().unwrap();
    }
}
