//! Snapshots of sessions: taken, listed, removed; sessions that go back to one, and new ones that begin from one.
//!
//! What a sandbox holds besides its root is read and written by its own agent, as its own user: no host path is ever made
//! of a name from inside. The root, where it can be written to, is kept by the backend.

mod errors;
mod parts;

use moltis_config::BackendChoice;
use moltis_config::words::HomePersistence;
use moltis_sandbox::{
    Backend, BackendName, Origin, Result, Sandbox, SandboxSpec, SessionKey, Setting, SnapshotId,
};
use serde::Serialize;
use std::time::Duration;

use crate::lifecycle::{End, LOCK_PATIENCE};
use crate::runtime::{Runtime, off_thread};
use crate::sessions::{SessionRequest, missing, overrides};
use crate::store::{
    Begins, Caller, Forking, Gone, Making, NewSnapshot, Removing, SandboxState, Session, SessionLock,
    Snapshot, SnapshotHome, StoreError, now_millis,
};
use crate::{homes, settings};

/// A snapshot that was just taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What is not in it.
    pub notes: Vec<String>,
}

/// The choice of a backend, where the session begins from a snapshot: it is where the snapshot is.
///
/// # Errors
/// `snapshot-elsewhere` when another one was named.
pub(crate) fn held(choice: Setting<BackendChoice>, session: &Session) -> Result<Setting<BackendChoice>> {
    let Some(begins) = &session.begins else { return Ok(choice) };
    match choice.value {
        BackendChoice::Auto => Ok(Setting::new(BackendChoice::Named(begins.backend), Origin::Session)),
        BackendChoice::Named(name) if name == begins.backend => Ok(choice),
        BackendChoice::Named(name) => {
            Err(errors::elsewhere(&session.key, &begins.snapshot, begins.backend, name))
        }
    }
}

impl Runtime {
    /// Takes a snapshot of a session: of what was written to its sandbox, which is started if it does not run. Commands
    /// run on meanwhile; processes and memory are not in it, nor is anything of the host's.
    ///
    /// # Errors
    /// `session-missing`; `snapshot-unsupported`, `snapshot-name-invalid`, `snapshot-name-taken`, `snapshots-full`;
    /// `disk-low`; those of opening the session, of the backend and of the store. Nothing is left of it then.
    pub async fn take_snapshot(&self, key: &SessionKey, name: Option<&str>, by: &Caller) -> Result<Taken> {
        if let Some(name) = name {
            errors::see_name(name)?;
        }
        let session = self.existing_session(key).await?;
        let named = match settings::choice(self.config(), &overrides(&session.overrides)).value {
            BackendChoice::Named(name) => Some(name),
            BackendChoice::Auto => None,
        };
        if let Some(name) = session.sandbox.as_ref().map(|row| row.backend).or(named) {
            self.taking_backend(name)?;
        }
        let request =
            SessionRequest { must_exist: true, caller: by.clone(), ..SessionRequest::new(key.clone()) };
        let open = self.open_session(&request).await?;
        let backend = self.taking_backend(open.backend)?;
        // Held to the end: nobody ends the sandbox meanwhile, and who finds the snapshot half made knows that we died.
        let lock = self.store().lock_session(open.session.number, LOCK_PATIENCE).await?;
        let session = self.locked(&lock, key).await?.ok_or_else(|| missing(key))?;
        let runs = session.sandbox.as_ref().is_some_and(|row| {
            row.state == SandboxState::Running && row.fingerprint == open.spec().fingerprint()
        });
        if !runs {
            return Err(errors::ended(key));
        }
        self.clear_half(Some(key)).await?;
        self.see_room().await?;
        let home = match self.config().tools.exec.sandbox.home_persistence.value {
            HomePersistence::Shared => SnapshotHome::Shared,
            HomePersistence::Off | HomePersistence::Session => SnapshotHome::Copied,
        };
        let new = NewSnapshot {
            session: key.clone(),
            name: name.map(str::to_owned),
            backend: backend.name(),
            home,
        };
        let (intended, caller) = (new.clone(), by.clone());
        let making = self.store().run(move |db| db.snapshot_making(&intended, &caller, now_millis())).await?;
        let id = match making {
            Making::Begun(id) => id,
            Making::NameTaken => return Err(errors::name_taken(key, name.unwrap_or_default())),
            Making::Full => return Err(errors::full(key)),
        };
        let kept = self.keep_parts(&id, backend, &*open.sandbox, open.spec(), home).await;
        let ready = match kept {
            Ok((root, bytes)) => {
                let done = id.clone();
                let ready = self.store().run(move |db| db.snapshot_ready(&done, root.as_deref(), bytes));
                ready.await.map_err(Into::into).and_then(|ready| ready.ok_or_else(|| errors::ended(key)))
            }
            Err(error) => Err(error),
        };
        match ready {
            Ok(snapshot) => Ok(Taken { notes: notes(&snapshot, open.spec()), snapshot }),
            Err(error) => {
                // What cannot be removed now is swept later.
                if let Err(error) = self.discard_snapshot(&id, new.backend).await {
                    tracing::info!(%error, "what is left of a snapshot cannot be removed now");
                }
                Err(error)
            }
        }
    }

    fn taking_backend(&self, name: BackendName) -> Result<&dyn Backend> {
        let able = |backend: &&std::sync::Arc<dyn Backend>| backend.snapshots().is_some();
        let backend = self.registry().get(name).filter(|backend| able(backend));
        backend.map(|backend| &**backend).ok_or_else(|| {
            let all = self.registry().all().iter().filter(able).map(|backend| backend.name());
            errors::unsupported(name, &all.collect::<Vec<_>>())
        })
    }

    /// Keeps what the sandbox holds: what the backend keeps of its root, and bytes of files.
    async fn keep_parts(
        &self,
        id: &SnapshotId,
        backend: &dyn Backend,
        sandbox: &dyn Sandbox,
        spec: &SandboxSpec,
        home: SnapshotHome,
    ) -> Result<(Option<String>, u64)> {
        let root = backend.commit(spec, id).await?;
        let bytes = parts::keep(&self.config().data_dir.value, id, sandbox, spec, home).await?;
        Ok((root, bytes))
    }

    /// Fills a new sandbox with what the snapshot holds, and the home that lasts if it is yet to be replaced.
    pub(crate) async fn unpack_snapshot(
        &self,
        lock: &SessionLock,
        sandbox: &dyn Sandbox,
        spec: &SandboxSpec,
        begins: &Begins,
    ) -> Result<()> {
        let shared = self.config().tools.exec.sandbox.home_persistence.value == HomePersistence::Shared;
        let lasts = spec.home.is_some();
        // One that all share is never touched, whatever it was when the snapshot was taken.
        let home = begins.home && !shared && (!lasts || begins.home_waits);
        let (data_dir, id) = (self.config().data_dir.value.clone(), begins.snapshot.clone());
        let known = self.store().run(move |db| db.snapshot(&id)).await?;
        let known = known.ok_or_else(|| errors::missing(&spec.key, begins.snapshot.as_str()))?;
        off_thread(move || parts::see_whole(&data_dir, &known)).await?;
        parts::unpack(&self.config().data_dir.value, &begins.snapshot, sandbox, spec, home, lasts).await?;
        if home && lasts {
            let lock = lock.share();
            self.store().run(move |db| db.home_begun(&lock)).await?;
        }
        Ok(())
    }

    /// The snapshots of a session, or of all, oldest first. The session need not be there any more.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn snapshots(&self, key: Option<&SessionKey>) -> Result<Vec<Snapshot>> {
        let key = key.cloned();
        Ok(self.store().run(move |db| db.snapshots(key.as_ref())).await?)
    }

    /// A session's snapshot by its id or name; also the one that it begins from, whosever that is.
    async fn snapshot_of(&self, key: &SessionKey, word: &str) -> Result<Snapshot> {
        let own = self.snapshots(Some(key)).await?;
        let is = |one: &&Snapshot| one.id.as_str() == word || one.name.as_deref() == Some(word);
        if let Some(found) = own.iter().find(is) {
            return Ok(found.clone());
        }
        let begins = self.session(key).await?.and_then(|session| session.begins);
        if let Some(begins) = begins.filter(|begins| begins.snapshot.as_str() == word)
            && let Some(found) = self.store().run(move |db| db.snapshot(&begins.snapshot)).await?
        {
            return Ok(found);
        }
        Err(errors::missing(key, word))
    }

    /// Removes one of a session's own snapshots.
    ///
    /// # Errors
    /// `snapshot-missing`; `snapshot-in-use` while a session begins from it; those of the backend and of the store.
    pub async fn remove_snapshot(&self, key: &SessionKey, word: &str) -> Result<SnapshotId> {
        let _lock = match self.session(key).await? {
            Some(session) => Some(self.store().lock_session(session.number, LOCK_PATIENCE).await?),
            None => None,
        };
        let snapshot = self.snapshot_of(key, word).await?;
        if snapshot.session != *key {
            return Err(errors::missing(key, word));
        }
        self.remove_one(&snapshot).await?;
        Ok(snapshot.id)
    }

    async fn remove_one(&self, snapshot: &Snapshot) -> Result<()> {
        let id = snapshot.id.clone();
        match self.store().run(move |db| db.snapshot_removing(&id)).await? {
            Removing::Begun => self.discard_snapshot(&snapshot.id, snapshot.backend).await,
            Removing::InUse(sessions) => Err(errors::in_use(&snapshot.id, sessions)),
        }
    }

    /// Removes all of a snapshot, and then what is written down of it.
    async fn discard_snapshot(&self, id: &SnapshotId, backend: BackendName) -> Result<()> {
        if let Some(backend) = self.registry().get(backend) {
            backend.uncommit(id).await?;
        }
        let folder = parts::folder(&self.config().data_dir.value, id);
        off_thread(move || parts::remove(&folder)).await?;
        let id = id.clone();
        Ok(self.store().run(move |db| db.snapshot_gone(&id)).await?)
    }

    /// Removes the snapshots of a session that is gone; those that others begin from stay.
    pub(crate) async fn purge_snapshots(&self, key: &SessionKey) -> Result<u64> {
        let mut removed = 0;
        for snapshot in self.snapshots(Some(key)).await? {
            match self.remove_one(&snapshot).await {
                Ok(()) => removed += 1,
                Err(error) if error.code() == errors::IN_USE => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Removes what was left half made or half removed. Whoever calls it holds the session's lock.
    async fn clear_half(&self, key: Option<&SessionKey>) -> Result<()> {
        let key = key.cloned();
        for left in self.store().run(move |db| db.half_snapshots(key.as_ref())).await? {
            if let Err(error) = self.discard_snapshot(&left.id, left.backend).await {
                tracing::info!(%error, id = %left.id, "what is left of a snapshot cannot be removed now");
            }
        }
        Ok(())
    }

    /// Removes what dead processes left half made or half removed, of all sessions.
    pub(crate) async fn sweep_snapshots(&self) -> Result<()> {
        let half = self.store().run(|db| db.half_snapshots(None)).await?;
        let keys: std::collections::BTreeSet<_> = half.into_iter().map(|left| left.session).collect();
        for key in keys {
            let _lock = match self.session(&key).await? {
                None => None,
                Some(session) => match self.store().lock_session(session.number, Duration::ZERO).await {
                    Ok(lock) => Some(lock),
                    // Whoever has it may be at it.
                    Err(StoreError::SessionBusy(_)) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            self.clear_half(Some(&key)).await?;
        }
        Ok(())
    }

    /// Has a session begin from a snapshot, or from none: its sandbox is ended, and each one after it begins there. A home
    /// of its own is replaced when the next one starts; from none it stays as it is.
    ///
    /// # Errors
    /// `session-missing`, `snapshot-missing`, `snapshot-elsewhere`; `sandbox-busy` when something runs in the sandbox,
    /// unless `recreate`; those of the backend and of the store.
    pub async fn restore_session(
        &self,
        key: &SessionKey,
        word: Option<&str>,
        recreate: bool,
    ) -> Result<Session> {
        let session = self.existing_session(key).await?;
        let lock = self.store().lock_session(session.number, LOCK_PATIENCE).await?;
        let mut session = self.locked(&lock, key).await?.ok_or_else(|| missing(key))?;
        let begins = match word {
            Some(word) => Some(Begins::from(&self.snapshot_of(key, word).await?)),
            None => None,
        };
        session.begins.clone_from(&begins);
        held(settings::choice(self.config(), &overrides(&session.overrides)), &session)?;
        if let Some(row) = &session.sandbox {
            let end = match recreate {
                true => End::Always(Gone::Recreated),
                false => End::IfUnused(Gone::Spec),
            };
            self.end_known(&lock, &session, row, end).await?;
        }
        let (wanted, shared) = (begins.clone(), lock.share());
        if !self.store().run(move |db| db.begin_from(&shared, wanted.as_ref())).await? {
            return Err(errors::missing(key, word.unwrap_or_default()));
        }
        self.locked(&lock, key).await?.ok_or_else(|| missing(key))
    }

    /// Makes a new session with all that one sets, which begins from one of its snapshots: the one that is named, else one
    /// that is taken now. `from` is that session as it was looked at: what it sets is what the caller may have judged.
    ///
    /// # Errors
    /// `session-exists`; `session-changed` when it sets something else by now; `fork-home-exists` when the new one's home is there already, left by a session of that key; those
    /// of [`take_snapshot`](Self::take_snapshot). No session is made then.
    pub async fn fork_session(
        &self,
        from: &Session,
        new: &SessionKey,
        word: Option<&str>,
        by: &Caller,
    ) -> Result<(Session, Vec<String>)> {
        let key = &from.key;
        if self.session(new).await?.is_some() {
            return Err(errors::exists(new));
        }
        let (config, wanted) = (self.config().clone(), new.clone());
        let has_home = move || {
            let own = config.tools.exec.sandbox.home_persistence.value == HomePersistence::Session;
            Ok(own && homes::home(&config, &wanted).is_some_and(|home| !homes::all(&home).is_empty()))
        };
        if off_thread(has_home).await? {
            return Err(errors::home_exists(new));
        }
        let (snapshot, notes, taken) = match word {
            Some(word) => (self.snapshot_of(key, word).await?, Vec::new(), false),
            None => {
                let Taken { snapshot, notes } = self.take_snapshot(key, None, by).await?;
                (snapshot, notes, true)
            }
        };
        let mut forked = from.clone();
        forked.begins = Some(Begins::from(&snapshot));
        let held = held(settings::choice(self.config(), &overrides(&from.overrides)), &forked);
        let (of, made, begins, caller) = (from.clone(), new.clone(), Begins::from(&snapshot), by.clone());
        let made = match held {
            Ok(_) => self
                .store()
                .run(move |db| db.fork_session(&of, &made, &begins, &caller, now_millis()))
                .await
                .map_err(Into::into)
                .and_then(|made| match made {
                    Forking::Made(session) => Ok(*session),
                    Forking::Exists => Err(errors::exists(new)),
                    Forking::Changed => Err(errors::changed(key)),
                }),
            Err(error) => Err(error),
        };
        match made {
            Ok(session) => Ok((session, notes)),
            Err(error) => {
                if taken && let Err(error) = self.remove_one(&snapshot).await {
                    tracing::info!(%error, "a snapshot that was taken for nothing cannot be removed");
                }
                Err(error)
            }
        }
    }
}

/// What is not in a snapshot, for whoever takes it.
fn notes(snapshot: &Snapshot, spec: &SandboxSpec) -> Vec<String> {
    let mut notes = vec!["processes and memory are not in it, nor are /run, FIFOs and sockets".to_owned()];
    if snapshot.home == SnapshotHome::Shared {
        notes.push(
            "the home is not in it: all sessions share it (`home_persistence = \"shared\"`)".to_owned(),
        );
    }
    let mut others = Vec::new();
    others.extend(spec.workspace.as_ref().map(|workspace| workspace.value.target.display().to_string()));
    others.extend(spec.managed_files.as_ref().map(|files| files.target.display().to_string()));
    others.extend(spec.mounts.iter().map(|mount| mount.value.target.display().to_string()));
    if !others.is_empty() {
        notes.push(format!("folders of the host are not in it: {}", others.join(", ")));
    }
    notes
}
