//! Which sandboxes there are, whoever started them.

use std::collections::HashMap;
use std::time::Duration;

use moltis_sandbox::{Activity, BackendName, Result, SandboxId, SessionKey};
use serde::{Serialize, Serializer};

use crate::runtime::Runtime;
use crate::store::{SandboxState, Session};

/// A sandbox as it is found now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Its opaque id.
    pub id: SandboxId,
    /// What holds it.
    pub backend: BackendName,
    /// Whose it is. Absent for one of a single command, and where the store does not know it.
    pub session: Option<SessionKey>,
    /// Whether it answers.
    pub running: bool,
    /// When it was opened, in seconds since 1970.
    pub created_secs: u64,
    /// How much it is in use, if it answers.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_millis")]
    pub activity: Option<Activity>,
    /// Background commands that run in it.
    pub background: u32,
}

fn in_millis<S: Serializer>(activity: &Option<Activity>, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let told = activity.map(|Activity { operations, idle, commands, uptime }| {
        serde_json::json!({
            "operations": operations,
            "idleMillis": millis(idle),
            "commands": commands,
            "uptimeMillis": millis(uptime),
        })
    });
    told.serialize(serializer)
}

/// Time within which whoever opened a sandbox for a single command runs it.
const JUST_OPENED: Duration = Duration::from_secs(10);

/// What a prune removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pruned {
    /// Sandboxes that were ended, or whose remains were removed.
    pub removed: Vec<SandboxId>,
    /// Sandboxes that stay because something runs in them, or because their session may come back.
    pub kept: u32,
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
                    session.sandbox.as_ref().is_some_and(|row| row.backend == backend.name())
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
                    created_secs: record.created_secs,
                    activity: None,
                    background: 0,
                };
                if let Some(sandbox) = backend.find(&info.id).await.ok().flatten() {
                    info.activity = sandbox.activity().await.ok();
                    let processes = sandbox.processes().await.unwrap_or_default();
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
                created_secs: row.created_millis / 1000,
                activity: None,
                background: 0,
            })
        }));
        all.sort_by(|a, b| (&a.session, &a.id).cmp(&(&b.session, &b.id)));
        Ok(all)
    }

    /// Removes what is left of sandboxes that are dead, and those that run with no session that knows them; with
    /// `idle` also those in which nothing runs. Homes stay.
    ///
    /// # Errors
    /// Those of the store and of the backends.
    pub async fn prune(&self, idle: bool) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        for info in self.sandboxes().await? {
            let known = info.session.is_some();
            // One of a single command that runs elsewhere now has no session either. It is in use, or will be in a
            // moment.
            let in_use = info
                .activity
                .is_some_and(|activity| activity.operations > 0 || (!known && activity.idle < JUST_OPENED));
            if info.running && (in_use || (known && !idle)) {
                pruned.kept += 1;
                continue;
            }
            match &info.session {
                Some(key) => drop(self.stop_sandbox(key).await?),
                None => self.remove_sandbox(&info.id).await?,
            }
            pruned.removed.push(info.id);
        }
        self.store().run(|db| db.sweep_lost()).await?;
        Ok(pruned)
    }

    /// Whether a stored session's sandbox is being started or ended by somebody right now, as far as is written down.
    pub fn in_transition(session: &Session) -> bool {
        session.sandbox.as_ref().is_some_and(|row| row.state != SandboxState::Running)
    }
}
