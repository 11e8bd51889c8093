//! What is intended with each session's sandbox, written down before it is done.
//!
//! A row is changed under the session's lock only. So whoever has the lock and finds `opening` or `closing` knows
//! that the process that wrote it has died in between, and cleans up after it first. Each opening has a number of its
//! own, by which a late change to an earlier sandbox is recognised.

use moltis_sandbox::{BackendName, NotEnforced};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::SessionLock;
use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::{Result, StoreError};
use super::sessions::{self, Session, SessionNumber, malformed, millis, since_1970};

/// What was last written down about a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxState {
    /// Somebody was about to start it.
    Opening,
    /// It was started.
    Running,
    /// Somebody was about to end it.
    Closing,
}

impl SandboxState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Running => "running",
            Self::Closing => "closing",
        }
    }
}

impl FromSql for SandboxState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "opening" => Ok(Self::Opening),
            "running" => Ok(Self::Running),
            "closing" => Ok(Self::Closing),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl ToSql for SandboxState {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

/// Why a session's sandbox is gone, told with the answer of the command that starts the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gone {
    /// It ended itself after its time without use.
    Idle,
    /// What it is to be has changed.
    Spec,
    /// It died: killed, out of memory, the machine restarted.
    Crash,
    /// Its backend failed, and another one took over.
    Failover,
    /// Somebody ended it.
    Stopped,
    /// It made room for another session's: `max_sandboxes`.
    Evicted,
    /// The caller asked for a new one.
    Recreated,
    /// Something inside took the Managed Files mount away.
    FilesMount,
}

impl Gone {
    const ALL: [Self; 8] = [
        Self::Idle,
        Self::Spec,
        Self::Crash,
        Self::Failover,
        Self::Stopped,
        Self::Evicted,
        Self::Recreated,
        Self::FilesMount,
    ];

    /// The word in answers and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Spec => "spec",
            Self::Crash => "crash",
            Self::Failover => "failover",
            Self::Stopped => "stopped",
            Self::Evicted => "evicted",
            Self::Recreated => "recreated",
            Self::FilesMount => "filesMount",
        }
    }
}

impl FromSql for Gone {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::ALL.into_iter().find(|gone| gone.as_str() == word).ok_or(FromSqlError::InvalidType)
    }
}

impl ToSql for Gone {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

/// What was judged when a sandbox was opened. It need not be judged again while every setting and its origin stay the
/// same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Judged {
    /// Hash of everything that the judgement depended on.
    pub settings: String,
    /// How the backend was chosen: `auto` or its name, and which failed backends it stands in for.
    pub choice: String,
    /// Built-in defaults that are not kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
}

/// A session's sandbox as it was written down. Whether it lives only its backend knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredSandbox {
    /// Which opening of the session it comes from.
    pub generation: u64,
    /// What holds it.
    pub backend: BackendName,
    /// What it was opened with.
    pub fingerprint: String,
    /// What was last intended or reached.
    pub state: SandboxState,
    /// When somebody began to open it, in milliseconds since 1970.
    pub created_millis: u64,
    /// Who began to open it.
    pub opened_by: Caller,
    /// What was judged then.
    #[serde(skip)]
    pub judged: Judged,
}

impl StoredSandbox {
    /// Reads seven columns from `at` on; `None` where the join found nothing.
    pub(super) fn read(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Self>> {
        let Some(generation) = row.get::<_, Option<i64>>(at)? else { return Ok(None) };
        let backend: String = row.get(at + 1)?;
        Ok(Some(Self {
            generation: since_1970(generation),
            backend: backend.parse().map_err(|()| malformed(at + 1))?,
            fingerprint: row.get(at + 2)?,
            state: row.get(at + 3)?,
            created_millis: since_1970(row.get(at + 4)?),
            opened_by: row.get(at + 5)?,
            judged: serde_json::from_str(row.get_ref(at + 6)?.as_str()?).map_err(|_| malformed(at + 6))?,
        }))
    }
}

/// A sandbox that is about to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSandbox {
    /// What holds it.
    pub backend: BackendName,
    /// What it is opened with.
    pub fingerprint: String,
    /// What was judged.
    pub judged: Judged,
}

impl Database {
    /// Writes down that a sandbox is about to be opened, in place of whatever was written down before, and gives its
    /// generation. `most` bounds the sandboxes of all sessions.
    ///
    /// # Errors
    /// `NoSession` when the session was removed meanwhile, `TooMany` when the others have that many already.
    pub fn sandbox_opening(
        &mut self,
        lock: &SessionLock,
        opening: &NewSandbox,
        most: u64,
        by: &Caller,
        now_millis: u64,
    ) -> Result<u64> {
        let session = lock.session();
        self.write(|t| {
            let others: i64 = t
                .prepare_cached("SELECT count(*) FROM sandboxes WHERE session <> ?1")?
                .query_row([session.0], |row| row.get(0))?;
            if since_1970(others) >= most {
                return Err(StoreError::TooMany(most).into());
            }
            let generation: Option<i64> = t
                .prepare_cached("UPDATE sessions SET openings = openings + 1 WHERE id = ?1 RETURNING openings")?
                .query_row([session.0], |row| row.get(0))
                .optional()?;
            let generation = generation.ok_or(StoreError::NoSession)?;
            t.prepare_cached(
                "INSERT INTO sandboxes (session, generation, backend, fingerprint, state, created, opened_by, judged)
                 VALUES (?1, ?2, ?3, ?4, 'opening', ?5, ?6, ?7)
                 ON CONFLICT (session) DO UPDATE SET generation = excluded.generation, backend = excluded.backend,
                     fingerprint = excluded.fingerprint, state = excluded.state, created = excluded.created,
                     opened_by = excluded.opened_by, judged = excluded.judged",
            )?
            .execute(params![
                session.0,
                generation,
                opening.backend.as_str(),
                opening.fingerprint,
                millis(now_millis),
                by,
                sessions::json(&opening.judged)?
            ])?;
            Ok(since_1970(generation))
        })
    }

    /// Writes down that the sandbox runs, or that it is about to be ended. When one runs, how the one before it ended
    /// is no news any more.
    ///
    /// # Errors
    /// `SandboxChanged` when another one was opened meanwhile.
    pub fn sandbox_state(&mut self, lock: &SessionLock, generation: u64, state: SandboxState) -> Result<()> {
        self.write(|t| {
            let session = lock.session().0;
            let changed = t
                .prepare_cached("UPDATE sandboxes SET state = ?3 WHERE session = ?1 AND generation = ?2")?
                .execute(params![session, millis(generation), state])?;
            changed_one(changed)?;
            if state == SandboxState::Running {
                t.prepare_cached("UPDATE sessions SET ended = NULL WHERE id = ?1")?.execute([session])?;
            }
            Ok(())
        })
    }

    /// Writes down what was judged anew of a sandbox that goes on running.
    ///
    /// # Errors
    /// `SandboxChanged` when another one was opened meanwhile.
    pub fn sandbox_judged(&mut self, lock: &SessionLock, generation: u64, judged: &Judged) -> Result<()> {
        self.write(|t| {
            let changed = t
                .prepare_cached("UPDATE sandboxes SET judged = ?3 WHERE session = ?1 AND generation = ?2")?
                .execute(params![lock.session().0, millis(generation), sessions::json(judged)?])?;
            changed_one(changed)
        })
    }

    /// Writes down that the sandbox is gone, and why. Background commands that it held are lost; how many is the
    /// answer. With no reason it never ran, and the reason of the one before it stands.
    ///
    /// # Errors
    /// `SandboxChanged` when another one was opened meanwhile.
    pub fn sandbox_gone(&mut self, lock: &SessionLock, generation: u64, why: Option<Gone>) -> Result<usize> {
        let session = lock.session();
        self.write(|t| {
            let changed = t
                .prepare_cached("DELETE FROM sandboxes WHERE session = ?1 AND generation = ?2")?
                .execute(params![session.0, millis(generation)])?;
            changed_one(changed)?;
            if why.is_some() {
                t.prepare_cached("UPDATE sessions SET ended = ?2 WHERE id = ?1")?
                    .execute(params![session.0, why])?;
            }
            Ok(t.prepare_cached(
                "UPDATE commands SET state = 'lost', owner = NULL, told = 0
                 WHERE session = ?1 AND state = 'running' AND background = 1",
            )?
            .execute([session.0])?)
        })
    }

    /// Whether this opening of a session's sandbox was ended on purpose, or is about to be.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn was_ended(&self, session: SessionNumber, generation: u64) -> Result<bool> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT generation, state FROM sandboxes WHERE session = ?1")?;
            let row: Option<(i64, SandboxState)> =
                query.query_row([session.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            Ok(row.is_none_or(|(now, state)| since_1970(now) != generation || state == SandboxState::Closing))
        })
    }

    /// Sessions that have a sandbox, the longest unused first.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn sandboxes(&self) -> Result<Vec<Session>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!(
                "SELECT {} WHERE b.session IS NOT NULL AND s.id IN (SELECT session FROM sandboxes)
                 ORDER BY s.last_used",
                sessions::columns()
            ))?;
            let rows = query.query_map([], sessions::read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

fn changed_one(changed: usize) -> Result<(), Fault> {
    if changed == 0 { Err(StoreError::SandboxChanged.into()) } else { Ok(()) }
}

impl SessionLock {
    /// The same right, for work elsewhere. It ends when all of them are dropped.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { session: self.session, file: std::sync::Arc::clone(&self.file) }
    }

    /// The session that it locks.
    pub fn session(&self) -> SessionNumber {
        self.session
    }
}
