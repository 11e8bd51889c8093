//! Removing what sandboxes left whose owner could not do it: folders without a container, containers without a folder.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_host::blocking::long;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{Error, Result, SandboxId};

use crate::backend::{RunDir, State};
use crate::labels;
use crate::record::Record;

/// How often an open looks for leftovers.
const EVERY: Duration = Duration::from_secs(60);

/// How old a container must be that nothing is written down of: its maker writes first.
const YOUNG: u64 = 120;

impl State {
    /// At the first open of this process and once a minute after it. What does not go now is tried again.
    pub(crate) async fn sweep_if_due(self: &Arc<Self>, run: &RunDir, but: &SandboxId) {
        {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            if swept.is_some_and(|at| at.elapsed() < EVERY) {
                return;
            }
            *swept = Some(Instant::now());
        }
        // Nobody waits for it.
        let (state, run, but) = (Arc::clone(self), run.clone(), but.clone());
        tokio::spawn(async move { state.sweep(&run, Some(&but)).await });
    }

    /// Removes what is over for certain.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) async fn sweep(self: &Arc<Self>, run: &RunDir, but: Option<&SandboxId>) -> Result<()> {
        let connected = self.connected().await?;
        let ours = [(labels::INSTANCE, connected.images.instance()), (labels::SESSION, "")];
        let found = connected.engine.containers(&ours).await?;
        let alive: BTreeSet<String> =
            found.iter().filter(|c| c.lives()).flat_map(|c| [c.id.clone(), c.name.clone()]).collect();
        let (run, but) = (run.clone(), but.cloned());
        let again = run.clone();
        let known = long(move || Ok::<_, Error>(folders(&run, but.as_ref(), &alive))).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for container in found {
            let written = known.iter().any(|record| record.is(&container));
            let made = container.labels.get(labels::CREATED).and_then(|made| made.parse().ok());
            let young = made.unwrap_or(container.created_secs) + YOUNG > now;
            if written || young {
                continue;
            }
            // It may have been handed over, and its folder renamed, while the others were looked at.
            let (run, named) = (again.clone(), container.clone());
            let look = move || {
                Ok::<_, Error>(run.ids().iter().filter_map(|id| run.record(id)).any(|r| r.is(&named)))
            };
            if long(look).await? {
                continue;
            }
            // One that does not go is no reason to leave the others.
            if let Err(error) = connected.engine.remove(&container.id).await {
                tracing::warn!(%error, name = container.name, "a container that was left cannot be removed");
            }
        }
        Ok(())
    }
}

/// Removes the folders of sandboxes that are over, and answers with the records of the others. Blocks.
fn folders(run: &RunDir, but: Option<&SandboxId>, alive: &BTreeSet<String>) -> Vec<Record> {
    let mut known = Vec::new();
    for id in run.ids() {
        let over = |record: &Record, whereabouts: &Whereabouts| match whereabouts {
            Whereabouts::Over => true,
            Whereabouts::Here(_) => false,
            Whereabouts::Elsewhere => record.process_unknown() && !alive.contains(record.handle()),
        };
        let look = run.look(&id);
        let may_go = Some(&id) != but && look.as_ref().is_none_or(|(record, _, w)| over(record, w));
        // Whoever has the folder is making it, or ending it. Another backend's is not ours to judge.
        if may_go
            && !run.is_foreign(&id)
            && let Ok(Some(mut folder)) = run.try_lock_existing(&id)
        {
            folder.keep(true);
            if folder.look().is_none_or(|(record, w)| over(&record, &w)) && folder.remove().is_ok() {
                // What is left of its container is written down nowhere any more.
                continue;
            }
        }
        // What is written down by now.
        known.extend(look.map(|(record, ..)| record).into_iter().chain(run.record(&id)));
    }
    known
}
