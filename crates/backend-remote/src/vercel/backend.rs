//! Sandboxes at Vercel: made, found again, and removed, with a journal of all of them.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use bytes::Bytes;
use moltis_agent::Closer;
use moltis_agent_protocol::tar::{BLOCK, Entry as TarEntry, Kind, padding};
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, BackendName, Detection, Diagnosis, Error, Guarantees, Lifetime, Network, Promise, Result,
    Sandbox, SandboxId, SandboxRecord, SandboxSpec, Usable, blocking,
};
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, oneshot};

use super::client::Vercel;
use super::wire::{Command, Create, Created, Policy, Resources, Session, Source};
use crate::http::{Client, Failure};
use crate::journal::{Entry, Journal, Lock, Ready, now_millis};
use crate::machine::{Machine, Output, Run};
use crate::sandbox::{Remote, RemoteSandbox};
use crate::{failure, random};

/// How long a good answer to the question whether the token is good is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How long a machine may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Time of a machine that is taken for over before it is, since two clocks never agree.
const SLACK: Duration = Duration::from_secs(15);
/// How often a machine is looked for that may still be on its way.
const LOOKS: u32 = 4;

/// What the backend is set up with.
#[derive(Clone, Debug)]
pub struct VercelConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Where the API answers.
    pub api_url: String,
    /// Access token, or an OIDC token, which names team and project itself.
    pub token: Option<Secret>,
    /// Project that machines belong to.
    pub project: Option<String>,
    /// Team that the project belongs to.
    pub team: Option<String>,
    /// What is installed.
    pub runtime: String,
    /// Life of a machine without use.
    pub timeout: Duration,
    /// Processors.
    pub vcpus: u32,
    /// Snapshot that machines start from, instead of a runtime.
    pub snapshot: Option<String>,
}

/// Vercel Sandbox.
pub struct VercelBackend {
    inner: Arc<Inner>,
}

struct Inner {
    config: VercelConfig,
    vercel: Option<Arc<Vercel>>,
    journal: Journal,
    /// Whether what earlier processes left has been looked for.
    swept: OnceCell<()>,
}

impl VercelBackend {
    /// For this configuration. Nothing is asked before it is used.
    pub fn new(config: VercelConfig) -> Self {
        let claims = config.token.as_ref().map(|token| Claims::of(token.expose())).unwrap_or_default();
        let project = config.project.clone().or(claims.project);
        let team = config.team.clone().or(claims.team);
        let vercel = match (&config.token, project) {
            (Some(token), Some(project)) => {
                let client = Client::new(&config.api_url, token.clone(), Vec::new());
                Some(Arc::new(Vercel::new(client, project, team)))
            }
            _ => None,
        };
        let journal = Journal::new(&config.data_dir, BackendName::Vercel.as_str());
        Self { inner: Arc::new(Inner { config, vercel, journal, swept: OnceCell::new() }) }
    }
}

/// What an OIDC token says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claims {
    project: Option<String>,
    team: Option<String>,
}

impl Claims {
    fn of(token: &str) -> Self {
        let parts: Vec<&str> = token.split('.').collect();
        let [_, claims, _] = parts[..] else { return Self::default() };
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims.trim_end_matches('='));
        let claims: serde_json::Value =
            claims.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let word = |name: &str| claims.get(name).and_then(|word| word.as_str()).map(str::to_owned);
        Self { project: word("project_id"), team: word("owner_id") }
    }
}

impl Inner {
    /// The provider, if there is what it takes to speak to it.
    fn vercel(&self) -> Result<&Arc<Vercel>> {
        self.vercel.as_ref().ok_or_else(|| Error::Unavailable(self.unconfigured()))
    }

    fn unconfigured(&self) -> Diagnosis {
        let mut missing = Vec::new();
        let mut fixes = Vec::new();
        if self.config.token.is_none() {
            missing.push("no token (`vercel_token`, VERCEL_TOKEN or VERCEL_OIDC_TOKEN)");
            fixes.push("make a token at https://vercel.com/account/tokens and set VERCEL_TOKEN");
        }
        if self.config.project.is_none() {
            missing.push("no project id (`vercel_project_id` or VERCEL_PROJECT_ID)");
            fixes.push(
                "copy the id from the project's Settings → General → Project ID and set VERCEL_PROJECT_ID",
            );
        }
        Diagnosis::new("vercel-not-configured", format!("there is {}", missing.join(" and ")))
            .fix(fixes.join("; "))
    }

    fn guarantees(&self) -> Guarantees {
        let not = |why: &str| Promise::not_enforced(why);
        let size = |what: &str| {
            let vcpus = self.config.vcpus;
            not(&format!(
                "{what} is that of the machine: {vcpus} processors with 2 GiB each (`vercel_vcpus`)"
            ))
        };
        let container = || not("it is a matter of containers and of this machine");
        Guarantees {
            filesystem: Promise::Held,
            kernel: Promise::Held,
            environment: Promise::Held,
            network_blocked: Promise::Held,
            network_trusted: not("its list of domains is not passed on to the provider yet"),
            network_open: Promise::Held,
            memory: size("memory"),
            cpus: size("processor time"),
            pids: not("the provider has no such limit"),
            terminal: not(crate::sandbox::NO_TERMINAL),
            background: not(crate::sandbox::NO_BACKGROUND),
            forward: not(crate::sandbox::NO_FORWARD),
            workspace: not("no folder of this machine is carried to the provider yet"),
            home: not("the home is the machine's and ends with it"),
            managed_files: not("no folder of this machine is carried to the provider yet"),
            adopt: Promise::Held,
            images: not("it starts from `vercel_runtime` or `vercel_snapshot_id`, and nothing is installed"),
            rootfs: container(),
            runtime: container(),
            gpus: container(),
            host_podman: container(),
            nested_podman: container(),
        }
    }

    /// Whether the token was good a moment ago; a word for what was asked with, of which it is no part.
    fn remembered(&self, vercel: &Vercel) -> (PathBuf, String) {
        let mut hash = Sha256::new();
        for part in [
            self.config.api_url.as_str(),
            vercel.project(),
            self.config.token.as_ref().map_or("", Secret::expose),
        ] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let path = self.config.data_dir.join("remote/vercel/detected");
        (path, random::hex(&hash.finalize()[..16]))
    }

    async fn detect(&self) -> Detection {
        let Some(vercel) = &self.vercel else { return Detection::Unusable(self.unconfigured()) };
        let (path, word) = self.remembered(vercel);
        let asked = (path.clone(), word.clone());
        let fresh = blocking::short(move || is_fresh(&asked.0, &asked.1)).await.unwrap_or(false);
        if !fresh {
            if let Err(failure) = vercel.try_out().await {
                let Error::Unavailable(why) = failure::unavailable(&failure) else {
                    return Detection::Failing(self.unconfigured());
                };
                return Detection::Failing(why);
            }
            let _ = blocking::short(move || remember(&path, &word)).await;
        }
        Detection::Usable(Box::new(Usable {
            version: "API v2".to_owned(),
            guarantees: self.guarantees(),
            left_off: Vec::new(),
            notes: vec![format!(
                "commands and the files that are given to them go to {}, where they cost money; a machine that is not \
                 used ends by itself after {} s (`vercel_timeout_ms`)",
                vercel.client().authority(),
                self.config.timeout.as_secs()
            )],
        }))
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
        let forget = move |journal: &Journal| {
            journal.forget(&id);
            Ok(())
        };
        self.on_disk(forget).await
    }

    /// Removes what processes left that are no more: once in a process, before it makes anything.
    async fn sweep(self: &Arc<Self>) {
        let swept = self.swept.get_or_init(|| async {
            if let Err(error) = self.sweep_now().await {
                tracing::warn!(%error, "what earlier processes left at Vercel cannot be looked for");
            }
        });
        swept.await;
    }

    async fn sweep_now(&self) -> Result<()> {
        let vercel = self.vercel()?;
        for entry in self.on_disk(|journal| journal.all()).await? {
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
            if self.end(vercel, &entry).await.is_ok() {
                let id = entry.id.clone();
                self.forget(id).await?;
            }
        }
        // What is not written down, such as a machine whose making nobody waited for. Names first: what is written down
        // after this is made after this.
        let instance = self.on_disk(|journal| journal.instance()).await?;
        let names = vercel
            .tagged(&format!("moltis:{instance}"))
            .await
            .map_err(|error| failure::unavailable(&error))?;
        let known: HashSet<String> =
            self.on_disk(|journal| journal.all()).await?.into_iter().map(|entry| entry.name).collect();
        for name in names.iter().filter(|name| !known.contains(*name)) {
            tracing::info!(%name, "a sandbox at Vercel that nobody knows of is removed");
            if let Err(error) = vercel.delete(name).await {
                tracing::warn!(%name, %error, "it could not be removed");
            }
        }
        Ok(())
    }

    /// Whether it is of the account that is set up.
    fn is_ours(&self, entry: &Entry) -> bool {
        let project = self.vercel.as_ref().map(|vercel| vercel.project());
        entry.api == self.config.api_url && Some(entry.project.as_str()) == project
    }

    /// Ends a machine and removes it at the provider. One that is gone is no error.
    async fn end(&self, vercel: &Vercel, entry: &Entry) -> Result<(), Failure> {
        let is_gone = |failure: &Failure| matches!(failure.status(), Some(404 | 410));
        if let Some(ready) = &entry.ready {
            match vercel.stop(&ready.machine).await {
                Err(failure) if !is_gone(&failure) && !matches!(failure.status(), Some(400 | 409 | 422)) => {
                    return Err(failure);
                }
                _ => {}
            }
        }
        let mut looks = 0;
        loop {
            looks += 1;
            match vercel.delete(&entry.name).await {
                // One that was being made when its maker died may appear a moment later.
                Err(failure) if is_gone(&failure) && entry.ready.is_none() && looks < LOOKS => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                Err(failure) if is_gone(&failure) => return Ok(()),
                Err(failure) if failure.status() == Some(409) && looks < 20 => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                done => return done,
            }
        }
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        let wanted = id.clone();
        if self.on_disk(move |journal| journal.read(&wanted)).await?.is_none() {
            return Ok(());
        }
        let wanted = id.clone();
        let (_lock, entry) =
            self.on_disk(move |journal| Ok((journal.lock(&wanted)?, journal.read(&wanted)?))).await?;
        let Some(entry) = entry else { return Ok(()) };
        self.remove_locked(&entry).await
    }

    async fn remove_locked(&self, entry: &Entry) -> Result<()> {
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
        self.end(self.vercel()?, entry).await.map_err(|error| failure::unavailable(&error))?;
        let id = entry.id.clone();
        self.forget(id).await
    }

    /// The run of a machine that is written down, if it is one that can be used.
    async fn running(&self, entry: &Entry) -> Result<Option<(Ready, Session)>> {
        let Some(ready) = entry.ready.clone().filter(|_| self.is_ours(entry)) else { return Ok(None) };
        match self.vercel()?.session(&ready.machine).await {
            Ok(session) if session.status == "running" => Ok(Some((ready, session))),
            Ok(_) => Ok(None),
            Err(failure) if matches!(failure.status(), Some(404 | 410)) => Ok(None),
            Err(failure) => Err(failure::unavailable(&failure)),
        }
    }

    async fn adopt(
        self: &Arc<Self>,
        id: &SandboxId,
        fingerprint: Option<&str>,
    ) -> Result<Option<Arc<dyn Sandbox>>> {
        let wanted = id.clone();
        let Some(entry) = self.on_disk(move |journal| journal.read(&wanted)).await? else { return Ok(None) };
        if fingerprint.is_some_and(|wanted| wanted != entry.fingerprint) {
            return Ok(None);
        }
        let Some((ready, session)) = self.running(&entry).await? else { return Ok(None) };
        let machine = self.machine(&session)?;
        Ok(Some(self.hand_out(&entry, &ready, machine, None, false)))
    }

    fn machine(&self, session: &Session) -> Result<Arc<VercelMachine>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_millis(session.ends_at()).saturating_sub(now).saturating_sub(SLACK);
        let left = left.min(Duration::from_millis(session.timeout));
        Ok(Arc::new(VercelMachine {
            vercel: Arc::clone(self.vercel()?),
            session: session.id.clone(),
            ends: tokio::sync::Mutex::new(Instant::now() + left),
        }))
    }

    fn hand_out(
        self: &Arc<Self>,
        entry: &Entry,
        ready: &Ready,
        machine: Arc<VercelMachine>,
        alive: Option<Lock>,
        is_new: bool,
    ) -> Arc<dyn Sandbox> {
        let remote = Remote::new(machine, &ready.directory, &ready.told, entry.created_millis);
        let closer = VercelCloser {
            inner: Arc::clone(self),
            id: entry.id.clone(),
            alive: Mutex::new(alive),
            closed: AtomicBool::new(false),
        };
        Arc::new(RemoteSandbox::new(entry.id.clone(), is_new, Arc::new(remote), Arc::new(closer)))
    }

    async fn open(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let policy = match spec.network.value {
            Network::Blocked => Policy::DenyAll,
            Network::Open => Policy::AllowAll,
            Network::Trusted => {
                return Err(failure::declared("network", "its list is not passed on to the provider"));
            }
        };
        let vercel = Arc::clone(self.vercel()?);
        self.sweep().await;
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        let wanted = id.clone();
        let (_lock, known) =
            self.on_disk(move |journal| Ok((journal.lock(&wanted)?, journal.read(&wanted)?))).await?;
        if let Some(known) = known {
            if known.fingerprint == fingerprint
                && let Some((ready, session)) = self.running(&known).await?
            {
                let machine = self.machine(&session)?;
                return Ok(self.hand_out(&known, &ready, machine, None, false));
            }
            self.remove_locked(&known).await?;
        }
        let ephemeral = spec.lifetime == Lifetime::Ephemeral;
        let mut entry = Entry {
            name: format!("moltis-{}-{}", &id.as_str()[..12], random::hex(&random::bytes::<8>()?)),
            id,
            api: self.config.api_url.clone(),
            project: vercel.project().to_owned(),
            fingerprint,
            ephemeral,
            created_millis: now_millis(),
            ready: None,
        };
        let first = entry.clone();
        // The lock's file may have gone with the old entry: what is written down now is known by a lock of its own.
        let (alive, instance) = self
            .on_disk(move |journal| {
                let alive = if first.ephemeral { journal.alive(&first.id)? } else { None };
                journal.write(&first)?;
                Ok((alive, journal.instance()?))
            })
            .await?;
        match self.make(&vercel, &entry, policy, instance).await {
            Ok((machine, ready)) => {
                entry.ready = Some(ready.clone());
                let told = entry.clone();
                let written = self.on_disk(move |journal| journal.write(&told)).await;
                if let Err(error) = written {
                    let _ = self.remove_locked(&entry).await;
                    return Err(error);
                }
                Ok(self.hand_out(&entry, &ready, machine, alive, true))
            }
            Err(error) => {
                // What cannot be removed now stays written down for the next sweep.
                let _ = self.remove_locked(&entry).await;
                Err(error)
            }
        }
    }

    /// Makes a machine and looks at it.
    async fn make(
        &self,
        vercel: &Arc<Vercel>,
        entry: &Entry,
        policy: Policy,
        instance: String,
    ) -> Result<(Arc<VercelMachine>, Ready)> {
        let config = &self.config;
        let tags = [
            ("moltis", instance),
            ("moltis-id", entry.id.to_string()),
            ("moltis-spec", entry.fingerprint.chars().take(32).collect()),
        ];
        let create = Create {
            project_id: vercel.project(),
            ports: [],
            timeout: u64::try_from(config.timeout.as_millis()).unwrap_or(u64::MAX),
            resources: Resources { vcpus: config.vcpus },
            runtime: config.snapshot.is_none().then_some(config.runtime.as_str()),
            source: config.snapshot.as_deref().map(|snapshot_id| Source::Snapshot { snapshot_id }),
            name: &entry.name,
            persistent: false,
            network_policy: policy,
            env: BTreeMap::new(),
            tags: BTreeMap::from(tags),
        };
        let created = create_once(vercel, &create).await.map_err(|failure| self.refused(&failure))?;
        let Created { sandbox, mut session } = created;
        let end = Instant::now() + STARTS_WITHIN;
        while session.status == "pending" && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(500)).await;
            session = vercel.session(&session.id).await.map_err(|failure| failure::unavailable(&failure))?;
        }
        if session.status != "running" {
            let status = failure::plain(session.status.as_bytes());
            return Err(failure::unavailable(&Failure::Unlike(format!(
                "the new sandbox is {status}, not running"
            ))));
        }
        if session.network_policy != Some(policy) || sandbox.persistent || sandbox.name != entry.name {
            return Err(Error::Unavailable(
                Diagnosis::new("provider-other-terms", "Vercel made another sandbox than it was asked for")
                    .cause("its network policy, its name or its persistence is not what was asked for; it was removed")
                    .fix("look at the project's settings, or use another backend"),
            ));
        }
        let machine = self.machine(&session)?;
        // It has just been made: its time is all there, whatever the clocks say.
        *machine.ends.lock().await = Instant::now() + config.timeout.saturating_sub(SLACK);
        let told = Remote::look(&*machine).await?;
        Ok((machine, Ready { machine: session.id, directory: session.cwd, told }))
    }

    /// Why no machine was made.
    fn refused(&self, failure: &Failure) -> Error {
        if let Failure::Answer { status: 410 | 404, .. } = failure
            && let Some(snapshot) = &self.config.snapshot
        {
            return Error::Unavailable(
                Diagnosis::new(
                    "vercel-snapshot-gone",
                    format!("there is no snapshot `{snapshot}` at Vercel"),
                )
                .cause(failure)
                .fix("it may have expired: remove `vercel_snapshot_id`, or name another one"),
            );
        }
        failure::unavailable(failure)
    }
}

/// Makes a machine, once, whatever becomes of the answer: its name tells whether there is one.
async fn create_once(vercel: &Vercel, create: &Create<'_>) -> Result<Created, Failure> {
    let mut tries = 0u32;
    loop {
        tries += 1;
        let failure = match vercel.create(create).await {
            Ok(created) => return Ok(created),
            Err(failure @ (Failure::Broken(_) | Failure::Answer { status: 409 | 500..=599, .. })) => failure,
            Err(failure) => return Err(failure),
        };
        match vercel.named(create.name).await {
            Ok(created) => return Ok(created),
            Err(missing) if missing.status() == Some(404) && tries < 3 && failure.status() != Some(409) => {
                tokio::time::sleep(Duration::from_millis(400 * u64::from(tries))).await;
            }
            Err(_) => return Err(failure),
        }
    }
}

fn is_fresh(path: &Path, word: &str) -> bool {
    let age =
        std::fs::metadata(path).and_then(|about| about.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age < REMEMBERED) && std::fs::read_to_string(path).is_ok_and(|there| there == word)
}

fn remember(path: &Path, word: &str) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(word.as_bytes())
}

#[async_trait]
impl Backend for VercelBackend {
    fn name(&self) -> BackendName {
        BackendName::Vercel
    }

    async fn detect(&self) -> Detection {
        self.inner.detect().await
    }

    async fn forget_detection(&self) {
        if let Some(vercel) = &self.inner.vercel {
            let (path, _) = self.inner.remembered(vercel);
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

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        self.inner.adopt(&spec.id(), Some(&spec.fingerprint())).await
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        self.inner.adopt(id, None).await
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        let mut records = Vec::new();
        for entry in self.inner.on_disk(|journal| journal.all()).await? {
            // One that cannot be asked after may run.
            let running =
                self.inner.vercel.is_none() || !matches!(self.inner.running(&entry).await, Ok(None));
            let Entry { id, fingerprint, created_millis, .. } = entry;
            let created_secs = created_millis / 1000;
            records.push(SandboxRecord { id, fingerprint, running, created_secs });
        }
        Ok(records)
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        self.inner.remove(id).await
    }
}

/// Ends a machine. One that was opened to end with its opener ends when this is dropped, too.
struct VercelCloser {
    inner: Arc<Inner>,
    id: SandboxId,
    alive: Mutex<Option<Lock>>,
    closed: AtomicBool,
}

#[async_trait]
impl Closer for VercelCloser {
    async fn close(&self) -> Result<()> {
        self.inner.remove(&self.id).await?;
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl Drop for VercelCloser {
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
                    tracing::warn!(%error, "a sandbox at Vercel could not be removed; the next start tries again");
                }
            });
        }
    }
}

/// One run of a machine.
struct VercelMachine {
    vercel: Arc<Vercel>,
    session: String,
    /// When the provider ends it.
    ends: tokio::sync::Mutex<Instant>,
}

#[async_trait]
impl Machine for VercelMachine {
    async fn run(&self, run: Run) -> Result<Box<dyn Output>, Failure> {
        let Some((program, args)) = run.argv.split_first() else {
            return Err(Failure::Unlike("nothing is to be run".to_owned()));
        };
        let command = Command {
            command: program,
            args,
            env: run.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            sudo: false,
            wait: true,
            logs: true,
            timeout: u64::try_from(run.within.as_millis()).unwrap_or(u64::MAX),
        };
        Ok(Box::new(self.vercel.command(&self.session, &command).await?))
    }

    async fn put(&self, files: Vec<(String, Bytes)>) -> Result<(), Failure> {
        let archive = archive(&files).map_err(|error| Failure::Unlike(error.to_string()))?;
        self.vercel.write(&self.session, archive).await
    }

    async fn lives(&self) -> Result<bool, Failure> {
        match self.vercel.session(&self.session).await {
            Ok(session) => Ok(matches!(session.status.as_str(), "pending" | "running")),
            Err(failure) if matches!(failure.status(), Some(404 | 410)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn keep(&self, time: Duration) -> Result<(), Failure> {
        let mut ends = self.ends.lock().await;
        let left = ends.saturating_duration_since(Instant::now());
        if left >= time {
            return Ok(());
        }
        let more = time - left + Duration::from_secs(60);
        let millis = u64::try_from(more.as_millis()).unwrap_or(u64::MAX).max(1000);
        match self.vercel.extend(&self.session, millis).await {
            Ok(_) => {
                *ends = (*ends).max(Instant::now()) + more;
                Ok(())
            }
            // The plan gives no more: what there is is used up.
            Err(Failure::Answer { status: 400 | 402 | 403, .. }) if left > Duration::ZERO => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// Files as the provider takes them: names below the root, regular files alone.
fn archive(files: &[(String, Bytes)]) -> std::io::Result<Bytes> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mtime = i64::try_from(now_millis() / 1000).unwrap_or_default();
    for (path, content) in files {
        let name = path.trim_start_matches('/').as_bytes();
        let size = content.len() as u64;
        let entry =
            TarEntry { kind: Kind::File, name, target: b"", mode: 0o600, uid: 0, gid: 0, size, mtime };
        let mut head = Vec::new();
        entry.write(&mut head);
        gzip.write_all(&head)?;
        gzip.write_all(content)?;
        gzip.write_all(&[0; BLOCK][..padding(size)])?;
    }
    gzip.write_all(&[0; 2 * BLOCK])?;
    gzip.finish().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oidc_token_names_team_and_project() {
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(r#"{"owner_id":"team_1","project_id":"prj_1"}"#);
        let told = Claims { project: Some("prj_1".into()), team: Some("team_1".into()) };
        assert_eq!(Claims::of(&format!("h.{claims}.s")), told);
        assert_eq!(Claims::of("plain"), Claims::default());
        assert_eq!(Claims::of("a.b.c"), Claims::default());
    }

    #[test]
    fn status_names_what_is_missing_and_where_to_get_it() {
        let config = VercelConfig {
            data_dir: "/nowhere".into(),
            api_url: "https://x".into(),
            token: Some(Secret::new("t")),
            project: None,
            team: None,
            runtime: "node24".into(),
            timeout: Duration::from_secs(300),
            vcpus: 2,
            snapshot: None,
        };
        let backend = VercelBackend::new(config);
        let why = backend.inner.unconfigured();
        assert_eq!(why.message, "there is no project id (`vercel_project_id` or VERCEL_PROJECT_ID)");
        assert!(why.fix.unwrap().contains("Project ID"));
    }
}
