//! The end of a machine: asked for, or noticed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::Closer;
use moltis_agent::sandbox::Held;
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_sandbox::SandboxId;

use super::State;
use crate::error::{Error, Result, long};
use crate::machine::{self, end};
use crate::record::{self, Folder, Record};
use crate::tap::Tap;

/// Between two looks at one that may live on.
const FOREVER: Duration = Duration::from_secs(3600);

/// Ends one machine. Dropping it lets go of what holds it, which ends an ephemeral one.
pub(super) struct MachineCloser {
    state: Arc<State>,
    id: SandboxId,
    process: Arc<Process>,
    held: Mutex<Option<Held>>,
}

impl MachineCloser {
    /// For the machine of this process.
    pub fn new(state: Arc<State>, id: SandboxId, process: Process, held: Option<Held>) -> Self {
        Self { state, id, process: Arc::new(process), held: Mutex::new(held) }
    }
}

#[async_trait]
impl Closer for MachineCloser {
    async fn close(&self) -> moltis_sandbox::Result<()> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (state, id, process) = (Arc::clone(&self.state), self.id.clone(), Arc::clone(&self.process));
        let close = async move {
            end(&process).await?;
            drop(held);
            let Some(run) = record::find(&state.config.data_dir) else { return Ok(()) };
            match run.lock_existing(&id).await? {
                Some(folder) => state.clear_away(&id, folder, &process).await,
                None => Ok(()),
            }
        };
        Ok(moltis_host::blocking::whole(close).await?)
    }
}

impl State {
    /// Removes all that a machine has, which is over, and at last its folder and its numbers. The caller holds the folder.
    pub(super) async fn clear(&self, id: &SandboxId, folder: Folder, record: Option<&Record>) -> Result<()> {
        let mut folder = folder;
        folder.keep(true);
        let (run, jail) = (folder.path().join(record::WORK), folder.path().join(record::JAIL));
        let work = record.map(|record| record.work.clone());
        let strays = long(move || {
            let places = [Some(run), work].into_iter().flatten();
            // Whoever started it may have died before it could write its number.
            let mut found: Vec<Process> = places.flat_map(|place| machine::strays(&place)).collect();
            found.extend(machine::strays_below(&jail));
            Ok(found)
        });
        for stray in strays.await? {
            end(&stray).await?;
        }
        if let Some((name, piece)) = record.and_then(|record| record.tap.clone()) {
            Tap { name, piece }.remove().await?;
        }
        let config = self.config.clone();
        let (owned, record) = (id.clone(), record.cloned());
        long(move || {
            folder.remove()?;
            // Only now: nothing bears them any more.
            if let Some(record) = record {
                if let Some(user) = record.user {
                    super::opening::users(&config)?.release(super::opening::number_of(user), &owned);
                }
                if let Some((_, piece)) = record.tap {
                    super::opening::pieces(&config)?.release(piece, &owned);
                }
            }
            Ok(())
        })
        .await
    }

    /// Removes what is left of a machine whose process was `process` and is over, unless another one of the same name has
    /// taken its place since.
    pub(super) async fn clear_away(&self, id: &SandboxId, folder: Folder, process: &Process) -> Result<()> {
        let mut folder = folder;
        folder.keep(true);
        let looked = long(move || Ok((folder.look(), folder))).await?;
        match looked {
            (Some((record, _)), _) if record.pid != process.pid() => Ok(()),
            (Some((_, Whereabouts::Here(_) | Whereabouts::Elsewhere)), _) => Ok(()),
            (Some((record, Whereabouts::Over)), folder) => self.clear(id, folder, Some(&record)).await,
            (None, folder) => self.clear(id, folder, None).await,
        }
    }

    /// Ends a machine, or what is left of it.
    pub(super) async fn remove(&self, id: &SandboxId) -> Result<()> {
        let Some(run) = record::find(&self.config.data_dir) else { return Ok(()) };
        let Some(mut folder) = run.lock_existing(id).await? else { return Ok(()) };
        folder.keep(true);
        let (looked, folder) = long(move || Ok((folder.look(), folder))).await?;
        match looked {
            Some((record, Whereabouts::Elsewhere)) => Err(moltis_host::Error::Elsewhere(record.pid).into()),
            Some((record, Whereabouts::Here(process))) => {
                end(&process).await?;
                self.clear(id, folder, Some(&record)).await
            }
            Some((record, Whereabouts::Over)) => self.clear(id, folder, Some(&record)).await,
            None => self.clear(id, folder, None).await,
        }
    }
}

/// Waits for the end of a child in the background, reaps it, and clears away what is left of its machine.
pub(super) fn reap(state: Arc<State>, id: SandboxId, process: &Process) {
    let Ok(process) = process.try_clone() else { return };
    tokio::spawn(async move {
        while !process.ends_within(FOREVER).await {}
        let Some(run) = record::find(&state.config.data_dir) else { return };
        let owned = id.clone();
        // Whoever has it does it.
        let locked = long(move || Ok::<_, Error>(run.try_lock_existing(&owned)?)).await;
        if let Ok(Some(folder)) = locked {
            // What cannot be removed now is swept later.
            let _ = state.clear_away(&id, folder, &process).await;
        }
    });
}
