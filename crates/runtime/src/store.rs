//! What survives: sessions and their overrides, what is intended with each sandbox, commands that run and those that
//! ran. It is a SQLite database in the data directory that any number of processes share.
//!
//! [`Store`] is the handle for asynchronous code. It touches nothing before its first use, and runs work on its
//! [`Database`] off the asynchronous threads:
//!
//! ```no_run
//! # use moltis_runtime::store::{Store, StoreError};
//! # async fn example(store: Store, key: moltis_sandbox::SessionKey) -> Result<(), StoreError> {
//! let session = store.run(move |database| database.session(&key)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Whatever a method of [`Database`] has answered is in the kernel's hands: killing the process loses none of it.

pub mod approvals;
pub mod caller;
pub mod commands;
pub mod database;
pub mod error;
pub mod history;
pub mod idempotent;
pub mod keys;
mod lock;
mod meta;
pub mod overrides;
mod place;
pub mod rules;
pub mod sandboxes;
mod schema;
pub mod sessions;
pub mod snapshots;
#[cfg(test)]
mod tests;
mod word;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_sandbox::blocking;
use tokio::sync::Semaphore;

pub use approvals::{Approval, ApprovalId, Asking, Decided, Decision, Said, Word};
pub use caller::Caller;
pub use commands::{BackgroundCommand, CommandId, Ended, LostCommand, NewCommand};
pub use database::{Database, Moment, PutAside};
pub use error::{Result, StoreError};
pub use history::{HistoryCursor, HistoryEntry, HistoryPage, HistoryResult, Kept};
pub use idempotent::{Begun, Finished, Once};
pub use keys::{ApiKey, KeyScope, Login, NewApiKey};
pub use overrides::{
    EnvValue, LimitOverrides, LimitPatch, Patch, SessionOverrides, SessionPatch, StoredWorkspace,
};
pub use rules::{NetworkRule, RuleAction, SessionRules};
pub use sandboxes::{Gone, Judged, NewSandbox, SandboxState, StoredSandbox};
pub use sessions::{Session, SessionNumber};
pub use snapshots::{Begins, Forking, Making, NewSnapshot, Removing, Snapshot, SnapshotHome};

use lock::{Byte, Hold, LockFile};

/// The store of a data directory. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    data_dir: PathBuf,
    /// Lets one task at a time go to a blocking thread, so that those that wait hold none.
    turn: Arc<Semaphore>,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    database: Option<Database>,
    /// The last work found damage: check the whole database before it is used again.
    suspect: bool,
}

/// The right to start or end a session's sandbox. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub struct SessionLock {
    session: SessionNumber,
    file: Arc<LockFile>,
}

impl Store {
    /// The store of this data directory. Nothing is opened or made yet.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Shared {
            data_dir: data_dir.into(),
            turn: Arc::new(Semaphore::new(1)),
            slot: Mutex::default(),
        }))
    }

    /// Whether there is a database, or what is left of one. Nothing is opened or made, as it is by every other call.
    pub fn is_there(&self) -> bool {
        let log = format!("{}-wal", place::DATABASE);
        [place::DATABASE, &log].iter().any(|name| self.0.data_dir.join(name).symlink_metadata().is_ok())
    }

    /// Does `work` on the database, which is opened first if it is not open. Dropping the future does not stop work
    /// that has begun.
    ///
    /// # Errors
    /// Those of opening and of the work.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_then(work, |done| done).await?
    }

    /// [`run`](Self::run), and then what blocks for a moment and follows from it: the way to another thread and back
    /// costs more than most work. The database is free for others by then.
    ///
    /// # Errors
    /// `Stopped` when either broke off.
    pub async fn run_then<T, U: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
        then: impl FnOnce(Result<T>) -> U + Send + 'static,
    ) -> Result<U> {
        let turn = Arc::clone(&self.0.turn).acquire_owned().await.map_err(|_| StoreError::Stopped)?;
        let store = self.clone();
        let task = blocking::short(move || {
            let done = store.run_blocking(work);
            drop(turn);
            then(done)
        });
        task.await.map_err(|_| StoreError::Stopped)
    }

    /// [`run`](Self::run) for threads that may block.
    ///
    /// # Errors
    /// Those of opening and of the work.
    pub fn run_blocking<T>(&self, work: impl FnOnce(&mut Database) -> Result<T>) -> Result<T> {
        let mut slot = self.0.slot.lock().unwrap_or_else(|poisoned| {
            // Whatever a panic has interrupted is rolled back with its connection.
            let mut slot = poisoned.into_inner();
            self.0.slot.clear_poison();
            slot.database = None;
            slot
        });
        let (database, aside) = self.open(&mut slot)?;
        if let Some(PutAside { kept, cause }) = aside {
            // What it held decided what may run: whoever asks now is told, and whoever asks again begins anew.
            return Err(StoreError::Corrupt { place: database.path().to_owned(), kept: Some(kept), cause });
        }
        let answer = work(database);
        let Err(StoreError::Corrupt { place, cause, .. }) = answer else { return answer };
        // The damage was found in the middle of work. What the database held decides what may run, so this work fails,
        // and the next begins with what is found or made now.
        *slot = Slot { database: None, suspect: true };
        let (_, aside) = self.open(&mut slot)?;
        Err(StoreError::Corrupt { place, kept: aside.map(|aside| aside.kept), cause })
    }

    fn open<'a>(&self, slot: &'a mut Slot) -> Result<(&'a mut Database, Option<PutAside>)> {
        let (database, aside) = match slot.database.take() {
            Some(database) => (database, None),
            None => Database::open(&self.0.data_dir, slot.suspect)?,
        };
        slot.suspect = false;
        Ok((slot.database.insert(database), aside))
    }

    /// Waits for the right to start or end a session's sandbox. Dropping the future gives the wait up.
    ///
    /// # Errors
    /// `SessionBusy` when others have it all the time.
    pub async fn lock_session(&self, session: SessionNumber, limit: Duration) -> Result<SessionLock> {
        let since = Instant::now();
        let mut pause = Duration::from_millis(1);
        let place = self.run(|database| Ok(database.lock_place())).await?;
        let io = |error| StoreError::io(&place, error);
        let file = LockFile::open(&place).map_err(io)?;
        // Asked again and again rather than waited for in the kernel: a wait there could not be given up.
        while !file.set(Byte::Session(session.0), Hold::Exclusive).map_err(io)? {
            if since.elapsed() >= limit {
                return Err(StoreError::SessionBusy(limit.as_secs()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(SessionLock { session, file: Arc::new(file) })
    }
}

/// The time in milliseconds since 1970.
pub fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
