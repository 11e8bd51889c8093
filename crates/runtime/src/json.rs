//! JSON forms that every surface answers with; their fields are part of the interface.

use std::time::Duration;

use moltis_sandbox::exec::{Ending, Outcome, ProcessId, Status};
use moltis_sandbox::{BackendName, ProcessInfo};
use serde::Serialize;

use crate::answer::{milliseconds, text_or_base64};
use crate::store::{Caller, HistoryEntry, HistoryResult, Kept};

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// What a shell would show: the code, 128 + signal, or 124 after a time-out.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether its time was up.
    pub timed_out: bool,
    /// Whether somebody ended it.
    pub cancelled: bool,
    /// From start to end, in milliseconds.
    pub duration_ms: f64,
}

impl Ended {
    fn new(status: Status, ending: Ending, duration: Duration) -> Self {
        let timed_out = ending == Ending::TimedOut;
        Self {
            exit_code: if timed_out { 124 } else { status.shell_code() },
            signal: match status {
                Status::Signal(signal) => Some(signal),
                Status::Code(_) => None,
            },
            timed_out,
            cancelled: ending == Ending::Cancelled,
            duration_ms: milliseconds(duration),
        }
    }
}

impl From<&Outcome> for Ended {
    fn from(outcome: &Outcome) -> Self {
        Self::new(outcome.status, outcome.ending, outcome.duration)
    }
}

/// A background command.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Its number in the sandbox.
    pub process: ProcessId,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// What was asked for, shortened.
    pub command: String,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
    /// Whether it runs.
    pub running: bool,
    /// How it ended.
    #[serde(flatten)]
    pub ended: Option<Ended>,
}

impl From<&ProcessInfo> for Process {
    fn from(info: &ProcessInfo) -> Self {
        Self {
            process: info.id,
            pid: info.pid,
            command: info.command.clone(),
            started_millis: info.started_millis,
            running: info.outcome.is_none(),
            ended: info.outcome.as_ref().map(Ended::from),
        }
    }
}

/// A command that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// Its number within the session.
    pub number: u64,
    /// What.
    pub command: String,
    /// On whose behalf.
    pub caller: Caller,
    /// Where.
    pub backend: BackendName,
    /// Whether it went on without its caller.
    pub background: bool,
    /// The number that a background command has, or had, in its sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessId>,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
    /// `running`, `ended` or `lost`.
    pub state: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub ended: Option<Ended>,
    /// What is remembered of standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Remains>,
    /// What is remembered of standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Remains>,
}

impl Remembered {
    /// With or without what it printed.
    pub fn new(entry: &HistoryEntry, output: bool) -> Self {
        let (state, ended, stdout, stderr) = match &entry.result {
            HistoryResult::Running => ("running", None, None, None),
            HistoryResult::Lost => ("lost", None, None, None),
            HistoryResult::Ended { status, ending, micros, stdout, stderr } => {
                let ended = Ended::new(*status, *ending, Duration::from_micros(*micros));
                ("ended", Some(ended), Some(Remains::from(stdout)), Some(Remains::from(stderr)))
            }
        };
        Self {
            number: entry.number,
            command: entry.command.clone(),
            caller: entry.caller.clone(),
            backend: entry.backend,
            background: entry.background,
            process: entry.process,
            started_millis: entry.started_millis,
            state,
            ended,
            stdout: stdout.filter(|_| output),
            stderr: stderr.filter(|_| output),
        }
    }
}

/// What is remembered of a stream: its first and its last bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remains {
    /// Bytes that were written.
    pub bytes: u64,
    /// Bytes between head and tail that are not remembered.
    pub cut: u64,
    /// The first of them.
    pub head: String,
    /// `base64` when the head is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_encoding: Option<&'static str>,
    /// The last of them, none of which is in the head.
    pub tail: String,
    /// `base64` when the tail is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_encoding: Option<&'static str>,
}

impl From<&Kept> for Remains {
    fn from(kept: &Kept) -> Self {
        let (head, head_encoding) = text_or_base64(&kept.head);
        let (tail, tail_encoding) = text_or_base64(&kept.tail);
        Self { bytes: kept.bytes, cut: kept.cut(), head, head_encoding, tail, tail_encoding }
    }
}
