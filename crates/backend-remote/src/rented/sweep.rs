//! The end of machines: those that are ended, and those that a killed process left.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result, SandboxId};

use super::{Inner, Listed, Provider};
use crate::failure;
use crate::http::Failure;
use crate::journal::Entry;

/// How often a machine is looked for that may still be on its way.
const LOOKS: u32 = 4;
/// How often a machine is asked to go that is changing, and the time between.
const REMOVALS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// How long a sweep that failed is not made again.
const AGAIN: Duration = Duration::from_secs(2);

/// What became of the sweep that is made once in a process.
pub(super) enum Swept {
    Never,
    Failed(Instant),
    Done,
}

fn is_gone(failure: &Failure) -> bool {
    matches!(failure.status(), Some(404 | 410))
}

impl<P: Provider> Inner<P> {
    /// Removes what processes left that are no more: once in a process, before it makes anything. One that failed is made
    /// again, though not at once: those that open many would wait for it every time.
    pub(super) async fn sweep(&self) {
        let mut swept = self.swept.lock().await;
        match *swept {
            Swept::Done => return,
            Swept::Failed(at) if at.elapsed() < AGAIN => return,
            Swept::Failed(_) | Swept::Never => {}
        }
        *swept = match self.sweep_now().await {
            Ok(()) => Swept::Done,
            Err(error) => {
                tracing::warn!(%error, provider = self.title(), "what earlier processes left is not removed");
                Swept::Failed(Instant::now())
            }
        };
    }

    async fn sweep_now(&self) -> Result<()> {
        let provider = self.provider()?;
        for entry in self.on_disk(|journal| journal.all()).await?.entries {
            if !self.is_ours(&entry) {
                continue;
            }
            let id = entry.id.clone();
            // Whoever opens or ends it has the lock, and whoever keeps it the other one.
            let locks = self
                .on_disk(move |journal| {
                    let Some(lock) = journal.try_lock(&id, "lock")? else { return Ok(None) };
                    let Some(alive) = journal.alive(&id)? else { return Ok(None) };
                    // It may have changed before the lock was had.
                    Ok(journal.read(&id)?.map(|entry| (lock, alive, entry)))
                })
                .await?;
            let Some((_lock, _alive, entry)) = locks else { continue };
            let is_over = entry.ready.is_none() || entry.ephemeral;
            if !is_over {
                continue;
            }
            if let Err(error) = self.carry_last(&entry).await {
                tracing::warn!(%error, name = %entry.name, "what an earlier process left is not removed");
                continue;
            }
            if self.end(provider, &entry).await.is_ok() {
                let id = entry.id.clone();
                self.forget(id).await?;
            }
        }
        // What is not written down, such as a machine whose making nobody waited for. Names first: what is written down
        // after this is made after this.
        let instance = self.on_disk(|journal| journal.instance()).await?;
        let listed = provider.labelled(&instance).await.map_err(|error| failure::unavailable(&error))?;
        let all = self.on_disk(|journal| journal.all()).await?;
        for Listed { name, .. } in &listed {
            // One that is not known may be that of an entry that cannot be read.
            if all.knows(name)? {
                continue;
            }
            tracing::info!(%name, provider = provider.title(), "a sandbox that nobody knows of is removed");
            if let Err(error) = self.delete(provider, name, 1).await {
                tracing::warn!(%name, %error, "it could not be removed");
            }
        }
        Ok(())
    }

    /// Ends a machine and removes it at the provider. One that is gone is no error.
    async fn end(&self, provider: &P, entry: &Entry) -> Result<(), Failure> {
        if let Some(ready) = &entry.ready {
            match provider.stop(ready).await {
                Err(failure) if !is_gone(&failure) && !matches!(failure.status(), Some(400 | 409 | 422)) => {
                    return Err(failure);
                }
                _ => {}
            }
        }
        // One that was being made when its maker died may appear a moment later.
        let looks = if entry.ready.is_none() { LOOKS } else { 1 };
        self.delete(provider, &entry.name, looks).await
    }

    async fn delete(&self, provider: &P, name: &str, mut looks: u32) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            match provider.delete(name).await {
                Err(failure) if is_gone(&failure) => {
                    looks = looks.saturating_sub(1);
                    if looks == 0 {
                        return Ok(());
                    }
                }
                // It is changing: being stopped, or being made.
                Err(failure) if failure.status() == Some(409) && tries < REMOVALS => {}
                done => return done,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn remove(&self, id: &SandboxId) -> Result<()> {
        let wanted = id.clone();
        if self.on_disk(move |journal| journal.read(&wanted)).await?.is_none() {
            return self.remove_strays(id).await;
        }
        let wanted = id.clone();
        let (_lock, entry) =
            self.on_disk(move |journal| Ok((journal.lock(&wanted)?, journal.read(&wanted)?))).await?;
        let Some(entry) = entry else { return Ok(()) };
        self.remove_locked(&entry).await
    }

    pub(super) async fn remove_locked(&self, entry: &Entry) -> Result<()> {
        if !self.is_ours(entry) {
            return Err(Error::Unavailable(
                Diagnosis::new(
                    "provider-other",
                    "the sandbox is of another account or project than is set up",
                )
                .cause(format!("it was made at {} in the project {}", entry.api, entry.project))
                .fix("set the token, project and address it was made with, and end it then"),
            ));
        }
        self.carry_last(entry).await?;
        self.end(self.provider()?, entry).await.map_err(|error| failure::unavailable(&error))?;
        let id = entry.id.clone();
        self.forget(id).await
    }

    /// Removes the machines that were listed for this id and are written down nowhere.
    async fn remove_strays(&self, id: &SandboxId) -> Result<()> {
        let names = self.strays.lock().unwrap_or_else(PoisonError::into_inner).remove(id).unwrap_or_default();
        for name in names {
            self.discard(&name).await?;
        }
        Ok(())
    }

    /// Removes a machine by name, unless it is written down.
    pub(super) async fn discard(&self, name: &str) -> Result<()> {
        let provider = self.provider()?;
        // A name is used once: what is unknown now stays so.
        if self.on_disk(|journal| journal.all()).await?.knows(name)? {
            return Ok(());
        }
        self.delete(provider, name, 1).await.map_err(|error| failure::unavailable(&error))
    }
}
