//! Removing what machines left whose owner could not do it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_host::record::Whereabouts;
use moltis_sandbox::SandboxId;
use tokio::task::JoinSet;

use super::{State, opening, transport_to};
use crate::error::{Error, Result, long};
use crate::machine::end;
use crate::record::{self, Record, RunDir};

/// How often an open looks for leftovers.
const EVERY: Duration = Duration::from_secs(60);

/// How long a machine may take to say that its agent is over, and not be left alone.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

impl State {
    /// Ends machines that SSH leads to and whose agent is over: it cannot end its machine itself. All are asked at once;
    /// one that does not answer soon is left alone.
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
                let way = asked.then(|| transport_to(&config, &record, &process).ok()).flatten()?;
                Some((id, record, way))
            });
            Ok(ways.collect::<Vec<_>>())
        });
        let mut asking = JoinSet::new();
        for (id, record, way) in found.await.unwrap_or_default() {
            asking.spawn(async move {
                let asked = tokio::time::timeout(ANSWERS_WITHIN, way.connect()).await;
                (id, record, asked)
            });
        }
        while let Some(asked) = asking.join_next().await {
            let Ok((id, record, asked)) = asked else { continue };
            match asked {
                Ok(Ok(_)) => {}
                Ok(Err(moltis_agent::Error::Gone)) => {
                    if let Err(error) = self.end_forsaken(&id, &record).await {
                        tracing::warn!(sandbox = %id, %error, "a machine whose agent is over could not be ended");
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(sandbox = %id, %error, "a machine is left alone: its agent may be there");
                }
                Err(_) => tracing::debug!(sandbox = %id, "a machine is left alone: it does not answer"),
            }
        }
    }

    /// Ends the machine of this record, if it is still the one in its folder. Whoever has the folder is making another one
    /// in its place, or ending it.
    async fn end_forsaken(&self, id: &SandboxId, asked: &Record) -> Result<()> {
        let Some(run) = record::find(&self.config.data_dir) else { return Ok(()) };
        let owned = id.clone();
        let looked = long(move || {
            let Some(mut folder) = run.try_lock_existing(&owned)? else { return Ok(None) };
            folder.keep(true);
            Ok::<_, Error>(folder.look().map(|looked| (looked, folder)))
        });
        match looked.await? {
            Some(((record, Whereabouts::Here(process)), folder)) if record == *asked => {
                end(&process).await?;
                self.clear(id, folder, Some(&record)).await
            }
            _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use moltis_host::process::Process;
    use moltis_sandbox::{Lifetime, SandboxSpec, SessionKey};
    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;
    use crate::{Config, FirecrackerBackend};

    /// Ends with this.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Self {
            Self(Command::new("sleep").arg("4324").spawn().unwrap())
        }

        fn record(&self) -> Record {
            let pid = self.0.id();
            let folder = openat(CWD, "/", OFlags::PATH, Mode::empty()).unwrap();
            let process = Process::child(pid as i32, folder);
            let mut record = Record::intent("f".into(), 1, "/nowhere".into());
            (record.pid, record.started, record.served) = (pid, process.started().unwrap(), true);
            record
        }

        fn lives(&mut self) -> bool {
            self.0.try_wait().unwrap().is_none()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[tokio::test]
    async fn only_the_machine_that_was_asked_is_ended_and_only_if_nobody_has_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        let id = SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral).id();
        let state = FirecrackerBackend::new(Config::new(temp.path().to_owned())).state;
        let run = record::make(temp.path()).unwrap();
        let mut folder = run.lock(&id).await.unwrap();
        let (mut earlier, mut sleeper) = (Sleeper::new(), Sleeper::new());
        let (asked, record) = (earlier.record(), sleeper.record());
        folder.write(&record).unwrap();
        folder.keep(true);
        state.end_forsaken(&id, &record).await.unwrap();
        assert!(sleeper.lives(), "it was ended while somebody had its folder");
        drop(folder);
        state.end_forsaken(&id, &asked).await.unwrap();
        assert!(sleeper.lives() && earlier.lives(), "another one than the one that was asked was ended");
        assert_eq!(run.record(&id), Some(record.clone()));
        state.end_forsaken(&id, &record).await.unwrap();
        assert!(!sleeper.lives() && !run.has(&id));
        assert!(earlier.lives());
    }
}
