//! Sandboxes at a provider: made, found again, and removed, with a journal of all of them. What differs between providers
//! is behind [`Provider`].

mod detected;
mod last;
mod listed;
mod provider;
mod sweep;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use moltis_agent::Closer;
use moltis_agentless::{hex, random_bytes};
use moltis_sandbox::{
    Backend, BackendName, Detection, Diagnosis, Error, Guarantees, Lifetime, Result, Sandbox, SandboxId,
    SandboxRecord, SandboxSpec, blocking,
};
use tokio::sync::oneshot;

use crate::failure;
use crate::http::Failure;
use crate::journal::{Entry, Journal, Lock, Ready, now_millis};
use crate::machine::Machine;
use crate::sandbox::{Remote, RemoteSandbox};
use crate::sync::Store;
use crate::tools::Tools;
use crate::workspace::{Carried, Place, Shown};

pub use provider::{Listed, Provider};
use sweep::Swept;

/// A backend whose sandboxes are machines of a provider.
pub struct Rented<P> {
    inner: Arc<Inner<P>>,
}

struct Inner<P> {
    name: BackendName,
    data_dir: PathBuf,
    config_dir: Option<PathBuf>,
    /// Absent, with the reason: there is not what it takes to speak to it.
    provider: Result<P, Diagnosis>,
    guarantees: Guarantees,
    journal: Journal,
    /// Whether what earlier processes left has been looked for.
    swept: tokio::sync::Mutex<Swept>,
    /// Names of machines that were listed and are written down nowhere, by whose they say they are.
    strays: Mutex<HashMap<SandboxId, Vec<String>>>,
}

impl<P: Provider> Rented<P> {
    /// For this account. Nothing is asked before it is used. `config_dir` is the folder of the user's configuration, which is
    /// never carried anywhere.
    pub fn new(
        name: BackendName,
        data_dir: PathBuf,
        config_dir: Option<PathBuf>,
        provider: Result<P, Diagnosis>,
        guarantees: Guarantees,
    ) -> Self {
        let journal = Journal::new(&data_dir, name.as_str());
        Self {
            inner: Arc::new(Inner {
                name,
                data_dir,
                config_dir,
                provider,
                guarantees,
                journal,
                swept: tokio::sync::Mutex::new(Swept::Never),
                strays: Mutex::default(),
            }),
        }
    }
}

/// Tells one that is found again how long this spec lets it be without use, which makes it no other sandbox.
async fn ends_after(machine: &dyn Machine, spec: &SandboxSpec) -> Result<()> {
    machine.ends_after(spec.lifetime).await.map_err(|failure| failure::unavailable(&failure))
}

/// Where its workspace lies.
fn place(ready: &Ready) -> Place<'_> {
    Place { directory: &ready.directory, home: ready.told.home() }
}

impl<P: Provider> Inner<P> {
    /// The provider, if there is what it takes to speak to it.
    fn provider(&self) -> Result<&P> {
        self.provider.as_ref().map_err(|why| Error::Unavailable(why.clone()))
    }

    fn title(&self) -> &'static str {
        self.provider.as_ref().map_or("a provider", Provider::title)
    }

    /// Work with the journal, which waits for the disk and for locks.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Journal) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let journal = self.journal.clone();
        blocking::long(move || work(&journal)).await.map_err(|broke| {
            Error::Unavailable(Diagnosis::new("system-error", "work on the disk broke off").cause(broke))
        })?
    }

    async fn forget(&self, id: SandboxId) -> Result<()> {
        let store = self.store(&id);
        let forget = move |journal: &Journal| {
            store.forget();
            journal.forget(&id);
            Ok(())
        };
        self.on_disk(forget).await
    }

    /// Whether a spec can be kept at all.
    fn judge(&self, spec: &SandboxSpec) -> Result<()> {
        if !spec.mounts.is_empty() {
            return Err(failure::declared("mounts", "only the workspace is carried to the provider"));
        }
        self.provider()?.judge(spec)
    }

    /// Where it is kept what both sides of a workspace hold.
    fn store(&self, id: &SandboxId) -> Store {
        Store::new(&self.data_dir, self.name.as_str(), id.as_str())
    }

    /// The workspace of a spec, or without one that which is written down. One that is not there any more is none where
    /// only what is written down asks for it.
    async fn shown(&self, id: &SandboxId, spec: Option<&SandboxSpec>) -> Result<Option<Shown>> {
        let (data_dir, config_dir) = (self.data_dir.clone(), self.config_dir.clone());
        let (spec, store) = (spec.cloned(), self.store(id));
        let judge = move |_: &Journal| match spec {
            Some(spec) => Shown::of(&spec, &data_dir, config_dir.as_deref()),
            None => Ok(store
                .read()
                .and_then(|state| Shown::again(state.terms, &data_dir, config_dir.as_deref()).ok())),
        };
        self.on_disk(judge).await
    }

    /// Whether it is of the account that is set up.
    fn is_ours(&self, entry: &Entry) -> bool {
        let is = |provider: &P| entry.api == provider.api() && entry.project == provider.account();
        self.provider.as_ref().is_ok_and(is)
    }

    /// The machine that is written down, if it is one that can be used.
    async fn running(&self, entry: &Entry, wake: bool) -> Result<Option<(Ready, Arc<dyn Machine>)>> {
        let Some(ready) = entry.ready.clone().filter(|_| self.is_ours(entry)) else { return Ok(None) };
        let provider = self.provider()?;
        let found = if wake { provider.woken(&ready).await } else { provider.running(&ready).await };
        let found = found.map_err(|failure| failure::unavailable(&failure))?;
        Ok(found.map(|machine| (ready, machine)))
    }

    async fn adopt(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: Option<&SandboxSpec>,
    ) -> Result<Option<Arc<dyn Sandbox>>> {
        let wanted = id.clone();
        let Some(entry) = self.on_disk(move |journal| journal.read(&wanted)).await? else { return Ok(None) };
        if spec.is_some_and(|spec| spec.fingerprint() != entry.fingerprint) {
            return Ok(None);
        }
        let Some((ready, machine)) = self.running(&entry, false).await? else { return Ok(None) };
        if let Some(spec) = spec {
            ends_after(&*machine, spec).await?;
        }
        let shown = self.shown(id, spec).await?;
        Ok(Some(self.hand_out(&entry, &ready, machine, shown, None, false)))
    }

    async fn is_stopped(&self, id: &SandboxId) -> Result<bool> {
        if !self.provider.as_ref().is_ok_and(Provider::stops) {
            return Ok(false);
        }
        let wanted = id.clone();
        let entry = self.on_disk(move |journal| journal.read(&wanted)).await?;
        // One that ends with its opener is removed by whoever comes next.
        let Some(entry) = entry.filter(|entry| self.is_ours(entry) && !entry.ephemeral) else {
            return Ok(false);
        };
        let Some(ready) = &entry.ready else { return Ok(false) };
        self.provider()?.is_stopped(ready).await.map_err(|failure| failure::unavailable(&failure))
    }

    /// The machine of this spec that was stopped, started again.
    async fn revive(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        if !self.is_stopped(&id).await? {
            return Ok(None);
        }
        let shown = self.shown(&id, Some(spec)).await?;
        let (_lock, known) =
            self.on_disk(move |journal| Ok((journal.lock(&id)?, journal.read(&id)?))).await?;
        let Some(known) = known.filter(|known| known.fingerprint == fingerprint) else { return Ok(None) };
        let Some((ready, machine)) = self.running(&known, true).await? else { return Ok(None) };
        ends_after(&*machine, spec).await?;
        Ok(Some(self.hand_out(&known, &ready, machine, shown, None, false)))
    }

    fn hand_out(
        self: &Arc<Self>,
        entry: &Entry,
        ready: &Ready,
        machine: Arc<dyn Machine>,
        shown: Option<Shown>,
        alive: Option<Lock>,
        is_new: bool,
    ) -> Arc<dyn Sandbox> {
        let remote = Remote::new(machine, &ready.directory, &ready.told, entry.created_millis);
        let closer = RentedCloser {
            inner: Arc::clone(self),
            id: entry.id.clone(),
            alive: Mutex::new(alive),
            closed: AtomicBool::new(false),
        };
        let remote = Arc::new(remote);
        let tools = Arc::new(Tools(Arc::clone(&remote)));
        let sandbox = Arc::new(RemoteSandbox::new(entry.id.clone(), is_new, remote, Arc::new(closer)));
        match shown {
            None => sandbox,
            Some(shown) => {
                let carrier = shown.carrier(tools, place(ready), self.store(&entry.id), &entry.name);
                Arc::new(Carried::new(sandbox, Arc::new(carrier)))
            }
        }
    }

    async fn open(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let provider = self.provider()?;
        self.judge(spec)?;
        let shown = self.shown(&spec.id(), Some(spec)).await?;
        self.sweep().await;
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        let wanted = id.clone();
        let (_lock, known) =
            self.on_disk(move |journal| Ok((journal.lock(&wanted)?, journal.read(&wanted)?))).await?;
        if let Some(known) = known {
            if known.fingerprint == fingerprint
                && let Some((ready, machine)) = self.running(&known, true).await?
            {
                ends_after(&*machine, spec).await?;
                return Ok(self.hand_out(&known, &ready, machine, shown, None, false));
            }
            self.remove_locked(&known).await?;
        }
        let shown = match shown {
            // What is too large is said before anything is made.
            Some(shown) => Some(self.on_disk(move |_| shown.fits().map(|()| shown)).await?),
            None => None,
        };
        let ephemeral = spec.lifetime == Lifetime::Ephemeral;
        let mut entry = Entry {
            name: format!("moltis-{}-{}", &id.as_str()[..12], hex(&random_bytes::<8>()?)),
            id,
            api: provider.api().to_owned(),
            project: provider.account().to_owned(),
            fingerprint,
            ephemeral,
            created_millis: now_millis(),
            ready: None,
        };
        let first = entry.clone();
        // The lock outlives the old entry, so that no other process's sweep takes the new one for a left one.
        let (alive, instance) = self
            .on_disk(move |journal| {
                let alive = if first.ephemeral { journal.alive(&first.id)? } else { None };
                journal.write(&first)?;
                Ok((alive, journal.instance()?))
            })
            .await?;
        match provider.make(&entry, spec, instance).await {
            Ok((machine, ready)) => {
                entry.ready = Some(ready.clone());
                let told = entry.clone();
                let written = self.on_disk(move |journal| journal.write(&told)).await;
                if let Err(error) = written {
                    let _ = self.remove_locked(&entry).await;
                    return Err(error);
                }
                Ok(self.hand_out(&entry, &ready, machine, shown, alive, true))
            }
            Err(error) => {
                // What cannot be removed now stays written down for the next sweep.
                let _ = self.remove_locked(&entry).await;
                Err(error)
            }
        }
    }
}

#[async_trait]
impl<P: Provider> Backend for Rented<P> {
    fn name(&self) -> BackendName {
        self.inner.name
    }

    async fn detect(&self) -> Detection {
        self.inner.detect().await
    }

    async fn forget_detection(&self) {
        if let Ok(provider) = &self.inner.provider {
            let (path, _) = self.inner.remembered(provider);
            let _ = blocking::short(move || std::fs::remove_file(path)).await;
        }
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let (inner, spec) = (Arc::clone(&self.inner), spec.clone());
        let (sender, receiver) = oneshot::channel();
        // Carried to its end even if the caller goes away, so that what is made is either handed out or removed.
        tokio::spawn(async move {
            let opened = inner.open(&spec).await;
            if let Err(Ok(unwanted)) = sender.send(opened)
                && unwanted.is_new()
            {
                let _ = unwanted.close().await;
            }
        });
        receiver
            .await
            .unwrap_or_else(|_| Err(failure::unavailable(&Failure::Broken("it broke off".to_owned()))))
    }

    async fn check(&self, spec: &SandboxSpec) -> Result<()> {
        self.inner.judge(spec)?;
        self.inner.shown(&spec.id(), Some(spec)).await.map(drop)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        self.inner.adopt(&spec.id(), Some(spec)).await
    }

    fn revives(&self) -> bool {
        self.inner.provider.as_ref().is_ok_and(Provider::stops)
    }

    async fn is_stopped(&self, id: &SandboxId) -> Result<bool> {
        self.inner.is_stopped(id).await
    }

    async fn revive(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        self.inner.revive(spec).await
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        self.inner.adopt(id, None).await
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        self.inner.list().await
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        self.inner.remove(id).await
    }

    async fn discard(&self, name: &str) -> Result<()> {
        self.inner.discard(name).await
    }
}

/// Ends a machine. One that was opened to end with its opener ends when this is dropped, too.
struct RentedCloser<P: Provider> {
    inner: Arc<Inner<P>>,
    id: SandboxId,
    alive: Mutex<Option<Lock>>,
    closed: AtomicBool,
}

#[async_trait]
impl<P: Provider> Closer for RentedCloser<P> {
    async fn close(&self) -> Result<()> {
        self.inner.remove(&self.id).await?;
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl<P: Provider> Drop for RentedCloser<P> {
    fn drop(&mut self) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).take();
        if alive.is_none() || self.closed.load(Ordering::SeqCst) {
            return;
        }
        let (inner, id) = (Arc::clone(&self.inner), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _alive = alive;
                if let Err(error) = inner.remove(&id).await {
                    let provider = inner.title();
                    tracing::warn!(%error, provider, "a sandbox could not be removed; the next start tries again");
                }
            });
        }
    }
}
