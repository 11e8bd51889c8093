//! The supervisor of one command: a process of its own between PID 1 and the command, subreaper of all that descends
//! from it. It keeps the deadline, carries the streams, ends the descent, and stays until the last of it is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame::{self, Kind};
use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::{Ending, ExecStart, Exited, Failure, Left, Order, Reply, Request};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::control::{self, Report};
use crate::descent::{self, Attempt};
use crate::failure::{invalid, kernel, not_found};
use crate::input::{Fed, Input};
use crate::poll::{PEER_CLOSED, PollSet, READ, Slot, WRITE};
use crate::pty;
use crate::rlimits::{CommandLimits, Rlimit};
use crate::spawn::{Command, Stdio};
use crate::startup;
use crate::stream::{Incoming, Outbox, read_onto};
use crate::watch::{MAX_WATCHERS, Rings, Watcher, Wish};

/// Size of a pipe that turned out to carry much. Not asked for at first: the kernel bounds what a user's pipes hold
/// together.
pub const PIPE_BYTES: usize = 1024 * 1024;

/// What a pipe holds before it is enlarged.
const SMALL_PIPE_BYTES: usize = 64 * 1024;

/// Time between `SIGTERM` and the killing.
pub const GRACE: Duration = Duration::from_millis(300);

/// Time between two attempts to kill.
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// Attempts that find only the dead until they count as gone: a tracer elsewhere may hold them for ever.
const DEAD_ATTEMPTS: u32 = 4;

/// Output that may wait in the outbox while more is read.
const COALESCED_BYTES: usize = 64 * 1024;

/// Requests for the end that wait for it, at most.
const MAX_STOPPERS: usize = 64;

/// What a supervisor is given.
pub struct Job {
    /// The command's number.
    pub process: u32,
    /// The command.
    pub start: ExecStart,
    /// Directory of a command that names none.
    pub cwd: Vec<u8>,
    /// What bounds it.
    pub limits: CommandLimits,
    /// The host that wants it.
    pub conn: OwnedFd,
    /// The way to PID 1.
    pub control: OwnedFd,
    /// See [`startup::signals`].
    pub signals: OwnedFd,
}

/// Runs the command and stays until it and all its descent are over; `false` if it could not stay that long.
pub fn run(job: Job) -> bool {
    let background = job.start.background;
    let timeout = Some(job.start.timeout_millis).filter(|millis| *millis > 0).map(Duration::from_millis);
    let mut outbox = Outbox::default();
    outbox.push(&hello::hello());
    let limits = job.limits.of(job.start.timeout_millis);
    let running = match launch(job.start, &job.cwd, &limits) {
        Ok(running) => running,
        Err(failure) => {
            outbox.reply(&Reply::Failed(failure));
            let _ = outbox.flush(&job.conn);
            return true;
        }
    };
    let pid = running.main.as_raw_pid() as u32;
    outbox.reply(&Reply::Started { process: job.process, pid });
    let mut conn = Some(job.conn);
    if background {
        // PID 1 hears of it first, so that whoever was told of it finds it listed.
        control::report(job.control.as_fd(), &Report::Started { pid });
        if let Some(conn) = conn.take() {
            let _ = outbox.flush(conn);
        }
        outbox.release();
    }
    let deadline = timeout.map(|timeout| running.began + timeout);
    Supervisor {
        process: job.process,
        pid,
        signals: job.signals,
        control: Some(job.control),
        running,
        deadline,
        conn,
        outbox,
        incoming: Incoming::default(),
        full: false,
        rings: background.then(Box::default),
        watchers: Vec::new(),
        departed: Vec::new(),
        stoppers: Vec::new(),
        scratch: Vec::new(),
        stage: Stage::Live,
        end: End::None,
        ending: Ending::Exited,
        left: None,
        gone: false,
        dead_attempts: 0,
        quota: [0; 2],
        exited: None,
        unused_told: false,
        let_go: false,
    }
    .supervise()
}

/// A command that has been started.
struct Running {
    main: Pid,
    began: Instant,
    streams: [Stream; 2],
    input: Input,
}

/// One of the two streams that a command writes.
#[derive(Default)]
struct Stream {
    /// Our end, which does not block; none once it is at its end.
    source: Option<OwnedFd>,
    bytes: u64,
    enlarged: bool,
}

impl Stream {
    fn new(source: OwnedFd) -> Self {
        Self { source: Some(source), bytes: 0, enlarged: false }
    }
}

fn launch(start: ExecStart, cwd: &[u8], limits: &[Rlimit]) -> Result<Running, Failure> {
    rustix::process::set_child_subreaper(Some(Pid::INIT))
        .map_err(|errno| kernel("the supervisor could not become a subreaper", errno))?;
    let began = Instant::now();
    if let Some((rows, columns)) = start.terminal {
        let command = Command::prepare(start, cwd)?;
        let broken = |errno| kernel("no terminal could be opened", errno);
        let (master, slave) = pty::open(rows, columns).map_err(broken)?;
        let keyboard = rustix::io::fcntl_dupfd_cloexec(&master, 3).map_err(broken)?;
        let slave = slave.as_fd();
        let stdio = Stdio { input: Some(slave), output: slave, error: slave, terminal: true };
        let main = command.start(&stdio, limits)?;
        let streams = [Stream::new(master), Stream::default()];
        return Ok(Running { main, began, streams, input: Input::Terminal(keyboard) });
    }
    let broken = |errno| kernel("no pipe could be made", errno);
    let wants_input = start.stdin;
    let command = Command::prepare(start, cwd)?;
    let (stdout, output) = pipe(false).map_err(broken)?;
    let (stderr, error) = pipe(false).map_err(broken)?;
    let (input, source) = if wants_input {
        let (source, sink) = pipe(true).map_err(broken)?;
        (Input::pipe(sink), Some(source))
    } else {
        (Input::Closed, None)
    };
    let stdio = Stdio {
        input: source.as_ref().map(|source| source.as_fd()),
        output: output.as_fd(),
        error: error.as_fd(),
        terminal: false,
    };
    let main = command.start(&stdio, limits)?;
    Ok(Running { main, began, streams: [Stream::new(stdout), Stream::new(stderr)], input })
}

/// The reading and the writing end of a pipe; ours (the writing one if `ours_writes`) does not block.
fn pipe(ours_writes: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(if ours_writes { &writer } else { &reader }, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It runs, or is being ended.
    Live,
    /// It is over, and what it wrote before is still on its way to the host.
    Draining,
    /// It is over and its end has been told, or is in the outbox.
    Told,
}

/// How far the ending of its descent has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not wanted.
    None,
    /// Asked to end, with time until then.
    Terminating(Instant),
    /// Being killed, as often as it takes.
    Killing(Instant),
}

struct Supervisor {
    process: u32,
    pid: u32,
    signals: OwnedFd,
    /// The way to PID 1; none once PID 1 is gone.
    control: Option<OwnedFd>,
    running: Running,
    deadline: Option<Instant>,

    /// The host; none for a background command, and once it has everything or is lost.
    conn: Option<OwnedFd>,
    outbox: Outbox,
    incoming: Incoming,
    /// There is input of the host that the command does not take now.
    full: bool,

    /// Kept output; of background commands only.
    rings: Option<Box<Rings>>,
    watchers: Vec<Watcher>,
    /// Watchers who have gone, and whose input the command has not taken yet.
    departed: Vec<Watcher>,
    /// Who wants to hear when the whole descent is gone.
    stoppers: Vec<OwnedFd>,
    scratch: Vec<u8>,

    stage: Stage,
    end: End,
    ending: Ending,
    left: Option<Left>,
    /// `waitpid` has said that nobody is left.
    gone: bool,
    dead_attempts: u32,
    /// Bytes of each stream that are still waited for once the command is over.
    quota: [usize; 2],
    exited: Option<Exited>,
    /// PID 1 knows that this no longer counts as use.
    unused_told: bool,
    /// PID 1 has forgotten this background command.
    let_go: bool,
}

/// What [`Supervisor::wait`] found.
struct Ready {
    signals: bool,
    control: bool,
    conn_read: bool,
    conn_closed: bool,
    output: [bool; 2],
    input: bool,
    watchers: Vec<(bool, bool)>,
}

impl Supervisor {
    fn supervise(&mut self) -> bool {
        let mut set = PollSet::default();
        loop {
            self.progress();
            if self.is_over() {
                return true;
            }
            self.report_unused();
            let Some(ready) = self.wait(&mut set) else { return false };
            if ready.signals {
                startup::drain(&self.signals);
                self.reap();
            }
            if ready.control {
                self.hear();
            }
            if ready.conn_closed {
                self.lose();
            } else if ready.conn_read {
                self.receive();
            }
            if ready.input {
                self.feed();
            }
            for index in 0..2 {
                if ready.output[index] && self.stage != Stage::Draining {
                    let _ = self.take(index);
                }
            }
            self.attend(&ready);
        }
    }

    fn is_over(&self) -> bool {
        let kept = self.rings.is_some() && !self.let_go && self.control.is_some();
        self.gone && self.stage == Stage::Told && self.conn.is_none() && !kept
    }

    /// Waits until something happens; `None` when waiting is impossible.
    fn wait(&self, set: &mut PollSet) -> Option<Ready> {
        set.clear();
        let signals = set.add(self.signals.as_fd(), READ);
        let control = self.control.as_ref().map(|control| set.add(control.as_fd(), READ));
        let conn = self.conn.as_ref().map(|conn| {
            let read = if self.full { 0 } else { READ };
            let write = if self.outbox.is_empty() { 0 } else { WRITE };
            set.add(conn.as_fd(), read | write | PEER_CLOSED)
        });
        // A host that has not taken the last output holds the next back.
        let room = self.outbox.is_empty() && self.stage != Stage::Draining;
        let output = self.running.streams.each_ref().map(|stream| {
            stream.source.as_ref().filter(|_| room).map(|source| set.add(source.as_fd(), READ))
        });
        let wants_input =
            self.full || !self.departed.is_empty() || self.watchers.iter().any(Watcher::is_full);
        let input = self.running.input.descriptor().filter(|_| wants_input).map(|fd| set.add(fd, WRITE));
        let watchers: Vec<Slot> = self.watchers.iter().map(|watcher| watcher.wait_for(set)).collect();
        set.wait(self.next_time()).ok()?;
        Some(Ready {
            signals: set.any(Some(signals), READ),
            control: set.any(control, READ),
            conn_read: conn.is_some_and(|slot| set.happened(slot) & READ != 0),
            conn_closed: set.any(conn, PEER_CLOSED),
            output: output.map(|slot| set.any(slot, READ)),
            input: set.any(input, WRITE) || (wants_input && input.is_none()),
            watchers: watchers
                .into_iter()
                .map(|slot| (set.happened(slot) & READ != 0, set.any(Some(slot), PEER_CLOSED)))
                .collect(),
        })
    }

    fn next_time(&self) -> Option<Instant> {
        match self.end {
            _ if self.is_ended() => None,
            End::Terminating(time) | End::Killing(time) => Some(time),
            End::None if self.stage == Stage::Live => self.deadline,
            End::None => None,
        }
    }

    /// Does all that can be done now.
    fn progress(&mut self) {
        if self.next_time().is_some_and(|time| Instant::now() >= time) {
            match self.end {
                End::None => self.begin_end(Ending::TimedOut),
                End::Terminating(_) | End::Killing(_) => self.kill(),
            }
        }
        if self.stage == Stage::Live && self.is_main_over() {
            self.begin_draining();
        }
        if self.stage == Stage::Draining && self.drain() {
            self.tell();
        }
        if let Some(conn) = &self.conn {
            match self.outbox.flush(conn) {
                Ok(true) if self.stage == Stage::Told => {
                    self.conn = None;
                    self.incoming.release();
                    self.outbox.release();
                }
                Ok(_) => {}
                Err(_) => self.lose(),
            }
        }
        if let Some(rings) = &self.rings {
            let exited = self.exited.as_ref().filter(|_| self.stage == Stage::Told);
            let over: Vec<_> =
                self.watchers.extract_if(.., |watcher| !watcher.advance(rings, exited)).collect();
            over.into_iter().filter(|watcher| !watcher.is_told()).for_each(|watcher| self.depart(watcher));
        }
        if self.stage == Stage::Told && self.is_ended() {
            for stopper in std::mem::take(&mut self.stoppers) {
                if let Some(exited) = &self.exited {
                    answer(&stopper, &Reply::Exited(exited.clone()));
                }
            }
        }
    }

    /// Whether the command is over: its main process if that left by itself, else its whole descent.
    fn is_main_over(&self) -> bool {
        match self.end {
            End::None => self.left.is_some(),
            End::Terminating(_) | End::Killing(_) => self.is_ended(),
        }
    }

    /// Whether nobody is left who could do anything.
    fn is_ended(&self) -> bool {
        self.gone || self.dead_attempts >= DEAD_ATTEMPTS
    }

    fn begin_end(&mut self, why: Ending) {
        if self.end != End::None || self.is_ended() {
            return;
        }
        if self.stage == Stage::Live {
            self.ending = why;
        }
        descent::terminate();
        self.end = End::Terminating(Instant::now() + GRACE);
    }

    fn kill(&mut self) {
        match descent::kill(|_| true) {
            Attempt::Nobody | Attempt::Killed => self.dead_attempts = 0,
            Attempt::OnlyDead => self.dead_attempts += 1,
        }
        self.reap();
        self.end = End::Killing(Instant::now() + KILL_INTERVAL);
    }

    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.running.main && self.left.is_none() {
                        self.left = Some(left(status));
                    }
                }
                Ok(None) => {
                    self.gone = false;
                    return;
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }

    fn begin_draining(&mut self) {
        self.stage = Stage::Draining;
        // A pipe held no more than this when the command ended; what leftovers write from now on is not waited for.
        self.quota = [PIPE_BYTES; 2];
        let (leftovers, leftovers_total) =
            if self.is_ended() { (Vec::new(), 0) } else { descent::leftovers() };
        self.exited = Some(Exited {
            left: self.left.unwrap_or(Left::Signal(libc::SIGKILL)),
            ending: self.ending,
            micros: self.running.began.elapsed().as_micros() as u64,
            stdout_bytes: 0,
            stderr_bytes: 0,
            leftovers,
            leftovers_total,
        });
    }

    /// Takes what the command had written when it ended; `true` when nothing of it is left.
    fn drain(&mut self) -> bool {
        for index in 0..2 {
            while self.quota[index] > 0 {
                if let Some(conn) = &self.conn
                    && self.outbox.len() > COALESCED_BYTES
                {
                    match self.outbox.flush(conn) {
                        Ok(true) => {}
                        Ok(false) => return false,
                        Err(_) => self.lose(),
                    }
                }
                match self.take(index) {
                    Some(count) => self.quota[index] = self.quota[index].saturating_sub(count),
                    None => self.quota[index] = 0,
                }
            }
        }
        true
    }

    /// Says that the command is over, to the host, to PID 1 and to whoever watches.
    fn tell(&mut self) {
        self.stage = Stage::Told;
        let Some(exited) = &mut self.exited else { return };
        exited.stdout_bytes = self.running.streams[0].bytes;
        exited.stderr_bytes = self.running.streams[1].bytes;
        if self.conn.is_some() {
            self.outbox.reply(&Reply::Exited(exited.clone()));
        }
        if let Some(control) = &self.control
            && (self.rings.is_some() || !self.gone)
        {
            control::report(control.as_fd(), &Report::Exited { pid: self.pid, exited: exited.clone() });
            self.unused_told = true;
        }
        if let Some(rings) = &mut self.rings {
            rings.iter_mut().for_each(|ring| ring.shrink());
            self.scratch = Vec::new();
        }
    }

    /// Tells PID 1 once that this supervisor stays, although its command is over.
    fn report_unused(&mut self) {
        if self.stage != Stage::Live
            && !self.unused_told
            && let Some(control) = &self.control
        {
            control::report(control.as_fd(), &Report::Use(0));
            self.unused_told = true;
        }
    }

    /// Reads a stream once; how many bytes came, `None` if none did.
    fn take(&mut self, index: usize) -> Option<usize> {
        let stream = &mut self.running.streams[index];
        let source = stream.source.as_ref()?;
        let limit = if stream.enlarged { frame::MAX_RAW } else { SMALL_PIPE_BYTES };
        let result = if let Some(conn) = &self.conn
            && self.stage != Stage::Told
        {
            let kind = if index == 0 { Kind::Stdout } else { Kind::Stderr };
            let result = self.outbox.read_frame(kind, source, limit);
            if result == Ok(SMALL_PIPE_BYTES) && !stream.enlarged {
                stream.enlarged = true;
                let _ = rustix::pipe::fcntl_setpipe_size(source, PIPE_BYTES);
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(conn, PIPE_BYTES);
            }
            result
        } else {
            self.scratch.clear();
            let result = read_onto(&mut self.scratch, source, SMALL_PIPE_BYTES);
            if let Some(rings) = &mut self.rings {
                rings[index].push(&self.scratch);
            }
            result
        };
        match result {
            Ok(count) if count > 0 => {
                stream.bytes += count as u64;
                Some(count)
            }
            Err(Errno::AGAIN) => None,
            // The end; a terminal's master says it by an error.
            Ok(_) | Err(_) => {
                stream.source = None;
                None
            }
        }
    }

    /// The caller is lost: the command ends, unless it is over already.
    fn lose(&mut self) {
        self.conn = None;
        self.outbox.release();
        self.incoming.release();
        self.full = false;
        if self.stage == Stage::Live {
            self.begin_end(Ending::Cancelled);
        }
    }

    fn receive(&mut self) {
        let Some(conn) = &self.conn else { return };
        match self.incoming.fill(conn) {
            Ok(true) => self.feed_host(),
            Ok(false) | Err(_) => self.lose(),
        }
    }

    fn feed_host(&mut self) {
        loop {
            match self.running.input.feed(&mut self.incoming) {
                Ok(Fed::All) => self.full = false,
                Ok(Fed::Full) => self.full = true,
                Ok(Fed::Order(order)) => {
                    self.obey(order);
                    continue;
                }
                Err(_) => self.lose(),
            }
            return;
        }
    }

    fn feed_watcher(&mut self, index: usize) -> Option<()> {
        loop {
            match self.watchers.get_mut(index)?.feed(&mut self.running.input).ok()? {
                Fed::All | Fed::Full => return Some(()),
                Fed::Order(order) => self.obey(order),
            }
        }
    }

    /// A watcher has gone. Whoever sends input or a signal need not stay until it has arrived.
    fn depart(&mut self, mut watcher: Watcher) {
        if self.feed_from(&mut watcher) && self.departed.len() < MAX_WATCHERS {
            self.departed.push(watcher);
        }
    }

    /// Hands on what a watcher sent before it went away; `true` when the command does not take it all now.
    fn feed_from(&mut self, departed: &mut Watcher) -> bool {
        loop {
            match departed.drain(&mut self.running.input) {
                Ok(Fed::Order(order)) => self.obey(order),
                Ok(Fed::Full) => return true,
                Ok(Fed::All) | Err(_) => return false,
            }
        }
    }

    /// The command reads again.
    fn feed(&mut self) {
        if self.full {
            self.feed_host();
        }
        let mut departed = std::mem::take(&mut self.departed);
        departed.retain_mut(|watcher| self.feed_from(watcher));
        self.departed = departed;
        for index in (0..self.watchers.len()).rev() {
            if self.watchers[index].is_full() && self.feed_watcher(index).is_none() {
                // What follows walks the watchers in the order in which they were waited for.
                self.watchers[index].dismiss();
            }
        }
    }

    fn attend(&mut self, ready: &Ready) {
        for (index, (read, closed)) in ready.watchers.iter().enumerate().rev() {
            if *closed && index < self.watchers.len() {
                let watcher = self.watchers.remove(index);
                self.depart(watcher);
                continue;
            }
            let open = match self.watchers.get_mut(index) {
                Some(watcher) if *read => watcher.receive().and_then(|()| self.feed_watcher(index)),
                Some(_) => Some(()),
                None => continue,
            };
            if open.is_none() {
                self.watchers.remove(index);
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Resize { rows, columns } => {
                if let Input::Terminal(master) = &self.running.input {
                    let _ = pty::resize(master, rows, columns);
                }
            }
            // The group keeps its number until the main process, which leads it, is reaped.
            Order::Signal(signal) if self.left.is_none() && (1..=64).contains(&signal) => {
                // SAFETY: sends a signal; no memory is involved.
                unsafe { libc::kill(-self.running.main.as_raw_pid(), signal) };
            }
            Order::Signal(_) => {}
            Order::Cancel if self.stage == Stage::Live => self.begin_end(Ending::Cancelled),
            Order::Cancel => {}
        }
    }

    /// Hears what PID 1 says.
    fn hear(&mut self) {
        let mut buffer = vec![0; control::MAX_PACKET];
        while let Some(control) = &self.control {
            match control::recv_with_fd(control.as_fd(), &mut buffer) {
                Ok(Some((length, conn))) => {
                    let request = frame::decode_control::<Request>(&buffer[..length]);
                    match (request, conn) {
                        (Ok(Request::Shutdown), _) => self.let_go(),
                        (Ok(request), Some(conn)) => self.serve(&request, conn),
                        _ => {}
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // PID 1 is gone, and everything ends with it.
                Ok(None) | Err(_) => {
                    self.control = None;
                    self.let_go();
                    self.lose();
                    self.begin_end(Ending::Cancelled);
                    if let End::Terminating(_) = self.end {
                        self.end = End::Terminating(Instant::now());
                    }
                }
            }
        }
    }

    /// Keeps nothing for anybody any more.
    fn let_go(&mut self) {
        self.let_go = true;
        self.watchers.clear();
        self.departed.clear();
        if let Some(rings) = &mut self.rings {
            **rings = Rings::default();
        }
    }

    fn serve(&mut self, request: &Request, conn: OwnedFd) {
        match *request {
            Request::Attach { .. } if self.rings.is_none() => {
                answer(
                    &conn,
                    &Reply::Failed(not_found(format!("{} is no background command", self.process))),
                );
            }
            Request::Attach { .. } if self.watchers.len() >= MAX_WATCHERS => {
                answer(&conn, &Reply::Failed(kernel("too many watch this command", Errno::AGAIN)));
            }
            Request::Attach { process, stdout, stderr, follow } => {
                let wish = Wish { offsets: [stdout, stderr], follow };
                self.watchers.push(Watcher::new(conn, wish, process, self.pid));
            }
            Request::Order { .. } if self.stage != Stage::Live => {
                answer(&conn, &Reply::Failed(not_found(format!("{} is over", self.process))));
            }
            Request::Order { order, .. } => {
                self.obey(order);
                answer(&conn, &Reply::Done);
            }
            Request::Stop { .. } if self.stoppers.len() >= MAX_STOPPERS => {
                answer(&conn, &Reply::Failed(kernel("too many end this command", Errno::AGAIN)));
            }
            Request::Stop { .. } => {
                self.stoppers.push(conn);
                self.begin_end(Ending::Cancelled);
            }
            _ => answer(&conn, &Reply::Failed(invalid("not a request for a command"))),
        }
    }
}

/// Answers a connection that was just handed over. A fresh socket takes that much without waiting.
pub fn answer(conn: &OwnedFd, reply: &Reply) {
    let mut outbox = Outbox::default();
    outbox.push(&hello::hello());
    outbox.reply(reply);
    let _ = outbox.flush(conn);
}

fn left(status: WaitStatus) -> Left {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Left::Code(code),
        (None, Some(signal)) => Left::Signal(signal),
        (None, None) => Left::Signal(libc::SIGKILL),
    }
}
