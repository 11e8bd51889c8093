//! The backend: opens, finds, lists and ends sandboxes of one data directory.

mod aside;
mod closer;
mod opening;
mod sweep;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_agent::client::Patience;
use moltis_agent::inspect::{Load, OomKills as CountKills};
use moltis_agent::sandbox::{configure, status};
use moltis_agent::{AgentSandbox, HostInspector, Inspect, UnixTransport};
use moltis_sandbox::{
    Backend, BackendName, Detection, Guarantees, Lifetime, Network, Promise, Result, Sandbox, SandboxId,
    SandboxRecord, SandboxSpec, SessionKey, Usable,
};

use crate::caller::Caller;
use crate::detect::{self, Detector};
use crate::error::Error;
use crate::limits::{Limiter, OomKills};
use crate::open::Connector;
use crate::process::Process;
use crate::record::{Record, RunDir, SOCKET};
use crate::{landlock, place};
use aside::Aside;
use closer::ProcessCloser;
use opening::{Opening, Prepared, Served, Traces};

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

/// For an agent that is asked only whether it is there.
const SHORT_PATIENCE: Patience = Patience {
    hello: Duration::from_secs(2),
    answer: Duration::from_secs(2),
    work: Duration::from_secs(2),
    grace: Duration::from_secs(2),
};

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
        let mut opening = match blocking(move || state.prepare(&owned)).await? {
            Prepared::Served(served) => return Ok(self.hand_out(spec, true, served)),
            Prepared::Opening(opening) => opening,
        };
        if let Some(found) = opening.running_same()
            && let Ok(served) = self.adopt(spec, &opening, found).await
        {
            return Ok(self.hand_out(spec, false, served));
        }
        let (state, owned) = (Arc::clone(&self.state), spec.clone());
        let launch = move || {
            opening.end_running(&state)?;
            // If this is not waited for any more, an async thread drops it.
            opening.launch(&state, &owned).map(Aside::new)
        };
        let mut launched = blocking(launch).await?;
        if spec.network.value == Network::Open {
            let connector = self.state.connector().ok_or_else(Connector::missing)?;
            if let Err(error) = launched.get_mut().ok_or(Error::Died)?.connect(connector).await {
                // Whoever is told of it finds nothing left.
                let end = move || {
                    drop(launched.take());
                    Ok(())
                };
                let _ = blocking(end).await;
                return Err(error);
            }
        }
        let served = blocking(move || launched.take().ok_or(Error::Died)?.go()).await?;
        Ok(self.hand_out(spec, true, served))
    }

    /// Takes up a running sandbox, if its agent answers.
    async fn adopt(&self, spec: &SandboxSpec, opening: &Opening, found: Process) -> Result<Served> {
        let transport = UnixTransport::open(opening.folder(), SOCKET, found.pid())?;
        status(&transport, SHORT_PATIENCE).await?;
        if let Lifetime::Idle(idle) = spec.lifetime {
            configure(&transport, opening::millis(idle), SHORT_PATIENCE).await?;
        }
        Ok(Served { process: found, transport, lifeline: None, traces: opening.traces(), unclaimed: None })
    }

    /// The sandbox of this id whose PID 1 lives, without taking its folder: whoever ends it meanwhile is noticed by the
    /// connection.
    async fn running(&self, id: SandboxId) -> Result<Option<(Record, Served)>> {
        let state = Arc::clone(&self.state);
        let look = move || {
            let Some(run) = RunDir::find(&state.config.data_dir) else { return Ok(None) };
            let Some(record) = run.record(&id) else { return Ok(None) };
            let (Some(process), Some(folder)) = (record.process(), run.open(&id)) else { return Ok(None) };
            let Ok(transport) = UnixTransport::open(&folder, SOCKET, process.pid()) else { return Ok(None) };
            let traces = Traces::of(&record);
            Ok(Some((record, Served { process, transport, lifeline: None, traces, unclaimed: None })))
        };
        blocking(look).await
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
            network_trusted: Promise::not_enforced(
                "needs the egress proxy, which this version does not have",
            ),
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
        let found = blocking(move || {
            let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
            Ok(Usable {
                version: format!("Linux {kernel}"),
                guarantees: state.guarantees(),
                notes: state.notes(),
            })
        });
        match found.await {
            Ok(usable) => Detection::Usable(Box::new(usable)),
            Err(error) => detect::judged(error.diagnosis().clone()),
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
        blocking(move || state.check(&spec)).await
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let Some((record, found)) = self.running(spec.id()).await? else { return Ok(None) };
        if record.fingerprint != spec.fingerprint() {
            return Ok(None);
        }
        // One round trip says that it answers, and sets the time after which it ends unused.
        let answered = match spec.lifetime {
            Lifetime::Idle(idle) => {
                configure(&found.transport, opening::millis(idle), SHORT_PATIENCE).await.is_ok()
            }
            Lifetime::Ephemeral => status(&found.transport, SHORT_PATIENCE).await.is_ok(),
        };
        Ok(answered.then(|| self.hand_out(spec, false, found)))
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let Some((_, found)) = self.running(id.clone()).await? else { return Ok(None) };
        if status(&found.transport, SHORT_PATIENCE).await.is_err() {
            return Ok(None);
        }
        let inspector = inspector(&self.state, id, false, found.traces);
        let closer = ProcessCloser::new(Arc::clone(&self.state), id.clone(), found.process, None);
        let transport = Arc::new(found.transport);
        let sandbox = AgentSandbox::new(id.clone(), false, place::common(), transport, Box::new(closer));
        Ok(Some(Arc::new(sandbox.with_inspector(inspector))))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        let state = Arc::clone(&self.state);
        let found = blocking(move || {
            let Some(run) = RunDir::find(&state.config.data_dir) else { return Ok(Vec::new()) };
            state.sweep(&run, None);
            let known = run.ids().into_iter().filter_map(|id| {
                let record = run.record(&id)?;
                let agent = record.process().zip(run.open(&id));
                Some((id, record, agent))
            });
            Ok(known.collect())
        });
        let mut records = Vec::new();
        for (id, record, agent) in found.await? {
            let running = match agent.map(|(agent, folder)| UnixTransport::open(&folder, SOCKET, agent.pid()))
            {
                Some(Ok(transport)) => status(&transport, SHORT_PATIENCE).await.is_ok(),
                _ => false,
            };
            records.push(SandboxRecord {
                id,
                fingerprint: record.fingerprint,
                running,
                created_secs: record.created_secs,
            });
        }
        Ok(records)
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        let (state, id) = (Arc::clone(&self.state), id.clone());
        let remove = move || {
            let Some(run) = RunDir::find(&state.config.data_dir) else { return Ok(()) };
            let Some(folder) = run.lock_existing(&id)? else { return Ok(()) };
            let process = run.record(&id).and_then(|record| record.process());
            state.end(&id, folder, process.as_ref())
        };
        blocking(remove).await
    }
}

/// Who looks at each command of a sandbox that leaves these traces.
fn inspector(state: &Arc<State>, id: &SandboxId, is_new: bool, traces: Traces) -> Option<Arc<dyn Inspect>> {
    let kills = OomKills::open(&traces.groups);
    let kills = kills.map(|kills| Box::new(move || kills.count()) as CountKills);
    let folders = traces.watched.then(|| {
        let (state, id) = (Arc::clone(state), id.clone());
        Box::new(move || RunDir::find(&state.config.data_dir)?.watched(&id)) as Load
    });
    Some(Arc::new(HostInspector::new(is_new, kills, folders)?))
}

/// Runs something that blocks off the async threads. If the caller goes away it is carried on to its end, and what
/// it made is dropped, which cleans up: a sandbox that was not handed out ends.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> crate::error::Result<T> + Send + 'static,
) -> Result<T> {
    match moltis_sandbox::blocking::short(work).await {
        Ok(answer) => Ok(answer?),
        Err(failed) => {
            let cause = std::io::Error::other(failed);
            Err(Error::System { what: "a thread broke off", cause }.into())
        }
    }
}
