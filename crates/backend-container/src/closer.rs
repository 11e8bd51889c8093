//! The end of a sandbox: asked for, or noticed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::Closer;
use moltis_host::blocking::{long, whole};
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{Result, SandboxId};

use crate::backend::{Folder, State};

/// How long the end of a process is waited for whose container was removed.
const ENDED: Duration = Duration::from_secs(10);

/// Between two looks at one that may live on.
const FOREVER: Duration = Duration::from_secs(3600);

/// What keeps an ephemeral sandbox: dropping it ends it.
pub type Hold = moltis_agent::sandbox::Held;

/// Ends one sandbox. Dropping it lets go of what holds it, which ends an ephemeral one.
pub struct ContainerCloser {
    state: Arc<State>,
    id: SandboxId,
    container: String,
    process: Option<Arc<Process>>,
    hold: Mutex<Option<Hold>>,
}

impl ContainerCloser {
    /// For the sandbox in this container.
    pub fn new(
        state: Arc<State>,
        id: SandboxId,
        container: String,
        process: Option<Process>,
        hold: Option<Hold>,
    ) -> Self {
        Self { state, id, container, process: process.map(Arc::new), hold: Mutex::new(hold) }
    }
}

#[async_trait]
impl Closer for ContainerCloser {
    async fn close(&self) -> Result<()> {
        // An ephemeral one begins to end by itself.
        drop(self.hold.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (state, id, container) = (Arc::clone(&self.state), self.id.clone(), self.container.clone());
        let process = self.process.clone();
        whole(async move { state.end(&id, &container, process.as_deref()).await }).await
    }
}

impl State {
    /// Ends a container and removes what there is of it, unless another one of the same session has taken its place.
    pub(crate) async fn end(
        self: &Arc<Self>,
        id: &SandboxId,
        container: &str,
        process: Option<&Process>,
    ) -> Result<()> {
        let removed = match self.connected().await {
            Ok(connected) => connected.engine.remove(container).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            // Without an engine: once its first process is over nothing of it runs, and the engine clears away the rest.
            let over = match process {
                Some(process) => process.ends_within(Duration::from_secs(2)).await,
                None => false,
            };
            if !over {
                return Err(self.failed(error).await);
            }
        } else if let Some(process) = process {
            process.ends_within(ENDED).await;
        }
        let Some(run) = self.run() else { return Ok(()) };
        let Some(folder) = run.lock_existing(id).await? else { return Ok(()) };
        let container = container.to_owned();
        long(move || clear_away(folder, &container)).await
    }
}

/// Removes what is left in its folder of a sandbox whose container is gone. Blocks.
pub fn clear_away(mut folder: Folder, container: &str) -> Result<()> {
    folder.keep(true);
    match folder.record() {
        Some(record) if record.handle() != container => Ok(()),
        _ => Ok(folder.remove()?),
    }
}

/// Waits in the background for the end of a sandbox that was made by this process, and clears away what is left of it.
pub fn reap(state: Arc<State>, id: SandboxId, process: &Process) {
    let Ok(process) = process.try_clone() else { return };
    tokio::spawn(async move {
        while !process.ends_within(FOREVER).await {}
        let clear_away = move || {
            let Some(run) = state.run() else { return Ok(()) };
            // Whoever has it does it.
            let Some(folder) = run.try_lock_existing(&id)? else { return Ok(()) };
            let mut folder = folder;
            folder.keep(true);
            match folder.look() {
                Some((record, Whereabouts::Over)) if record.way.is_some() => Ok(folder.remove()?),
                _ => Ok::<(), moltis_sandbox::Error>(()),
            }
        };
        // What cannot be removed now is swept later.
        let _ = long(clear_away).await;
    });
}
