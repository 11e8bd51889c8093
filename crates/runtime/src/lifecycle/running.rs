//! Sandboxes that run: found for whoever looks after their processes, ended, and evicted to make room.

use std::sync::Arc;
use std::time::Duration;

use moltis_sandbox::{BackendName, Diagnosis, Error, Result, Sandbox, SandboxId, SessionKey};

use super::{BUSY, End, LOCK_PATIENCE, OpenSession};
use crate::homes;
use crate::recorded;
use crate::runtime::{Runtime, off_thread};
use crate::store::{
    Gone, SandboxState, Session, SessionLock, SessionNumber, StoreError, StoredSandbox, now_millis,
};

/// Time that a sandbox has to tell how its background commands ended.
const SETTLE: Duration = Duration::from_secs(5);

/// Time within which whoever opened a sandbox begins to use it.
pub(super) const JUST_OPENED: Duration = Duration::from_secs(10);

/// What an ended sandbox was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It ran, and was ended.
    Ended,
    /// None ran; what was left of it is gone.
    Nothing,
}

impl Runtime {
    /// The sandbox of a session, if one runs: for its processes, files and forwards. Nothing is started.
    ///
    /// # Errors
    /// `session-missing`, those of the store and of the backend.
    pub async fn find_sandbox(&self, key: &SessionKey) -> Result<Option<(BackendName, Arc<dyn Sandbox>)>> {
        let session = self.existing_session(key).await?;
        self.find_of(&session).await
    }

    /// The sandbox of a session, which must run. Nothing is started.
    ///
    /// # Errors
    /// `session-missing`, `sandbox-not-running`, those of the store and of the backend.
    pub async fn running_sandbox(&self, key: &SessionKey) -> Result<(BackendName, Arc<dyn Sandbox>)> {
        self.find_sandbox(key).await?.ok_or_else(|| {
            Error::Unavailable(
                Diagnosis::new(
                    "sandbox-not-running",
                    format!("the sandbox of the session {:?} does not run", key.as_str()),
                )
                .cause("what ran in it ended with it")
                .fix("`moltis exec --session` starts a new one"),
            )
        })
    }

    pub(crate) async fn find_of(&self, session: &Session) -> Result<Option<(BackendName, Arc<dyn Sandbox>)>> {
        let Some(row) = session.sandbox.as_ref().filter(|row| row.state == SandboxState::Running) else {
            return Ok(None);
        };
        let Some(backend) = self.registry().get(row.backend) else { return Ok(None) };
        Ok(backend.find(&session.sandbox_id).await?.map(|sandbox| (row.backend, sandbox)))
    }

    /// Whether a session's sandbox was stopped where it is, and can be started again.
    pub(super) async fn is_stopped(&self, session: &Session) -> Result<bool> {
        let running = session.sandbox.as_ref().filter(|row| row.state == SandboxState::Running);
        match running.and_then(|row| self.registry().get(row.backend)) {
            Some(backend) => backend.is_stopped(&session.sandbox_id).await,
            None => Ok(false),
        }
    }

    /// Ends a session's sandbox with all that runs in it. The session and its home stay.
    ///
    /// # Errors
    /// `session-missing`, those of the store and of the backend.
    pub async fn stop_sandbox(&self, key: &SessionKey) -> Result<Stopped> {
        let session = self.existing_session(key).await?;
        let lock = self.store().lock_session(session.number, LOCK_PATIENCE).await?;
        match self.locked(&lock, key).await? {
            Some(session) => self.end_locked(&lock, &session).await,
            None => Ok(Stopped::Nothing),
        }
    }

    /// The session of this key, if it is the one that is locked: it may have been removed and made anew meanwhile.
    pub(crate) async fn locked(&self, lock: &SessionLock, key: &SessionKey) -> Result<Option<Session>> {
        Ok(self.session(key).await?.filter(|session| session.number == lock.session()))
    }

    /// Ends the sandbox of a session that is locked.
    pub(crate) async fn end_locked(&self, lock: &SessionLock, session: &Session) -> Result<Stopped> {
        let Some(row) = session.sandbox.clone() else { return Ok(Stopped::Nothing) };
        let why = self.end_known(lock, session, &row, End::Always(Gone::Stopped)).await?;
        Ok(if why == Gone::Stopped { Stopped::Ended } else { Stopped::Nothing })
    }

    /// Ends a sandbox by its id alone, such as one whose session is not known here, and removes what is left of it.
    ///
    /// # Errors
    /// Those of the store and of the backends.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let wanted = id.clone();
        let session = self.store().run(move |db| db.session_of(&wanted)).await?;
        // Held to the end: nobody makes a new one that would be taken for the rest of this one.
        let mut held = None;
        if let Some(session) = session {
            let lock = self.store().lock_session(session.number, LOCK_PATIENCE).await?;
            match self.locked(&lock, &session.key).await? {
                Some(session) => drop(self.end_locked(&lock, &session).await?),
                // Whoever removed the session has ended its sandbox; one there is now is another session's.
                None => return Ok(()),
            }
            held = Some(lock);
        }
        // One that cannot be asked is no reason to leave it where it is.
        let mut failed = None;
        for backend in self.registry().all().to_vec() {
            if let Err(error) = backend.remove(id).await {
                failed.get_or_insert(error);
            }
        }
        drop(held);
        failed.map_or(Ok(()), Err)
    }

    /// Makes room: forgets a sandbox that is written down and dead, else ends the one that was longest unused and is
    /// idle; `false` when all are in use. One that cannot be asked is in use.
    pub(super) async fn evict(&self, but: SessionNumber) -> Result<bool> {
        let all = self.store().run(|db| db.sandboxes()).await?;
        for live in [false, true] {
            for session in all.iter().filter(|session| session.number != but) {
                if self.evict_one(session, live).await.unwrap_or(false) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn evict_one(&self, session: &Session, live: bool) -> Result<bool> {
        // One that is being started or ended is in use.
        let lock = match self.store().lock_session(session.number, Duration::ZERO).await {
            Ok(lock) => lock,
            Err(StoreError::SessionBusy(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Some(session) = self.locked(&lock, &session.key).await? else { return Ok(false) };
        let Some(row) = session.sandbox.clone() else { return Ok(true) };
        match self.find_of(&session).await? {
            Some((_, running)) if live => {
                let activity = running.activity().await?;
                if activity.commands == 0 && activity.uptime < JUST_OPENED {
                    return Ok(false);
                }
                self.end_idle(&lock, &session, &row, Gone::Evicted).await
            }
            Some(_) => Ok(false),
            // It has its files still: what is dead goes first.
            None if !live && self.is_stopped(&session).await? => Ok(false),
            None => self.end_known(&lock, &session, &row, End::Always(Gone::Evicted)).await.map(|_| true),
        }
    }

    /// Ends a sandbox in which nothing runs; `false` when something does.
    pub(super) async fn end_idle(
        &self,
        lock: &SessionLock,
        session: &Session,
        row: &StoredSandbox,
        why: Gone,
    ) -> Result<bool> {
        match self.end_known(lock, session, row, End::IfUnused(why)).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == BUSY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes down how a session's background commands ended that are over. What cannot be found out now is tried again
    /// at the next time.
    pub(crate) async fn settle(&self, session: &Session) {
        if let Ok(Some((_, sandbox))) = self.find_of(session).await {
            self.settle_in(session, &*sandbox).await;
        }
    }

    pub(super) async fn settle_in(&self, session: &Session, sandbox: &dyn Sandbox) {
        let settled = recorded::settle(self.store(), session.number, sandbox);
        // A sandbox that does not tell is not waited for: its commands are lost with it.
        match tokio::time::timeout(SETTLE, settled).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = %error, "background commands cannot be looked up"),
            Err(_) => tracing::debug!("background commands are not told of"),
        }
    }

    /// Removes the home that a session has to itself; `false` when there is none.
    pub(crate) async fn purge_home(&self, key: &SessionKey) -> Result<bool> {
        let (data_dir, key) = (self.config().data_dir.value.clone(), key.clone());
        off_thread(move || Ok(homes::purge(&data_dir, &key)?)).await
    }
}

impl OpenSession {
    /// Notes that the session is in use by something else than a command, such as work with its files. That it cannot
    /// be noted, as on a full disk, keeps nobody from that.
    pub async fn note_use(&self) {
        let (number, by) = (self.session.number, self.request.caller.clone());
        let noted = self.runtime.store().run(move |db| db.touch_session(number, &by, now_millis()));
        if let Err(error) = noted.await {
            tracing::debug!(%error, "the use of a session cannot be noted");
        }
    }
}
