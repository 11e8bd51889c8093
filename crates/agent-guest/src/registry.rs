//! What PID 1 knows of its operations: one process each. Their uses make the idle clock.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_agent_protocol::message::{ByteString, ExecStart, Process, Request};

use crate::control::Report;
use crate::descent::MAX_COMMAND;

/// Background commands that are over and still known, at most.
pub const MAX_FINISHED: usize = 64;

/// One operation, in a process of its own.
pub struct Operation {
    /// Its number; 0 where nothing asks for it by number.
    pub number: u32,
    /// The way to it; none where nothing asks for it by number.
    pub control: Option<OwnedFd>,
    /// How many things it does that count as use.
    uses: u32,
    /// When its process is killed if it has not ended its command by itself.
    backstop: Option<Instant>,
    /// What is told of a command.
    command: Option<Box<Process>>,
}

impl Operation {
    /// A file operation, a forward to the inside, or an answer.
    pub fn worker(uses: u32) -> Self {
        Self { number: 0, control: None, uses, backstop: None, command: None }
    }

    /// An answer that takes some work, to be given by `backstop`.
    pub fn answer(backstop: Option<Instant>) -> Self {
        Self { backstop, ..Self::worker(0) }
    }

    /// A listener. It waits for use, which is none yet.
    pub fn listener(number: u32, control: OwnedFd) -> Self {
        Self { number, control: Some(control), uses: 0, backstop: None, command: None }
    }

    /// A command, to be over by `backstop`.
    pub fn command(process: Box<Process>, control: OwnedFd, backstop: Option<Instant>) -> Self {
        Self { number: process.process, control: Some(control), uses: 1, backstop, command: Some(process) }
    }

    /// Whether it is a background command that is over.
    fn is_finished(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.background && command.exited.is_some())
    }
}

/// What is told of a command that starts now.
pub fn describe(number: u32, start: &ExecStart) -> Box<Process> {
    let mut command = Vec::new();
    for argument in as_asked(&start.argv) {
        if !command.is_empty() {
            command.push(b' ');
        }
        command.extend_from_slice(&argument[..argument.len().min(MAX_COMMAND)]);
        if command.len() >= MAX_COMMAND {
            command.truncate(MAX_COMMAND);
            break;
        }
    }
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Box::new(Process {
        process: number,
        pid: 0,
        command: ByteString::from(command),
        background: start.background,
        started_millis: started.as_millis() as u64,
        exited: None,
    })
}

/// The words that somebody asked for: a line for the shell without the shell that runs it.
fn as_asked(argv: &[ByteString]) -> &[ByteString] {
    match argv {
        [shell, flag, line] if shell.ends_with(b"/sh") && **flag == *b"-c" => std::slice::from_ref(line),
        [shell, flag, end, line] if shell.ends_with(b"/sh") && **flag == *b"-c" && **end == *b"--" => {
            std::slice::from_ref(line)
        }
        words => words,
    }
}

/// All operations, by process id.
pub struct Registry {
    operations: BTreeMap<i32, Operation>,
    busy: u32,
    last_number: u32,
    /// When the last use ended; while there is none.
    idle_since: Instant,
}

impl Registry {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { operations: BTreeMap::new(), busy: 0, last_number: 0, idle_since: now }
    }

    /// A number that was never used before.
    pub fn next_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Adds an operation.
    pub fn insert(&mut self, pid: i32, operation: Operation) {
        self.busy += operation.uses;
        self.operations.insert(pid, operation);
    }

    /// Forgets an operation whose process has ended.
    pub fn remove(&mut self, pid: i32, now: Instant) -> Option<Operation> {
        let operation = self.operations.remove(&pid)?;
        self.release(operation.uses, now);
        Some(operation)
    }

    fn release(&mut self, uses: u32, now: Instant) {
        if uses > 0 {
            self.busy -= uses;
            if self.busy == 0 {
                self.idle_since = now;
            }
        }
    }

    /// Begins the idle time anew: somebody has come to use the sandbox.
    pub fn touch(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// Whether this process is an operation's.
    pub fn contains(&self, pid: i32) -> bool {
        self.operations.contains_key(&pid)
    }

    /// The way to an operation's process.
    pub fn control(&self, pid: i32) -> Option<BorrowedFd<'_>> {
        self.operations.get(&pid)?.control.as_ref().map(AsFd::as_fd)
    }

    /// Whom a request names: a command or a listener that has not been forgotten.
    pub fn named(&self, request: &Request) -> Option<BorrowedFd<'_>> {
        let (wanted, is_command) = match *request {
            Request::Attach { process, .. } | Request::Order { process, .. } | Request::Stop { process } => {
                (process, true)
            }
            Request::Accept { listener, .. } => (listener, false),
            _ => return None,
        };
        let found = self.operations.values().find(|operation| {
            operation.number == wanted && wanted != 0 && operation.command.is_some() == is_command
        });
        found?.control.as_ref().map(AsFd::as_fd)
    }

    /// Takes note of what an operation tells.
    pub fn hear(&mut self, pid: i32, report: Report, now: Instant) {
        let Some(operation) = self.operations.get_mut(&pid) else { return };
        let uses = match report {
            Report::Use(uses) => uses,
            Report::Started { pid } => {
                if let Some(command) = &mut operation.command {
                    command.pid = pid;
                }
                return;
            }
            Report::Exited { pid, exited } => {
                if let Some(command) = &mut operation.command {
                    command.pid = pid;
                    command.exited = Some(exited);
                }
                0
            }
        };
        if uses == 0 {
            operation.backstop = None;
        }
        let before = std::mem::replace(&mut operation.uses, uses);
        self.busy += uses;
        self.release(before, now);
    }

    /// Commands that the host can ask for, oldest first: background ones, and others that left children.
    pub fn processes(&self) -> Vec<Process> {
        let commands = self.operations.values().filter_map(|operation| operation.command.as_deref());
        let mut known: Vec<Process> = commands.filter(|command| command.pid != 0).cloned().collect();
        known.sort_by_key(|command| command.process);
        known
    }

    /// Operations of commands that are not known to be over, and may have something to say.
    pub fn live(&self) -> Vec<i32> {
        let lives = |operation: &Operation| {
            operation.command.as_ref().is_some_and(|command| command.exited.is_none())
        };
        self.operations.iter().filter(|(_, operation)| lives(operation)).map(|(pid, _)| *pid).collect()
    }

    /// The oldest finished background command, if there are too many.
    pub fn surplus(&self) -> Option<i32> {
        let finished = || self.operations.iter().filter(|(_, operation)| operation.is_finished());
        if finished().count() <= MAX_FINISHED {
            return None;
        }
        finished().min_by_key(|(_, operation)| operation.number).map(|(pid, _)| *pid)
    }

    /// Nobody will ask for this one any more; its control socket.
    pub fn forget(&mut self, pid: i32) -> Option<BorrowedFd<'_>> {
        let operation = self.operations.get_mut(&pid)?;
        operation.command = None;
        operation.number = 0;
        operation.control.as_ref().map(AsFd::as_fd)
    }

    /// Commands whose time is up and whose supervisors have not seen to it.
    pub fn overdue(&self, now: Instant) -> Vec<i32> {
        let late = |operation: &Operation| operation.backstop.is_some_and(|backstop| backstop <= now);
        self.operations.iter().filter(|(_, operation)| late(operation)).map(|(pid, _)| *pid).collect()
    }

    /// This one is not overdue any more.
    pub fn disarm(&mut self, pid: i32) {
        if let Some(operation) = self.operations.get_mut(&pid) {
            operation.backstop = None;
        }
    }

    /// When the next command will be overdue.
    pub fn next_backstop(&self) -> Option<Instant> {
        self.operations.values().filter_map(|operation| operation.backstop).min()
    }

    /// How many things count as use now.
    pub fn busy(&self) -> u32 {
        self.busy
    }

    /// Since when nothing does.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.busy == 0).then_some(self.idle_since)
    }

    /// For how long nothing has.
    pub fn idle_for(&self, now: Instant) -> Duration {
        self.idle_since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}
