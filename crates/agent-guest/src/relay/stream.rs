//! One connection to the agent that a relay carries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::relay::{Credit, HEADER_BYTES, Header, Kind, MAX_DATA, RelayError, Window};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::poll;

/// The connection, and what is on its way to the agent.
pub struct Stream {
    conn: OwnedFd,
    /// What the host has sent and the agent has not taken.
    inbox: Vec<u8>,
    sent: usize,
    /// Bytes at the front that are the relay's own.
    own: usize,
    window: Window,
    /// What may be sent to the host.
    pub credit: Credit,
    /// The host sends no more.
    is_finished: bool,
    /// The agent has been told so.
    is_told: bool,
    /// The agent sends no more, and the host has been told so.
    is_read: bool,
    /// The agent took no more, and something was dropped.
    is_broken: bool,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to say.
    GoesOn,
    /// The host may send so much more.
    Credit(u32),
    /// Both directions have ended.
    Over,
    /// The host is to be told that it is over.
    Reset,
}

impl Stream {
    /// A connection in non-blocking mode on which these bytes come first.
    pub fn new(conn: OwnedFd, first: &[u8]) -> Self {
        Self {
            conn,
            inbox: first.to_vec(),
            sent: 0,
            own: first.len(),
            window: Window::default(),
            credit: Credit::default(),
            is_finished: false,
            is_told: false,
            is_read: false,
            is_broken: false,
        }
    }

    /// The connection.
    pub fn conn(&self) -> BorrowedFd<'_> {
        self.conn.as_fd()
    }

    /// What to wait for; `reads` says whether there is room for what the agent sends.
    pub fn events(&self, reads: bool) -> i16 {
        let read = if reads && !self.is_read && self.credit.left() > 0 { poll::READ } else { 0 };
        let write = if self.sent < self.inbox.len() { poll::WRITE } else { 0 };
        read | write
    }

    /// So many bytes come.
    pub fn expect(&mut self, number: u32, count: u32) -> Result<(), RelayError> {
        if self.is_finished {
            return Err(RelayError::Stream(Kind::Data, number));
        }
        self.window.received(number, count)
    }

    /// Bytes have come.
    pub fn push(&mut self, data: &[u8]) {
        // Whoever takes no more will soon end the other direction, too.
        if !self.is_broken {
            self.inbox.extend_from_slice(data);
        }
    }

    /// No more bytes come.
    pub fn finish(&mut self, number: u32) -> Result<(), RelayError> {
        match std::mem::replace(&mut self.is_finished, true) {
            false => Ok(()),
            true => Err(RelayError::Stream(Kind::Eof, number)),
        }
    }

    /// Sends the agent what it takes now.
    pub fn send(&mut self) -> Turn {
        let mut passed_on = 0;
        while self.sent < self.inbox.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.conn, &self.inbox[self.sent..], flags) {
                Ok(count) => {
                    self.sent += count;
                    let own = self.own.min(count);
                    self.own -= own;
                    passed_on += count - own;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_broken = true;
                    self.sent = self.inbox.len();
                    if self.is_read {
                        return Turn::Reset;
                    }
                }
            }
        }
        if self.sent == self.inbox.len() {
            self.inbox = Vec::new();
            self.sent = 0;
            if self.is_finished && !self.is_told {
                self.is_told = true;
                let _ = rustix::net::shutdown(&self.conn, Shutdown::Write);
                if self.is_read {
                    return Turn::Over;
                }
            }
        } else if self.sent >= MAX_DATA {
            self.inbox.drain(..self.sent);
            self.sent = 0;
        }
        match self.window.passed_on(passed_on) {
            Some(credit) => Turn::Credit(credit),
            None => Turn::GoesOn,
        }
    }

    /// Reads once from the agent, as much as the host may get, into a frame at the end of `out`.
    pub fn receive(&mut self, number: u32, out: &mut Vec<u8>) -> Turn {
        let limit = self.credit.left().min(MAX_DATA);
        if self.is_read || limit == 0 {
            return Turn::GoesOn;
        }
        let at = out.len();
        out.resize(at + HEADER_BYTES + limit, 0);
        let received = rustix::net::recv(&self.conn, &mut out[at + HEADER_BYTES..], RecvFlags::DONTWAIT);
        let count = received.map_or(0, |(count, _)| count);
        out.truncate(if count > 0 { at + HEADER_BYTES + count } else { at });
        match received {
            Ok(_) if count > 0 => {
                self.credit.spend(count);
                let header = Header { stream: number, kind: Kind::Data, length: count as u32 };
                out[at..at + HEADER_BYTES].copy_from_slice(&header.encode());
                Turn::GoesOn
            }
            Err(Errno::AGAIN | Errno::INTR) => Turn::GoesOn,
            // As the kernel resets a connection that was closed with bytes in it that nobody had read.
            Ok(_) if self.is_broken => Turn::Reset,
            Ok(_) => {
                self.is_read = true;
                out.extend_from_slice(&Header { stream: number, kind: Kind::Eof, length: 0 }.encode());
                if self.is_told { Turn::Over } else { Turn::GoesOn }
            }
            Err(_) => Turn::Reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use moltis_agent_protocol::relay::WINDOW;

    use super::*;

    fn stream() -> (UnixStream, Stream) {
        let (agent, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (agent, Stream::new(ours.into(), b"first"))
    }

    fn header(kind: Kind, length: u32) -> [u8; HEADER_BYTES] {
        Header { stream: 3, kind, length }.encode()
    }

    #[test]
    fn bytes_go_both_ways_and_each_direction_ends_by_itself() {
        let (mut agent, mut stream) = stream();
        stream.expect(3, 2).unwrap();
        stream.push(b"in");
        stream.finish(3).unwrap();
        assert_eq!(stream.send(), Turn::GoesOn);
        let mut got = Vec::new();
        agent.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"firstin");
        agent.write_all(b"out").unwrap();
        let mut out = Vec::new();
        assert_eq!(stream.receive(3, &mut out), Turn::GoesOn);
        assert_eq!(out, [&header(Kind::Data, 3)[..], b"out"].concat());
        assert_eq!(stream.receive(3, &mut out), Turn::GoesOn, "nothing there");
        drop(agent);
        out.clear();
        assert_eq!(stream.receive(3, &mut out), Turn::Over);
        assert_eq!(out, header(Kind::Eof, 0));
        assert!(stream.expect(3, 1).is_err(), "nothing comes after the end");
    }

    #[test]
    fn no_more_is_read_than_the_host_takes_nor_taken_than_there_is_room_for() {
        let (mut agent, mut stream) = stream();
        agent.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let mut out = Vec::new();
        while stream.events(true) & poll::READ != 0 {
            while let Ok(count) = agent.write(&[1; 4096]) {
                sent += count;
            }
            stream.receive(3, &mut out);
        }
        assert!(sent > WINDOW as usize);
        let frames = out.len() - WINDOW as usize;
        assert_eq!(frames % HEADER_BYTES, 0);
        stream.credit.grant(3, 1).unwrap();
        assert_ne!(stream.events(true) & poll::READ, 0);
        assert_eq!(stream.events(false) & poll::READ, 0);
        assert!(stream.expect(3, WINDOW).is_ok());
        assert_eq!(stream.expect(3, 1), Err(RelayError::Window(3)));
    }

    #[test]
    fn what_nobody_took_is_told_by_a_reset() {
        let (agent, mut stream) = stream();
        drop(agent);
        assert_eq!(stream.send(), Turn::GoesOn);
        let mut out = Vec::new();
        assert_eq!(stream.receive(3, &mut out), Turn::Reset);
        assert!(out.is_empty());
        // Closed after it was sent and before it was read.
        let (agent, mut stream) = self::stream();
        stream.send();
        drop(agent);
        assert_eq!(stream.receive(3, &mut out), Turn::Reset);
        assert!(out.is_empty());
    }
}
