//! Removing what sandboxes left whose owner could not do it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_sandbox::SandboxId;

use super::State;
use crate::process::{boot, pid_realm};
use crate::record::{Record, RunDir};

/// How often an open looks for leftovers.
const EVERY: Duration = Duration::from_secs(60);

impl State {
    /// Sweeps at the first open of this process and once a minute after it. Blocks.
    pub(super) fn sweep_if_due(&self, run: &RunDir, but: &SandboxId) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        *swept = Some(Instant::now());
        drop(swept);
        self.sweep(run, Some(but));
    }

    /// Removes the folders and groups of sandboxes that are dead for certain. Blocks.
    pub(super) fn sweep(&self, run: &RunDir, but: Option<&SandboxId>) {
        let mut found_dead = false;
        for id in run.ids() {
            // Another backend's is not ours to judge; not even its lock is taken.
            if Some(&id) == but || run.is_foreign(&id) || !is_dead(run.record(&id).as_ref()) {
                continue;
            }
            // Whoever has the folder is making it, or ending it.
            let Ok(Some(mut folder)) = run.try_lock_existing(&id) else {
                continue;
            };
            // It may have been made anew before the folder was ours.
            if !run.is_foreign(&id) && is_dead(run.record(&id).as_ref()) {
                found_dead = true;
                // What does not go now is tried again at the next sweep.
                let _ = self.end(&id, folder, None);
            } else {
                folder.keep(true);
            }
        }
        if found_dead || but.is_none() {
            // A sandbox has its folder for as long as it has groups.
            self.limiter().sweep(|id| !run.has(id));
        }
    }
}

/// Whether a sandbox with this record is over. Without a record it was never let go.
fn is_dead(record: Option<&Record>) -> bool {
    let Some(record) = record else { return true };
    if record.realm == pid_realm() {
        return record.process().is_none();
    }
    // A process of another pid namespace cannot be judged from here; one of another boot is gone.
    !record.realm.starts_with(boot())
}
