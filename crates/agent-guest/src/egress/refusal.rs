//! What programs are told while no host stands behind the port: a whole HTTP answer, or the failure that SOCKS has for
//! it. What a program still sends is read for a while, since closing before that would take the answer from it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// Connections that are being answered, at most; the oldest goes for the newest.
pub const MAX: usize = 512;

/// Time that a program has to say what it speaks.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that it has to close once it was answered.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes that are read of it after that.
const MAX_DRAINED: usize = 1024 * 1024;

/// First byte of SOCKS version 5, and the version of its answers.
const SOCKS: u8 = 5;

/// SOCKS: no authentication, which every client offers.
const NO_AUTHENTICATION: u8 = 0;

/// SOCKS: general failure, with an address of zeros.
const SOCKS_FAILURE: [u8; 10] = [SOCKS, 1, 0, 1, 0, 0, 0, 0, 0, 0];

/// Why there is nobody, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No host stands there.
    Nobody,
    /// Those that do take nothing.
    NoAnswer,
}

impl Why {
    fn text(self) -> &'static str {
        match self {
            Self::Nobody => {
                "Moltis: no proxy is attached to this sandbox, so nothing outside of it can be reached.\n\
                 Either its network is blocked, or the Moltis process that carried its connections has ended.\n\
                 Start the command through Moltis again with network `trusted`, or keep the gateway running.\n"
            }
            Self::NoAnswer => {
                "Moltis: the proxy of this sandbox does not take the connection.\n\
                 Try again, or start the command through Moltis again.\n"
            }
        }
    }

    /// The whole HTTP answer.
    pub fn http(self) -> String {
        let text = self.text();
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
    }
}

/// How far one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said what it speaks.
    Opening,
    /// It was told that no authentication is needed, and has not said where to.
    Socks,
    /// It has been answered.
    Answered,
}

/// One connection.
pub struct Refusal {
    conn: OwnedFd,
    why: Why,
    said: Vec<u8>,
    stage: Stage,
    drained: usize,
    until: Instant,
}

impl Refusal {
    /// A connection on which this has been read already.
    pub fn new(conn: OwnedFd, said: Vec<u8>, why: Why, now: Instant) -> Self {
        Self { conn, why, said, stage: Stage::Opening, drained: 0, until: now + PATIENCE }
    }

    /// Goes on as far as it can now; whether it goes on after that.
    pub fn step(&mut self, now: Instant) -> bool {
        let mut scratch = [0; 4096];
        loop {
            self.judge(now);
            match rustix::net::recv(&self.conn, &mut scratch, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    if self.stage != Stage::Answered {
                        // It says no more, and may still want to know.
                        self.answer(now);
                    }
                    return false;
                }
                Ok((count, _)) if self.stage == Stage::Answered => {
                    self.drained += count;
                    if self.drained > MAX_DRAINED {
                        return false;
                    }
                }
                // Never much: the longest that is waited for is a greeting of SOCKS.
                Ok((count, _)) => self.said.extend_from_slice(&scratch[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Answers, if enough was said.
    fn judge(&mut self, now: Instant) {
        if self.stage == Stage::Opening
            && let [SOCKS, count, methods @ ..] = &self.said[..]
        {
            let count = usize::from(*count);
            if methods.len() < count {
                return;
            }
            let offered = methods[..count].contains(&NO_AUTHENTICATION);
            self.said.drain(..2 + count);
            self.send(&[SOCKS, if offered { NO_AUTHENTICATION } else { 0xff }]);
            match offered {
                true => self.stage = Stage::Socks,
                false => self.end(now),
            }
        }
        match (self.stage, &self.said[..]) {
            (Stage::Opening, [] | [SOCKS, ..]) | (Stage::Socks, []) | (Stage::Answered, _) => {}
            (Stage::Opening | Stage::Socks, _) => self.answer(now),
        }
    }

    /// Says it in whatever it speaks, and ends our side.
    fn answer(&mut self, now: Instant) {
        match self.stage {
            Stage::Opening if self.said.first() == Some(&SOCKS) => {}
            Stage::Opening => self.send(self.why.http().as_bytes()),
            Stage::Socks => self.send(&SOCKS_FAILURE),
            Stage::Answered => return,
        }
        self.end(now);
    }

    fn end(&mut self, now: Instant) {
        let _ = rustix::net::shutdown(&self.conn, Shutdown::Write);
        self.said = Vec::new();
        self.stage = Stage::Answered;
        self.until = now + LINGER;
    }

    /// It fits into the buffer of a fresh connection.
    fn send(&self, bytes: &[u8]) {
        let _ = rustix::net::send(&self.conn, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// All connections that are being answered.
#[derive(Default)]
pub struct Refusals {
    all: BTreeMap<u64, Refusal>,
}

impl Refusals {
    /// One more, which is not over yet.
    pub fn insert(&mut self, token: u64, refusal: Refusal) {
        self.all.insert(token, refusal);
    }

    /// The oldest one, if there are as many as there may be: it is answered, whatever it speaks, and over.
    pub fn surplus(&mut self, now: Instant) -> Option<OwnedFd> {
        if self.all.len() < MAX {
            return None;
        }
        let (_, mut oldest) = self.all.pop_first()?;
        oldest.answer(now);
        Some(oldest.conn)
    }

    /// Goes on with one; its connection, when it is over.
    pub fn step(&mut self, token: u64, now: Instant) -> Option<OwnedFd> {
        match self.all.get_mut(&token)?.step(now) {
            true => None,
            false => self.all.remove(&token).map(|refusal| refusal.conn),
        }
    }

    /// Those whose time is up: who has not been answered is now, and has a moment to read it; the others are over.
    pub fn overdue(&mut self, now: Instant) -> Vec<OwnedFd> {
        let late: Vec<u64> =
            self.all.iter().filter(|(_, refusal)| refusal.until <= now).map(|(token, _)| *token).collect();
        late.into_iter()
            .filter_map(|token| {
                let refusal = self.all.get_mut(&token)?;
                if refusal.stage != Stage::Answered {
                    refusal.answer(now);
                    return None;
                }
                self.all.remove(&token).map(|refusal| refusal.conn)
            })
            .collect()
    }

    /// When the next one will be.
    pub fn next(&self) -> Option<Instant> {
        self.all.values().map(|refusal| refusal.until).min()
    }
}

impl AsFd for Refusal {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.conn.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn refusal(said: &[u8]) -> (UnixStream, Refusal) {
        let (program, ours) = UnixStream::pair().unwrap();
        (program, Refusal::new(ours.into(), said.to_vec(), Why::Nobody, Instant::now()))
    }

    fn got(program: &mut UnixStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        program.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn http_is_answered_whole_after_its_first_byte() {
        for said in [&b"C"[..], b"CONNECT example.org:443 HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\n"] {
            let (mut program, mut refusal) = refusal(said);
            assert!(refusal.step(Instant::now()), "the program may still send");
            let answer = String::from_utf8(got(&mut program)).unwrap();
            assert_eq!(answer, Why::Nobody.http());
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
            assert!(body.contains("no proxy is attached"), "{body}");
            program.write_all(&[0; 10_000]).unwrap();
            assert!(refusal.step(Instant::now()));
            drop(program);
            assert!(!refusal.step(Instant::now()));
        }
    }

    #[test]
    fn socks_gets_its_own_failure_in_any_cuts() {
        let said = [&[5, 2, 2, 0][..], &[5, 1, 0, 3, 3], b"a.b", &[1, 187]].concat();
        for cut in 0..=said.len() {
            let (mut program, mut refusal) = refusal(&said[..cut]);
            assert!(refusal.step(Instant::now()));
            program.write_all(&said[cut..]).unwrap();
            assert!(refusal.step(Instant::now()));
            assert_eq!(got(&mut program), [&[5, 0][..], &SOCKS_FAILURE].concat(), "{cut}");
        }
        for (said, answer) in
            [(&[5, 1, 2][..], &[5, 0xff][..]), (&[5, 0], &[5, 0xff]), (&[5], &[]), (&[5, 9, 0], &[])]
        {
            let (mut program, mut refusal) = refusal(said);
            refusal.step(Instant::now());
            program.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(!refusal.step(Instant::now()));
            drop(refusal);
            assert_eq!(got(&mut program), answer, "{said:?}");
        }
    }

    #[test]
    fn whoever_says_nothing_or_never_ends_is_let_go() {
        let now = Instant::now();
        let mut all = Refusals::default();
        let (mut silent, one) = refusal(b"");
        all.insert(1, one);
        assert!(all.step(1, now).is_none());
        assert!(all.overdue(now).is_empty());
        let later = all.next().unwrap();
        assert!(later > now + PATIENCE / 2 && all.overdue(later).is_empty());
        assert_eq!(all.overdue(later + LINGER).len(), 1);
        assert_eq!(got(&mut silent), Why::Nobody.http().as_bytes());

        let (mut endless, mut one) = refusal(b"x");
        endless.set_nonblocking(true).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while one.step(Instant::now()) {
            let _ = endless.write(&[0; 65536]);
            assert!(Instant::now() < until);
        }
        assert!(one.drained <= MAX_DRAINED + 4096);
    }

    #[test]
    fn the_oldest_goes_for_the_newest() {
        let now = Instant::now();
        let mut all = Refusals::default();
        let mut programs: Vec<UnixStream> = (0..MAX as u64)
            .map(|token| {
                assert!(all.surplus(now).is_none());
                let (program, one) = refusal(b"");
                all.insert(token, one);
                program
            })
            .collect();
        assert!(all.surplus(now).is_some());
        assert_eq!(got(&mut programs[0]), Why::Nobody.http().as_bytes());
        assert!(all.step(0, now).is_none() && all.surplus(now).is_none());
    }
}
