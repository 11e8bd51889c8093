//! A blocking client of the agent, and agents to talk to.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame::{self, HEADER_BYTES};
use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::*;
use moltis_agent_protocol::{HELLO_BYTES, Header, Kind};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long anything may take before a test fails.
pub const LONG: Duration = Duration::from_secs(30);

/// A running agent in mode `serve`. Dropping it ends it.
pub struct Agent {
    child: Child,
    socket: PathBuf,
    lifeline: Option<OwnedFd>,
    /// Whether the child is `unshare`, whose child is the agent.
    wrapped: bool,
    /// Whether it has no lifeline and ends by a signal.
    contained: bool,
    _dir: tempfile::TempDir,
}

/// What an agent is started with.
#[derive(Default)]
pub struct Options {
    /// Arguments after those for the descriptors.
    pub args: Vec<String>,
    /// User to run as.
    pub uid: Option<u32>,
    /// Processes that this user may have.
    pub processes: Option<u64>,
    /// Run it as PID 1 of its own user, pid and mount namespaces.
    pub namespaces: bool,
}

impl Agent {
    pub fn start() -> Self {
        Self::with(Options::default())
    }

    pub fn with_args(args: &[&str]) -> Self {
        Self::with(Options { args: args.iter().map(|arg| (*arg).to_owned()).collect(), ..Options::default() })
    }

    pub fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent");
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        let (their_lifeline, lifeline) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (ready, their_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let guest =
            std::env::var("MOLTIS_GUEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_moltis-guest").to_owned());
        // By its descriptor, because another user may not be allowed to the folder that it lies in.
        let binary = options.uid.map(|_| fs::File::open(&guest).unwrap());
        let guest = binary.as_ref().map_or(guest, |binary| format!("/proc/self/fd/{}", binary.as_raw_fd()));
        let mut command = if options.namespaces {
            let mut command = Command::new("unshare");
            command
                .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"])
                .arg(&guest);
            command
        } else {
            Command::new(&guest)
        };
        let given: Vec<RawFd> =
            [&listener, &their_lifeline, &their_ready].map(|fd: &OwnedFd| fd.as_raw_fd()).to_vec();
        for (name, fd) in ["--listener", "--lifeline", "--ready"].iter().zip(&given) {
            if *name == "--listener" {
                command.arg("serve");
            }
            command.arg(name).arg(fd.to_string());
        }
        command.args(&options.args).stdin(Stdio::null());
        if let Some(uid) = options.uid {
            command.uid(uid).gid(uid);
        }
        let processes = options.processes;
        // SAFETY: between fork and exec only a limit is set and a flag of descriptors is cleared.
        unsafe {
            command.pre_exec(move || {
                if let Some(limit) = processes {
                    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                    if libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                for fd in &given {
                    if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop((listener, their_lifeline, their_ready));
        let mut byte = [0];
        assert_eq!(rustix::io::read(&ready, &mut byte), Ok(1), "the agent did not begin to listen");
        Self {
            child,
            socket,
            lifeline: Some(lifeline),
            wrapped: options.namespaces,
            contained: false,
            _dir: dir,
        }
    }

    /// One in mode `container`, as the first process of namespaces of its own, in which it is root with every
    /// capability. `before` is a line of shell that runs in them first, in the directory of its socket.
    pub fn contained(args: &[&str], before: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let mut child = contained(dir.path(), args, before).spawn().unwrap();
        within(LONG, || {
            assert!(child.try_wait().unwrap().is_none(), "the agent ended at once");
            UnixStream::connect(&socket).ok()
        });
        Self { child, socket, lifeline: None, wrapped: true, contained: true, _dir: dir }
    }

    /// The directory that its socket lies in.
    pub fn directory(&self) -> &std::path::Path {
        self._dir.path()
    }

    /// Process id of the agent as seen here.
    pub fn pid(&self) -> u32 {
        if !self.wrapped {
            return self.child.id();
        }
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        fs::read_to_string(children).unwrap().trim().parse().unwrap()
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Opens an operation.
    pub fn open(&self, request: &Request) -> Conn {
        Conn::open(self.connect(), request)
    }

    /// Runs a command to its end.
    pub fn run(&self, start: ExecStart) -> Run {
        self.open(&Request::Exec(start)).finish()
    }

    /// Runs a line of shell to its end.
    pub fn sh(&self, line: &str) -> Run {
        self.run(sh(line))
    }

    /// Sends a request that is answered by one message.
    pub fn ask(&self, request: &Request) -> Reply {
        self.open(request).reply()
    }

    pub fn processes(&self) -> Vec<Process> {
        match self.ask(&Request::Processes) {
            Reply::Processes(processes) => processes,
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&self) -> Status {
        match self.ask(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Closes the lifeline.
    pub fn let_go(&mut self) {
        self.lifeline = None;
    }

    /// Waits until nothing counts as use: a command's process ends a moment after its connection.
    pub fn assert_unused(&self) {
        within(LONG, || (self.status().busy == 0).then_some(()));
    }

    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// Waits until the agent has ended.
    pub fn wait(&mut self) -> ExitStatus {
        within(LONG, || self.child.try_wait().unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.lifeline = None;
        if self.contained && self.is_running() {
            self.signal(libc::SIGTERM);
        }
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            panic!("the agent outlived its lifeline");
        }
    }
}

/// The agent in mode `container`, not yet started.
pub fn contained(directory: &std::path::Path, args: &[&str], before: &str) -> Command {
    let guest =
        std::env::var("MOLTIS_GUEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_moltis-guest").to_owned());
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", &format!("{before}\nexec \"$@\""), "sh", &guest, "container", "--socket"])
        .arg(directory.join("agent.sock"))
        .args(["--owner", "0"])
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

/// The host's side of one operation.
pub struct Conn {
    pub stream: UnixStream,
    greeted: bool,
}

/// One thing that the agent said.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Reply(Reply),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The agent closed.
    Closed,
}

/// A command that has come to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: Exited,
}

impl Run {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

impl Conn {
    pub fn open(stream: UnixStream, request: &Request) -> Self {
        let opening = [&hello::hello()[..], &frame::encode_control(request).unwrap()].concat();
        let mut conn = Self { stream, greeted: false };
        conn.stream.write_all(&opening).unwrap();
        conn
    }

    /// Goes on with an operation that was opened before.
    pub fn adopt(stream: UnixStream) -> Self {
        Self { stream, greeted: true }
    }

    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(frame::MAX_RAW) {
            let header = Header { kind: Kind::Data, length: part.len() }.encode();
            let sent = self.stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(part)])?;
            if sent < HEADER_BYTES {
                self.stream.write_all(&header[sent..])?;
            }
            self.stream.write_all(&part[sent.saturating_sub(HEADER_BYTES)..])?;
        }
        Ok(())
    }

    pub fn eof(&mut self) {
        self.stream.write_all(&Header { kind: Kind::Eof, length: 0 }.encode()).unwrap();
    }

    pub fn order(&mut self, order: Order) {
        self.stream.write_all(&frame::encode_control(&order).unwrap()).unwrap();
    }

    pub fn next(&mut self) -> Event {
        if !self.greeted {
            let mut theirs = [0; HELLO_BYTES];
            if self.stream.read_exact(&mut theirs).is_err() {
                return Event::Closed;
            }
            hello::check(theirs).unwrap();
            self.greeted = true;
        }
        let mut header = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => panic!("the agent says nothing"),
            Err(_) => return Event::Closed,
        }
        let header = Header::decode(header).unwrap();
        let mut payload = vec![0; header.length];
        self.stream.read_exact(&mut payload).unwrap();
        match header.kind {
            Kind::Control => Event::Reply(frame::decode_control(&payload).unwrap()),
            Kind::Stdout => Event::Stdout(payload),
            Kind::Stderr => Event::Stderr(payload),
            Kind::Data | Kind::Eof => panic!("{header:?}"),
        }
    }

    pub fn reply(&mut self) -> Reply {
        match self.next() {
            Event::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// The command's number and process id.
    pub fn started(&mut self) -> (u32, u32) {
        match self.reply() {
            Reply::Started { process, pid } => (process, pid),
            other => panic!("{other:?}"),
        }
    }

    pub fn failed(&mut self) -> Failure {
        match self.reply() {
            Reply::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    /// Reads standard output until it holds `text`.
    pub fn until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            match self.next() {
                Event::Stdout(bytes) => seen.extend(bytes),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&seen)),
            }
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Reads to the end, `Started` included.
    pub fn finish(mut self) -> Run {
        self.started();
        self.rest()
    }

    /// Reads to the end after `Started`.
    pub fn rest(mut self) -> Run {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next() {
                Event::Stdout(bytes) => stdout.extend(bytes),
                Event::Stderr(bytes) => stderr.extend(bytes),
                Event::Reply(Reply::Exited(end)) => {
                    assert_eq!(self.next(), Event::Closed);
                    return Run { stdout, stderr, end };
                }
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&stdout)),
            }
        }
    }
}

pub fn bytes(text: impl AsRef<[u8]>) -> ByteString {
    ByteString::from(text.as_ref().to_vec())
}

/// A command with a `PATH` and nothing else.
pub fn command(argv: &[&str]) -> ExecStart {
    ExecStart {
        argv: argv.iter().map(bytes).collect(),
        env: vec![(bytes("PATH"), bytes("/usr/local/bin:/usr/bin:/bin"))],
        cwd: None,
        stdin: false,
        timeout_millis: 0,
        terminal: None,
        background: false,
    }
}

pub fn sh(line: &str) -> ExecStart {
    command(&["sh", "-c", line])
}

/// A number of seconds that no other process sleeps for: it marks the processes of one test.
pub fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("31{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Living processes whose command line holds this.
pub fn alive(token: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.windows(token.len()).any(|part| part == token.as_bytes())
            && !matches!(field(pid, 0).as_deref(), None | Some("Z" | "X"))
        {
            found.push(pid);
        }
    }
    found
}

/// Waits until no living process's command line holds this, then makes sure that it stays so.
pub fn assert_none_left(token: &str, limit: Duration) {
    within(limit, || alive(token).is_empty().then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(alive(token), []);
}

/// A field of `/proc/PID/stat`; 0 is the state, 1 the parent.
pub fn field(pid: u32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(index).map(str::to_owned)
}

pub fn parent(pid: u32) -> u32 {
    field(pid, 1).unwrap().parse().unwrap()
}

/// Resident memory in KiB.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Waits for something to become so.
pub fn within<T>(limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < until, "not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether user namespaces and the rest of `unshare` can be used here.
pub fn can_unshare() -> bool {
    Command::new("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
