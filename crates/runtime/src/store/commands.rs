//! Commands while they run: each is written down before it starts and resolved when it ends, so that one whose caller
//! was killed is found and reported lost.

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{BackendName, Ending, SessionKey, Status};
use rusqlite::{OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::{Result, StoreError};
use super::history::Kept;
use super::sessions::{SessionNumber, malformed, millis, since_1970};

/// Commands that a session remembers.
pub const MAX_COMMANDS: u64 = 1000;

/// Milliseconds for which a command is remembered: 30 days.
pub const MAX_AGE_MILLIS: u64 = 30 * 24 * 3600 * 1000;

/// Longest command that is remembered whole, in bytes.
pub const MAX_COMMAND: usize = 4096;

/// How many commands that are too old go with each new one.
const TRIM_STEP: usize = 8;

/// A command of a session, running or remembered. Its number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId {
    pub(super) session: SessionNumber,
    pub(super) number: u64,
}

impl CommandId {
    /// Its number within the session, from 1.
    pub fn number(self) -> u64 {
        self.number
    }
}

/// A command that is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommand {
    /// What, as a line to show; cut to [`MAX_COMMAND`]. No variables belong in it.
    pub command: String,
    /// On whose behalf.
    pub caller: Caller,
    /// Where.
    pub backend: BackendName,
    /// Whether it goes on without its caller.
    pub background: bool,
    /// When, in milliseconds since 1970.
    pub started_millis: u64,
}

/// How a command ended, as far as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How its main process left.
    pub status: Status,
    /// Why it is over.
    pub ending: Ending,
    /// From start to end, in microseconds.
    pub micros: u64,
    /// Standard output.
    pub stdout: Kept,
    /// Standard error.
    pub stderr: Kept,
}

/// A command whose caller died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostCommand {
    /// Its session.
    pub session: SessionKey,
    /// Its number within the session.
    pub number: u64,
    /// What it was.
    pub command: String,
    /// On whose behalf it ran.
    pub caller: Caller,
    /// Whether it was to go on without its caller: it may run still, unknown by number.
    pub background: bool,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
}

/// A background command that its sandbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundCommand {
    /// Which command.
    pub id: CommandId,
    /// Its number in the sandbox.
    pub process: ProcessId,
}

impl Database {
    /// Writes down that a command is about to start, and that its session is in use. What the session remembers
    /// beyond its bounds is forgotten.
    ///
    /// # Errors
    /// `NoSession` when the session was removed meanwhile.
    pub fn begin_command(&mut self, session: SessionNumber, command: &NewCommand) -> Result<CommandId> {
        let owner = self.owner()?;
        self.write(|t| {
            let number: Option<i64> = t
                .prepare_cached(
                    "UPDATE sessions SET commands = commands + 1, last_used = max(last_used, ?2), last_used_by = ?3
                     WHERE id = ?1 RETURNING commands",
                )?
                .query_row(params![session.0, millis(command.started_millis), command.caller], |row| row.get(0))
                .optional()?;
            let number = number.ok_or(StoreError::NoSession)?;
            t.prepare_cached(
                "INSERT INTO commands (session, number, state, owner, background, backend, caller, command, started)
                 VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                session.0,
                number,
                owner,
                command.background,
                command.backend.as_str(),
                command.caller,
                cut(&command.command),
                millis(command.started_millis)
            ])?;
            let id = CommandId { session, number: since_1970(number) };
            trim(t, id, command.started_millis)?;
            Ok(id)
        })
    }

    /// Writes down the number that a background command has in its sandbox. From here on the sandbox keeps it, not
    /// this process.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn command_started(&mut self, id: CommandId, process: ProcessId) -> Result<()> {
        self.write(|t| {
            t.prepare_cached(
                "UPDATE commands SET process = ?3, owner = NULL WHERE session = ?1 AND number = ?2 AND background = 1",
            )?
            .execute(params![id.session.0, millis(id.number), process.0])?;
            Ok(())
        })
    }

    /// Writes down how a command ended; `false` when it was not running any more.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn end_command(&mut self, id: CommandId, ended: &Ended) -> Result<bool> {
        let (code, signal) = match ended.status {
            Status::Code(code) => (Some(code), None),
            Status::Signal(signal) => (None, Some(signal)),
        };
        self.write(|t| {
            let changed = t
                .prepare_cached(
                    "UPDATE commands SET state = 'ended', owner = NULL, code = ?3, signal = ?4, ending = ?5,
                         micros = ?6, stdout_bytes = ?7, stderr_bytes = ?8,
                         stdout_head = ?9, stdout_tail = ?10, stderr_head = ?11, stderr_tail = ?12
                     WHERE session = ?1 AND number = ?2 AND state = 'running'",
                )?
                .execute(params![
                    id.session.0,
                    millis(id.number),
                    code,
                    signal,
                    ending_word(ended.ending),
                    millis(ended.micros),
                    millis(ended.stdout.bytes),
                    millis(ended.stderr.bytes),
                    ended.stdout.head(),
                    ended.stdout.tail(),
                    ended.stderr.head(),
                    ended.stderr.tail(),
                ])?;
            Ok(changed > 0)
        })
    }

    /// Writes down that how a command ended will not be known.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn lose_command(&mut self, id: CommandId) -> Result<bool> {
        self.write(|t| {
            let changed = t
                .prepare_cached(
                    "UPDATE commands SET state = 'lost', owner = NULL
                     WHERE session = ?1 AND number = ?2 AND state = 'running'",
                )?
                .execute(params![id.session.0, millis(id.number)])?;
            Ok(changed > 0)
        })
    }

    /// Forgets a command that did not start.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn forget_command(&mut self, id: CommandId) -> Result<()> {
        self.write(|t| {
            t.prepare_cached(
                "DELETE FROM commands WHERE session = ?1 AND number = ?2 AND state = 'running'",
            )?
            .execute(params![id.session.0, millis(id.number)])?;
            Ok(())
        })
    }

    /// Finds the commands whose process died, and marks them lost; their sessions are still to be told.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn sweep_lost(&mut self) -> Result<usize> {
        self.sweep(1, i64::MAX)
    }

    /// [`sweep_lost`](Self::sweep_lost) for one session.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn sweep_lost_of(&mut self, session: SessionNumber) -> Result<usize> {
        self.sweep(session.0, session.0)
    }

    /// A session's commands whose outcome is not known, each told to one caller only.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn tell_lost(&mut self, session: SessionNumber) -> Result<Vec<LostCommand>> {
        self.sweep_lost_of(session)?;
        let untold: Option<i64> = self.read(|c| {
            let mut query =
                c.prepare_cached("SELECT 1 FROM commands WHERE session = ?1 AND told = 0 LIMIT 1")?;
            Ok(query.query_row([session.0], |row| row.get(0)).optional()?)
        })?;
        if untold.is_none() {
            return Ok(Vec::new());
        }
        self.write(|t| {
            let mut query = t.prepare_cached(
                "UPDATE commands SET told = 1 WHERE session = ?1 AND told = 0
                 RETURNING number, command, caller, background, started,
                     (SELECT key FROM sessions WHERE sessions.id = commands.session)",
            )?;
            let rows = query.query_map([session.0], |row| {
                Ok(LostCommand {
                    session: SessionKey::new(row.get::<_, String>(5)?).ok_or_else(|| malformed(5))?,
                    number: since_1970(row.get(0)?),
                    command: row.get(1)?,
                    caller: row.get(2)?,
                    background: row.get(3)?,
                    started_millis: since_1970(row.get(4)?),
                })
            })?;
            let mut lost = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            lost.sort_by_key(|lost| lost.number);
            Ok(lost)
        })
    }

    fn sweep(&mut self, first: i64, last: i64) -> Result<usize> {
        let running: Vec<(i64, i64, i64)> = self.read(|c| {
            let mut query = c.prepare_cached(
                "SELECT session, number, owner FROM commands INDEXED BY commands_running
                 WHERE state = 'running' AND session BETWEEN ?1 AND ?2 AND owner IS NOT NULL",
            )?;
            let rows = query.query_map([first, last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })?;
        let mut dead = Vec::new();
        for (session, number, owner) in running {
            if !self.lives(owner)? {
                dead.push([session, number, owner]);
            }
        }
        if dead.is_empty() {
            return Ok(0);
        }
        self.write(|t| {
            let mut lost = 0;
            for row in dead {
                lost += t
                    .prepare_cached(
                        "UPDATE commands SET state = 'lost', owner = NULL, told = 0
                         WHERE session = ?1 AND number = ?2 AND owner = ?3 AND state = 'running'",
                    )?
                    .execute(row)?;
            }
            Ok(lost)
        })
    }

    /// The background commands that a session's sandbox holds, oldest first.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn background_commands(&self, session: SessionNumber) -> Result<Vec<BackgroundCommand>> {
        self.read(|c| {
            let mut query = c.prepare_cached(
                "SELECT number, process FROM commands INDEXED BY commands_running
                 WHERE session = ?1 AND state = 'running' AND process IS NOT NULL ORDER BY id",
            )?;
            let rows = query.query_map([session.0], |row| {
                let id = CommandId { session, number: since_1970(row.get(0)?) };
                Ok(BackgroundCommand { id, process: ProcessId(row.get(1)?) })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

/// Forgets what the session has beyond its number, and a few of the commands of all sessions that are too old: rows
/// are numbered as they come, so that the oldest are the first.
fn trim(transaction: &Transaction<'_>, newest: CommandId, now_millis: u64) -> Result<(), Fault> {
    if newest.number > MAX_COMMANDS {
        transaction
            .prepare_cached(
                "DELETE FROM commands WHERE session = ?1 AND number <= ?2 AND state <> 'running'",
            )?
            .execute(params![newest.session.0, millis(newest.number - MAX_COMMANDS)])?;
    }
    let oldest: Option<i64> = transaction
        .prepare_cached(
            "SELECT started FROM commands WHERE id > 0 AND state <> 'running' ORDER BY id LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()?;
    let horizon = millis(now_millis.saturating_sub(MAX_AGE_MILLIS));
    if oldest.is_some_and(|started| started < horizon) {
        transaction
            .prepare_cached(
                "DELETE FROM commands WHERE started < ?1 AND id IN
                     (SELECT id FROM commands WHERE id > 0 AND state <> 'running' ORDER BY id LIMIT ?2)",
            )?
            .execute(params![horizon, super::sessions::limit(TRIM_STEP)])?;
    }
    Ok(())
}

fn cut(command: &str) -> &str {
    &command[..command.floor_char_boundary(MAX_COMMAND)]
}

fn ending_word(ending: Ending) -> &'static str {
    match ending {
        Ending::Exited => "exited",
        Ending::TimedOut => "timedOut",
        Ending::Cancelled => "cancelled",
    }
}

pub(super) fn ending_of(word: &str) -> Option<Ending> {
    [Ending::Exited, Ending::TimedOut, Ending::Cancelled]
        .into_iter()
        .find(|ending| ending_word(*ending) == word)
}
