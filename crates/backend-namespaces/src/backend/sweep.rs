//! Removing what sandboxes left whose owner could not do it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_host::record::Whereabouts;
use moltis_sandbox::SandboxId;

use super::State;
use crate::record::RunDir;

/// How often an open looks for leftovers.
const EVERY: Duration = Duration::from_secs(60);

impl State {
    /// Whether there is something to sweep, at the first open of this process and once a minute after it. Blocks on the
    /// disk alone.
    pub(super) fn is_sweep_due(&self, run: &RunDir, but: &SandboxId) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_some_and(|at| at.elapsed() < EVERY) {
            return false;
        }
        *swept = Some(Instant::now());
        drop(swept);
        run.ids().iter().any(|id| id != but && is_left(run, id))
    }

    /// Removes the folders and groups of sandboxes that are dead for certain. Blocks, and may wait.
    pub(super) fn sweep(&self, run: &RunDir, but: Option<&SandboxId>) {
        let mut found_dead = false;
        for id in run.ids() {
            if Some(&id) == but || !is_left(run, &id) {
                continue;
            }
            // Whoever has the folder is making it, or ending it.
            let Ok(Some(folder)) = run.try_lock_existing(&id) else {
                continue;
            };
            // It may have been made anew before the folder was ours.
            if is_left(run, &id) {
                found_dead = true;
                // What does not go now is tried again at the next sweep.
                let _ = self.end(&id, folder, None);
            }
        }
        if found_dead || but.is_none() {
            // A sandbox has its folder for as long as it has groups.
            self.limiter().sweep(|id| !run.has(id));
        }
    }
}

/// Whether this folder is what an over sandbox of this backend left. Without a record it was never let go. Another
/// backend's is not ours to judge; not even its lock is taken.
fn is_left(run: &RunDir, id: &SandboxId) -> bool {
    if run.is_foreign(id) {
        return false;
    }
    let Some(record) = run.record(id) else { return true };
    run.open(id).is_some_and(|folder| matches!(run.whereabouts(&record, folder), Whereabouts::Over))
}
