//! The backend: opens, finds, lists and ends the sandboxes of one data directory in one engine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::presence::{Presence, presence};
use moltis_host::blocking::{long, short, whole};
use moltis_host::caller::{self, Caller};
use moltis_host::record::{self, Whereabouts};
use moltis_sandbox::{
    Backend, BackendName, Detection, Diagnosis, Error, Images, Legacy, Lifetime, Result, Sandbox, SandboxId,
    SandboxRecord, SandboxSpec, SnapshotId, SnapshotKind,
};

use crate::agentless::Guests;
use crate::connected::Connected;
use crate::engine::{Engine, EngineError, EngineInfo, EngineKind, Environment};
use crate::image::{self, ImageStore, Work};
use crate::images::EngineImages;
use crate::memory::Memory;
use crate::record::{Record, layout_of};
use crate::served::{Link, Served};
use crate::{guarantees, hatches, labels, legacy, opening};

/// The folder of one engine's sandboxes.
pub(crate) type RunDir = record::RunDir<Record>;
/// A sandbox's folder, locked.
pub(crate) type Folder = record::Folder<Record>;

/// How long another process that asks the engine what it is, is waited for.
const ASKED_WITHIN: Duration = Duration::from_secs(25);

/// Which engine, and where the backend keeps what it knows.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which engine.
    pub kind: EngineKind,
    /// The data directory. Made, 0700, if it is missing.
    pub data_dir: PathBuf,
    /// The configuration directory, which no sandbox may see.
    pub config_dir: Option<PathBuf>,
    /// The folder of the engine's host that holds the data directory (`host_data_dir`).
    pub host_data_dir: Option<PathBuf>,
    /// First part of the names of containers and images.
    pub prefix: String,
    /// What says where the engine is.
    pub environment: Environment,
}

/// Docker, Podman or Apple Container.
#[derive(Clone)]
pub struct ContainerBackend {
    state: Arc<State>,
    images: Arc<EngineImages>,
}

/// What all handles of one backend share.
pub(crate) struct State {
    pub(crate) config: Config,
    connected: tokio::sync::Mutex<Held>,
    /// Images that are being built, whatever becomes of the connection.
    building: Work,
    memory: Memory,
    caller: OnceLock<Caller>,
    guests: Guests,
    pub(crate) swept: Mutex<Option<Instant>>,
}

/// What came of the last time that the engine was looked for.
#[derive(Default)]
struct Held {
    found: Option<Arc<Connected>>,
    failed: Option<(Instant, Error)>,
}

impl ContainerBackend {
    /// A backend on this engine and data directory. Nothing is touched yet.
    pub fn new(config: Config) -> Self {
        Self::with_guests(config, Guests::of_program())
    }

    /// The same with these agents instead of the program's own.
    pub fn with_guests(config: Config, guests: Guests) -> Self {
        let memory = Memory::new(&config.data_dir, config.kind);
        let state = Arc::new(State {
            config,
            connected: tokio::sync::Mutex::new(Held::default()),
            building: Work::default(),
            memory,
            caller: OnceLock::new(),
            guests,
            swept: Mutex::new(None),
        });
        Self { images: Arc::new(EngineImages(Arc::clone(&state))), state }
    }
}

impl State {
    /// The engine, which answered within the last minute.
    ///
    /// # Errors
    /// Those of finding it and of asking it.
    pub(crate) async fn connected(&self) -> Result<Arc<Connected>> {
        let asked = Instant::now();
        let mut held = self.connected.lock().await;
        if let Some(connected) = held.found.as_ref().filter(|connected| connected.is_fresh()) {
            return Ok(Arc::clone(connected));
        }
        // Whoever waited while somebody else asked in vain has the answer: a hung engine is not asked in turn.
        if let Some((_, error)) = held.failed.as_ref().filter(|(at, _)| *at > asked) {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(connected) => {
                held.found = Some(Arc::clone(&connected));
                Ok(connected)
            }
            Err(error) => {
                *held = Held { found: None, failed: Some((Instant::now(), error.clone())) };
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Connected>> {
        let engine = crate::engine::connect(self.config.kind, &self.config.environment).await?;
        let endpoint = engine.endpoint();
        let (recalled, alone) = self.recall(&endpoint).await;
        let info = match recalled {
            Some(info) => info,
            None => {
                let info = engine.info().await?;
                let (memory, known) = (self.memory.clone(), info.clone());
                let _ = moltis_sandbox::blocking::short(move || memory.remember(&endpoint, &known)).await;
                info
            }
        };
        drop(alone);
        let named = self.config.host_data_dir.as_deref();
        Ok(Arc::new(self.place(engine, info, named).await?))
    }

    /// What the engine said within the last minute; else, for a while at most, the right to ask it alone: many processes
    /// that begin at once ask it once.
    async fn recall(&self, endpoint: &str) -> (Option<EngineInfo>, Option<std::fs::File>) {
        let deadline = Instant::now() + ASKED_WITHIN;
        loop {
            let (memory, at) = (self.memory.clone(), endpoint.to_owned());
            let look = move || match memory.recall(&at) {
                Some(info) => (Some(info), Ok(None)),
                // Whoever had it may have found out.
                None => {
                    let alone = memory.try_alone();
                    (if matches!(alone, Ok(Some(_))) { memory.recall(&at) } else { None }, alone)
                }
            };
            match moltis_sandbox::blocking::short(look).await {
                Ok((None, Ok(None))) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok((info, alone)) => return (info, alone.ok().flatten()),
                Err(_) => return (None, None),
            }
        }
    }

    async fn place(
        &self,
        engine: Arc<dyn Engine>,
        info: EngineInfo,
        named: Option<&Path>,
    ) -> Result<Connected> {
        let (wanted, prefix) = (self.config.data_dir.clone(), self.config.prefix.clone());
        let place = short(move || known_place(&wanted, prefix)).await?;
        let data_dir = place.data_dir.clone();
        let images = ImageStore::new(Arc::clone(&engine), place, self.building.clone()).with_arch(&info.arch);
        let images = match self.config.kind {
            EngineKind::Apple => images.with_builders(self.builders().await),
            EngineKind::Docker | EngineKind::Podman => images,
        };
        Connected::new(engine, info, &data_dir, named, images, &self.guests).await
    }

    /// Engines that build for one that builds worse: those that are there.
    async fn builders(&self) -> Vec<Arc<dyn Engine>> {
        let mut found = Vec::new();
        for kind in [EngineKind::Podman, EngineKind::Docker] {
            if let Ok(engine) = crate::engine::connect(kind, &self.config.environment).await
                && engine.info().await.is_ok()
            {
                found.push(engine);
            }
        }
        found
    }

    /// Forgets what is known of the engine if this error says that something is wrong with it.
    pub(crate) async fn failed(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        if matches!(error, Error::Unavailable(_)) {
            self.forget().await;
        }
        error
    }

    async fn forget(&self) {
        self.connected.lock().await.found = None;
        let memory = self.memory.clone();
        let _ = moltis_sandbox::blocking::short(move || memory.forget()).await;
    }

    /// Gives what is written down of a sandbox to another session.
    async fn assign(self: &Arc<Self>, from: &SandboxId, to: &SandboxSpec) -> Result<Record> {
        let run = self.run().ok_or_else(gone)?;
        let mut pooled = run.lock_existing(from).await?.ok_or_else(gone)?;
        pooled.keep(true);
        let folder = run.lock(&to.id()).await?;
        let fingerprint = to.fingerprint();
        let hand_over = move || {
            let mut record = pooled.record().ok_or_else(gone)?;
            if folder.record().is_some() {
                return Err(gone());
            }
            run.hand_over(&mut pooled, folder)?;
            record.fingerprint = fingerprint;
            pooled.rewrite(&record)?;
            Ok(record)
        };
        long(hand_over).await
    }

    pub(crate) fn caller(&self) -> &Caller {
        self.caller.get_or_init(Caller::now)
    }

    /// The folder of our sandboxes, if it is there.
    pub(crate) fn run(&self) -> Option<RunDir> {
        RunDir::find(&self.config.data_dir, layout_of(self.config.kind))
    }

    pub(crate) fn time_zone(&self) -> Option<OsString> {
        caller::time_zone()
    }

    /// Variables of the backend's own for commands.
    pub(crate) fn variables(&self, spec: Option<&SandboxSpec>) -> Vec<(&'static str, &'static str)> {
        match spec {
            Some(spec) if spec.host_podman.value => hatches::VARIABLES.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Asks a sandbox that is written down whether it is there, and tells it how long it may be idle if a spec says so.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        id: &SandboxId,
        record: Record,
        spec: Option<&SandboxSpec>,
    ) -> Result<(Presence, Option<Served>)> {
        let Some(reached) = self.reach(id, record).await? else { return Ok((Presence::Over, None)) };
        let idle = match spec.map(|spec| spec.lifetime) {
            Some(Lifetime::Idle(idle)) => Some(opening::millis(idle)),
            Some(Lifetime::Ephemeral) | None => None,
        };
        let found = match &reached.link {
            Ok(Link::Engine(agentless)) => match agentless.greet(spec.is_some()).await {
                Ok(()) => Presence::Answers,
                Err(_) if reached.ends_within(Duration::ZERO).await => Presence::Over,
                Err(error) => Presence::Silent(error),
            },
            Ok(Link::Agent(transport)) => {
                presence(&**transport, reached.pid(), idle, |patience| reached.ends_within(patience)).await
            }
            Err(error) => {
                moltis_agent::presence::absence(reached.pid(), error, |patience| {
                    reached.ends_within(patience)
                })
                .await
            }
        };
        let found = self.explain(id, found, &reached).await;
        Ok((found, reached.served()))
    }
}

#[async_trait]
impl Backend for ContainerBackend {
    fn name(&self) -> BackendName {
        match self.state.config.kind {
            EngineKind::Docker => BackendName::Docker,
            EngineKind::Podman => BackendName::Podman,
            EngineKind::Apple => BackendName::AppleContainer,
        }
    }

    async fn detect(&self) -> Detection {
        let kind = self.state.config.kind;
        match self.state.connected().await {
            Ok(connected) => {
                let usable = guarantees::usable(kind, &connected);
                Detection::Usable(Box::new(usable))
            }
            // It is here, and does not answer: that passes, or is mended where it lies.
            Err(error) if error.is_engine_failure() || error.code() == "engine-slow" => {
                Detection::Failing(error.diagnosis().clone())
            }
            Err(error) => Detection::Unusable(error.diagnosis().clone()),
        }
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let (state, owned) = (Arc::clone(&self.state), spec.clone());
        // Carried on to its end whatever becomes of the caller: what it made is removed then.
        let opened = whole(async move { state.open(&owned).await }).await;
        match opened {
            Ok(opened) => Ok(opened.claim(&self.state, spec)),
            Err(error) => Err(self.state.failed(error).await),
        }
    }

    async fn check(&self, spec: &SandboxSpec) -> Result<()> {
        let connected = self.state.connected().await?;
        let (state, spec) = (Arc::clone(&self.state), spec.clone());
        short(move || state.check(&spec, &connected)).await
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let id = spec.id();
        let (state, wanted) = (Arc::clone(&self.state), id.clone());
        let look = move || Ok::<_, Error>(state.run().and_then(|run| run.record(&wanted)));
        let Some(record) = short(look).await? else { return Ok(None) };
        if record.fingerprint != spec.fingerprint() {
            return Ok(None);
        }
        match self.state.ask(&id, record, Some(spec)).await? {
            (Presence::Answers, served) => {
                Ok(served.map(|served| served.hand_out(&self.state, id, false, Some(spec))))
            }
            (Presence::Silent(error), _) => Err(error),
            // Another one has to be made in its place.
            (Presence::Over | Presence::Foreign(_), _) => Ok(None),
        }
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let (state, wanted) = (Arc::clone(&self.state), id.clone());
        let look = move || Ok::<_, Error>(state.run().and_then(|run| run.record(&wanted)));
        let Some(record) = short(look).await? else { return Ok(None) };
        match self.state.ask(id, record, None).await? {
            (Presence::Answers, served) => {
                Ok(served.map(|served| served.hand_out(&self.state, id.clone(), false, None)))
            }
            (Presence::Silent(error) | Presence::Foreign(error), _) => Err(error),
            (Presence::Over, _) => Ok(None),
        }
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        self.state.list().await
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        let (state, id) = (Arc::clone(&self.state), id.clone());
        whole(async move { state.remove(&id).await }).await
    }

    async fn forget_detection(&self) {
        self.state.forget().await;
    }

    fn assigns(&self) -> bool {
        true
    }

    async fn assign(&self, pooled: &SandboxSpec, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let (state, from, to) = (Arc::clone(&self.state), pooled.id(), spec.clone());
        let record = whole(async move { state.assign(&from, &to).await }).await?;
        match self.state.ask(&spec.id(), record, Some(spec)).await? {
            (Presence::Answers, Some(served)) => {
                Ok(served.hand_out(&self.state, spec.id(), true, Some(spec)))
            }
            (Presence::Silent(error) | Presence::Foreign(error), _) => Err(error),
            (Presence::Answers | Presence::Over, _) => Err(gone()),
        }
    }

    fn snapshots(&self) -> Option<SnapshotKind> {
        match self.state.config.kind {
            EngineKind::Docker | EngineKind::Podman => Some(SnapshotKind::FileSystem),
            // Its tool cannot keep a container as an image.
            EngineKind::Apple => None,
        }
    }

    async fn commit(&self, spec: &SandboxSpec, snapshot: &SnapshotId) -> Result<Option<String>> {
        let (state, spec, snapshot) = (Arc::clone(&self.state), spec.clone(), snapshot.clone());
        // An engine carries it on to its end, which is waited for by whoever removes it.
        whole(async move { state.commit(&spec, &snapshot).await }).await
    }

    async fn uncommit(&self, snapshot: &SnapshotId) -> Result<()> {
        let (state, snapshot) = (Arc::clone(&self.state), snapshot.clone());
        whole(async move { state.uncommit(&snapshot).await }).await
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(&*self.images)
    }

    async fn legacy(&self) -> Result<Vec<Legacy>> {
        let connected = self.state.connected().await?;
        legacy::list(&*connected.engine).await
    }

    async fn discard_legacy(&self, legacy: &Legacy) -> Result<()> {
        let connected = self.state.connected().await?;
        legacy::discard(&*connected.engine, legacy).await
    }
}

/// Removes the container of this name if it is one of this data directory.
///
/// # Errors
/// Those of the engine.
pub(crate) async fn remove_named(connected: &Connected, name: &str) -> Result<(), EngineError> {
    let Some(found) = connected.engine.inspect(name).await? else { return Ok(()) };
    if found.labels.get(labels::INSTANCE).map(String::as_str) != Some(connected.images.instance()) {
        return Ok(());
    }
    connected.engine.remove(&found.id).await
}

/// Where our images and sandboxes are at home, as an engine is told of it. The data directory is made if it is missing.
/// Blocks on a few look-ups.
fn known_place(data_dir: &Path, prefix: String) -> Result<image::Place> {
    use std::os::unix::fs::DirBuilderExt;

    let unusable = |cause| Error::from(moltis_host::Error::DataDir { path: data_dir.to_owned(), cause });
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(unusable)?;
    let instance = labels::instance(data_dir).map_err(unusable)?;
    let data_dir = data_dir.canonicalize().map_err(unusable)?;
    Ok(image::Place { data_dir, instance, prefix })
}

fn gone() -> Error {
    Error::Unavailable(Diagnosis::new("sandbox-gone", "the sandbox that was kept ready is gone"))
}

impl State {
    /// Removes a sandbox by what is written down of it and by its labels: it need not answer, nor be of this version.
    async fn remove(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let run = self.run();
        let folder = match &run {
            Some(run) => run.lock_existing(id).await?,
            None => None,
        };
        let record = folder.as_ref().and_then(Folder::record);
        let outcome = self.remove_containers(id, record.as_ref()).await;
        if let Err(error) = outcome {
            // Nothing is written down of it here: it is another backend's, and this engine's trouble is none of its own.
            if folder.is_none() {
                return Ok(());
            }
            let over = folder.as_ref().and_then(Folder::look);
            // Without an engine, what is over is all that can be cleared away.
            if !matches!(over, Some((_, Whereabouts::Over))) || !error.is_engine_failure() {
                if let Some(mut folder) = folder {
                    folder.keep(true);
                }
                return Err(error);
            }
        }
        match folder {
            Some(folder) => long(move || Ok(folder.remove()?)).await,
            None => Ok(()),
        }
    }

    async fn remove_containers(self: &Arc<Self>, id: &SandboxId, record: Option<&Record>) -> Result<()> {
        let connected = match self.connected().await {
            Ok(connected) => connected,
            // There was never an engine, nor anything in one.
            Err(error) if record.is_none() && !error.is_engine_failure() => return Ok(()),
            Err(error) => return Err(error),
        };
        let engine = &connected.engine;
        if let Some(record) = record {
            self.remove_container(&connected, record).await?;
        }
        let labelled = [(labels::INSTANCE, connected.images.instance()), (labels::SESSION, id.as_str())];
        let found = engine.containers(&labelled).await?;
        let written = self.written_but(id).await?;
        // One that was handed over bears the label of what it was made for.
        let ours = found.into_iter().filter(|found| !written.iter().any(|record| record.is(found)));
        for container in ours {
            match engine.remove(&container.id).await {
                Ok(()) | Err(EngineError::NoSuchContainer { .. }) => {}
                Err(error) => return Err(self.failed(error).await),
            }
        }
        Ok(())
    }

    /// Removes the container that this was written down of. Where only its name is, that may be somebody else's by now.
    pub(crate) async fn remove_container(&self, connected: &Connected, record: &Record) -> Result<()> {
        let removed = match &record.container {
            Some(id) => connected.engine.remove(id).await,
            None => remove_named(connected, &record.name).await,
        };
        match removed {
            Ok(()) | Err(EngineError::NoSuchContainer { .. }) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// What is written down of all sandboxes but this one.
    pub(crate) async fn written_but(self: &Arc<Self>, id: &SandboxId) -> Result<Vec<Record>> {
        let (state, but) = (Arc::clone(self), id.clone());
        let written = move || {
            let Some(run) = state.run() else { return Ok::<_, Error>(Vec::new()) };
            Ok(run.ids().into_iter().filter(|id| *id != but).filter_map(|id| run.record(&id)).collect())
        };
        long(written).await
    }

    /// What is written down, and what bears our labels without being written down.
    async fn list(self: &Arc<Self>) -> Result<Vec<SandboxRecord>> {
        let state = Arc::clone(self);
        let written = move || {
            let Some(run) = state.run() else { return Ok::<_, Error>(Vec::new()) };
            let known = run.ids().into_iter().filter_map(|id| {
                let (record, _, whereabouts) = run.look(&id)?;
                Some((id, record, !matches!(whereabouts, Whereabouts::Over)))
            });
            Ok(known.collect())
        };
        let mut listed: Vec<SandboxRecord> = Vec::new();
        let written = long(written).await?;
        let needs_engine = written.iter().any(|(_, record, _)| record.process_unknown());
        let labelled = match self.connected().await {
            Ok(connected) => {
                let ours = [(labels::INSTANCE, connected.images.instance()), (labels::SESSION, "")];
                match connected.engine.containers(&ours).await {
                    Ok(labelled) => Some(labelled),
                    Err(error) if needs_engine => return Err(self.failed(error).await),
                    Err(_) => None,
                }
            }
            Err(error) if needs_engine => return Err(error),
            Err(_) => None,
        };
        for (id, record, running) in &written {
            let running = match (&labelled, record.process_unknown()) {
                (Some(labelled), true) => labelled.iter().any(|found| record.is(found) && found.lives()),
                _ => *running,
            };
            let Record { fingerprint, created_secs, .. } = record.clone();
            listed.push(SandboxRecord { id: id.clone(), fingerprint, running, created_secs, provider: None });
        }
        for container in labelled.into_iter().flatten() {
            let Some(id) = container.labels.get(labels::SESSION).and_then(|id| SandboxId::parse(id)) else {
                continue;
            };
            // One that was handed over bears the label of what it was made for.
            let written = written.iter().any(|(_, record, _)| record.is(&container));
            if written || listed.iter().any(|known| known.id == id) {
                continue;
            }
            let fingerprint = container.labels.get(labels::FINGERPRINT).cloned().unwrap_or_default();
            let running = container.lives();
            listed.push(SandboxRecord {
                id,
                fingerprint,
                running,
                created_secs: container.created_secs,
                provider: None,
            });
        }
        Ok(listed)
    }
}
