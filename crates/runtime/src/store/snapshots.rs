//! Snapshots of sessions, and which of them a session begins from.
//!
//! A row is there before anything of a snapshot is, and is removed after everything of it. It is changed under the lock
//! of its session, as long as there is one.

use moltis_sandbox::{BackendName, SessionKey, SnapshotId};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::SessionLock;
use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::{Result, StoreError};
use super::sessions::{self, Session, SessionNumber, json, malformed, millis, since_1970};

/// Snapshots that a session may have.
pub const MOST: usize = 32;

/// What became of the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotHome {
    /// A copy of it is in the snapshot.
    Copied,
    /// It is the one that all sessions share, and is not in it.
    Shared,
}

impl FromSql for SnapshotHome {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "copied" => Ok(Self::Copied),
            "shared" => Ok(Self::Shared),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl ToSql for SnapshotHome {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Copied => "copied",
            Self::Shared => "shared",
        }
        .into())
    }
}

/// A snapshot as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Whose it is. The session need not be there any more.
    pub session: SessionKey,
    /// Its name among those of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What held the sandbox, and alone can make one of it.
    pub backend: BackendName,
    /// When it was taken, in milliseconds since 1970.
    pub created_millis: u64,
    /// Who took it.
    pub created_by: Caller,
    /// Bytes of the files in it, without the root.
    pub bytes: u64,
    /// What became of the home.
    pub home: SnapshotHome,
    /// What the backend keeps of the root, if that could be written to.
    #[serde(skip)]
    pub root: Option<String>,
}

/// The snapshot that a session's sandboxes begin from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begins {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Where its sandboxes are therefore.
    pub backend: BackendName,
    /// What that keeps of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Whether a home is in it.
    pub home: bool,
    /// Whether a home that lasts is yet to be replaced by the one in it: by the next sandbox.
    pub home_waits: bool,
}

impl Begins {
    /// From this snapshot, which is yet to be unpacked.
    pub fn from(snapshot: &Snapshot) -> Self {
        let home = snapshot.home == SnapshotHome::Copied;
        Self {
            snapshot: snapshot.id.clone(),
            backend: snapshot.backend,
            root: snapshot.root.clone(),
            home,
            home_waits: home,
        }
    }
}

/// A snapshot that is about to be taken.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// Whose.
    pub session: SessionKey,
    /// Its name.
    pub name: Option<String>,
    /// What holds the sandbox.
    pub backend: BackendName,
    /// What becomes of the home.
    pub home: SnapshotHome,
}

/// What came of the wish to take one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Making {
    /// It is written down.
    Begun(SnapshotId),
    /// The session has one of this name.
    NameTaken,
    /// The session has as many as it may.
    Full,
}

/// What came of the wish to remove one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removing {
    /// It is written down that it goes.
    Begun,
    /// So many sessions begin from it.
    InUse(u64),
}

/// What came of the wish to make a session that sets what another one does.
#[derive(Clone, Debug)]
pub enum Forking {
    /// It is there.
    Made(Box<Session>),
    /// There was one of that key.
    Exists,
    /// The other one sets something else than it did.
    Changed,
}

const COLUMNS: &str = "id, session, name, backend, made, made_by, bytes, home, root FROM snapshots";

impl Database {
    /// Writes down that a snapshot is about to be taken.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshot_making(&mut self, new: &NewSnapshot, by: &Caller, now_millis: u64) -> Result<Making> {
        self.write(|t| {
            let key = new.session.as_str();
            let there: i64 = t
                .prepare_cached("SELECT count(*) FROM snapshots WHERE session = ?1")?
                .query_row([key], |row| row.get(0))?;
            if since_1970(there) >= MOST as u64 {
                return Ok(Making::Full);
            }
            let taken = t
                .prepare_cached("SELECT 1 FROM snapshots WHERE session = ?1 AND name = ?2")?
                .exists(params![key, new.name])?;
            if taken {
                return Ok(Making::NameTaken);
            }
            let id: String = t
                .prepare_cached(
                    "INSERT INTO snapshots (id, session, name, backend, state, home, made, made_by)
                     VALUES ('snap-' || lower(hex(randomblob(8))), ?1, ?2, ?3, 'making', ?4, ?5, ?6) RETURNING id",
                )?
                .query_row(
                    params![key, new.name, new.backend.as_str(), new.home, millis(now_millis), by],
                    |row| row.get(0),
                )?;
            Ok(Making::Begun(SnapshotId::parse(&id).ok_or_else(|| malformed(0))?))
        })
    }

    /// Writes down that a snapshot is whole.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshot_ready(
        &mut self,
        id: &SnapshotId,
        root: Option<&str>,
        bytes: u64,
    ) -> Result<Option<Snapshot>> {
        self.write(|t| {
            t.prepare_cached("UPDATE snapshots SET state = 'ready', root = ?2, bytes = ?3 WHERE id = ?1")?
                .execute(params![id.as_str(), root, millis(bytes)])?;
            Ok(ready(t, id)?)
        })
    }

    /// Writes down that a snapshot is about to be removed, unless a session begins from it.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshot_removing(&mut self, id: &SnapshotId) -> Result<Removing> {
        self.write(|t| {
            let users: i64 = t
                .prepare_cached(
                    "SELECT count(*) FROM sessions WHERE json_extract(begins, '$.snapshot') = ?1",
                )?
                .query_row([id.as_str()], |row| row.get(0))?;
            if users > 0 {
                return Ok(Removing::InUse(since_1970(users)));
            }
            t.prepare_cached("UPDATE snapshots SET state = 'removing', name = NULL WHERE id = ?1")?
                .execute([id.as_str()])?;
            Ok(Removing::Begun)
        })
    }

    /// Forgets a snapshot of which nothing is left.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshot_gone(&mut self, id: &SnapshotId) -> Result<()> {
        self.write(|t| {
            t.prepare_cached("DELETE FROM snapshots WHERE id = ?1")?.execute([id.as_str()])?;
            Ok(())
        })
    }

    /// The snapshots that are whole, of one session or of all, oldest first.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshots(&self, session: Option<&SessionKey>) -> Result<Vec<Snapshot>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!(
                "SELECT {COLUMNS} WHERE state = 'ready' AND (?1 IS NULL OR session = ?1) ORDER BY session, made, id"
            ))?;
            let rows = query.query_map([session.map(SessionKey::as_str)], read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Those that are not whole, of one session or of all: whoever holds the session's lock knows that their makers are
    /// dead.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn half_snapshots(&self, session: Option<&SessionKey>) -> Result<Vec<Snapshot>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!(
                "SELECT {COLUMNS} WHERE state <> 'ready' AND (?1 IS NULL OR session = ?1)"
            ))?;
            let rows = query.query_map([session.map(SessionKey::as_str)], read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// The snapshot that is whole and has this id.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        self.read(|c| Ok(ready(c, id)?))
    }

    /// Writes down what a session's sandboxes begin from; `false` when that snapshot is there no more.
    ///
    /// # Errors
    /// `NoSession` when the session was removed meanwhile.
    pub fn begin_from(&mut self, lock: &SessionLock, begins: Option<&Begins>) -> Result<bool> {
        self.write(|t| {
            if let Some(begins) = begins
                && ready(t, &begins.snapshot)?.is_none()
            {
                return Ok(false);
            }
            set_begins(t, lock.session(), begins)?;
            Ok(true)
        })
    }

    /// Writes down that the home of a session is the snapshot's now.
    ///
    /// # Errors
    /// `NoSession` when the session was removed meanwhile.
    pub fn home_begun(&mut self, lock: &SessionLock) -> Result<()> {
        self.write(|t| {
            t.prepare_cached(
                "UPDATE sessions SET begins = json_set(begins, '$.homeWaits', json('false'))
                 WHERE id = ?1 AND begins IS NOT NULL",
            )?
            .execute([lock.session().0])?;
            Ok(())
        })
    }

    /// Makes a session with all that another one sets, which begins from a snapshot. `from` says what that was known to
    /// set.
    ///
    /// # Errors
    /// `NoSession` when the other one, or the snapshot, was removed meanwhile.
    pub fn fork_session(
        &mut self,
        from: &Session,
        key: &SessionKey,
        begins: &Begins,
        by: &Caller,
        now_millis: u64,
    ) -> Result<Forking> {
        self.write(|t| {
            if sessions::find(t, key)?.is_some() {
                return Ok(Forking::Exists);
            }
            match sessions::find(t, &from.key)? {
                Some(now) if now.number == from.number && now.overrides == from.overrides => {}
                Some(now) if now.number == from.number => return Ok(Forking::Changed),
                _ => return Err(StoreError::NoSession.into()),
            }
            if ready(t, &begins.snapshot)?.is_none() {
                return Err(StoreError::NoSession.into());
            }
            let made = t
                .prepare_cached(
                    "INSERT INTO sessions (key, sandbox, created, last_used, last_used_by, overrides, env, begins)
                     SELECT ?2, ?3, ?4, ?4, ?5, overrides, env, ?6 FROM sessions WHERE id = ?1",
                )?
                .execute(params![
                    from.number.0,
                    key.as_str(),
                    moltis_sandbox::SandboxId::of(key).as_str(),
                    millis(now_millis),
                    by,
                    json(begins)?
                ])?;
            match sessions::find(t, key)? {
                Some(session) if made > 0 => Ok(Forking::Made(Box::new(session))),
                _ => Err(StoreError::NoSession.into()),
            }
        })
    }
}

fn set_begins(t: &Transaction<'_>, session: SessionNumber, begins: Option<&Begins>) -> Result<(), Fault> {
    let text = begins.map(json).transpose()?;
    let changed = t
        .prepare_cached("UPDATE sessions SET begins = ?2 WHERE id = ?1")?
        .execute(params![session.0, text])?;
    if changed == 0 { Err(StoreError::NoSession.into()) } else { Ok(()) }
}

fn ready(connection: &Connection, id: &SnapshotId) -> rusqlite::Result<Option<Snapshot>> {
    let mut query =
        connection.prepare_cached(&format!("SELECT {COLUMNS} WHERE state = 'ready' AND id = ?1"))?;
    query.query_row([id.as_str()], read).optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Snapshot> {
    let text = |at: usize| row.get::<_, String>(at);
    Ok(Snapshot {
        id: SnapshotId::parse(&text(0)?).ok_or_else(|| malformed(0))?,
        session: SessionKey::new(text(1)?).ok_or_else(|| malformed(1))?,
        name: row.get(2)?,
        backend: text(3)?.parse().map_err(|()| malformed(3))?,
        created_millis: since_1970(row.get(4)?),
        created_by: row.get(5)?,
        bytes: since_1970(row.get(6)?),
        home: row.get(7)?,
        root: row.get(8)?,
    })
}
