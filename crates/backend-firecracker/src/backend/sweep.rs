//! Removing what machines left whose owner could not do it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_host::record::Whereabouts;
use moltis_sandbox::SandboxId;

use super::{State, opening, transport_to};
use crate::error::{Error, long};
use crate::record::{self, RunDir};

/// How often an open looks for leftovers.
const EVERY: Duration = Duration::from_secs(60);

impl State {
    /// Ends machines that SSH leads to and whose agent is over: it cannot end its machine itself.
    pub(super) async fn sweep_forsaken(&self) {
        if self.config.ssh_key.is_none() {
            return;
        }
        let config = self.config.clone();
        let found = long(move || {
            let Some(run) = record::find(&config.data_dir) else { return Ok(Vec::new()) };
            let ways = run.ids().into_iter().filter_map(|id| {
                let (record, _, whereabouts) = run.look(&id)?;
                let Whereabouts::Here(process) = whereabouts else { return None };
                let asked = record.served && record.ssh.is_some();
                asked.then(|| transport_to(&config, &record, &process).ok()).flatten().map(|way| (id, way))
            });
            Ok(ways.collect::<Vec<_>>())
        });
        for (id, way) in found.await.unwrap_or_default() {
            // The server's own word: nobody listens there any more.
            if matches!(way.connect().await, Err(moltis_agent::Error::Gone))
                && let Err(error) = self.remove(&id).await
            {
                tracing::warn!(sandbox = %id, %error, "a machine whose agent is over could not be ended");
            }
        }
    }

    /// Sweeps at the first open of this process, and once a minute after it.
    pub(super) async fn sweep_if_due(&self, but: &SandboxId) {
        let due = {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            let due = swept.is_none_or(|at| at.elapsed() >= EVERY);
            if due {
                *swept = Some(Instant::now());
            }
            due
        };
        if due {
            self.sweep(Some(but)).await;
        }
    }

    /// Removes machines that are over for certain, and numbers that nobody has. What does not go now is tried again at the
    /// next sweep.
    pub(super) async fn sweep(&self, but: Option<&SandboxId>) {
        let Some(run) = record::find(&self.config.data_dir) else { return };
        let (looks, but) = (run.clone(), but.cloned());
        let left = long(move || {
            let ids = looks.ids().into_iter();
            Ok(ids.filter(|id| Some(id) != but.as_ref() && is_left(&looks, id)).collect::<Vec<_>>())
        });
        for id in left.await.unwrap_or_default() {
            let (again, wanted) = (run.clone(), id.clone());
            let taken = long(move || {
                // Whoever has the folder is making it, or ending it.
                let Some(mut folder) = again.try_lock_existing(&wanted)? else { return Ok(None) };
                folder.keep(true);
                let record = folder.record();
                // It may have been made anew before the folder was ours.
                Ok::<_, Error>(is_left(&again, &wanted).then_some((folder, record)))
            });
            if let Ok(Some((folder, record))) = taken.await {
                let cleared = self.clear(&id, folder, record.as_ref()).await;
                if let Err(error) = cleared {
                    tracing::warn!(sandbox = %id, %error, "a machine that is over could not be removed");
                }
            }
        }
        let config = self.config.clone();
        let _ = long(move || {
            for claims in [opening::users(&config)?, opening::pieces(&config)?] {
                claims.sweep(|id| run.has(id));
            }
            Ok(())
        })
        .await;
    }
}

/// Whether this folder is what a machine left that is over, or that was never handed out: whoever was making it held its
/// lock.
fn is_left(run: &RunDir, id: &SandboxId) -> bool {
    if run.is_foreign(id) {
        return false;
    }
    let Some(record) = run.record(id) else { return true };
    run.open(id).is_some_and(|folder| match run.whereabouts(&record, folder) {
        Whereabouts::Over => true,
        Whereabouts::Here(_) => !record.served,
        Whereabouts::Elsewhere => false,
    })
}
