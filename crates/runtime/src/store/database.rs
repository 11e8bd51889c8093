//! One open database: how it is opened, made, brought up to date and put aside, and how work on it is wrapped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::error::{Result, StoreError};
use super::lock::{Byte, Hold, LockFile};
use super::place::{Found, Place};
use super::schema::{self, State};

/// Time that a process waits for others before it gives up. Work on the database takes well under a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that a process waits for others to close a damaged database.
const PATIENCE_DAMAGED: Duration = Duration::from_secs(2);

/// Settings of every connection.
///
/// `synchronous = NORMAL` leaves out the flush after each commit. What a process has written is the kernel's from
/// then on, so that nothing acknowledged is lost when the process is killed; when the power fails the last
/// transactions may be missing, but never part of one, because each carries its checksum in the log.
///
/// `wal_autocheckpoint`: a process that finds nobody else reads the log once, so it is kept short.
const SETTINGS: &str = "
    PRAGMA synchronous = NORMAL;
    PRAGMA foreign_keys = ON;
    PRAGMA wal_autocheckpoint = 128;
    PRAGMA secure_delete = FAST;
";

/// An open database. Its methods block.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    place: Place,
    locks: LockFile,
    /// The lock by which others see that this process lives; taken with the first command.
    owner: Option<i64>,
}

/// A damaged database that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutAside {
    /// Where it is now.
    pub kept: PathBuf,
    /// What is wrong with it.
    pub cause: String,
}

/// A point in the life of a database: another one than before says that something may have been written since, by this
/// process or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    own: i64,
    others: i64,
}

/// What work inside a transaction may fail with, before the database's path is known to it.
#[derive(Debug)]
pub(super) enum Fault {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Database {
    /// Opens the database of a data directory, or makes it. A damaged one is put aside, which is told.
    /// With `suspect` the whole of it is checked first.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn open(data_dir: &Path, suspect: bool) -> Result<(Self, Option<PutAside>)> {
        let place = Place::new(data_dir)?;
        let locks = LockFile::open(&place.lock()).map_err(|e| place.cannot_write(e))?;
        if !suspect {
            take(&place, &locks, Byte::Use, Hold::Shared, PATIENCE)?;
            if let Some(connection) = ready(&place)? {
                return Ok((Self::new(connection, place, locks), None));
            }
            // Whoever waits for the set-up must not be in the way of it.
            drop_lock(&place, &locks, Byte::Use)?;
        }
        take(&place, &locks, Byte::Setup, Hold::Exclusive, PATIENCE)?;
        let (connection, aside) = set_up(&place, &locks, suspect)?;
        take(&place, &locks, Byte::Use, Hold::Shared, PATIENCE)?;
        drop_lock(&place, &locks, Byte::Setup)?;
        Ok((Self::new(connection, place, locks), aside))
    }

    fn new(connection: Connection, place: Place, locks: LockFile) -> Self {
        // Every statement of ours is kept ready once it was used.
        connection.set_prepared_statement_cache_capacity(64);
        Self { connection, place, locks, owner: None }
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        self.place.database()
    }

    /// The file that locks are taken on.
    pub(super) fn lock_place(&self) -> PathBuf {
        self.place.lock()
    }

    /// The connection, for tests of the tables themselves.
    #[cfg(test)]
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The number of the lock that this process holds as long as it lives.
    pub(super) fn owner(&mut self) -> Result<i64> {
        if let Some(owner) = self.owner {
            return Ok(owner);
        }
        loop {
            let drawn: i64 = self.read(|c| Ok(c.query_row("SELECT random()", [], |row| row.get(0))?))?;
            let held = self.locks.set(Byte::Owner(drawn), Hold::Exclusive);
            if held.map_err(|e| StoreError::io(&self.place.lock(), e))? {
                self.owner = Some(drawn);
                return Ok(drawn);
            }
        }
    }

    /// Whether the process that holds this lock lives.
    pub(super) fn lives(&self, owner: i64) -> Result<bool> {
        if self.owner == Some(owner) {
            return Ok(true);
        }
        self.locks.is_held(Byte::Owner(owner)).map_err(|e| StoreError::io(&self.place.lock(), e))
    }

    /// The point that it is at now.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn moment(&self) -> Result<Moment> {
        self.read(|c| {
            let own = c.prepare_cached("SELECT total_changes()")?.query_row([], |row| row.get(0))?;
            let others = c.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
            Ok(Moment { own, others })
        })
    }

    /// Reads.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T> {
        work(&self.connection).map_err(|fault| told(&self.place, fault))
    }

    /// Reads and writes, all or nothing. The write lock is taken at once, so that what was read stays true.
    pub(super) fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>) -> Result<T> {
        let done = (|| {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })();
        done.map_err(|fault| told(&self.place, fault))
    }
}

fn told(place: &Place, fault: Fault) -> StoreError {
    match fault {
        Fault::Sqlite(error) => StoreError::sqlite(place.database(), error),
        Fault::Store(error) => error,
    }
}

/// A connection to a database that needs nothing done to it.
fn ready(place: &Place) -> Result<Option<Connection>> {
    if place.look()? != Found::File {
        return Ok(None);
    }
    match connect(place) {
        Ok((connection, State::Ready)) => Ok(Some(connection)),
        Ok((_, state)) => refuse(place, state).map(|()| None),
        Err(error) if error.is_corrupt() => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuse(place: &Place, state: State) -> Result<()> {
    let place = place.database().to_owned();
    match state {
        State::Newer(found) => Err(StoreError::Newer { place, found, known: schema::VERSION }),
        State::NotOurs => Err(StoreError::NotOurs(place)),
        State::Ready | State::Behind => Ok(()),
    }
}

/// Makes, mends or replaces the database. The set-up lock is held, the use lock is not.
fn set_up(place: &Place, locks: &LockFile, suspect: bool) -> Result<(Connection, Option<PutAside>)> {
    let damage = match place.look()? {
        Found::Nothing => None,
        Found::Log => Some("the database is missing beside its log".to_owned()),
        Found::File => match open_whole(place, suspect) {
            Ok(connection) => return Ok((connection, None)),
            Err(StoreError::Corrupt { cause, .. }) => Some(cause),
            Err(error) => return Err(error),
        },
    };
    let aside = match damage {
        None => None,
        Some(cause) => {
            take(place, locks, Byte::Use, Hold::Exclusive, PATIENCE_DAMAGED).map_err(
                |error| match error {
                    StoreError::Busy(place) => {
                        let cause = format!("{cause}, and other processes have it open");
                        StoreError::Corrupt { place, kept: None, cause }
                    }
                    error => error,
                },
            )?;
            Some(PutAside { kept: place.put_aside()?, cause })
        }
    };
    place.make()?;
    Ok((open_whole(place, false)?, aside))
}

/// Opens a database, brings it up to date and, if asked, checks every page of it.
fn open_whole(place: &Place, check: bool) -> Result<Connection> {
    let (mut connection, state) = connect(place)?;
    refuse(place, state)?;
    let sqlite = |error| StoreError::sqlite(place.database(), error);
    if check {
        let answer: String =
            connection.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0)).map_err(sqlite)?;
        if answer != "ok" {
            return Err(StoreError::Corrupt {
                place: place.database().to_owned(),
                kept: None,
                cause: answer,
            });
        }
    }
    if state == State::Behind {
        schema::bring_up_to_date(&mut connection).map_err(sqlite)?;
    }
    Ok(connection)
}

fn connect(place: &Place) -> Result<(Connection, State)> {
    // One thread at a time uses a connection. The file was made before, with its mode.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    let opened = (|| {
        let mut connection = Connection::open_with_flags(place.database(), flags)?;
        // The last one to close would flush and remove the log: two flushes for each command of a lone process.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        // Plans do not depend on values: otherwise each statement is compiled a second time when it gets its first one.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.busy_handler(Some(patience(PATIENCE)))?;
        let state = schema::state(&connection)?;
        connection.execute_batch(SETTINGS)?;
        Ok((connection, state))
    })();
    let (connection, state) = opened.map_err(|error| StoreError::sqlite(place.database(), error))?;
    if connection.is_readonly("main").unwrap_or(false) {
        let cause = "it was opened for reading only".to_owned();
        return Err(StoreError::ReadOnly { place: place.database().to_owned(), cause });
    }
    Ok((connection, state))
}

/// Waits for other writers. Their transactions take tens of microseconds, so it begins far below the steps of
/// SQLite's own handler, which are milliseconds; processes spread out because each sleeps a little differently.
fn patience(limit: Duration) -> impl FnMut(i32) -> bool + Send + 'static {
    let salt = u64::from(std::process::id()) % 64;
    let mut since = Instant::now();
    move |count| {
        if count == 0 {
            since = Instant::now();
        }
        let micros = match count {
            0..20 => 50 + salt,
            20..60 => 300 + 4 * salt,
            _ => 2_000 + 16 * salt,
        };
        std::thread::sleep(Duration::from_micros(micros));
        since.elapsed() < limit
    }
}

fn take(place: &Place, locks: &LockFile, byte: Byte, hold: Hold, limit: Duration) -> Result<()> {
    let since = Instant::now();
    loop {
        if locks.set(byte, hold).map_err(|e| StoreError::io(&place.lock(), e))? {
            return Ok(());
        }
        if since.elapsed() > limit {
            return Err(StoreError::Busy(place.database().to_owned()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn drop_lock(place: &Place, locks: &LockFile, byte: Byte) -> Result<()> {
    locks.set(byte, Hold::None).map(drop).map_err(|e| StoreError::io(&place.lock(), e))
}
