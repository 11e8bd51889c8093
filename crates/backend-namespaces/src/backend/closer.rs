//! The end of a sandbox: asked for, or noticed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::Closer;
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{Result, SandboxId};

use super::State;
use crate::error::{Error, long, whole};
use crate::record::{self, Folder};

/// How long the end of a process is waited for that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// Between two looks at one that may live on.
const FOREVER: Duration = Duration::from_secs(3600);

/// Ends one sandbox. Dropping it lets go of the lifeline, which ends an ephemeral one.
pub struct ProcessCloser {
    state: Arc<State>,
    id: SandboxId,
    process: Arc<Process>,
    lifeline: Mutex<Option<OwnedFd>>,
}

impl ProcessCloser {
    /// For the sandbox with this PID 1.
    pub fn new(state: Arc<State>, id: SandboxId, process: Process, lifeline: Option<OwnedFd>) -> Self {
        Self { state, id, process: Arc::new(process), lifeline: Mutex::new(lifeline) }
    }
}

#[async_trait]
impl Closer for ProcessCloser {
    async fn close(&self) -> Result<()> {
        let lifeline = self.lifeline.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (state, id, process) = (Arc::clone(&self.state), self.id.clone(), Arc::clone(&self.process));
        let close = async move {
            process.kill();
            state.unthrottle(&id, &process);
            drop(lifeline);
            if !process.ends_within(KILLED).await {
                return Err(moltis_host::Error::DoesNotEnd.into());
            }
            let run = record::find(&state.config.data_dir);
            let Some(run) = run else { return Ok(()) };
            match run.lock_existing(&id).await? {
                Some(folder) => long(move || state.clear_away(&id, folder, &process)).await,
                None => Ok(()),
            }
        };
        Ok(whole(close).await?)
    }
}

impl State {
    /// Lets the processes of a sandbox that was killed die as fast as they can. Blocks.
    fn unthrottle(&self, id: &SandboxId, process: &Process) {
        let record = record::find(&self.config.data_dir).and_then(|run| run.record(id));
        let Some(record) = record.filter(|record| record.pid == process.pid()) else { return };
        if let Some(group) = self.limiter().find(id, &record.groups) {
            group.unthrottle();
        }
    }

    /// Kills what there is of a sandbox and removes its groups. The caller holds its folder. Blocks.
    pub(super) fn end_process(
        &self,
        id: &SandboxId,
        process: Option<&Process>,
        groups: &[PathBuf],
    ) -> Result<(), Error> {
        let group = self.limiter().find(id, groups);
        if let Some(process) = process {
            process.kill();
            if let Some(group) = &group {
                group.unthrottle();
            }
            if !process.wait_briefly() {
                return Err(moltis_host::Error::DoesNotEnd.into());
            }
        }
        match group {
            Some(group) => Ok(group.remove()?),
            None => Ok(()),
        }
    }

    /// Ends a sandbox and removes all of it. Blocks.
    pub(super) fn end(
        &self,
        id: &SandboxId,
        mut folder: Folder,
        process: Option<&Process>,
    ) -> Result<(), Error> {
        folder.keep(true);
        let groups = folder.record().map(|record| record.groups).unwrap_or_default();
        self.end_process(id, process, &groups)?;
        Ok(folder.remove()?)
    }

    /// Removes what is left in its folder of a sandbox whose PID 1 was `process` and is over, unless another one of the
    /// same name has taken its place since. Blocks.
    fn clear_away(&self, id: &SandboxId, folder: Folder, process: &Process) -> Result<(), Error> {
        match folder.look() {
            Some((record, _)) if record.pid != process.pid() => Ok(()),
            Some((_, Whereabouts::Here(_) | Whereabouts::Elsewhere)) => Ok(()),
            _ => self.end(id, folder, None),
        }
    }
}

/// Waits for the end of a child in the background, reaps it, and clears away what is left of its sandbox.
pub fn reap(state: Arc<State>, id: SandboxId, process: &Process) {
    let Ok(process) = process.try_clone() else { return };
    tokio::spawn(async move {
        while !process.ends_within(FOREVER).await {}
        let clear_away = move || {
            let Some(run) = record::find(&state.config.data_dir) else { return Ok(()) };
            // Whoever has it does it.
            match run.try_lock_existing(&id)? {
                Some(folder) => state.clear_away(&id, folder, &process),
                None => Ok(()),
            }
        };
        // What cannot be removed now is swept later.
        let _ = long(clear_away).await;
    });
}
