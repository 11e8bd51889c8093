//! One command: what is asked, what streams back, how it ended.

use std::ffi::OsString;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{GuestPath, Result};

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for `sh -c`.
    Shell(OsString),
    /// A program, found on the sandbox's `PATH`, and its arguments. Never empty.
    Argv(Vec<OsString>),
}

/// Size of a terminal in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters a line.
    pub columns: u16,
}

/// One command as the caller wants it run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// What to run.
    pub command: Command,
    /// Directory to run it in; absent: the workspace if there is one, else the home.
    pub cwd: Option<GuestPath>,
    /// Variables on top of the sandbox's own. A later one wins over an earlier one of the same name.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the caller will send standard input; otherwise the command reads an empty one.
    pub stdin: bool,
    /// Time after which the whole descent is ended; absent only for terminals and background commands.
    pub timeout: Option<Duration>,
    /// Run it on a terminal of this size. Output then arrives as `Stdout` alone.
    pub terminal: Option<TerminalSize>,
    /// Keep it running without a caller; its output is kept in the sandbox for [`crate::Sandbox::attach`].
    pub background: bool,
}

impl ExecRequest {
    /// A request with no stdin, no terminal, no extra environment and no time-out.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            cwd: None,
            env: Vec::new(),
            stdin: false,
            timeout: None,
            terminal: None,
            background: false,
        }
    }
}

/// Number of a command within its sandbox: small, never used twice while the sandbox lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub u32);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens while a command runs. The stream ends after `Exit`, or with an error.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecEvent {
    /// It runs. From here on it counts as having run.
    Started(ProcessId),
    /// Bytes it wrote to standard output (or to its terminal).
    Stdout(Bytes),
    /// Bytes it wrote to standard error.
    Stderr(Bytes),
    /// Output that a watcher of a background command came too late for, at the start or by falling behind: bytes that
    /// are missing before the next `Stdout` or `Stderr`.
    Missed {
        /// Bytes of standard output.
        stdout: u64,
        /// Bytes of standard error.
        stderr: u64,
    },
    /// It is over.
    Exit(Outcome),
}

/// How the main process left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Exit code, 0 to 255.
    Code(i32),
    /// Killed by this signal number.
    Signal(i32),
}

impl Status {
    /// The number a shell would show: the code, or 128 + the signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Why the command is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ending {
    /// Its main process left by itself, or by a signal that was not ours.
    Exited,
    /// Its time was up: the whole descent was ended.
    TimedOut,
    /// Its caller asked for the end: the whole descent was ended.
    Cancelled,
}

/// A process that outlives the command which started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Its command line as the process itself states it: hostile text, at most 256 bytes.
    pub command: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// How its main process left.
    pub status: Status,
    /// Why it is over.
    pub ending: Ending,
    /// From start to end, by the sandbox's own clock.
    pub duration: Duration,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// Children that live on (at most 64 are named; `leftovers_total` counts all).
    pub leftovers: Vec<Leftover>,
    /// How many children live on.
    pub leftovers_total: u32,
    /// Whether the kernel killed a process of the sandbox while the command ran, because the memory limit was hit.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Paths inside, of names in writable folders that can make the host run code (`workspace_protect`), which were made
    /// since the sandbox's start and are therefore not read-only: hostile text, at most 32 of them, at most 256 bytes
    /// each.
    #[serde(default)]
    pub newly_dangerous: Vec<String>,
    /// How many there are.
    #[serde(default)]
    pub newly_dangerous_total: u32,
    /// What a person should know besides, such as what of a writable folder could not be watched.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Outcome {
    /// Exit status of `moltis exec`: 124 when the time was up, else what a shell would show.
    pub fn exit_code(&self) -> i32 {
        match self.ending {
            Ending::TimedOut => 124,
            Ending::Exited | Ending::Cancelled => self.status.shell_code(),
        }
    }
}

/// The caller's side of a running command. Its methods wait while the command does not read (back-pressure).
#[async_trait]
pub trait ExecControl: Send {
    /// Sends bytes to standard input. Succeeds without effect once the command has closed it or is over.
    async fn stdin(&mut self, bytes: Bytes) -> Result<()>;
    /// Ends standard input.
    async fn close_stdin(&mut self) -> Result<()>;
    /// Tells the terminal its new size.
    async fn resize(&mut self, size: TerminalSize) -> Result<()>;
    /// Sends a signal (by number) to the command's process group.
    async fn signal(&mut self, signal: i32) -> Result<()>;
    /// Ends the whole descent now; the stream still brings the output so far and the `Exit`.
    async fn cancel(&mut self) -> Result<()>;
}

/// A running command: a stream of events, and the control that goes with it.
///
/// Dropping it, or only the stream, is the loss of the caller: the whole descent is ended, unless this is the watcher
/// of a background command.
pub struct Exec {
    /// What happens. Not reading it holds the command back.
    pub events: ExecEvents,
    /// Standard input, signals, terminal size.
    pub control: Box<dyn ExecControl>,
}

/// Stream of [`ExecEvent`]s.
pub struct ExecEvents(Pin<Box<dyn Stream<Item = Result<ExecEvent>> + Send>>);

impl ExecEvents {
    /// Wraps a backend's stream.
    pub fn new(stream: impl Stream<Item = Result<ExecEvent>> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// The next event; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<ExecEvent>> {
        std::future::poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl Stream for ExecEvents {
    type Item = Result<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}
