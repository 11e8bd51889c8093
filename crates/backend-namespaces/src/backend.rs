//! The backend: opens, finds, lists and ends sandboxes of one data directory.

mod aside;
mod closer;
mod opening;
mod sweep;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_agent::inspect::{Load, OomKills as CountKills};
use moltis_agent::presence::{Presence, absence, presence};
use moltis_agent::{AgentSandbox, HostInspector, Inspect, UnixTransport};
use moltis_host::caller::Caller;
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{
    Backend, BackendName, Detection, Guarantees, Lifetime, Network, Promise, Result, Sandbox, SandboxId,
    SandboxRecord, SandboxSpec, SessionKey, SnapshotKind, Usable,
};

use crate::detect::{self, Detector};
use crate::error::{Error, long, short, whole};
use crate::limits::{Limiter, OomKills};
use crate::open::Connector;
use crate::record::{Record, SOCKET};
use crate::{landlock, place, record};
use aside::Aside;
use closer::ProcessCloser;
use opening::{Judged, Prepared, Served, Traces};

/// Where the backend keeps what it knows.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory. Made, 0700, if it is missing.
    pub data_dir: PathBuf,
    /// The configuration directory, which no sandbox may see.
    pub config_dir: Option<PathBuf>,
}

/// The built-in Linux sandbox: namespaces, Landlock, seccomp, cgroups.
#[derive(Clone)]
pub struct NamespacesBackend {
    state: Arc<State>,
}

/// What all handles of one backend share.
struct State {
    config: Config,
    caller: OnceLock<Caller>,
    limiter: OnceLock<Limiter>,
    connector: OnceLock<Option<Connector>>,
    detector: Detector,
    swept: Mutex<Option<Instant>>,
}

/// A sandbox whose PID 1 lived a moment ago.
struct Found {
    process: Process,
    transport: moltis_agent::error::Result<UnixTransport>,
    traces: Traces,
}

impl Found {
    /// Asks it whether it is there, and tells it how long it may be idle if a spec says so; with the answer, the way to
    /// it.
    async fn ask(self, spec: Option<&SandboxSpec>) -> (Presence, Option<Served>) {
        let Self { process, transport, traces } = self;
        let idle = match spec.map(|spec| spec.lifetime) {
            Some(Lifetime::Idle(idle)) => Some(opening::millis(idle)),
            Some(Lifetime::Ephemeral) | None => None,
        };
        let ends = |patience| process.ends_within(patience);
        match transport {
            Ok(transport) => {
                let presence = presence(&transport, process.pid(), idle, ends).await;
                let served = Served { process, transport, lifeline: None, traces, unclaimed: None };
                (presence, Some(served))
            }
            Err(error) => (absence(process.pid(), &error, ends).await, None),
        }
    }
}

impl NamespacesBackend {
    /// A backend on this data directory. Nothing is touched yet.
    pub fn new(config: Config) -> Self {
        let detector = Detector::new(&config.data_dir, moltis_agent::binary::guest_hash());
        Self {
            state: Arc::new(State {
                config,
                caller: OnceLock::new(),
                limiter: OnceLock::new(),
                connector: OnceLock::new(),
                detector,
                swept: Mutex::new(None),
            }),
        }
    }

    /// Opens the smallest sandbox there is and ends it again.
    async fn trial(&self) -> Result<()> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let key = SessionKey::new(format!("moltis detection {} {nanos}", std::process::id()));
        let Some(key) = key else { return Ok(()) };
        self.open(&SandboxSpec::new(key, Lifetime::Ephemeral)).await?.close().await
    }

    async fn open_or_adopt(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let (state, owned) = (Arc::clone(&self.state), spec.clone());
        let prepared = match short(move || state.begin(&owned)).await? {
            Prepared::Waiting(judged) => self.wait_and_prepare(spec, *judged).await?,
            prepared => prepared,
        };
        let mut opening = match prepared {
            Prepared::Served(served) => return Ok(self.hand_out(spec, true, served)),
            Prepared::Opening(opening) => opening,
            Prepared::Waiting(_) => return Err(Error::Died.into()),
        };
        if let Some(process) = opening.running_same() {
            let transport = UnixTransport::open(opening.folder(), SOCKET, process.pid());
            let found = Found { process, transport, traces: opening.traces() };
            match found.ask(Some(spec)).await {
                (Presence::Answers, Some(served)) => return Ok(self.hand_out(spec, false, served)),
                // It may be in use.
                (Presence::Silent(error), _) => return Err(error),
                // It is over, or cannot be used any more.
                _ => {}
            }
        }
        let (state, owned, waits) = (Arc::clone(&self.state), spec.clone(), opening.waits());
        let launch = move || {
            opening.end_running(&state)?;
            // If this is not waited for any more, an async thread drops it.
            opening.launch(&state, &owned).map(Aside::new)
        };
        let mut launched = if waits { long(launch).await? } else { short(launch).await? };
        if spec.network.value == Network::Open {
            let connector = self.state.connector().ok_or_else(Connector::missing)?;
            if let Err(error) = launched.get_mut().ok_or(Error::Died)?.connect(connector).await {
                // Whoever is told of it finds nothing left.
                let end = move || {
                    drop(launched.take());
                    Ok(())
                };
                let _ = long(end).await;
                return Err(error);
            }
        }
        let served = short(move || launched.take().ok_or(Error::Died)?.go()).await?;
        Ok(self.hand_out(spec, true, served))
    }

    /// Sweeps if there is something to, and waits for whoever has the folder.
    async fn wait_and_prepare(&self, spec: &SandboxSpec, judged: Judged) -> Result<Prepared> {
        let id = spec.id();
        if judged.sweep {
            let (state, run, but) = (Arc::clone(&self.state), judged.run.clone(), id.clone());
            let sweep = move || {
                state.sweep(&run, Some(&but));
                Ok(())
            };
            long(sweep).await?;
        }
        let folder = judged.run.lock(&id).await?;
        let (state, owned) = (Arc::clone(&self.state), spec.clone());
        Ok(short(move || state.prepare(&owned, judged, folder)).await?)
    }

    /// The sandbox of this id whose PID 1 lives, without taking its folder: whoever ends it meanwhile is noticed by the
    /// connection.
    async fn running(&self, id: SandboxId) -> Result<Option<(Record, Found)>> {
        let state = Arc::clone(&self.state);
        let look = move || {
            let Some(run) = record::find(&state.config.data_dir) else { return Ok(None) };
            let Some((record, folder, whereabouts)) = run.look(&id) else { return Ok(None) };
            let process = match whereabouts {
                Whereabouts::Here(process) => process,
                Whereabouts::Over => return Ok(None),
                Whereabouts::Elsewhere => return Err(moltis_host::Error::Elsewhere(record.pid).into()),
            };
            let transport = UnixTransport::open(&folder, SOCKET, process.pid());
            let traces = Traces::of(&record);
            Ok(Some((record, Found { process, transport, traces })))
        };
        Ok(short(look).await?)
    }

    fn hand_out(&self, spec: &SandboxSpec, is_new: bool, served: Served) -> Arc<dyn Sandbox> {
        let id = spec.id();
        if let Some(unclaimed) = served.unclaimed.and_then(Aside::take) {
            unclaimed.claim();
        }
        if is_new {
            closer::reap(Arc::clone(&self.state), id.clone(), &served.process);
        }
        let inspector = inspector(&self.state, &id, is_new, served.traces);
        let closer = ProcessCloser::new(Arc::clone(&self.state), id.clone(), served.process, served.lifeline);
        let transport = Arc::new(served.transport);
        let sandbox = AgentSandbox::new(id, is_new, place::of(spec), transport, Box::new(closer));
        Arc::new(sandbox.with_inspector(inspector))
    }
}

impl State {
    fn caller(&self) -> &Caller {
        self.caller.get_or_init(Caller::now)
    }

    /// The way to keep limits. Blocks at the first call.
    fn limiter(&self) -> &Limiter {
        self.limiter.get_or_init(|| {
            let host_uid = self.caller().identity(None).map_or(0, |identity| identity.outside_uid);
            Limiter::discover(&self.config.data_dir, host_uid)
        })
    }

    /// The program for network `open`. Blocks at the first call.
    fn connector(&self) -> Option<&Connector> {
        let path = || std::env::var_os("PATH").unwrap_or_default();
        self.connector.get_or_init(|| Connector::find(&path())).as_ref()
    }

    fn guarantees(&self) -> Guarantees {
        let limits = self.limiter().promises();
        Guarantees {
            filesystem: Promise::Held,
            kernel: Promise::not_enforced("the sandbox shares the host's kernel"),
            environment: Promise::Held,
            network_blocked: Promise::Held,
            network_trusted: Promise::Held,
            network_open: Connector::promise(self.connector()),
            memory: limits.memory,
            cpus: limits.cpus,
            pids: limits.pids,
            terminal: Promise::Held,
            background: Promise::Held,
            forward: Promise::Held,
            workspace: Promise::Held,
            home: Promise::Held,
            managed_files: Promise::Held,
            adopt: Promise::Held,
            images: Promise::not_enforced("it shows the host's own system folders, or a rootfs"),
            packages: Promise::not_enforced("it shows the host's own system folders, or a rootfs"),
            rootfs: Promise::Held,
            runtime: Promise::not_enforced("it has no OCI runtime: it makes the sandbox itself"),
            gpus: Promise::not_enforced("it shows none of the host's devices"),
            host_podman: Promise::not_enforced("it is a hatch of podman"),
            nested_podman: Promise::not_enforced("it is a hatch of podman"),
        }
    }

    fn notes(&self) -> Vec<String> {
        let landlock = match landlock::abi() {
            0 => "without Landlock: the kernel has none, or it is switched off".to_owned(),
            1 => "without Landlock: this kernel's first version of it would forbid renames".to_owned(),
            abi => format!("Landlock ABI {abi}"),
        };
        vec![format!("limits by {}", self.limiter().mechanism()), landlock]
    }
}

#[async_trait]
impl Backend for NamespacesBackend {
    fn name(&self) -> BackendName {
        BackendName::Namespaces
    }

    async fn detect(&self) -> Detection {
        if let Err(error) = self.state.detector.detect(|| self.trial()).await {
            return detect::judged(error.diagnosis().clone());
        }
        let state = Arc::clone(&self.state);
        let found = short(move || {
            let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
            Ok(Usable {
                version: format!("Linux {kernel}"),
                guarantees: state.guarantees(),
                left_off: Vec::new(),
                notes: state.notes(),
            })
        });
        match found.await {
            Ok(usable) => Detection::Usable(Box::new(usable)),
            Err(error) => detect::judged(moltis_sandbox::Error::from(error).diagnosis().clone()),
        }
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let opened = self.open_or_adopt(spec).await;
        if matches!(opened, Err(moltis_sandbox::Error::Unavailable(_))) {
            let detector = self.state.detector.clone();
            let _ = moltis_sandbox::blocking::short(move || detector.forget()).await;
        }
        opened
    }

    async fn check(&self, spec: &SandboxSpec) -> Result<()> {
        let (state, spec) = (Arc::clone(&self.state), spec.clone());
        Ok(short(move || state.check(&spec)).await?)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let Some((record, found)) = self.running(spec.id()).await? else { return Ok(None) };
        if record.fingerprint != spec.fingerprint() {
            return Ok(None);
        }
        // One round trip says that it answers, and sets the time after which it ends unused.
        match found.ask(Some(spec)).await {
            (Presence::Answers, served) => Ok(served.map(|served| self.hand_out(spec, false, served))),
            (Presence::Silent(error), _) => Err(error),
            // Another one has to be made in its place.
            (Presence::Over | Presence::Foreign(_), _) => Ok(None),
        }
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let Some((_, found)) = self.running(id.clone()).await? else { return Ok(None) };
        let served = match found.ask(None).await {
            (Presence::Answers, Some(served)) => served,
            (Presence::Silent(error) | Presence::Foreign(error), _) => return Err(error),
            (Presence::Answers | Presence::Over, _) => return Ok(None),
        };
        let inspector = inspector(&self.state, id, false, served.traces);
        let closer = ProcessCloser::new(Arc::clone(&self.state), id.clone(), served.process, None);
        let transport = Arc::new(served.transport);
        let sandbox = AgentSandbox::new(id.clone(), false, place::common(), transport, Box::new(closer));
        Ok(Some(Arc::new(sandbox.with_inspector(inspector))))
    }

    fn snapshots(&self) -> Option<SnapshotKind> {
        Some(SnapshotKind::FileSystem)
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        let state = Arc::clone(&self.state);
        let list = move || {
            let Some(run) = record::find(&state.config.data_dir) else { return Ok(Vec::new()) };
            state.sweep(&run, None);
            let known = run.ids().into_iter().filter_map(|id| {
                let (record, _, whereabouts) = run.look(&id)?;
                let Record { fingerprint, created_secs, .. } = record;
                let running = !matches!(whereabouts, Whereabouts::Over);
                Some(SandboxRecord { id, fingerprint, running, created_secs, provider: None })
            });
            Ok(known.collect())
        };
        Ok(long(list).await?)
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        let (state, id) = (Arc::clone(&self.state), id.clone());
        let remove = async move {
            let Some(run) = record::find(&state.config.data_dir) else { return Ok(()) };
            let Some(folder) = run.lock_existing(&id).await? else { return Ok(()) };
            // By the process alone: it need not answer, nor be of this version.
            let end = move || match folder.look() {
                Some((record, Whereabouts::Elsewhere)) => {
                    Err(moltis_host::Error::Elsewhere(record.pid).into())
                }
                Some((_, Whereabouts::Here(process))) => state.end(&id, folder, Some(&process)),
                Some((_, Whereabouts::Over)) | None => state.end(&id, folder, None),
            };
            long(end).await
        };
        Ok(whole(remove).await?)
    }
}

/// Who looks at each command of a sandbox that leaves these traces.
fn inspector(state: &Arc<State>, id: &SandboxId, is_new: bool, traces: Traces) -> Option<Arc<dyn Inspect>> {
    let kills = OomKills::open(&traces.groups);
    let kills = kills.map(|kills| Box::new(move || kills.count()) as CountKills);
    let folders = traces.watched.then(|| {
        let (state, id) = (Arc::clone(state), id.clone());
        Box::new(move || record::watched(&record::find(&state.config.data_dir)?, &id)) as Load
    });
    Some(Arc::new(HostInspector::new(is_new, kills, folders)?))
}
