//! PID 1: accepts connections, judges peers, starts one process for each operation, reaps, and keeps the idle clock.
//! It never waits for a client, and starts nothing itself but operations.
//!
//! Its children are its operations and nobody else. A supervisor stays as long as anything of its command's descent
//! lives; so any other child is an escapee of a supervisor that was killed from inside the sandbox, and is killed with
//! all its descent. A supervisor that was stopped, or that lets its command's time pass, is killed as well, whereupon
//! its descent falls to PID 1 and meets the same end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame::{self, HEADER_BYTES};
use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::{ExecStart, Failure, Reply, Request, Status};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::connection::Connection;
use crate::control;
use crate::descent::{self, Attempt};
use crate::egress::{self, Port};
use crate::failure::{busy, invalid, kernel, not_found};
use crate::guarded::{self, Guarded};
use crate::peer::{self, Admission, PeerRule};
use crate::pending::{Arrival, Pending, Refusal};
use crate::process::{self, Job};
use crate::registry::{self, Operation, Registry};
use crate::rlimits::CommandLimits;
use crate::serve::ServeConfig;
use crate::trust::Trust;
use crate::{files, forward, poll, startup, usage};

/// Connections without a whole request, at most. More wait in the kernel's queue.
const MAX_PENDING: usize = 64;

/// Peers inside that have not shown a secret yet, at most; the oldest goes for the newest.
const MAX_STRANGERS: usize = 16;

/// Connections that are accepted in one turn, so that whoever makes them without end holds up nothing else.
const MAX_ACCEPTED: usize = 64;

/// Length of that queue; the kernel may shorten it.
const BACKLOG: i32 = 4096;

/// Time that a supervisor has to end its command beyond the command's own time. A busy machine may need some.
const BACKSTOP: Duration = Duration::from_secs(5);

/// Time between two attempts to kill escapees.
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

/// Time until another look at escapees that are dead, but not yet buried: a tracer elsewhere may hold them for long.
const DEAD_INTERVAL: Duration = Duration::from_millis(200);

/// Time for which nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// Time that a plain process takes at most to kill all it started before it ends.
const LAST_KILL: Duration = Duration::from_secs(60);

/// What an event is about, in the order in which events are seen to: reports before requests, so that a host finds what
/// it has been told already.
const CONTROL: u64 = 0;
const SIGNALS: u64 = 1;
const LIFELINE: u64 = 2;
const HOLDER: u64 = 3;
const PENDING: u64 = 4;
const LISTENER: u64 = 5;
const PROXY_PORT: u64 = 6;

/// PID 1 of one sandbox, or the plain process that stands in for it.
pub struct Agent {
    listener: OwnedFd,
    lifeline: Option<OwnedFd>,
    epoll: OwnedFd,
    signals: OwnedFd,
    idle: Option<Duration>,
    cwd: Vec<u8>,
    limits: CommandLimits,
    guarded: Vec<Guarded>,
    peers: PeerRule,
    trust: Trust,
    /// The proxy port, where there is one.
    port: Option<Port>,
    /// The connection whose end is the sandbox's.
    holder: Option<OwnedFd>,
    /// When there must have been one.
    held_by: Option<Instant>,
    began: Instant,
    commands: u64,
    registry: Registry,
    pending: BTreeMap<u64, Pending>,
    last_pending: u64,
    /// When to listen again, while it does not.
    paused: Option<Instant>,
    /// When to look for escapees.
    sweep: Option<Instant>,
    /// Whether anybody who may has been heard of in this turn. Others do not keep a sandbox alive.
    stirred: bool,
    /// The exit code, once the end has come.
    over: Option<i32>,
}

impl Agent {
    /// Begins to listen, and says so.
    ///
    /// # Errors
    /// When the listener is none, or the kernel is out of something.
    pub fn new(config: ServeConfig) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&config.listener, true)?;
        rustix::net::listen(&config.listener, BACKLOG)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let signals = startup::signals()?;
        watch(&epoll, config.listener.as_fd(), LISTENER, 0)?;
        watch(&epoll, signals.as_fd(), SIGNALS, 0)?;
        if let Some(lifeline) = &config.lifeline {
            rustix::io::ioctl_fionbio(lifeline, true)?;
            watch(&epoll, lifeline.as_fd(), LIFELINE, 0)?;
        }
        // Before any code of the sandbox runs, which could have it otherwise.
        let port = config.egress.then(Port::open).and_then(Result::ok);
        for socket in port.iter().flat_map(Port::sockets) {
            watch(&epoll, socket, PROXY_PORT, 0)?;
        }
        if let Some(ready) = config.ready {
            rustix::io::write(ready, &[1])?;
        }
        let now = Instant::now();
        Ok(Self {
            listener: config.listener,
            lifeline: config.lifeline,
            epoll,
            signals,
            idle: config.idle,
            cwd: config.cwd,
            limits: config.limits,
            guarded: config.guarded,
            peers: config.peers,
            trust: Trust::default(),
            port,
            holder: None,
            held_by: config.held_within.and_then(|time| now.checked_add(time)),
            began: now,
            commands: 0,
            registry: Registry::new(now),
            pending: BTreeMap::new(),
            last_pending: 0,
            paused: None,
            sweep: None,
            stirred: false,
            over: None,
        })
    }

    /// Serves until the sandbox ends; the exit code.
    pub fn serve(&mut self) -> i32 {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.next_time().map(|time| {
                let millis = poll::millis(time.saturating_duration_since(Instant::now()));
                rustix::event::Timespec {
                    tv_sec: i64::from(millis / 1000),
                    tv_nsec: i64::from(millis % 1000) * 1_000_000,
                }
            });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => self.over = Some(1),
            }
            self.stirred = false;
            events.sort_by_key(|event| untag(event).0);
            for event in &events {
                // Whoever was told of the end may count on nothing having begun since.
                if self.over.is_some() {
                    break;
                }
                let (kind, number) = untag(event);
                match kind {
                    SIGNALS => self.hear_signals(),
                    LIFELINE => self.feel_lifeline(),
                    CONTROL => self.hear(number as i32),
                    HOLDER => self.feel_holder(),
                    PENDING => self.advance(number),
                    PROXY_PORT => self.feel_port(),
                    _ => self.accept(),
                }
            }
            self.keep_time();
            if let Some(code) = self.over {
                self.end();
                return code;
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let times = [
            self.registry.next_backstop(),
            self.pending.values().map(Pending::until).min(),
            // While somebody is on the way in the idle time does not count, and is nothing to wake up for.
            self.idle
                .filter(|_| !self.is_awaited())
                .and_then(|idle| self.registry.idle_since()?.checked_add(idle)),
            self.paused,
            self.sweep,
            self.held_by,
            self.port.as_ref().and_then(|port| port.rest),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether somebody who may is on the way in.
    fn is_awaited(&self) -> bool {
        self.pending.values().any(Pending::is_trusted)
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.held_by.is_some_and(|until| until <= now) {
            self.over = Some(0);
        }
        let impatient: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.until() <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in impatient {
            self.drop_pending(number);
        }
        if self.paused.is_some_and(|until| until <= now) {
            self.listen_again();
        }
        for pid in self.registry.overdue(now) {
            kill(pid);
            // Once is enough; when it is reaped, its descent is looked for.
            self.registry.disarm(pid);
        }
        if self.sweep.is_some_and(|time| time <= now) {
            self.sweep_escapees(now);
        }
        if let Some(port) = &mut self.port
            && port.rest.is_some_and(|time| time <= now)
        {
            port.rest = None;
            for socket in port.sockets() {
                let _ = watch(&self.epoll, socket, PROXY_PORT, 0);
            }
        }
        // Nobody may be on the way in: an event, or a request not yet whole, comes first.
        if let (false, false, Some(idle)) = (self.stirred, self.is_awaited(), self.idle)
            && self.registry.idle_since().is_some()
            && self.registry.idle_for(now) >= idle
        {
            self.over = Some(0);
        }
    }

    fn hear_signals(&mut self) {
        let terminated_by = startup::drain(&self.signals);
        self.reap();
        // Code inside may not end PID 1; who is outside has no number in here.
        if terminated_by.is_some_and(|sender| sender == 0 || std::process::id() != 1) {
            self.over = Some(0);
        }
    }

    fn feel_lifeline(&mut self) {
        let Some(lifeline) = &self.lifeline else { return };
        let mut buffer = [0; 64];
        match rustix::io::read(lifeline, &mut buffer) {
            Ok(count) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.over = Some(0),
        }
    }

    fn feel_holder(&mut self) {
        let Some(holder) = &self.holder else { return };
        let mut buffer = [0; 64];
        match rustix::net::recv(holder, &mut buffer, rustix::net::RecvFlags::DONTWAIT) {
            Ok((count, _)) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.over = Some(0),
        }
    }

    fn reap(&mut self) {
        let now = Instant::now();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if status.stopped() => {
                    // Nobody but an attacker stops an operation. Escapees we stop ourselves.
                    if self.registry.contains(pid.as_raw_pid()) {
                        kill(pid.as_raw_pid());
                    }
                }
                Ok(Some((pid, status))) => {
                    if let Some(control) = self.registry.control(pid.as_raw_pid()) {
                        let _ = epoll::delete(&self.epoll, control);
                    }
                    let known = self.registry.remove(pid.as_raw_pid(), now).is_some();
                    if let Some(port) = &mut self.port
                        && port.forwarder == Some(pid.as_raw_pid())
                    {
                        port.rest(now);
                    }
                    // An operation that ended by itself has seen the end of its descent.
                    if !known || status.exit_status() != Some(0) {
                        self.sweep = Some(now);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn sweep_escapees(&mut self, now: Instant) {
        let attempt = descent::kill(|pid| !self.registry.contains(pid));
        self.sweep = match attempt {
            Attempt::Nobody => None,
            Attempt::OnlyDead => Some(now + DEAD_INTERVAL),
            Attempt::Killed => Some(now + SWEEP_INTERVAL),
        };
        self.reap();
    }

    fn hear(&mut self, pid: i32) {
        self.stirred = true;
        let now = Instant::now();
        let mut buffer = vec![0; control::MAX_PACKET];
        while let Some(control) = self.registry.control(pid) {
            match control::recv_with_fd(control, &mut buffer) {
                Ok(Some((length, _))) => {
                    if let Ok(report) = frame::decode_control(&buffer[..length]) {
                        self.registry.hear(pid, report, now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Its process is ending; it is forgotten when it is reaped.
                Ok(None) | Err(_) => {
                    let _ = epoll::delete(&self.epoll, control);
                    break;
                }
            }
        }
        while let Some(pid) = self.registry.surplus() {
            if let (Some(control), Ok(packet)) =
                (self.registry.forget(pid), frame::encode_control(&Request::Shutdown))
            {
                let _ = control::send_with_fd(control, &packet[HEADER_BYTES..], None);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTED {
            if self.over.is_some() || self.paused.is_some() {
                return;
            }
            let conn = match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(conn) => conn,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => return self.pause(Some(PAUSE)),
            };
            let admission =
                peer::peer_of(conn.as_fd()).map_or(Admission::Refused, |peer| self.peers.judge(peer));
            let mut pending = match admission {
                Admission::Admitted => Pending::new(conn, Instant::now()),
                Admission::WithSecret => Pending::inside(conn, Instant::now()),
                Admission::Refused => continue,
            };
            let arrival = read(&mut pending, &mut self.trust);
            self.stirred |= pending.is_trusted();
            match arrival {
                Arrival::Waiting => {
                    if !pending.is_trusted() {
                        self.make_room_for_stranger();
                    }
                    self.last_pending += 1;
                    let number = self.last_pending;
                    if watch(&self.epoll, pending.conn().as_fd(), PENDING, number).is_ok() {
                        self.pending.insert(number, pending);
                    }
                    if self.pending.len() >= MAX_PENDING {
                        return self.pause(None);
                    }
                }
                arrival => self.arrive(pending.into_conn(), arrival),
            }
        }
    }

    /// Accepts nothing for a while, or until a pending connection is out of the way.
    fn pause(&mut self, time: Option<Duration>) {
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.paused = Some(Instant::now() + time.unwrap_or(crate::pending::PATIENCE));
    }

    fn make_room_for_stranger(&mut self) {
        let strangers = || self.pending.iter().filter(|(_, pending)| !pending.is_trusted());
        if strangers().count() < MAX_STRANGERS {
            return;
        }
        if let Some(oldest) = strangers().map(|(number, _)| *number).next() {
            self.drop_pending(oldest);
        }
    }

    fn listen_again(&mut self) {
        match watch(&self.epoll, self.listener.as_fd(), LISTENER, 0) {
            Ok(()) => self.paused = None,
            Err(_) => self.paused = Some(Instant::now() + PAUSE),
        }
    }

    fn advance(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let arrival = read(pending, &mut self.trust);
        self.stirred |= pending.is_trusted();
        match arrival {
            Arrival::Waiting => {}
            arrival => {
                if let Some(conn) = self.drop_pending(number) {
                    self.arrive(conn, arrival);
                }
            }
        }
    }

    /// Takes a connection out of the pending ones.
    fn drop_pending(&mut self, number: u64) -> Option<OwnedFd> {
        let pending = self.pending.remove(&number)?;
        // By name, not by closing: a process that was just forked may hold the connection a moment longer.
        let _ = epoll::delete(&self.epoll, pending.conn());
        if self.paused.is_some() && self.pending.len() < MAX_PENDING {
            self.listen_again();
        }
        Some(pending.into_conn())
    }

    fn arrive(&mut self, conn: OwnedFd, arrival: Arrival) {
        match arrival {
            Arrival::Request(request, payload) => self.handle(conn, request, &payload),
            Arrival::Refused(Refusal::Version) => {
                let _ = rustix::net::send(
                    &conn,
                    &hello::hello(),
                    rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
                );
            }
            Arrival::Refused(Refusal::Request(error)) => {
                let failure = invalid(format!("the request cannot be read: {error}"));
                process::answer(&conn, &Reply::Failed(failure));
            }
            Arrival::Waiting | Arrival::Secret(_) | Arrival::Hopeless => {}
        }
    }

    fn handle(&mut self, conn: OwnedFd, request: Request, payload: &[u8]) {
        match request {
            Request::Exec(start) => self.exec(conn, start),
            Request::Attach { .. }
            | Request::Order { .. }
            | Request::Stop { .. }
            | Request::Accept { .. } => {
                let answer = match self.registry.named(&request) {
                    Some(control) => control::send_with_fd(control, payload, Some(conn.as_fd()))
                        .err()
                        .map(|_| kernel("the operation takes no more requests", Errno::AGAIN)),
                    None => Some(not_found("there is none with this number")),
                };
                if let Some(failure) = answer {
                    process::answer(&conn, &Reply::Failed(failure));
                }
            }
            Request::File(request) => {
                // The closure runs in a process of its own, where this one's descriptors are numbers only.
                let guarded = std::mem::take(&mut self.guarded);
                self.work(conn, Operation::worker(1), None, |mut conn| match guarded::refusal(&guarded) {
                    Some(failure) => conn.reply(&Reply::Failed(failure)),
                    None => files::handle(conn, request),
                });
                self.guarded = guarded;
            }
            Request::Connect { port } => {
                self.work(conn, Operation::worker(1), None, |conn| forward::connect(conn, port));
            }
            Request::Listen { port } => self.listen(conn, port),
            Request::Egress { .. } => match self.forwarder() {
                Ok(()) => self.pass_to_forwarder(conn, payload),
                Err(failure) => process::answer(&conn, &Reply::Failed(failure)),
            },
            Request::Carry { .. } => self.pass_to_forwarder(conn, payload),
            Request::Processes => {
                // Between two connections that are accepted in one go a command may have begun or ended, and somebody been
                // told of it.
                for pid in self.registry.live() {
                    self.hear(pid);
                }
                let reply = Reply::Processes(self.registry.processes());
                self.work(conn, Operation::worker(0), None, |mut conn| conn.reply(&reply));
            }
            Request::Status => {
                let now = Instant::now();
                let status = Status {
                    busy: self.registry.busy(),
                    idle_millis: self.registry.idle_for(now).as_millis() as u64,
                    commands: self.commands,
                    uptime_millis: now.saturating_duration_since(self.began).as_millis() as u64,
                };
                process::answer(&conn, &Reply::Status(status));
            }
            Request::Usage => {
                let agent = std::process::id() as i32;
                let operation = Operation::answer(Instant::now().checked_add(usage::LIMIT + BACKSTOP));
                self.work(conn, operation, None, |mut conn| {
                    conn.reply(&usage::measure(agent).map_or_else(Reply::Failed, Reply::Usage))
                });
            }
            Request::Configure { idle_millis } => {
                self.idle = Some(idle_millis).filter(|millis| *millis > 0).map(Duration::from_millis);
                // Whoever says how long is about to use it: the time must not run out before that.
                self.registry.touch(Instant::now());
                process::answer(&conn, &Reply::Done);
            }
            Request::Shutdown => {
                process::answer(&conn, &Reply::Done);
                self.over = Some(0);
            }
            Request::ShutdownIfIdle => {
                // Whoever waits in the kernel's queue is told by a reset that nothing was read.
                if self.registry.busy() == 0 && !self.is_awaited() {
                    process::answer(&conn, &Reply::Done);
                    self.over = Some(0);
                } else {
                    process::answer(&conn, &Reply::Failed(busy()));
                }
            }
            Request::Hold => self.hold(conn),
        }
    }

    fn hold(&mut self, conn: OwnedFd) {
        if self.holder.is_some() {
            return process::answer(&conn, &Reply::Failed(busy()));
        }
        match watch(&self.epoll, conn.as_fd(), HOLDER, 0) {
            Ok(()) => {
                process::answer(&conn, &Reply::Done);
                self.holder = Some(conn);
                self.held_by = None;
            }
            Err(_) => refuse(&conn, Errno::NOMEM),
        }
    }

    fn exec(&mut self, conn: OwnedFd, start: ExecStart) {
        // From now on there may be code inside, which must not pass for the relay.
        self.trust.close();
        let number = self.registry.next_number();
        let Some((control, theirs)) = self.control_pair(&conn) else { return };
        let timeout = Some(start.timeout_millis).filter(|millis| *millis > 0).map(Duration::from_millis);
        let backstop = timeout.and_then(|timeout| Instant::now().checked_add(timeout + BACKSTOP));
        let description = registry::describe(number, &start);
        let mut keep = [conn.as_raw_fd(), theirs.as_raw_fd(), self.signals.as_raw_fd()];
        match fork(&mut keep) {
            Err(errno) => refuse(&conn, errno),
            Ok(Some(pid)) => {
                self.commands += 1;
                self.admit(pid, Operation::command(description, control, backstop));
            }
            Ok(None) => {
                // SAFETY: the descriptor was kept open for this process, whose copy of the agent is never dropped.
                let signals = unsafe { OwnedFd::from_raw_fd(self.signals.as_raw_fd()) };
                if let Some(failure) = guarded::refusal(&self.guarded) {
                    process::answer(&conn, &Reply::Failed(failure));
                    exit(0)
                }
                let (cwd, limits) = (std::mem::take(&mut self.cwd), std::mem::take(&mut self.limits));
                let ended =
                    process::run(Job { process: number, start, cwd, limits, conn, control: theirs, signals });
                // Otherwise PID 1 looks for what is left of the descent.
                exit(i32::from(!ended))
            }
        }
    }

    fn listen(&mut self, conn: OwnedFd, port: u16) {
        let number = self.registry.next_number();
        let Some((control, theirs)) = self.control_pair(&conn) else { return };
        let kept = theirs.as_raw_fd();
        let operation = Operation::listener(number, control);
        self.work(conn, operation, Some(kept), |conn| forward::listen(conn, port, number, theirs));
    }

    /// Somebody has connected to the proxy port, and nobody forwards that.
    fn feel_port(&mut self) {
        if self.forwarder().is_err()
            && let Some(port) = &mut self.port
        {
            let unwatched = port.sockets().map(|socket| epoll::delete(&self.epoll, socket));
            unwatched.for_each(drop);
            port.rest(Instant::now());
        }
    }

    /// Starts the proxy port's forwarder unless it runs.
    fn forwarder(&mut self) -> Result<(), Failure> {
        let Some(port) = &self.port else { return Err(egress::unsupported()) };
        if port.forwarder.is_some() {
            return Ok(());
        }
        let what = "no process could be started";
        let (control, theirs) = control::pair().map_err(|_| kernel(what, Errno::MFILE))?;
        let mut keep = port.raw();
        keep.push(theirs.as_raw_fd());
        let number = self.registry.next_number();
        let forked = fork(&mut keep).map_err(|errno| kernel(what, errno))?;
        let Some(pid) = forked else {
            // What is PID 1's here is closed already and never dropped.
            if let Some(port) = self.port.take() {
                let given = port.number();
                let forwarder = egress::Forwarder::new(port.into_sockets(), given, theirs, number);
                let _ = forwarder.and_then(egress::Forwarder::run);
            }
            exit(0)
        };
        for socket in port.sockets() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        if let Some(port) = &mut self.port {
            (port.forwarder, port.rest) = (Some(pid), None);
        }
        self.admit(pid, Operation::listener(number, control));
        Ok(())
    }

    fn pass_to_forwarder(&self, conn: OwnedFd, payload: &[u8]) {
        let forwarder = self.port.as_ref().and_then(|port| self.registry.control(port.forwarder?));
        let answer = match forwarder {
            Some(control) => control::send_with_fd(control, payload, Some(conn.as_fd()))
                .err()
                .map(|_| kernel("the forwarder takes no more requests", Errno::AGAIN)),
            None => Some(not_found("no host stands behind the proxy port")),
        };
        if let Some(failure) = answer {
            process::answer(&conn, &Reply::Failed(failure));
        }
    }

    fn control_pair(&self, conn: &OwnedFd) -> Option<(OwnedFd, OwnedFd)> {
        let made = control::pair();
        if made.is_err() {
            refuse(conn, Errno::MFILE);
        }
        made.ok()
    }

    /// Does something with blocking calls, in a process of its own. `kept` is a descriptor that it needs.
    fn work(
        &mut self,
        conn: OwnedFd,
        operation: Operation,
        kept: Option<RawFd>,
        task: impl FnOnce(Connection) -> io::Result<()>,
    ) {
        let mut keep = [conn.as_raw_fd(), kept.unwrap_or(conn.as_raw_fd())];
        match fork(&mut keep) {
            Err(errno) => refuse(&conn, errno),
            Ok(Some(pid)) => self.admit(pid, operation),
            Ok(None) => {
                // What is PID 1's here, `operation` among it, is closed already and never dropped.
                if rustix::io::write(&conn, &hello::hello()).is_ok() {
                    let _ = task(Connection::new(conn));
                }
                exit(0)
            }
        }
    }

    fn admit(&mut self, pid: i32, operation: Operation) {
        if let Some(control) = &operation.control {
            // Without it the operation is not heard, and goes on to count as use: nothing worse.
            let _ = watch(&self.epoll, control.as_fd(), CONTROL, pid as u64);
        }
        self.registry.insert(pid, operation);
    }

    /// Kills all that was started. As PID 1 there is no need to: the kernel does.
    fn end(&mut self) {
        if std::process::id() == 1 {
            return;
        }
        let until = Instant::now() + LAST_KILL;
        while Instant::now() < until {
            descent::kill(|_| true);
            loop {
                match rustix::process::wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads what has come from somebody on the way in, a secret included.
fn read(pending: &mut Pending, trust: &mut Trust) -> Arrival {
    match pending.advance() {
        Arrival::Secret(secret) if trust.accepts(&secret) => {
            pending.trust();
            pending.advance()
        }
        Arrival::Secret(_) => Arrival::Hopeless,
        arrival => arrival,
    }
}

/// Forks; the child keeps only these descriptors, and the standard ones.
fn fork(keep: &mut [RawFd]) -> Result<Option<i32>, Errno> {
    // SAFETY: this program has one thread, so the child may do what its parent may.
    match unsafe { libc::fork() } {
        0 => {
            keep.sort_unstable();
            if startup::close_gaps(keep).is_err() {
                exit(1)
            }
            Ok(None)
        }
        pid if pid > 0 => Ok(Some(pid)),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN)),
    }
}

/// Ends an operation's process without running anything of PID 1's.
fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

fn refuse(conn: &OwnedFd, errno: Errno) {
    process::answer(conn, &Reply::Failed(kernel("no process could be started", errno)));
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, kind: u64, number: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(number << 3 | kind);
    Ok(epoll::add(epoll, fd, data, epoll::EventFlags::IN)?)
}

fn untag(event: &epoll::Event) -> (u64, u64) {
    let data = { event.data }.u64();
    (data & 7, data >> 3)
}
