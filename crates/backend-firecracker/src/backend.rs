//! The backend: opens, finds, lists and ends machines of one data directory.

mod closer;
mod opening;
mod sweep;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::presence::{Presence, absence, presence};
use moltis_agent::sandbox::Held;
use moltis_agent::{AgentSandbox, Transport};
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{
    Backend, BackendName, BuildSink, Detection, Lifetime, Prepared, Sandbox, SandboxId, SandboxRecord,
    SandboxSpec, Usable,
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::detect::{self, Found};
use crate::error::{Error, Result, long};
use crate::record::{self, Record};
use crate::ssh::{self, Reach, SshTransport};
use crate::tap::Tap;
use crate::vsock::VsockTransport;
use crate::{Config, guarantees, place, rootfs};
use closer::MachineCloser;

/// How long what detection found is believed.
const BELIEVED: Duration = Duration::from_secs(60);

/// Local microVMs.
#[derive(Clone)]
pub struct FirecrackerBackend {
    state: Arc<State>,
}

/// What all handles of one backend share.
pub(crate) struct State {
    config: Config,
    found: Mutex<Option<(Instant, Found)>>,
    swept: Mutex<Option<Instant>>,
}

/// A machine whose agent is to be spoken to.
struct Served {
    process: Process,
    transport: Arc<dyn Transport>,
    /// Where its agent is, if SSH leads there.
    ssh: Option<Reach>,
    /// What ends it when it is dropped.
    held: Option<Held>,
}

impl FirecrackerBackend {
    /// A backend on this data directory. Nothing is touched yet.
    pub fn new(config: Config) -> Self {
        Self { state: Arc::new(State { config, found: Mutex::new(None), swept: Mutex::new(None) }) }
    }

    /// The machine of this id whose process lives, without taking its folder.
    async fn running(&self, id: SandboxId) -> Result<Option<(Record, Process, Result<Arc<dyn Transport>>)>> {
        let config = self.state.config.clone();
        long(move || {
            let Some(run) = record::find(&config.data_dir) else { return Ok(None) };
            let Some((record, _, whereabouts)) = run.look(&id) else { return Ok(None) };
            match whereabouts {
                // Whoever makes it is not done, or died.
                Whereabouts::Here(_) if !record.served => Ok(None),
                Whereabouts::Here(process) => {
                    let transport = transport_to(&config, &record, &process);
                    Ok(Some((record, process, transport)))
                }
                Whereabouts::Over => Ok(None),
                Whereabouts::Elsewhere => Err(moltis_host::Error::Elsewhere(record.pid).into()),
            }
        })
        .await
    }
}

fn open_work(work: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, work, flags, Mode::empty()).map_err(Error::folder(work))
}

/// The way to the agent of a machine. Blocks.
fn transport_to(config: &Config, record: &Record, process: &Process) -> Result<Arc<dyn Transport>> {
    match &record.ssh {
        None => Ok(Arc::new(vsock_to(&record.work, process)?)),
        Some(reach) => ssh_to(config, record, reach),
    }
}

fn vsock_to(work: &Path, process: &Process) -> Result<VsockTransport> {
    VsockTransport::open(open_work(work)?, process)
}

fn ssh_to(config: &Config, record: &Record, reach: &Reach) -> Result<Arc<dyn Transport>> {
    let lost = |why: &str| Error::Ssh { why: why.to_owned(), said: String::new() };
    let key = config
        .ssh_key
        .as_ref()
        .ok_or_else(|| lost("the machine was made with `firecracker_ssh_key`, which is not set any more"))?;
    let (name, piece) = record.tap.clone().ok_or_else(|| lost("the machine has no network device"))?;
    let address = (Tap { name, piece }.guest(), ssh::PORT).into();
    Ok(Arc::new(SshTransport::new(address, ssh::read_key(key)?, reach)))
}

/// Asks a machine's agent whether it is there, and tells it how long it may be idle if a spec says so.
async fn ask(
    process: Process,
    transport: Result<Arc<dyn Transport>>,
    ssh: Option<Reach>,
    spec: Option<&SandboxSpec>,
) -> (Presence, Option<Served>) {
    let idle = match spec.map(|spec| spec.lifetime) {
        Some(Lifetime::Idle(idle)) => Some(opening::millis(idle)),
        Some(Lifetime::Ephemeral) | None => None,
    };
    let ends = |patience| process.ends_within(patience);
    match transport {
        Ok(transport) => {
            // Nobody but its host ends a machine that SSH leads to, when its agent is over.
            if ssh.is_some() && matches!(transport.connect().await, Err(moltis_agent::Error::Gone)) {
                return (Presence::Over, None);
            }
            let presence = presence(&*transport, process.pid(), idle, ends).await;
            (presence, Some(Served { process, transport, ssh, held: None }))
        }
        Err(error) => {
            let error = moltis_agent::Error::Unreachable(std::io::Error::other(error.to_string()));
            (absence(process.pid(), &error, ends).await, None)
        }
    }
}

impl State {
    fn hand_out(self: &Arc<Self>, id: SandboxId, is_new: bool, served: Served) -> Arc<dyn Sandbox> {
        let Served { process, transport, ssh, held } = served;
        if is_new {
            closer::reap(Arc::clone(self), id.clone(), &process);
        }
        let closer = MachineCloser::new(Arc::clone(self), id.clone(), process, held);
        let place = ssh.map_or_else(place::common, |reach| place::at(&reach.home));
        Arc::new(AgentSandbox::new(id, is_new, place, transport, Box::new(closer)))
    }

    /// What detection finds, remembered for a minute.
    async fn found(&self) -> Result<Found> {
        let remembered = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, found)) = remembered
            && at.elapsed() < BELIEVED
        {
            return Ok(found);
        }
        let found = detect::detect(&self.config).await?;
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    fn forget(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What a person should know.
    fn notes(&self, found: &Found) -> Vec<String> {
        let jail = match &found.jailer {
            Some(_) => "each machine is jailed, with a user of its own",
            None => "machines run as this user, with Firecracker's own system call filter",
        };
        [
            format!("{} processors and {} MiB a machine", self.config.vcpus, self.config.memory_mb),
            jail.to_owned(),
        ]
        .into_iter()
        .chain(self.config.ssh_key.as_ref().map(|_| {
            format!("kernel and root file system are booted as they are, and SSH leads in as `{}`", ssh::USER)
        }))
        .collect()
    }
}

#[async_trait]
impl Backend for FirecrackerBackend {
    fn name(&self) -> BackendName {
        BackendName::Firecracker
    }

    async fn detect(&self) -> Detection {
        match self.state.found().await {
            Ok(found) => Detection::Usable(Box::new(Usable {
                version: format!("Firecracker {}", found.version),
                guarantees: guarantees::of(found.open.clone()),
                left_off: Vec::new(),
                notes: self.state.notes(&found),
            })),
            Err(error) => Detection::Unusable(moltis_sandbox::Error::from(error).diagnosis().clone()),
        }
    }

    async fn forget_detection(&self) {
        self.state.forget();
    }

    async fn open(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Arc<dyn Sandbox>> {
        let (state, owned) = (Arc::clone(&self.state), spec.clone());
        // Seen to its end even if nobody waits for it any more.
        let opened = moltis_host::blocking::whole(async move { opening::open(&state, &owned).await }).await;
        match opened {
            Ok(opened) => Ok(opened.claim()),
            Err(error) => {
                self.state.forget();
                Err(error.into())
            }
        }
    }

    async fn adopt(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        let Some((record, process, transport)) = self.running(spec.id()).await? else { return Ok(None) };
        if record.fingerprint != spec.fingerprint() {
            return Ok(None);
        }
        match ask(process, transport, record.ssh, Some(spec)).await {
            (Presence::Answers, served) => {
                Ok(served.map(|served| self.state.hand_out(spec.id(), false, served)))
            }
            (Presence::Silent(error), _) => Err(error),
            // Another one has to be made in its place.
            (Presence::Over | Presence::Foreign(_), _) => Ok(None),
        }
    }

    async fn find(&self, id: &SandboxId) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        let Some((record, process, transport)) = self.running(id.clone()).await? else { return Ok(None) };
        match ask(process, transport, record.ssh, None).await {
            (Presence::Answers, Some(served)) => Ok(Some(self.state.hand_out(id.clone(), false, served))),
            (Presence::Silent(error) | Presence::Foreign(error), _) => Err(error),
            (Presence::Answers | Presence::Over, _) => Ok(None),
        }
    }

    async fn list(&self) -> moltis_sandbox::Result<Vec<SandboxRecord>> {
        self.state.sweep(None).await;
        self.state.sweep_forsaken().await;
        let data_dir = self.state.config.data_dir.clone();
        let listed = long(move || {
            let Some(run) = record::find(&data_dir) else { return Ok(Vec::new()) };
            let known = run.ids().into_iter().filter_map(|id| {
                let (record, _, whereabouts) = run.look(&id).filter(|(record, _, _)| record.served)?;
                let Record { fingerprint, created_secs, .. } = record;
                let running = !matches!(whereabouts, Whereabouts::Over);
                Some(SandboxRecord { id, fingerprint, running, created_secs, provider: None })
            });
            Ok(known.collect())
        });
        Ok(listed.await?)
    }

    async fn prepare(&self, progress: &BuildSink) -> moltis_sandbox::Result<Vec<Prepared>> {
        Ok(rootfs::make(&self.state.config, progress).await?)
    }

    async fn remove(&self, id: &SandboxId) -> moltis_sandbox::Result<()> {
        let (state, id) = (Arc::clone(&self.state), id.clone());
        Ok(moltis_host::blocking::whole(async move { state.remove(&id).await }).await?)
    }
}
