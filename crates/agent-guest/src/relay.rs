//! Mode `relay`: many connections to the agent over this process's standard input and output, where an engine's exec is
//! the only way into a container.
//!
//! Code of the sandbox runs beside this process, perhaps as the same user. It is kept from the secret: this process
//! cannot be traced or looked into from its first step on, it gives the secret to nobody but the first process of the
//! container, and it stops if it is traced already.

mod stream;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame;
use moltis_agent_protocol::hello::{self, HELLO_BYTES};
use moltis_agent_protocol::message::Request;
use moltis_agent_protocol::relay::{
    self, Decoder, Header, Kind, MAX_DATA, MAX_STREAMS, Part, RelayError, SECRET_BYTES, Secret,
};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::peer;
use crate::poll::{self, PollSet};
use crate::startup;
use stream::{Stream, Turn};

/// Time that an agent has to begin to listen: the container may have been made a moment ago.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two attempts at it.
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes on their way to the host from which on no more are read from the agent.
const FULL: usize = 256 * 1024;

/// Exit code for anything that ends it but the end of its input.
const BROKEN: i32 = 70;

/// Runs a relay until its input ends. The exit code; what is wrong is said in one line on standard error.
pub fn run(args: &[OsString]) -> i32 {
    let [name, path] = args else { return crate::misused("relay takes --socket PATH") };
    if name != "--socket" || !path.as_bytes().starts_with(b"/") {
        return crate::misused("relay takes --socket PATH, which is absolute");
    }
    match begin(path.as_bytes()).and_then(|mut relay| relay.serve()) {
        Ok(()) => 0,
        Err(problem) => {
            let _ = io::stderr().write_all(format!("moltis-guest: {problem}\n").as_bytes());
            BROKEN
        }
    }
}

fn begin(path: &[u8]) -> Result<Relay, String> {
    let text = |error: io::Error| error.to_string();
    startup::close_all_but(&[]).map_err(text)?;
    startup::reset_signals();
    startup::keep_memory_small();
    if is_traced().map_err(text)? {
        return Err("another process traces this one".to_owned());
    }
    let mut theirs = [0; HELLO_BYTES];
    let mut secret = [0; SECRET_BYTES];
    // Unbuffered, so that nothing after the secret is taken.
    let mut input = std::fs::File::from(stdin().try_clone_to_owned().map_err(text)?);
    input.read_exact(&mut theirs).map_err(|error| format!("there is no host: {error}"))?;
    if let Err(error) = hello::check(theirs) {
        // What the host needs to find the same.
        let _ = rustix::io::write(stdout(), &hello::hello());
        return Err(error.to_string());
    }
    input.read_exact(&mut secret).map_err(|error| format!("there is no host: {error}"))?;
    drop(input);
    let agent = Agent::find(path, secret)?;
    rustix::io::ioctl_fionbio(stdout(), true).map_err(|errno| errno.to_string())?;
    let mut relay = Relay {
        agent,
        streams: BTreeMap::new(),
        last: 0,
        turn: 0,
        decoder: Decoder::default(),
        current: None,
        out: Outgoing::default(),
    };
    relay.out.bytes.extend_from_slice(&hello::hello());
    Ok(relay)
}

/// Whether somebody began to trace this process before it forbade that.
fn is_traced() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    Ok(tracer.map(str::trim) != Some("0"))
}

fn stdin() -> BorrowedFd<'static> {
    // SAFETY: the standard library opens this descriptor if nobody has, and nothing here closes it.
    unsafe { BorrowedFd::borrow_raw(0) }
}

fn stdout() -> BorrowedFd<'static> {
    // SAFETY: as above.
    unsafe { BorrowedFd::borrow_raw(1) }
}

/// The agent's socket, by a handle: what stands at its path later does not matter.
struct Agent {
    socket: OwnedFd,
    secret: Secret,
}

impl Agent {
    /// Waits for the agent, and makes sure that it is the agent and takes the secret.
    fn find(path: &[u8], secret: Secret) -> Result<Self, String> {
        let until = Instant::now() + PATIENCE;
        let shown = String::from_utf8_lossy(path);
        loop {
            let problem =
                match Self::open(path, secret).and_then(|agent| agent.connect().map(|conn| (agent, conn))) {
                    Ok((agent, conn)) => {
                        return match agent.asks(conn) {
                            Ok(true) => Ok(agent),
                            Ok(false) => Err("the agent knows another secret, or none".to_owned()),
                            Err(error) => Err(format!("the agent does not answer: {error}")),
                        };
                    }
                    Err(errno @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN)) => errno,
                    Err(Errno::PERM) => return Err(format!("{shown} does not belong to the first process")),
                    Err(errno) => return Err(format!("{shown}: {errno}")),
                };
            if Instant::now() > until {
                return Err(format!("{shown}: {problem}"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn open(path: &[u8], secret: Secret) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::open(path, flags, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) {
            FileType::Socket => Ok(Self { socket, secret }),
            _ => Err(Errno::NOTSOCK),
        }
    }

    /// A connection whose other end is the first process, in non-blocking mode; nothing has been said.
    fn connect(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let conn = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", self.socket.as_raw_fd()))?;
        rustix::net::connect(&conn, &address)?;
        match peer::peer_of(conn.as_fd()) {
            Ok(peer) if peer.pid == 1 => Ok(conn),
            _ => Err(Errno::PERM),
        }
    }

    /// Whether the agent answers a question that comes with the secret.
    fn asks(&self, conn: OwnedFd) -> io::Result<bool> {
        rustix::io::ioctl_fionbio(&conn, false)?;
        let mut conn = UnixStream::from(conn);
        conn.set_read_timeout(Some(PATIENCE))?;
        let question = frame::encode_control(&Request::Status).map_err(io::Error::other)?;
        let opening = [&relay::preface(&self.secret)[..], &hello::hello(), &question].concat();
        let mut answer = Vec::new();
        let heard = conn.write_all(&opening).and_then(|()| conn.take(64).read_to_end(&mut answer));
        match heard {
            Ok(_) => Ok(answer.starts_with(&hello::hello()) && answer.len() > HELLO_BYTES),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Frames on their way to the host.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn push(&mut self, stream: u32, kind: Kind, length: u32) {
        self.bytes.extend_from_slice(&Header { stream, kind, length }.encode());
    }

    /// Writes what can be written now.
    fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.bytes.len() {
            match rustix::io::write(stdout(), &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Nothing is moved while much is left of it.
                    if self.sent >= FULL {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(FULL);
        self.sent = 0;
        Ok(())
    }
}

struct Relay {
    agent: Agent,
    streams: BTreeMap<u32, Stream>,
    /// The last stream that was opened.
    last: u32,
    /// The stream that is first to be read when not all can be.
    turn: u32,
    decoder: Decoder,
    /// Whether the payload that comes is for a stream that takes it.
    current: Option<u32>,
    out: Outgoing,
}

impl Relay {
    /// Relays until the input ends, or the output does.
    fn serve(&mut self) -> Result<(), String> {
        let mut buffer = vec![0; MAX_DATA];
        let mut set = PollSet::default();
        let mut slots = Vec::new();
        loop {
            match self.out.flush() {
                Ok(()) => {}
                Err(Errno::PIPE) => return Ok(()),
                Err(errno) => return Err(errno.to_string()),
            }
            set.clear();
            slots.clear();
            let input = set.add(stdin(), poll::READ);
            if self.out.len() > 0 {
                set.add(stdout(), poll::WRITE);
            }
            let reads = self.out.len() < FULL;
            for (number, stream) in &self.streams {
                let events = stream.events(reads);
                // One that waits for the host is left out: that its other end is gone would be reported for ever.
                if events != 0 {
                    slots.push((*number, set.add(stream.conn(), events)));
                }
            }
            set.wait(None).map_err(|error| error.to_string())?;
            if set.any(Some(input), poll::READ) {
                match rustix::io::read(stdin(), &mut buffer[..]) {
                    Ok(0) => return Ok(()),
                    Ok(count) => self
                        .take(&buffer[..count])
                        .map_err(|error| format!("the host broke the relay's protocol: {error}"))?,
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(errno) => return Err(errno.to_string()),
                }
            }
            // Those from the turn on come first.
            let first = slots.partition_point(|(number, _)| *number < self.turn);
            slots.rotate_left(first);
            for (number, slot) in &slots {
                let happened = set.happened(*slot);
                if happened & (poll::WRITE | poll::GONE) != 0 {
                    self.send(*number);
                }
                if happened & (poll::READ | poll::GONE) != 0 {
                    if self.out.len() >= FULL {
                        self.turn = *number;
                        break;
                    }
                    self.receive(*number);
                }
            }
        }
    }

    /// Takes what the host sent.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), RelayError> {
        let mut touched = Vec::new();
        while let Some(part) = self.decoder.next(&mut bytes)? {
            match part {
                Part::Header(header) => {
                    self.obey(header)?;
                    touched.push(header.stream);
                }
                Part::Data(number, data) => {
                    if self.current == Some(number)
                        && let Some(stream) = self.streams.get_mut(&number)
                    {
                        stream.push(data);
                        touched.push(number);
                    }
                }
            }
        }
        touched.dedup();
        touched.into_iter().for_each(|number| self.send(number));
        Ok(())
    }

    fn obey(&mut self, header: Header) -> Result<(), RelayError> {
        let Header { stream: number, kind, length } = header;
        self.current = None;
        if kind == Kind::Open {
            if number <= self.last || self.streams.len() >= MAX_STREAMS {
                return Err(RelayError::Stream(kind, number));
            }
            self.last = number;
            match self.agent.connect() {
                Ok(conn) => {
                    self.streams.insert(number, Stream::new(conn, &relay::preface(&self.agent.secret)));
                }
                Err(_) => self.out.push(number, Kind::Reset, 0),
            }
            return Ok(());
        }
        if number > self.last {
            return Err(RelayError::Stream(kind, number));
        }
        // One that is over here already is still spoken of on the way.
        let Some(stream) = self.streams.get_mut(&number) else { return Ok(()) };
        match kind {
            Kind::Data => {
                stream.expect(number, length)?;
                self.current = Some(number);
            }
            Kind::Eof => stream.finish(number)?,
            Kind::Credit => stream.credit.grant(number, length)?,
            Kind::Reset => {
                // What was sent before it still arrives, as far as it can at once.
                self.send(number);
                self.streams.remove(&number);
            }
            Kind::Open => {}
        }
        Ok(())
    }

    /// Sends the agent what it takes now.
    fn send(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let turn = stream.send();
        self.after(number, turn);
    }

    /// Reads from the agent once.
    fn receive(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let turn = stream.receive(number, &mut self.out.bytes);
        self.after(number, turn);
    }

    fn after(&mut self, number: u32, turn: Turn) {
        match turn {
            Turn::GoesOn => {}
            Turn::Credit(count) => self.out.push(number, Kind::Credit, count),
            Turn::Over => {
                self.streams.remove(&number);
            }
            Turn::Reset => {
                self.out.push(number, Kind::Reset, 0);
                self.streams.remove(&number);
            }
        }
    }
}
