//! The collected answer of one command, as `--json`, HTTP and MCP give it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use moltis_sandbox::exec::{Ending, Leftover, Outcome, Status};
use moltis_sandbox::{BackendName, NotEnforced, SandboxId, SessionKey};
use serde::Serialize;

use crate::store::{Gone, LostCommand};
use crate::{Capped, Cut};

/// One stream of a collected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// What was kept, with a marker where bytes were cut.
    pub bytes: Vec<u8>,
    /// Bytes that the command wrote.
    pub total: u64,
    /// Bytes that were cut.
    pub cut: u64,
}

impl From<Capped> for Collected {
    fn from(capped: Capped) -> Self {
        let total = capped.seen();
        let (mut bytes, cut, tail) = capped.finish();
        if let Some(cut) = &cut {
            bytes.extend_from_slice(cut.marker().as_bytes());
        }
        bytes.extend_from_slice(&tail);
        Self { bytes, total, cut: cut.map_or(0, |Cut { bytes, .. }| bytes) }
    }
}

/// How one command ended and what it printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The session that it ran in; absent for a sandbox of its own.
    pub session: Option<SessionKey>,
    /// Where it ran.
    pub backend: BackendName,
    /// The sandbox's opaque id.
    pub sandbox_id: SandboxId,
    /// How it ended.
    pub outcome: Outcome,
    /// What a shell would show: [`Outcome::exit_code`], or 128 + n if signal n to the caller ended it.
    pub exit_code: i32,
    /// Standard output, or the terminal's.
    pub stdout: Collected,
    /// Standard error.
    pub stderr: Collected,
    /// Built-in defaults that are not kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// Why the session's sandbox before this one ended, if this one is new and there was one.
    pub restarted: Option<Gone>,
    /// The session's earlier commands whose outcome is not known; told once.
    pub lost: Vec<LostCommand>,
}

/// The JSON form of an [`Answer`]; its fields are part of the interface.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Json<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionKey>,
    backend: BackendName,
    sandbox_id: &'a SandboxId,
    exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    timed_out: bool,
    cancelled: bool,
    duration_ms: f64,
    stdout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_encoding: Option<&'static str>,
    stdout_bytes: u64,
    stdout_cut: u64,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_encoding: Option<&'static str>,
    stderr_bytes: u64,
    stderr_cut: u64,
    leftovers: &'a [Leftover],
    leftovers_total: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    out_of_memory: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    newly_dangerous: &'a [String],
    #[serde(skip_serializing_if = "is_zero")]
    newly_dangerous_total: u32,
    not_enforced: &'a [NotEnforced],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restarted: Option<Gone>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    lost: &'a [LostCommand],
}

impl Serialize for Answer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let (stdout, stdout_encoding) = text_or_base64(&self.stdout.bytes);
        let (stderr, stderr_encoding) = text_or_base64(&self.stderr.bytes);
        let outcome = &self.outcome;
        Json {
            session: self.session.as_ref(),
            backend: self.backend,
            sandbox_id: &self.sandbox_id,
            exit_code: self.exit_code,
            signal: match outcome.status {
                Status::Signal(signal) => Some(signal),
                Status::Code(_) => None,
            },
            timed_out: outcome.ending == Ending::TimedOut,
            cancelled: outcome.ending == Ending::Cancelled,
            duration_ms: milliseconds(outcome.duration),
            stdout,
            stdout_encoding,
            stdout_bytes: self.stdout.total,
            stdout_cut: self.stdout.cut,
            stderr,
            stderr_encoding,
            stderr_bytes: self.stderr.total,
            stderr_cut: self.stderr.cut,
            leftovers: &outcome.leftovers,
            leftovers_total: outcome.leftovers_total,
            out_of_memory: outcome.out_of_memory,
            newly_dangerous: &outcome.newly_dangerous,
            newly_dangerous_total: outcome.newly_dangerous_total,
            not_enforced: &self.not_enforced,
            notes: self.notes.iter().chain(&outcome.notes).collect(),
            restarted: self.restarted,
            lost: &self.lost,
        }
        .serialize(serializer)
    }
}

// The form that serde asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Text as it is; anything that is not UTF-8 as base64 with the encoding named.
pub fn text_or_base64(bytes: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (BASE64.encode(bytes), Some("base64")),
    }
}
