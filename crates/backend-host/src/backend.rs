//! The two backends, which differ in what they take away from a command: environment and rlimits, or nothing.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_agent::presence::{Presence, absence, presence};
use moltis_agent::{AgentSandbox, Place, UnixTransport};
use moltis_host::caller::Caller;
use moltis_host::process::Process;
use moltis_host::record::Whereabouts;
use moltis_host::sources::Judge;
use moltis_sandbox::{
    Backend, BackendName, Detection, Lifetime, MountMode, Sandbox, SandboxId, SandboxRecord, SandboxSpec,
    Usable,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::OnceCell;

use crate::closer::{ANSWER, Held, HostCloser, end};
use crate::error::{Error, Result, blocking, long};
use crate::folder::{self, RunFolder, SOCKET};
use crate::opening::{Launched, Opening};
use crate::process::Agent;
use crate::program::Program;
use crate::record::{Identity, Record};
use crate::roots::Root;
use crate::{environment, guarantees, rlimits, scratch};

/// How long an agent may take until it listens.
const START: Duration = Duration::from_secs(10);

/// Where Moltis keeps its own things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The directory of the user's configuration, which is no workspace; absent where none can be named.
    pub config_dir: Option<PathBuf>,
}

/// `restricted-host`: a cleared environment and rlimits, no isolation.
pub struct RestrictedHostBackend(Arc<Host>);

/// `none`: straight on the host.
pub struct NoneBackend(Arc<Host>);

impl RestrictedHostBackend {
    /// Over this data directory.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Host::new(BackendName::RestrictedHost, config)))
    }
}

impl NoneBackend {
    /// Over this data directory.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Host::new(BackendName::None, config)))
    }
}

#[async_trait]
impl Backend for RestrictedHostBackend {
    fn name(&self) -> BackendName {
        BackendName::RestrictedHost
    }

    async fn detect(&self) -> Detection {
        let shell = blocking(|| find_shell(runs)).await;
        if let Err(error) = self.0.program().await.and(shell) {
            return unusable(error);
        }
        let root = rustix::process::geteuid().is_root();
        let mut notes = vec!["commands run as this user, on the host's own files and network".to_owned()];
        if root {
            notes.push("this user is root: commands may do anything to this machine".to_owned());
        }
        usable(guarantees::restricted(root), notes)
    }

    async fn open(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Arc<dyn Sandbox>> {
        Ok(Host::open_whole(&self.0, spec).await?)
    }

    async fn check(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<()> {
        Ok(self.0.check(spec).await?)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        Ok(self.0.adopt_running(spec).await?)
    }

    async fn find(&self, id: &SandboxId) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        Ok(self.0.find(id).await?)
    }

    async fn list(&self) -> moltis_sandbox::Result<Vec<SandboxRecord>> {
        Ok(self.0.list().await?)
    }

    async fn remove(&self, id: &SandboxId) -> moltis_sandbox::Result<()> {
        Ok(self.0.remove(id).await?)
    }

    async fn purge(&self, id: &SandboxId) -> moltis_sandbox::Result<()> {
        Ok(self.0.purge(id).await?)
    }
}

#[async_trait]
impl Backend for NoneBackend {
    fn name(&self) -> BackendName {
        BackendName::None
    }

    async fn detect(&self) -> Detection {
        if let Err(error) = self.0.program().await {
            return unusable(error);
        }
        let mut notes = vec!["no sandbox: commands may do whatever this user may".to_owned()];
        if blocking(|| find_shell(runs)).await.is_err() {
            notes.push(
                "there is no POSIX shell here: only programs with their arguments can be run".to_owned(),
            );
        }
        usable(guarantees::none(), notes)
    }

    async fn open(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Arc<dyn Sandbox>> {
        Ok(Host::open_whole(&self.0, spec).await?)
    }

    async fn check(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<()> {
        Ok(self.0.check(spec).await?)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        Ok(self.0.adopt_running(spec).await?)
    }

    async fn find(&self, id: &SandboxId) -> moltis_sandbox::Result<Option<Arc<dyn Sandbox>>> {
        Ok(self.0.find(id).await?)
    }

    async fn list(&self) -> moltis_sandbox::Result<Vec<SandboxRecord>> {
        Ok(self.0.list().await?)
    }

    async fn remove(&self, id: &SandboxId) -> moltis_sandbox::Result<()> {
        Ok(self.0.remove(id).await?)
    }

    async fn purge(&self, id: &SandboxId) -> moltis_sandbox::Result<()> {
        Ok(self.0.purge(id).await?)
    }
}

fn usable(guarantees: moltis_sandbox::Guarantees, notes: Vec<String>) -> Detection {
    let version = format!("Linux {}", rustix::system::uname().release().to_string_lossy());
    Detection::Usable(Box::new(Usable { version, guarantees, left_off: Vec::new(), notes }))
}

fn unusable(error: Error) -> Detection {
    Detection::Unusable(moltis_sandbox::Error::from(error).diagnosis().clone())
}

/// The first POSIX shell that passes the test.
fn find_shell(test: fn(&Path) -> bool) -> Result<PathBuf> {
    let places = ["/bin"].into_iter().chain(environment::PATH.split(':')).map(PathBuf::from);
    let further = std::env::var_os("PATH").unwrap_or_default();
    places
        .chain(std::env::split_paths(&further))
        .map(|place| place.join("sh"))
        .filter(|shell| shell.is_absolute())
        .find(|shell| test(shell))
        .ok_or(Error::NoShell)
}

/// Blocks for about a millisecond.
fn runs(shell: &Path) -> bool {
    let mut command = Command::new(shell);
    command.args(["-c", "exit 7"]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.code() == Some(7))
}

/// What the two have in common.
struct Host {
    name: BackendName,
    config: Config,
    program: OnceCell<Program>,
    shell: OnceCell<PathBuf>,
}

/// A sandbox as its spec wants it.
struct Plan {
    id: SandboxId,
    fingerprint: String,
    ephemeral: bool,
    /// 0 for never.
    idle_millis: u64,
    roots: Vec<Root>,
    limits: Vec<OsString>,
    cwd: PathBuf,
    place: Place,
}

impl Plan {
    /// The agent's arguments that bound commands and file tools.
    fn bounds(&self) -> impl Iterator<Item = OsString> {
        self.limits.iter().cloned().chain(self.roots.iter().flat_map(Root::arguments))
    }

    /// The same as one line, by which two plans are told apart where their fingerprints are equal.
    fn told(&self) -> String {
        format!("{:?}", self.bounds().collect::<Vec<_>>())
    }

    /// Whether a sandbox of this record is the one that is wanted.
    fn is(&self, record: &Record) -> bool {
        record.fingerprint == self.fingerprint
            && record.told == self.told()
            && record.ephemeral == self.ephemeral
    }
}

impl Host {
    fn new(name: BackendName, config: Config) -> Self {
        Self { name, config, program: OnceCell::new(), shell: OnceCell::new() }
    }

    async fn program(&self) -> Result<&Program> {
        let data_dir = self.config.data_dir.clone();
        // In a task of its own, so that the trial is seen to its end even if nobody waits for it any more.
        let find = || async { whole(tokio::spawn(async move { Program::find(&data_dir).await })).await };
        self.program.get_or_try_init(find).await
    }

    /// Opens in a task of its own: an opening that is given up half-way comes to its end all the same, off this thread,
    /// and what it made is dropped like any other handle. When the runtime shuts down, the task is dropped where it is
    /// waiting; then [`Opening`] removes what was made.
    async fn open_whole(this: &Arc<Self>, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let (this, spec) = (Arc::clone(this), spec.clone());
        whole(tokio::spawn(async move { this.open(&spec).await })).await
    }

    /// The shell; without one, what its absence is noticed by when a command line is run.
    async fn shell(&self) -> Result<&PathBuf> {
        let name = self.name;
        // Not tried again: detection did that, and a command that cannot be started says so.
        let executable = |shell: &Path| rustix::fs::access(shell, rustix::fs::Access::EXEC_OK).is_ok();
        let find = move || match find_shell(executable) {
            Err(_) if name == BackendName::None => Ok(PathBuf::from("/bin/sh")),
            other => other,
        };
        self.shell.get_or_try_init(|| blocking(find)).await
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let shell = self.shell().await?.clone();
        let (config, name, spec) = (self.config.clone(), self.name, spec.clone());
        let id = spec.id();
        // Judged before anything is made.
        let judged = {
            let (config, spec) = (config.clone(), spec.clone());
            blocking(move || {
                let judged = judge(&config, &spec)?;
                folder::sweep(&config.data_dir, Some(&spec.id()));
                Ok(judged)
            })
            .await?
        };
        let mut folder = RunFolder::make(&config.data_dir, &id).await?;
        let (mut opening, plan, found, unrecorded) = {
            let data_dir = config.data_dir.clone();
            blocking(move || {
                let found = match folder.look() {
                    Some((record, Whereabouts::Here(agent))) => Some((Agent::from(agent), record)),
                    // It keeps its folder.
                    Some((record, Whereabouts::Elsewhere)) => {
                        return Err(Error::Elsewhere(record.process.pid));
                    }
                    Some((_, Whereabouts::Over)) | None => None,
                };
                let unrecorded = if found.is_none() { unrecorded(&folder) } else { None };
                folder.keep(found.is_some() || unrecorded.is_some());
                let ephemeral = spec.lifetime == Lifetime::Ephemeral;
                let opening = Opening::begin(&data_dir, &spec.id(), ephemeral, folder)?;
                let plan = plan(name, &data_dir, &spec, judged, shell)?;
                Ok((opening, plan, found, unrecorded))
            })
            .await?
        };
        if let Some((agent, record)) = found {
            let held = Held { data_dir: config.data_dir, id, record, agent };
            let adopted;
            (opening, adopted) = self.adopt(&plan, &held, opening).await?;
            if let Some(sandbox) = adopted {
                return Ok(sandbox);
            }
            held.end(opening.folder()).await?;
        } else if let Some(agent) = unrecorded {
            end_unrecorded(opening.folder(), &agent, &id).await?;
        }
        let opening = blocking(move || {
            opening.replace()?;
            Ok(opening)
        })
        .await?;
        self.start(plan, opening).await
    }

    /// The sandbox that runs already for this spec. Nothing is started or ended, and nobody's lock is waited for.
    async fn adopt_running(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let shell = self.shell().await?.clone();
        let (config, name, spec) = (self.config.clone(), self.name, spec.clone());
        let looked = blocking(move || {
            let data_dir = config.data_dir.clone();
            let Some((held, folder)) = look(data_dir, spec.id(), |record| {
                record.backend == name && record.fingerprint == spec.fingerprint()
            })?
            else {
                return Ok(None);
            };
            let plan = plan(name, &config.data_dir, &spec, judge(&config, &spec)?, shell)?;
            if !plan.is(&held.record) {
                return Ok(None);
            }
            let transport = UnixTransport::open(&folder, SOCKET, held.agent.pid());
            Ok(Some((plan, held, transport)))
        });
        let Some((plan, mut held, transport)) = looked.await? else { return Ok(None) };
        let transport = match ask(&held.agent, transport, Some(&plan)).await {
            Ok(transport) => transport,
            Err(Presence::Silent(error)) => return Err(Error::Present(error)),
            // Another one has to be made in its place.
            Err(_) => return Ok(None),
        };
        if held.record.idle_millis != plan.idle_millis {
            held.record.idle_millis = plan.idle_millis;
            // Written down where nobody is busy with it; who opens it next sets the time again either way.
            let held = held.clone();
            blocking(move || match RunFolder::try_find(&held.data_dir, &held.id) {
                Some(folder) if folder.record().is_some_and(|r| r.process == held.record.process) => {
                    folder.write(&held.record)
                }
                _ => Ok(()),
            })
            .await?;
        }
        let closer = Box::new(HostCloser::new(held, None));
        Ok(Some(Arc::new(AgentSandbox::new(plan.id, false, plan.place, Arc::new(transport), closer))))
    }

    /// Judges the workspace alone; the folder of managed files is ours.
    async fn check(&self, spec: &SandboxSpec) -> Result<()> {
        let (config, mut spec) = (self.config.clone(), spec.clone());
        spec.managed_files = None;
        blocking(move || judge(&config, &spec).map(drop)).await
    }

    /// The sandbox that runs under this id. Nothing is started or ended, and nobody's lock is waited for.
    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let (name, data_dir, wanted) = (self.name, self.config.data_dir.clone(), id.clone());
        let looked = blocking(move || {
            let found = look(data_dir, wanted, |record| record.backend == name)?;
            Ok(found.map(|(held, folder)| {
                let transport = UnixTransport::open(&folder, SOCKET, held.agent.pid());
                (held, transport)
            }))
        });
        let Some((held, transport)) = looked.await? else { return Ok(None) };
        let transport = match ask(&held.agent, transport, None).await {
            Ok(transport) => transport,
            Err(Presence::Silent(error) | Presence::Foreign(error)) => return Err(Error::Present(error)),
            Err(_) => return Ok(None),
        };
        let env = match self.name {
            BackendName::None => environment::inherited(std::env::vars_os(), None),
            _ => environment::restricted(None),
        };
        let place = Place { env, cwd: None, shell: self.shell().await?.into() };
        let closer = Box::new(HostCloser::new(held, None));
        Ok(Some(Arc::new(AgentSandbox::new(id.clone(), false, place, Arc::new(transport), closer))))
    }

    /// The sandbox that runs already, if it is what the plan wants and answers.
    async fn adopt(
        &self,
        plan: &Plan,
        held: &Held,
        opening: Opening,
    ) -> Result<(Opening, Option<Arc<dyn Sandbox>>)> {
        if held.record.backend != self.name || !plan.is(&held.record) {
            return Ok((opening, None));
        }
        let agent = held.agent.clone();
        let (mut opening, transport) = blocking(move || {
            let transport = UnixTransport::open(opening.folder().directory(), SOCKET, agent.pid());
            Ok((opening, transport))
        })
        .await?;
        let transport = match ask(&held.agent, transport, Some(plan)).await {
            Ok(transport) => transport,
            // It may be in use.
            Err(Presence::Silent(error)) => return Err(Error::Present(error)),
            // It is over, or cannot be used any more.
            Err(_) => return Ok((opening, None)),
        };
        let mut held = held.clone();
        if held.record.idle_millis != plan.idle_millis {
            held.record.idle_millis = plan.idle_millis;
            let record = held.record.clone();
            opening = blocking(move || opening.folder().write(&record).map(|()| opening)).await?;
        }
        let closer = Box::new(HostCloser::new(held, None));
        let sandbox =
            AgentSandbox::new(plan.id.clone(), false, plan.place.clone(), Arc::new(transport), closer);
        Ok((opening, Some(Arc::new(sandbox))))
    }

    /// Starts the sandbox and waits until it serves.
    async fn start(&self, plan: Plan, opening: Opening) -> Result<Arc<dyn Sandbox>> {
        let program = match self.program().await {
            Ok(program) => program.clone(),
            Err(error) => {
                let dropped = long(move || {
                    drop(opening);
                    Ok(())
                });
                return dropped.await.and(Err(error));
            }
        };
        let (backend, fingerprint, told) = (self.name, plan.fingerprint.clone(), plan.told());
        let (ephemeral, idle_millis) = (plan.ephemeral, plan.idle_millis);
        let record = move |agent: &Agent| {
            let created_secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let record = Record::new(backend, Identity::of(agent.pid())?);
            Ok(Record { fingerprint, told, ephemeral, idle_millis, created_secs, ..record })
        };
        let mut arguments: Vec<OsString> = vec![
            "--idle".into(),
            plan.idle_millis.to_string().into(),
            "--cwd".into(),
            plan.cwd.clone().into(),
        ];
        arguments.extend(plan.bounds());
        let Launched { opening, record, agent, ready } =
            blocking(move || opening.launch(&program, arguments, record)).await?;
        let greeted = greet(ready).await;
        // What is dropped on the way to an error is dropped where that may block.
        let (opening, agent, transport) = blocking(move || {
            greeted?;
            let transport = opening.connect(&agent)?;
            Ok((opening, agent, transport))
        })
        .await?;
        let held = Held { data_dir: self.config.data_dir.clone(), id: plan.id.clone(), record, agent };
        held.clone().watch();
        // Nothing is waited for from here on: either the opening ends what it made, or the closer does.
        let closer = Box::new(HostCloser::new(held, opening.serves()));
        Ok(Arc::new(AgentSandbox::new(plan.id, true, plan.place, Arc::new(transport), closer)))
    }

    async fn purge(&self, id: &SandboxId) -> Result<()> {
        let (data_dir, id) = (self.config.data_dir.clone(), id.clone());
        long(move || scratch::remove(&data_dir, &id)).await
    }

    /// What there is. Ephemeral ones whose agent is over are no sandboxes any more: their remains are removed.
    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        let (data_dir, name) = (self.config.data_dir.clone(), self.name);
        let (found, remains) = long(move || {
            folder::sweep(&data_dir, None);
            let records =
                folder::records(&data_dir)?.into_iter().filter(|(_, record, _)| record.backend == name);
            let (mut found, mut remains) = (Vec::new(), Vec::new());
            for (id, record, whereabouts) in records {
                let running = !matches!(whereabouts, Whereabouts::Over);
                if record.ephemeral && !running {
                    remains.push(id);
                    continue;
                }
                let Record { fingerprint, created_secs, .. } = record;
                found.push(SandboxRecord { id, fingerprint, running, created_secs, provider: None });
            }
            Ok((found, remains))
        })
        .await?;
        for id in remains {
            self.remove(&id).await?;
        }
        Ok(found)
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        let Some(folder) = RunFolder::find(&self.config.data_dir, id).await? else { return Ok(()) };
        let name = self.name;
        let (folder, record, agent) = blocking(move || {
            let (record, agent) = match folder.look() {
                Some((record, Whereabouts::Here(agent))) => (Some(record), Some(Agent::from(agent))),
                Some((record, Whereabouts::Over)) => (Some(record), None),
                Some((record, Whereabouts::Elsewhere)) if record.backend == name => {
                    return Err(Error::Elsewhere(record.process.pid));
                }
                Some((record, Whereabouts::Elsewhere)) => (Some(record), None),
                None => (None, unrecorded(&folder)),
            };
            Ok((folder, record, agent))
        })
        .await?;
        let ephemeral = match (record, agent) {
            (Some(record), _) if record.backend != self.name => return Ok(()),
            (Some(record), agent) => {
                let ephemeral = record.ephemeral;
                if let Some(agent) = agent {
                    let data_dir = self.config.data_dir.clone();
                    Held { data_dir, id: id.clone(), record, agent }.end(&folder).await?;
                }
                ephemeral
            }
            (None, agent) => {
                if let Some(agent) = agent {
                    end_unrecorded(&folder, &agent, id).await?;
                }
                false
            }
        };
        let (data_dir, id) = (self.config.data_dir.clone(), id.clone());
        long(move || {
            if ephemeral {
                scratch::remove(&data_dir, &id)?;
            }
            folder.clear();
            Ok(())
        })
        .await
    }
}

/// Waits until an agent listens.
async fn greet(ready: OwnedFd) -> Result<()> {
    let mut ready = Receiver::from_owned_fd(ready).map_err(|e| Error::Start(e.to_string()))?;
    match tokio::time::timeout(START, ready.read_u8()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(Error::Start("it ended before it listened".to_owned())),
        Err(_) => Err(Error::Start(format!("it did not listen within {} s", START.as_secs()))),
    }
}

async fn whole<T>(task: tokio::task::JoinHandle<Result<T>>) -> Result<T> {
    task.await.map_err(|_| Error::ShuttingDown)?
}

/// The way to an agent that answers; a session's takes the plan's idle time, which begins anew. Else what has become of
/// it.
async fn ask(
    agent: &Agent,
    transport: moltis_agent::error::Result<UnixTransport>,
    plan: Option<&Plan>,
) -> Result<UnixTransport, Presence> {
    let ends = |patience| agent.ends_within(patience);
    let transport = match transport {
        Ok(transport) => transport,
        Err(error) => return Err(absence(agent.pid(), &error, ends).await),
    };
    // One round trip: setting the time is answered like any question.
    let idle_millis = plan.filter(|plan| !plan.ephemeral).map(|plan| plan.idle_millis);
    match presence(&transport, agent.pid(), idle_millis, ends).await {
        Presence::Answers => Ok(transport),
        other => Err(other),
    }
}

/// A sandbox whose agent lives and whose record is wanted, and the folder of its socket. Blocks on the disk alone.
fn look(
    data_dir: PathBuf,
    id: SandboxId,
    wanted: impl FnOnce(&Record) -> bool,
) -> Result<Option<(Held, OwnedFd)>> {
    let Some((folder, record)) = folder::look(&data_dir, &id) else { return Ok(None) };
    if !wanted(&record) {
        return Ok(None);
    }
    match record.process.whereabouts(&folder) {
        Whereabouts::Here(agent) => Ok(Some((Held { data_dir, id, record, agent: agent.into() }, folder))),
        Whereabouts::Over => Ok(None),
        Whereabouts::Elsewhere => Err(Error::Elsewhere(record.process.pid)),
    }
}

/// An agent that listens here though nothing is written down of it: its opener died in between. Blocks.
fn unrecorded(folder: &RunFolder) -> Option<Agent> {
    Process::open(folder.listener()?).ok().map(Agent::from).filter(Agent::is_alive)
}

async fn end_unrecorded(folder: &RunFolder, agent: &Agent, id: &SandboxId) -> Result<()> {
    let transport = UnixTransport::open(folder.directory(), SOCKET, agent.pid())?;
    let _ = moltis_agent::sandbox::shutdown(&transport, ANSWER).await;
    end(agent, id).await
}

/// What file tools may reach besides the scratch folder: the workspace and managed files.
fn judge(config: &Config, spec: &SandboxSpec) -> Result<Judged> {
    let workspace = match &spec.workspace {
        Some(workspace) => {
            let judge = Judge::new(&config.data_dir, config.config_dir.as_deref(), &Caller::now());
            Some(Root::workspace(&workspace.value, &judge.map_err(of_mounts)?)?)
        }
        None => None,
    };
    let files = match &spec.managed_files {
        Some(files) => Some(Root::ours(&files.source, files.mode)?),
        None => None,
    };
    Ok(Judged { workspace, files })
}

/// All that can fail before a source is looked at is reading what is mounted.
fn of_mounts(error: moltis_host::Error) -> Error {
    match error {
        moltis_host::Error::System { cause, .. } => Error::Mounts(cause),
        error => error.into(),
    }
}

struct Judged {
    workspace: Option<Root>,
    files: Option<Root>,
}

fn plan(
    name: BackendName,
    data_dir: &Path,
    spec: &SandboxSpec,
    judged: Judged,
    shell: PathBuf,
) -> Result<Plan> {
    let id = spec.id();
    let scratch = Root::ours(&scratch::make(data_dir, &id)?, MountMode::Rw)?;
    let Judged { workspace, files } = judged;
    let cwd = workspace.as_ref().unwrap_or(&scratch).path.clone();
    let told_of = files.as_ref().map(|files| files.path.as_path());
    let (env, limits) = match name {
        BackendName::None => (environment::inherited(std::env::vars_os(), told_of), Vec::new()),
        _ => (environment::restricted(told_of), rlimits::arguments(&spec.limits)),
    };
    Ok(Plan {
        fingerprint: spec.fingerprint(),
        ephemeral: spec.lifetime == Lifetime::Ephemeral,
        idle_millis: match spec.lifetime {
            Lifetime::Ephemeral => 0,
            Lifetime::Idle(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1),
        },
        place: Place {
            env,
            cwd: moltis_sandbox::GuestPath::new(cwd.as_os_str().as_bytes()),
            shell: shell.into(),
        },
        roots: [Some(scratch), workspace, files].into_iter().flatten().collect(),
        id,
        limits,
        cwd,
    })
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::{Command, ExecRequest, SessionKey};

    use super::*;
    use crate::error::tests::MUST_NOT_BLOCK;

    #[test]
    fn nothing_blocks_the_async_threads() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { data_dir: temp.path().join("data"), config_dir: None };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        // One thread for all tasks, which is told so by the first; what may block has threads of its own.
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let tasks = async move {
            MUST_NOT_BLOCK.set(true);
            let backend = RestrictedHostBackend::new(config.clone());
            backend.detect().await;
            let key = format!("blocks {}", std::process::id());
            let mut spec =
                SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(60)));
            backend.open(&spec).await.unwrap();
            spec.lifetime = Lifetime::Idle(Duration::from_secs(50));
            let adopted = backend.open(&spec).await.unwrap();
            assert!(!adopted.is_new());
            adopted.exec(ExecRequest::new(Command::Shell("exit".into()))).await.unwrap();
            assert_eq!(backend.list().await.unwrap().len(), 1);
            spec.lifetime = Lifetime::Ephemeral;
            let replaced = backend.open(&spec).await.unwrap();
            assert!(replaced.is_new());
            replaced.close().await.unwrap();
            drop(backend.open(&spec).await.unwrap());
            backend.open(&spec).await.unwrap();
            backend.remove(&spec.id()).await.unwrap();
            // One that cannot start.
            let broken = Host::new(BackendName::RestrictedHost, config);
            broken.program.set(Program::missing()).ok().unwrap();
            assert!(Host::open_whole(&Arc::new(broken), &spec).await.is_err());
            assert_eq!(std::fs::read_dir(temp.path().join("data/run-host")).unwrap().count(), 0);
        };
        let task = runtime.spawn(tasks);
        runtime.block_on(task).unwrap();
    }
}
