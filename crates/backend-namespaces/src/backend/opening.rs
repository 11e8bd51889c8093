//! Opening one sandbox: judged, locked, launched, recorded. Each stage owns what it made and removes it when it is
//! dropped, so that no error path leaves anything behind.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moltis_agent::UnixTransport;
use moltis_agent_protocol::launch::{Agent, Identity, Plan, Rlimit};
use moltis_host::caller::owner_inside;
use moltis_host::process::{Process, pid_realm};
use moltis_host::record::Whereabouts;
use moltis_host::requested::Sources;
use moltis_host::sources::Judge;
use moltis_sandbox::{Lifetime, Network, SandboxId, SandboxSpec};
use rustix::pipe::{PipeFlags, pipe_with};

use super::State;
use super::aside::Aside;
use crate::error::{Error, Result};
use crate::launch::{self, Child, Descriptors};
use crate::limits::Group;
use crate::open::Connector;
use crate::record::{Folder, Record, RunDir, SOCKET};
use crate::root::{self, Facts, Root};
use crate::{place, record, seccomp};

/// OOM score adjustment of everything in a sandbox: it goes before anything of the host.
const OOM_SCORE_ADJ: i32 = 500;

/// What [`State::prepare`] came to.
pub enum Prepared {
    /// The common case is done in one go: a new sandbox serves.
    Served(Served),
    /// There is something to be asked, removed or connected first.
    Opening(Box<Opening>),
    /// Somebody has the folder, or something is to be swept before.
    Waiting(Box<Judged>),
}

/// A spec that has been judged.
pub struct Judged {
    /// Where its folder is.
    pub run: RunDir,
    /// Whether other sandboxes have left something.
    pub sweep: bool,
    identity: Identity,
    sources: Sources,
}

/// A sandbox that serves. Dropping a new one ends it, unless it was claimed.
pub struct Served {
    /// Its PID 1.
    pub process: Process,
    /// The way to its agent.
    pub transport: UnixTransport,
    /// The write end of its lifeline.
    pub lifeline: Option<OwnedFd>,
    /// What there is of it to look at whenever a command ends.
    pub traces: Traces,
    /// What is in the opener's hands of a new one.
    pub unclaimed: Option<Aside<Box<Unclaimed>>>,
}

/// What the host can see of what a sandbox does.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// Directories of its control groups.
    pub groups: Vec<PathBuf>,
    /// Whether there are folders that it may write to and that are watched.
    pub watched: bool,
}

impl Traces {
    /// By its record.
    pub fn of(record: &Record) -> Self {
        Self { groups: record.groups.clone(), watched: record.watched }
    }
}

/// A new sandbox that nobody has taken yet. Dropping it ends the sandbox and removes all of it, which blocks; the order
/// of the fields is the order of that.
pub struct Unclaimed {
    process: Option<Process>,
    group: OwnGroup,
    folder: Folder,
}

impl Unclaimed {
    /// Leaves the sandbox to whoever has its handle, or to itself.
    pub fn claim(mut self) {
        self.process = None;
        self.group.0 = None;
        self.folder.keep(true);
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(process) = self.process.take() else { return };
        process.kill();
        if !process.wait_briefly() {
            // The sweep tries again, once it has ended.
            self.folder.keep(true);
        }
    }
}

/// A sandbox whose sources are judged and whose folder is held.
pub struct Opening {
    id: SandboxId,
    fingerprint: String,
    identity: Identity,
    sources: Option<Sources>,
    running: Option<(Record, Process)>,
    /// Whether there are groups of an earlier one.
    remains: bool,
    folder: Folder,
}

impl State {
    /// Judges the spec alone. Blocks.
    pub(super) fn check(&self, spec: &SandboxSpec) -> Result<()> {
        record::make(&self.config.data_dir)?;
        let mut spec = spec.clone();
        // Folders of ours are made before they are judged.
        spec.home.take_if(|home| !home.exists());
        spec.managed_files.take_if(|files| !files.source.exists());
        self.judge(&spec).map(drop)
    }

    fn judge(&self, spec: &SandboxSpec) -> Result<(Identity, Sources)> {
        let identity = self.caller().identity(spec.sandbox_uid)?;
        let judge = Judge::new(&self.config.data_dir, self.config.config_dir.as_deref(), self.caller())?;
        let sources = Sources::judge(spec, &judge)?;
        if spec.network.value == Network::Open && self.connector().is_none() {
            return Err(Connector::missing().into());
        }
        Ok((identity, sources))
    }

    /// Judges the spec and goes on with [`prepare`](Self::prepare) if nothing is to be waited for. Blocks.
    pub(super) fn begin(&self, spec: &SandboxSpec) -> Result<Prepared> {
        let run = record::make(&self.config.data_dir)?;
        let (identity, sources) = self.judge(spec)?;
        let id = spec.id();
        let judged = Judged { sweep: self.is_sweep_due(&run, &id), run, identity, sources };
        if !judged.sweep
            && let Some(folder) = judged.run.try_lock(&id)?
        {
            return self.prepare(spec, judged, folder);
        }
        Ok(Prepared::Waiting(Box::new(judged)))
    }

    /// Looks for the sandbox in its folder; if there is none, and nothing else must be waited for, it is made at once.
    /// Blocks.
    pub(super) fn prepare(&self, spec: &SandboxSpec, judged: Judged, mut folder: Folder) -> Result<Prepared> {
        let (running, remains) = match folder.look() {
            // It keeps its folder.
            Some((record, Whereabouts::Elsewhere)) => {
                return Err(moltis_host::Error::Elsewhere(record.pid).into());
            }
            Some((record, Whereabouts::Here(process))) => (Some((record, process)), false),
            Some((record, Whereabouts::Over)) => (None, !record.groups.is_empty()),
            None => (None, false),
        };
        // A running sandbox keeps its folder, whatever becomes of this opening.
        folder.keep(running.is_some());
        let Judged { identity, sources, .. } = judged;
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        let opening = Opening { id, fingerprint, identity, sources: Some(sources), running, remains, folder };
        if opening.waits() || spec.network.value == Network::Open {
            return Ok(Prepared::Opening(Box::new(opening)));
        }
        opening.launch(self, spec)?.go().map(Prepared::Served)
    }
}

impl Opening {
    /// The sandbox that runs already, if it was made by the same spec.
    pub fn running_same(&self) -> Option<Process> {
        let (record, process) = self.running.as_ref()?;
        if record.fingerprint != self.fingerprint {
            return None;
        }
        process.try_clone().ok()
    }

    /// Whether there is something to be ended before the launch, which may take long.
    pub fn waits(&self) -> bool {
        self.running.is_some() || self.remains
    }

    /// What the host can see of what the running one does.
    pub fn traces(&self) -> Traces {
        self.running.as_ref().map(|(record, _)| Traces::of(record)).unwrap_or_default()
    }

    /// The sandbox's folder.
    pub fn folder(&self) -> &File {
        self.folder.handle()
    }

    /// Ends the sandbox that runs, which is of another spec or does not answer. Blocks.
    pub fn end_running(&mut self, state: &State) -> Result<()> {
        let Some((record, process)) = self.running.take() else { return Ok(()) };
        state.end_process(&self.id, Some(&process), &record.groups)?;
        self.folder.keep(false);
        Ok(())
    }

    /// Makes the sandbox up to the point where it waits to be let go. Blocks.
    pub fn launch(mut self, state: &State, spec: &SandboxSpec) -> Result<Launched> {
        let Some(sources) = self.sources.take() else { return Err(Error::Died) };
        // It gets ready while the plan is made.
        let helper = launch::spawn()?;
        let open = spec.network.value == Network::Open;
        let resolv_conf = if open { state.connector().map(Connector::resolv_conf) } else { None };
        let facts = Facts {
            identity: &self.identity,
            resolv_conf: resolv_conf.as_deref().unwrap_or_default(),
            workspace_protect: &spec.workspace_protect,
            memory: spec.limits.memory.map(|memory| memory.value),
        };
        let Root { steps, handed, handles, landlock, watched } = root::plan(sources, facts)?;
        let limiter = state.limiter();
        // Whatever an earlier sandbox of this name left goes first.
        let mut folder = self.folder;
        if let Some(group) = folder.record().and_then(|record| limiter.find(&self.id, &record.groups)) {
            // What is in the way of the new one's groups is an error at their making.
            let _ = group.remove();
        }
        folder.clear()?;
        let group = OwnGroup(limiter.create(&self.id, &spec.limits)?);
        let cgroup = group.0.as_ref().and_then(Group::directory).and_then(std::io::Result::ok);
        let (lifeline, held_lifeline) = match spec.lifetime {
            Lifetime::Ephemeral => {
                let ends = pipe_with(PipeFlags::CLOEXEC).map_err(Error::system("no pipe can be made"))?;
                (Some(ends.0), Some(ends.1))
            }
            Lifetime::Idle(_) => (None, None),
        };
        let mut rlimits = vec![Rlimit { resource: libc::RLIMIT_CORE, value: 0 }];
        let nproc = limiter.nproc(&spec.limits);
        rlimits.extend(nproc.map(|value| Rlimit { resource: libc::RLIMIT_NPROC, value }));
        let plan = Plan {
            identity: self.identity,
            handed,
            report_netns: open,
            hostname: b"sandbox".to_vec().into(),
            root: steps,
            rlimits,
            oom_score_adj: OOM_SCORE_ADJ,
            landlock,
            seccomp: seccomp::programs()?.iter().map(|program| program.clone().into()).collect(),
            agent: Agent {
                directory: place::directory(spec).as_bytes().to_vec().into(),
                idle_millis: match spec.lifetime {
                    Lifetime::Ephemeral => 0,
                    Lifetime::Idle(idle) => millis(idle),
                },
                owner_uid: owner_inside(&self.identity),
                egress: !open,
            },
        };
        let listener = folder.bind_socket(SOCKET)?;
        let child =
            launch::start(helper, &plan, Descriptors { listener, lifeline, cgroup, sources: handles })?;
        // From here on the child builds its root, and all this is done beside it.
        if let (Some(group), false) = (&group.0, child.placed()) {
            group.attach(child.pid())?;
        }
        let traces = Traces {
            groups: group.0.as_ref().map(Group::directories).unwrap_or_default(),
            watched: !watched.is_empty(),
        };
        if traces.watched {
            record::write_watched(&folder, &watched)?;
        }
        folder.write(&Record {
            pid: child.pid(),
            started: child.process().and_then(Process::started).ok_or(Error::Died)?,
            realm: pid_realm().to_owned(),
            fingerprint: self.fingerprint,
            created_secs: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            groups: traces.groups.clone(),
            watched: traces.watched,
        })?;
        Ok(Launched { traces, child, group, folder, lifeline: held_lifeline, identity: self.identity })
    }
}

/// A sandbox that exists and waits to be let go. Dropping it ends it; the order of the fields is the order of that.
pub struct Launched {
    traces: Traces,
    child: Child,
    group: OwnGroup,
    folder: Folder,
    lifeline: Option<OwnedFd>,
    identity: Identity,
}

impl Launched {
    /// Connects it to the network.
    ///
    /// # Errors
    /// The connector's.
    pub async fn connect(&mut self, connector: &Connector) -> moltis_sandbox::Result<()> {
        let guest = moltis_agent::binary::memfd().map_err(Error::Spawn)?;
        let guest = PathBuf::from(format!("/proc/self/fd/{}", guest.as_raw_fd()));
        let (Some(netns), Some(process)) = (self.child.netns(), self.child.process()) else {
            return Err(Error::Died.into());
        };
        let Identity { inside_uid, inside_gid, .. } = self.identity;
        connector.connect(&guest, netns.as_fd(), process.as_fd(), inside_uid, inside_gid).await.map(drop)
    }

    /// Lets it go and waits until it serves. Blocks.
    ///
    /// # Errors
    /// What went wrong in the child; it is gone then.
    pub fn go(self) -> Result<Served> {
        let Self { traces, child, group, folder, lifeline, .. } = self;
        let unclaimed = Unclaimed { process: Some(child.go()?), group, folder };
        let known = unclaimed.process.as_ref().ok_or(Error::Died)?;
        let process = known.try_clone().map_err(Error::system("a process cannot be watched"))?;
        let transport = UnixTransport::open(unclaimed.folder.handle(), SOCKET, process.pid())
            .map_err(|error| Error::Judged(error.into()))?;
        Ok(Served { process, transport, lifeline, traces, unclaimed: Some(Aside::new(Box::new(unclaimed))) })
    }
}

/// Groups that are removed when they are dropped, unless they were taken out.
struct OwnGroup(Option<Group>);

impl Drop for OwnGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0.take() {
            // The sweep tries again.
            let _ = group.remove();
        }
    }
}

/// A time as the protocol has it; never 0, which would mean for ever.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
