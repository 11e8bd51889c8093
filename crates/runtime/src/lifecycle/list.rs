//! Which sandboxes there are, whoever started them.

use std::collections::HashMap;
use std::time::Duration;

use moltis_sandbox::{Activity, BackendName, Provided, Result, SandboxId, SessionKey, Usage};
use serde::{Serialize, Serializer};

use super::End;
use super::running::JUST_OPENED;
use crate::legacy::LegacyContainer;
use crate::runtime::Runtime;
use crate::store::{Gone, Session, StoreError};

/// A sandbox as it is found now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Its opaque id.
    pub id: SandboxId,
    /// What holds it.
    pub backend: BackendName,
    /// Whose it is. Absent for one of a single command, and where the store does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// Whether it answers.
    pub running: bool,
    /// When it was opened, in milliseconds since 1970.
    pub created_millis: u64,
    /// How much it is in use, if it answers.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_millis")]
    pub activity: Option<Activity>,
    /// What everything in it takes, if it can say.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_numbers")]
    pub usage: Option<Usage>,
    /// Background commands that run in it.
    pub background: u32,
    /// What the provider that holds it says of it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provided>,
}

impl SandboxInfo {
    /// Whether the provider alone knows of it.
    pub fn is_stray(&self) -> bool {
        self.provider.as_ref().is_some_and(|told| !told.known)
    }
}

fn in_numbers<S: Serializer>(usage: &Option<Usage>, serializer: S) -> Result<S::Ok, S::Error> {
    let told = usage.map(|Usage { memory_bytes, cpu }| {
        let millis = u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX);
        serde_json::json!({ "memoryBytes": memory_bytes, "cpuMs": millis })
    });
    told.serialize(serializer)
}

fn in_millis<S: Serializer>(activity: &Option<Activity>, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let told = activity.map(|Activity { operations, idle, commands, uptime }| {
        serde_json::json!({
            "operations": operations,
            "idleMs": millis(idle),
            "commands": commands,
            "uptimeMs": millis(uptime),
        })
    });
    told.serialize(serializer)
}

/// What a prune removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pruned {
    /// Sandboxes that were ended, or whose remains were removed.
    pub removed: Vec<SandboxId>,
    /// Sandboxes that stay because something runs in them, or because their session may come back.
    pub kept: u32,
    /// What an earlier program left in an engine, with its label, and what was therefore removed too.
    pub legacy: Vec<LegacyContainer>,
}

impl Runtime {
    /// All sandboxes of this data directory, over all backends, and those that are written down but gone.
    ///
    /// # Errors
    /// Those of the store. A backend that cannot be asked is left out; `status` says what is wrong with it.
    pub async fn sandboxes(&self) -> Result<Vec<SandboxInfo>> {
        let stored = self.store().run(|db| db.sandboxes()).await?;
        let mut sessions: HashMap<SandboxId, Session> =
            stored.into_iter().map(|session| (session.sandbox_id.clone(), session)).collect();
        let mut all = Vec::new();
        for backend in self.registry().all() {
            let Ok(records) = backend.list().await else { continue };
            for record in records {
                // Another backend may have had a sandbox of the same session before.
                let of = sessions.get(&record.id).filter(|session| {
                    let stray = record.provider.as_ref().is_some_and(|told| !told.known);
                    !stray && session.sandbox.as_ref().is_some_and(|row| row.backend == backend.name())
                });
                let session = of.map(|session| session.key.clone());
                if session.is_some() {
                    sessions.remove(&record.id);
                }
                let mut info = SandboxInfo {
                    id: record.id,
                    backend: backend.name(),
                    session,
                    running: record.running,
                    created_millis: record.created_secs.saturating_mul(1000),
                    activity: None,
                    usage: None,
                    background: 0,
                    provider: record.provider,
                };
                if !info.is_stray()
                    && let Some(sandbox) = backend.find(&info.id).await.ok().flatten()
                {
                    let (activity, usage, processes) =
                        tokio::join!(sandbox.activity(), sandbox.usage(), sandbox.processes());
                    info.activity = activity.ok();
                    info.usage = usage.ok().flatten();
                    let processes = processes.unwrap_or_default();
                    let runs = processes.iter().filter(|process| process.outcome.is_none()).count();
                    info.background = u32::try_from(runs).unwrap_or(u32::MAX);
                }
                all.push(info);
            }
        }
        all.extend(sessions.into_values().filter_map(|session| {
            let row = session.sandbox?;
            Some(SandboxInfo {
                id: session.sandbox_id,
                backend: row.backend,
                session: Some(session.key),
                running: false,
                created_millis: row.created_millis,
                activity: None,
                usage: None,
                background: 0,
                provider: None,
            })
        }));
        all.sort_by(|a, b| (&a.session, &a.id).cmp(&(&b.session, &b.id)));
        Ok(all)
    }

    /// Removes what is left of sandboxes that are dead, and those that run with no session that knows them and nothing
    /// in them; with `idle` also those of sessions in which nothing runs. Homes stay. What is being started or ended,
    /// and what does not answer, is left alone.
    ///
    /// # Errors
    /// Those of the store. What cannot be removed now is kept.
    pub async fn prune(&self, idle: bool) -> Result<Pruned> {
        let mut pruned = Pruned { legacy: self.discard_legacy().await, ..Pruned::default() };
        for info in self.sandboxes().await? {
            let removed = match &info.session {
                Some(key) => self.prune_known(key, idle).await,
                None => self.prune_unknown(&info).await,
            };
            match removed {
                Ok(true) => pruned.removed.push(info.id),
                Ok(false) => pruned.kept += 1,
                Err(error) => {
                    tracing::debug!(error = %error, id = %info.id, "a sandbox cannot be pruned");
                    pruned.kept += 1;
                }
            }
        }
        Ok(pruned)
    }

    async fn prune_known(&self, key: &SessionKey, idle: bool) -> Result<bool> {
        let Some(session) = self.session(key).await? else { return Ok(false) };
        // Whoever has the lock starts it or ends it.
        let lock = match self.store().lock_session(session.number, Duration::ZERO).await {
            Ok(lock) => lock,
            Err(StoreError::SessionBusy(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Some(session) = self.locked(&lock, key).await? else { return Ok(false) };
        let Some(row) = session.sandbox.clone() else { return Ok(false) };
        match self.find_of(&session).await? {
            Some(_) if !idle => Ok(false),
            Some(_) => self.end_idle(&lock, &session, &row, Gone::Stopped).await,
            None if !idle && self.is_stopped(&session).await? => Ok(false),
            None => self.end_known(&lock, &session, &row, End::Always(Gone::Stopped)).await.map(|_| true),
        }
    }

    /// One of a single command that runs elsewhere now has no session either: it is in use, or will be in a moment.
    async fn prune_unknown(&self, info: &SandboxInfo) -> Result<bool> {
        let Some(backend) = self.registry().get(info.backend) else { return Ok(false) };
        // Its id may be that of a session's sandbox, too, which is another one.
        if let Some(stray) = info.provider.as_ref().filter(|told| !told.known) {
            return backend.discard(&stray.name).await.map(|()| true);
        }
        if info.running {
            let Some(sandbox) = backend.find(&info.id).await? else { return Ok(false) };
            if sandbox.activity().await?.idle < JUST_OPENED || !sandbox.close_if_idle().await? {
                return Ok(false);
            }
        }
        backend.remove(&info.id).await?;
        Ok(true)
    }
}
