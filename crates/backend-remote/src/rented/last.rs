//! What is brought back of a workspace before its machine ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result};

use super::{Inner, Provider, place};
use crate::journal::Entry;
use crate::machine::Machine;
use crate::sandbox::Remote;
use crate::tools::Tools;
use crate::workspace::last;

/// How often the provider is asked for the machine, within which time, and the first pause between.
const TRIES: u32 = 3;
const WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

impl<P: Provider> Inner<P> {
    /// Brings back what changed in a workspace since the last command, before its machine ends. One that was stopped is
    /// started again for that.
    ///
    /// # Errors
    /// `workspace-not-carried` when the provider does not say how the machine is, or does not start it. It may hold what is
    /// nowhere else, and is not to be removed then.
    pub(super) async fn carry_last(&self, entry: &Entry) -> Result<()> {
        let Some(ready) = &entry.ready else { return Ok(()) };
        let store = self.store(&entry.id);
        let read = store.clone();
        let Some(state) = self.on_disk(move |_| Ok(read.read())).await? else { return Ok(()) };
        // Before both sides were brought together nothing ran on it, and what is read-only never comes back.
        let matters = state.machine == entry.name && state.terms.writable && state.begun;
        let machine = match self.reached(entry, matters).await {
            Ok(Some(machine)) => machine,
            Ok(None) => {
                if matters {
                    let name = &entry.name;
                    tracing::info!(%name, "a sandbox had ended before its workspace was looked at a last time");
                }
                return Ok(());
            }
            Err(error) if matters => return Err(kept(&error)),
            Err(_) => return Ok(()),
        };
        let remote = Remote::new(machine, &ready.directory, &ready.told, entry.created_millis);
        let places = (self.data_dir.clone(), self.config_dir.clone());
        last(Arc::new(Tools(Arc::new(remote))), place(ready), store, &entry.name, places).await;
        Ok(())
    }

    /// The machine, asked for again if the provider fails.
    async fn reached(&self, entry: &Entry, wake: bool) -> Result<Option<Arc<dyn Machine>>> {
        let end = Instant::now() + WITHIN;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.running(entry, wake).await {
                Err(error) if tries < TRIES && Instant::now() < end => {
                    tracing::warn!(%error, name = %entry.name, "a workspace cannot be carried back yet");
                    tokio::time::sleep(PAUSE * tries).await;
                }
                done => return done.map(|found| found.map(|(_, machine)| machine)),
            }
        }
    }
}

fn kept(error: &Error) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "workspace-not-carried",
            "the sandbox is kept: what changed last in its workspace could not be fetched",
        )
        .cause(error)
        .fix("end it again once the provider answers; or remove it at the provider, which loses those changes, and end it then"),
    )
}
