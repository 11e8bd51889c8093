//! Sessions: their keys, what they set over the configuration, and when they were used.

use std::collections::BTreeMap;

use moltis_sandbox::{SandboxId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;

use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::{Result, StoreError};
use super::overrides::{EnvValue, SessionOverrides, SessionPatch};
use super::sandboxes::{Gone, StoredSandbox};
use super::snapshots::Begins;

/// Number of a session in this store; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub(super) i64);

/// A session as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its number in this store.
    #[serde(skip)]
    pub number: SessionNumber,
    /// Its key.
    #[serde(rename = "session")]
    pub key: SessionKey,
    /// The opaque id that stands for it.
    pub sandbox_id: SandboxId,
    /// When it was made, in milliseconds since 1970.
    pub created_millis: u64,
    /// When it was last used, in milliseconds since 1970.
    pub last_used_millis: u64,
    /// Who used it last.
    pub last_used_by: Caller,
    /// What it sets over the configuration.
    pub overrides: SessionOverrides,
    /// Names of its variables. [`Database::session_env`] has the values.
    pub env: Vec<String>,
    /// Why its last sandbox ended, if it has none now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Gone>,
    /// The snapshot that its sandboxes begin from, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begins: Option<Begins>,
    /// Its sandbox, as far as was written down.
    #[serde(skip)]
    pub sandbox: Option<StoredSandbox>,
}

const COLUMNS: &str = "s.id, s.key, s.sandbox, s.created, s.last_used, s.last_used_by, s.overrides, s.env, s.ended, \
                       s.begins, b.generation, b.backend, b.fingerprint, b.state, b.created, b.opened_by, b.judged \
                       FROM sessions s LEFT JOIN sandboxes b ON b.session = s.id";

impl Database {
    /// The session of a key.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn session(&self, key: &SessionKey) -> Result<Option<Session>> {
        self.read(|c| Ok(find(c, key)?))
    }

    /// The session that an opaque id stands for, such as one found on an engine's label.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn session_of(&self, id: &SandboxId) -> Result<Option<Session>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!("SELECT {COLUMNS} WHERE s.sandbox = ?1"))?;
            Ok(query.query_row([id.as_str()], read).optional()?)
        })
    }

    /// Sessions in the order of their keys, from the one after `after` on.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn sessions(&self, after: Option<&SessionKey>, most: usize) -> Result<Vec<Session>> {
        self.read(|c| {
            let mut query =
                c.prepare_cached(&format!("SELECT {COLUMNS} WHERE s.key > ?1 ORDER BY s.key LIMIT ?2"))?;
            // No key is empty.
            let rows = query.query_map(params![after.map_or("", SessionKey::as_str), limit(most)], read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// How many sessions there are.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn count_sessions(&self) -> Result<u64> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT count(*) FROM sessions")?;
            Ok(since_1970(query.query_row([], |row| row.get(0))?))
        })
    }

    /// The session of a key, made with these overrides if it is not there; `true` when it was made.
    ///
    /// # Errors
    /// `Override` when one of them cannot be right; then nothing is made.
    pub fn create_session(
        &mut self,
        key: &SessionKey,
        overrides: &SessionPatch,
        by: &Caller,
        now_millis: u64,
    ) -> Result<(Session, bool)> {
        overrides.check()?;
        self.write(|t| {
            if let Some(session) = find(t, key)? {
                return Ok((session, false));
            }
            let mut set = SessionOverrides::default();
            let mut env = BTreeMap::new();
            overrides.apply(&mut set);
            overrides.apply_env(&mut env)?;
            t.prepare_cached(
                "INSERT INTO sessions (key, sandbox, created, last_used, last_used_by, overrides, env)
                 VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                key.as_str(),
                SandboxId::of(key).as_str(),
                millis(now_millis),
                by,
                json(&set)?,
                json(&env)?
            ])?;
            Ok((found(find(t, key)?)?, true))
        })
    }

    /// Changes what a session sets; `None` when there is no such session.
    ///
    /// # Errors
    /// `Override` when one of the values cannot be right; then nothing is changed.
    pub fn patch_session(&mut self, key: &SessionKey, patch: &SessionPatch) -> Result<Option<Session>> {
        patch.check()?;
        self.write(|t| {
            let Some(mut session) = find(t, key)? else { return Ok(None) };
            let mut env = env(t, session.number)?;
            patch.apply(&mut session.overrides);
            patch.apply_env(&mut env)?;
            t.prepare_cached("UPDATE sessions SET overrides = ?2, env = ?3 WHERE id = ?1")?
                .execute(params![session.number.0, json(&session.overrides)?, json(&env)?])?;
            session.env = env.into_keys().collect();
            Ok(Some(session))
        })
    }

    /// A session's variables.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn session_env(&self, session: SessionNumber) -> Result<Vec<(String, EnvValue)>> {
        self.read(|c| {
            let env = env(c, session)?;
            Ok(env.into_iter().map(|(name, value)| (name, EnvValue::new(value))).collect())
        })
    }

    /// Notes that a session is in use.
    ///
    /// # Errors
    /// `NoSession` when it was removed meanwhile.
    pub fn touch_session(&mut self, session: SessionNumber, by: &Caller, now_millis: u64) -> Result<()> {
        self.write(|t| {
            let changed = t
                .prepare_cached(
                    "UPDATE sessions SET last_used = max(last_used, ?2), last_used_by = ?3 WHERE id = ?1",
                )?
                .execute(params![session.0, millis(now_millis), by])?;
            if changed == 0 { Err(StoreError::NoSession.into()) } else { Ok(()) }
        })
    }

    /// Forgets a session that has had no command and has no sandbox; `false` when it has.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn forget_unused_session(&mut self, session: SessionNumber) -> Result<bool> {
        self.write(|t| {
            let forgotten = t
                .prepare_cached(
                    "DELETE FROM sessions WHERE id = ?1 AND commands = 0
                     AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE session = ?1)",
                )?
                .execute([session.0])?;
            Ok(forgotten > 0)
        })
    }

    /// Forgets a session with its history and all that was said about it; `false` when there is none.
    ///
    /// # Errors
    /// `HasSandbox` while one is written down for it.
    pub fn remove_session(&mut self, key: &SessionKey) -> Result<bool> {
        self.write(|t| {
            let Some(session) = find(t, key)? else { return Ok(false) };
            if session.sandbox.is_some() {
                return Err(StoreError::HasSandbox.into());
            }
            t.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([session.number.0])?;
            super::approvals::forget(t, key)?;
            Ok(true)
        })
    }
}

pub(super) fn find(connection: &Connection, key: &SessionKey) -> rusqlite::Result<Option<Session>> {
    let mut query = connection.prepare_cached(&format!("SELECT {COLUMNS} WHERE s.key = ?1"))?;
    query.query_row([key.as_str()], read).optional()
}

fn found(session: Option<Session>) -> Result<Session, Fault> {
    session.ok_or(Fault::Store(StoreError::NoSession))
}

fn env(connection: &Connection, session: SessionNumber) -> Result<BTreeMap<String, String>, Fault> {
    let mut query = connection.prepare_cached("SELECT env FROM sessions WHERE id = ?1")?;
    let text: Option<String> = query.query_row([session.0], |row| row.get(0)).optional()?;
    let text = text.ok_or(StoreError::NoSession)?;
    Ok(serde_json::from_str(&text).map_err(|_| malformed(0))?)
}

/// Reads a row of [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Session> {
    let text = |at: usize| row.get_ref(at).and_then(|value| value.as_str().map_err(|_| malformed(at)));
    let key = SessionKey::new(text(1)?).ok_or_else(|| malformed(1))?;
    let sandbox_id = SandboxId::parse(text(2)?).ok_or_else(|| malformed(2))?;
    let overrides = serde_json::from_str(text(6)?).map_err(|_| malformed(6))?;
    let env: BTreeMap<String, serde::de::IgnoredAny> =
        serde_json::from_str(text(7)?).map_err(|_| malformed(7))?;
    Ok(Session {
        number: SessionNumber(row.get(0)?),
        key,
        sandbox_id,
        created_millis: since_1970(row.get(3)?),
        last_used_millis: since_1970(row.get(4)?),
        last_used_by: row.get(5)?,
        overrides,
        env: env.into_keys().collect(),
        ended: row.get(8)?,
        begins: row
            .get_ref(9)?
            .as_str_or_null()
            .map_err(|_| malformed(9))?
            .map(|text| serde_json::from_str(text).map_err(|_| malformed(9)))
            .transpose()?,
        sandbox: StoredSandbox::read(row, 10)?,
    })
}

/// The columns that [`read`] reads, and where they come from.
pub(super) fn columns() -> &'static str {
    COLUMNS
}

/// A row that does not have its form. What it holds is not told: it may be a secret.
pub(super) fn malformed(column: usize) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(column, String::new(), rusqlite::types::Type::Text)
}

pub(super) fn json(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value)
        .map_err(|_| StoreError::Override { name: "session", why: "it cannot be written as JSON" }.into())
}

pub(super) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A time or a count as SQLite holds it.
pub(super) fn millis(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A time or a count as it was before.
pub(super) fn since_1970(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
