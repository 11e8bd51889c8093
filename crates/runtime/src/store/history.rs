//! What a session ran: the last commands, newest first.

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{BackendName, Ending, Status};
use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::commands::ending_of;
use super::database::Database;
use super::error::Result;
use super::sessions::{SessionNumber, limit, malformed, millis, since_1970};

/// Bytes that are kept of each end of each stream. Together they are the 8 KiB that are remembered of a stream.
pub const KEPT_BYTES: usize = 4096;

/// What is remembered of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many bytes were written.
    pub bytes: u64,
    /// The first of them; what is over [`KEPT_BYTES`] is dropped.
    pub head: Vec<u8>,
    /// The last of them, none of which is in the head; what is over [`KEPT_BYTES`] is dropped from its start.
    pub tail: Vec<u8>,
}

impl Kept {
    /// Takes what fits of a stream that was collected whole.
    pub fn whole(stream: &[u8]) -> Self {
        let (head, rest) = stream.split_at(stream.len().min(KEPT_BYTES));
        let tail = &rest[rest.len().saturating_sub(KEPT_BYTES)..];
        Self { bytes: stream.len() as u64, head: head.to_vec(), tail: tail.to_vec() }
    }

    /// Bytes between head and tail that are not remembered.
    pub fn cut(&self) -> u64 {
        self.bytes.saturating_sub((self.head.len() + self.tail.len()) as u64)
    }

    pub(super) fn head(&self) -> Option<&[u8]> {
        (!self.head.is_empty()).then(|| &self.head[..self.head.len().min(KEPT_BYTES)])
    }

    pub(super) fn tail(&self) -> Option<&[u8]> {
        (!self.tail.is_empty()).then(|| &self.tail[self.tail.len().saturating_sub(KEPT_BYTES)..])
    }
}

/// A command that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
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
    pub process: Option<ProcessId>,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
    /// What became of it.
    pub result: HistoryResult,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryResult {
    /// It runs.
    Running,
    /// It ended.
    Ended {
        /// How its main process left.
        status: Status,
        /// Why it is over.
        ending: Ending,
        /// From start to end, in microseconds.
        micros: u64,
        /// Standard output.
        stdout: Kept,
        /// Standard error.
        stderr: Kept,
    },
    /// How it ended is not known.
    Lost,
}

/// A part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPage {
    /// Commands, newest first.
    pub entries: Vec<HistoryEntry>,
    /// Where the next page begins, if there is one.
    pub next: Option<HistoryCursor>,
}

/// Where a page of a history begins. It stays right while commands come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HistoryCursor(pub u64);

impl Database {
    /// How many commands a session remembers.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn remembered(&self, session: SessionNumber) -> Result<u64> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT count(*) FROM commands WHERE session = ?1")?;
            Ok(since_1970(query.query_row([session.0], |row| row.get(0))?))
        })
    }

    /// A session's commands, newest first, from `before` on.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn history(
        &self,
        session: SessionNumber,
        before: Option<HistoryCursor>,
        most: usize,
    ) -> Result<HistoryPage> {
        self.read(|c| {
            let mut query = c.prepare_cached(HISTORY)?;
            // One more than asked for tells whether there is a next page.
            let before = before.map_or(i64::MAX, |cursor| millis(cursor.0));
            let rows = query.query_map(params![session.0, before, limit(most.saturating_add(1))], read)?;
            let mut entries = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let more = entries.len() > most;
            entries.truncate(most);
            let next = entries.last().filter(|_| more).map(|entry| HistoryCursor(entry.number));
            Ok(HistoryPage { entries, next })
        })
    }
}

impl Database {
    /// Where the session's latest command ran.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn last_backend(&self, session: SessionNumber) -> Result<Option<BackendName>> {
        self.read(|c| {
            let mut query = c.prepare_cached(
                "SELECT backend FROM commands WHERE session = ?1 ORDER BY number DESC LIMIT 1",
            )?;
            let word: Option<String> = query.query_row([session.0], |row| row.get(0)).optional()?;
            Ok(word.map(|word| word.parse().map_err(|()| malformed(0))).transpose()?)
        })
    }

    /// When the session's latest command ended, in milliseconds since 1970; 0 when none is known to have.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn last_end(&self, session: SessionNumber) -> Result<u64> {
        self.read(|c| {
            let mut query = c.prepare_cached(
                "SELECT started + coalesce(micros, 0) / 1000 FROM commands
                 WHERE session = ?1 ORDER BY number DESC LIMIT 1",
            )?;
            Ok(query.query_row([session.0], |row| row.get(0)).optional()?.map_or(0, since_1970))
        })
    }
}

const HISTORY: &str =
    "SELECT number, command, caller, backend, background, started, state, code, signal, ending, micros,
        stdout_bytes, stderr_bytes, stdout_head, stdout_tail, stderr_head, stderr_tail, process
    FROM commands WHERE session = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3";

fn read(row: &Row<'_>) -> rusqlite::Result<HistoryEntry> {
    let backend: String = row.get(3)?;
    let state: String = row.get(6)?;
    let result = match state.as_str() {
        "running" => HistoryResult::Running,
        "lost" => HistoryResult::Lost,
        _ => {
            let status = match (row.get(7)?, row.get(8)?) {
                (Some(code), _) => Status::Code(code),
                (None, Some(signal)) => Status::Signal(signal),
                (None, None) => return Err(malformed(7)),
            };
            let ending: String = row.get(9)?;
            let kept = |bytes: usize, head: usize| {
                Ok::<_, rusqlite::Error>(Kept {
                    bytes: since_1970(row.get(bytes)?),
                    head: row.get::<_, Option<_>>(head)?.unwrap_or_default(),
                    tail: row.get::<_, Option<_>>(head + 1)?.unwrap_or_default(),
                })
            };
            HistoryResult::Ended {
                status,
                ending: ending_of(&ending).ok_or_else(|| malformed(9))?,
                micros: since_1970(row.get(10)?),
                stdout: kept(11, 13)?,
                stderr: kept(12, 15)?,
            }
        }
    };
    Ok(HistoryEntry {
        number: since_1970(row.get(0)?),
        command: row.get(1)?,
        caller: row.get(2)?,
        backend: backend.parse().map_err(|()| malformed(3))?,
        background: row.get(4)?,
        process: row.get::<_, Option<u32>>(17)?.map(ProcessId),
        started_millis: since_1970(row.get(5)?),
        result,
    })
}
