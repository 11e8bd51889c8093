//! Sessions as every surface sees them: read, changed, removed, and what a request says of one.

mod agree;

use std::path::PathBuf;

use moltis_sandbox::{Diagnosis, Error, Origin, Result, SessionKey, Setting};

use crate::Overrides;
use crate::homes;
use crate::lifecycle::LOCK_PATIENCE;
use crate::runtime::Runtime;
use crate::settings::NamedWorkspace;
use crate::store::{Caller, HistoryCursor, HistoryPage, Session, SessionOverrides, SessionPatch, now_millis};

pub(crate) use agree::{agree, first_settings, quoted};

/// Sessions that one call gives at most.
const PAGE: usize = 1000;

/// Code of the store's error when the disk is full.
const STORE_FULL: &str = "store-full";

/// What a request says of the session that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRequest {
    /// Which session.
    pub key: SessionKey,
    /// On whose behalf.
    pub caller: Caller,
    /// What a new session stores. An existing one must agree with it.
    pub settings: Overrides,
    /// Refuse a session that is not there, instead of making it.
    pub must_exist: bool,
    /// End the session's sandbox first, also if something runs in it.
    pub recreate: bool,
}

impl SessionRequest {
    /// The session of this key, made if it is missing, on behalf of the user who runs this process.
    pub fn new(key: SessionKey) -> Self {
        let caller = Caller::this_user();
        Self { key, caller, settings: Overrides::default(), must_exist: false, recreate: false }
    }
}

/// What became of a session that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Whether it was there.
    pub existed: bool,
    /// Whether its home went with it.
    pub home: bool,
    /// How many snapshots went with it.
    pub snapshots: u64,
}

impl Runtime {
    /// The session of a key.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn session(&self, key: &SessionKey) -> Result<Option<Session>> {
        let key = key.clone();
        Ok(self.store().run(move |db| db.session(&key)).await?)
    }

    /// The session of a key.
    ///
    /// # Errors
    /// `session-missing` when there is none, and those of the store.
    pub async fn existing_session(&self, key: &SessionKey) -> Result<Session> {
        self.session(key).await?.ok_or_else(|| missing(key))
    }

    /// Sessions in the order of their keys, from the one after `after` on, 1000 at most.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn sessions(&self, after: Option<&SessionKey>) -> Result<Vec<Session>> {
        let after = after.cloned();
        Ok(self.store().run(move |db| db.sessions(after.as_ref(), PAGE)).await?)
    }

    /// The session of a key, made with these settings if it is missing, which is the second answer. Nothing is started.
    ///
    /// # Errors
    /// `session-differs` when one that is there does not agree with them; those of [`set_session`](Self::set_session).
    pub async fn create_session(
        &self,
        key: &SessionKey,
        settings: &Overrides,
        caller: &Caller,
    ) -> Result<(Session, bool)> {
        if let Some(choice) = settings.backend {
            self.registry().known(choice.value)?;
        }
        let first = first_settings(settings);
        self.check_image(key, &first).await?;
        let (made, caller) = (key.clone(), caller.clone());
        let stored =
            self.store().run(move |db| db.create_session(&made, &first, &caller, now_millis())).await?;
        if !stored.1 {
            agree(key, settings, &overrides(&stored.0.overrides), self.config())?;
        }
        Ok(stored)
    }

    /// Changes what a session sets; it is made if it is missing, which is the second answer. A sandbox that runs stays
    /// as it is until the next command.
    ///
    /// # Errors
    /// `override-invalid`, `backend-not-built`, that of an image that cannot be used, and those of the store. Nothing is changed then.
    pub async fn set_session(
        &self,
        key: &SessionKey,
        patch: SessionPatch,
        caller: &Caller,
    ) -> Result<(Session, bool)> {
        if let crate::store::Patch::Set(choice) = &patch.sandbox_backend {
            self.registry().known(*choice)?;
        }
        self.check_image(key, &patch).await?;
        let (key, caller) = (key.clone(), caller.clone());
        let changed = self.store().run(move |db| match db.patch_session(&key, &patch)? {
            Some(session) => Ok((session, false)),
            None => db.create_session(&key, &patch, &caller, now_millis()),
        });
        Ok(changed.await?)
    }

    /// Forgets a session, after its sandbox was ended with all that runs in it. Its home and its snapshots stay, unless they
    /// are purged; a home that all sessions share always stays, and so does a snapshot that another session begins from.
    ///
    /// # Errors
    /// `session-missing`, those of the store and of the backend. On an error the session is still there.
    pub async fn remove_session(&self, key: &SessionKey, purge: bool) -> Result<Removed> {
        let session = self.existing_session(key).await?;
        // Held to the end: nobody opens its sandbox anew while its home and its traces go.
        let lock = self.store().lock_session(session.number, LOCK_PATIENCE).await?;
        let session = self.locked(&lock, key).await?.ok_or_else(|| missing(key))?;
        let mut home = false;
        if let Err(error) = self.end_locked(&lock, &session).await {
            if !purge || error.code() != STORE_FULL {
                return Err(error);
            }
            // What ran has ended, and there is room for writing that down once the home is gone.
            home = self.purge_home(key).await?;
            self.end_locked(&lock, &session).await?;
        }
        let backends: Vec<_> = self.registry().all().to_vec();
        for backend in backends {
            backend.purge(&session.sandbox_id).await?;
        }
        home |= purge && self.purge_home(key).await?;
        let removed = key.clone();
        let existed = self.store().run(move |db| db.remove_session(&removed)).await?;
        let snapshots = if purge { self.purge_snapshots(key).await? } else { 0 };
        drop(lock);
        Ok(Removed { existed, home, snapshots })
    }

    /// The folder of a session's home, there or not; `None` where nothing is kept. Blocks on a look-up.
    pub fn home(&self, key: &SessionKey) -> Option<PathBuf> {
        let home = homes::home(self.config(), key)?;
        // Only one of the folders that it can have may be there.
        Some(homes::all(&home).into_iter().next().unwrap_or(home))
    }

    /// How many commands a session remembers.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remembered(&self, session: &Session) -> Result<u64> {
        let number = session.number;
        Ok(self.store().run(move |db| db.remembered(number)).await?)
    }

    /// A session's commands, newest first. How background commands ended is looked up first.
    ///
    /// # Errors
    /// `session-missing` and those of the store.
    pub async fn history(
        &self,
        key: &SessionKey,
        before: Option<HistoryCursor>,
        most: usize,
    ) -> Result<HistoryPage> {
        let session = self.existing_session(key).await?;
        self.settle(&session).await;
        let page = self.store().run(move |db| {
            db.sweep_lost_of(session.number)?;
            db.history(session.number, before, most)
        });
        Ok(page.await?)
    }
}

/// There is no such session.
pub(crate) fn missing(key: &SessionKey) -> Error {
    Error::Invalid(
        Diagnosis::new("session-missing", format!("there is no session {:?}", key.as_str()))
            .fix("`moltis session list` names those that are; `moltis exec --session` makes one"),
    )
}

/// What a stored session sets, as overrides of the configuration.
pub(crate) fn overrides(stored: &SessionOverrides) -> Overrides {
    fn set<T>(value: T) -> Setting<T> {
        Setting::new(value, Origin::Session)
    }
    Overrides {
        enabled: stored.sandbox_enabled.map(set),
        backend: stored.sandbox_backend.map(set),
        image: stored.sandbox_image.clone().map(set),
        network: stored.network.map(set),
        memory: stored.limits.memory.map(set),
        cpus: stored.limits.cpus.map(set),
        pids: stored.limits.pids.map(set),
        workspace: stored.workspace.clone().map(|w| set(NamedWorkspace { source: w.source, mode: w.mode })),
        fuel: stored.wasm_fuel_limit.map(set),
    }
}
