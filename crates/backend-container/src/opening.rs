//! Opening one sandbox: judged, its folder held, its container made, started and reached. What is about to be done is
//! written down first, and what does not come to an end is removed.

mod judging;
mod meeting;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_agent::container::{ContainerArgs, Resource};
use moltis_agent::dangerous;
use moltis_agent::presence::Presence;
use moltis_host::blocking::{long, short};
use moltis_host::node_proxy;
use moltis_host::sources::Judge;
use moltis_sandbox::{Diagnosis, Error, Gpus, Lifetime, Network, Result, Sandbox, SandboxId, SandboxSpec};

use crate::agentless::{self, Guest, Means};
use crate::backend::{Folder, State, remove_named};
use crate::connected::Connected;
use crate::engine::{
    self, Bind, Container, ContainerSpec, EngineError, EngineKind, Place, ProcessLimit, Relabel,
};
use crate::hardening::{self, Hatch, Wanted};
use crate::identity::Identity;
use crate::image::Resolved;
use crate::place::{self, HOME};
use crate::record::{AGENT, GROUP, NODE_PROXY, PASSWD, Record};
use crate::selinux::Labels;
use crate::served::Served;
use crate::shown::{Shown, View};
use crate::{accounts, closer, hatches, labels};
use judging::{Judged, seen_by};
use meeting::{Failed, agentless_limit};

/// The agent's program, inside.
pub const GUEST: &str = "/.moltis/guest";
/// Folder of the agent's socket, inside.
const AGENT_INSIDE: &str = "/.moltis/agent";
/// The agent's socket, inside.
pub const SOCKET_INSIDE: &str = "/.moltis/agent/agent.sock";

/// How long the name of a container that is gone is waited for.
const NAME_FREE_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of what a container that did not serve said, at most.
const MAX_WORDS: usize = 2000;

/// A sandbox that serves. Dropping a new one that nobody claimed ends it.
pub(crate) struct Opened {
    served: Option<Served>,
    is_new: bool,
    state: Arc<State>,
    id: SandboxId,
}

impl Opened {
    /// Hands it out.
    pub(crate) fn claim(mut self, state: &Arc<State>, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
        let Some(served) = self.served.take() else { unreachable!("it is claimed once") };
        if let Some(process) = served.process.as_ref().filter(|_| self.is_new) {
            closer::reap(Arc::clone(state), self.id.clone(), process);
        }
        served.hand_out(state, self.id.clone(), self.is_new, Some(spec))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(served) = self.served.take().filter(|_| self.is_new) else { return };
        let (state, id) = (Arc::clone(&self.state), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // What of it cannot be removed now is swept later.
            runtime.spawn(async move {
                drop(served.hold);
                state.end(&id, served.record.handle(), served.process.as_ref()).await
            });
        }
    }
}

impl State {
    pub(crate) async fn open(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Opened> {
        let connected = self.connected().await?;
        let (state, owned, at) = (Arc::clone(self), spec.clone(), Arc::clone(&connected));
        let judged = short(move || state.judge(&owned, &at)).await?;
        self.sweep_if_due(&judged.run, &spec.id()).await;
        let id = spec.id();
        let folder = judged.run.lock(&id).await?;
        let (mut folder, record) =
            long(move || Ok::<_, Error>((folder.record(), folder)).map(|(r, f)| (f, r))).await?;
        if let Some(record) = record {
            // A running sandbox keeps its folder, whatever becomes of this opening.
            folder.keep(true);
            if record.fingerprint == spec.fingerprint() {
                match self.ask(&id, record.clone(), Some(spec)).await? {
                    (Presence::Answers, Some(served)) => {
                        let state = Arc::clone(self);
                        return Ok(Opened { served: Some(served), is_new: false, state, id });
                    }
                    // It may be in use.
                    (Presence::Silent(error), _) => return Err(error),
                    // It is over, or cannot be used any more.
                    _ => {}
                }
            }
            self.remove_container(&connected, &record).await?;
            folder.keep(false);
        }
        let resolved = match self.image(spec, &connected).await {
            Ok(resolved) => resolved,
            Err(error) => {
                // Letting go of the folder removes what commands left in it.
                let _ = long(move || {
                    drop(folder);
                    Ok::<_, Error>(())
                })
                .await;
                return Err(error);
            }
        };
        self.launch(spec, &connected, judged, folder, resolved).await
    }

    async fn launch(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        connected: &Arc<Connected>,
        judged: Judged,
        folder: Folder,
        resolved: Resolved,
    ) -> Result<Opened> {
        let (state, owned, at) = (Arc::clone(self), spec.clone(), Arc::clone(connected));
        let prepare = move || state.prepare(&owned, &at, judged, folder, resolved);
        let Prepared { folder, record, container, notes, expected } = long(prepare).await?;
        match self.start(spec, connected, &folder, record.clone(), &container, expected).await {
            Ok(mut served) => {
                served.notes = notes;
                let mut folder = folder;
                folder.keep(true);
                Ok(Opened { served: Some(served), is_new: true, state: Arc::clone(self), id: spec.id() })
            }
            Err(error) => {
                // Whoever is told of it finds nothing left. If that cannot be had now, what is written down stays for
                // the sweep.
                let mut folder = folder;
                let removed = remove_named(connected, &record.name).await;
                folder.keep(removed.is_err());
                let _ = long(move || {
                    drop(folder);
                    Ok::<_, Error>(())
                })
                .await;
                Err(error)
            }
        }
    }

    /// Makes what the container needs of this machine, and says what it is to be. Blocks.
    fn prepare(
        &self,
        spec: &SandboxSpec,
        connected: &Connected,
        judged: Judged,
        mut folder: Folder,
        resolved: Resolved,
    ) -> Result<Prepared> {
        let Judged { identity, hatch, host_podman, .. } = judged;
        folder.clear()?;
        let fingerprint = spec.fingerprint();
        let spec = &seen_by(spec, connected);
        let kind = self.config.kind;
        let info = &connected.info;
        let remote = info.place == Place::Remote;
        let labelling = if info.confinement.selinux { Labels::Enforced } else { Labels::Off };
        let view = View {
            identity: &identity,
            caller: (self.caller().uid, self.caller().gid),
            paths: &connected.paths,
            labels: labelling,
        };
        let judge = Judge::new(&self.config.data_dir, self.config.config_dir.as_deref(), self.caller())?;
        let Shown { mut binds, guarded, expected, watched, notes: mut shown_notes } =
            view.show(spec, &judge)?;
        if let Means::Engine(why) = &connected.means {
            agentless::suits(&resolved.facts, why)?;
        }
        let guest = match &connected.means {
            Means::Socket(guest) | Means::Relay(guest) => Some(guest),
            Means::Engine(_) => None,
        };
        let by_socket = matches!(connected.means, Means::Socket(_));
        let (passwd, group) =
            accounts::generate(&resolved.facts.passwd, &resolved.facts.group, identity.inside);
        if !remote {
            let private = labelling.ours(Relabel::Private);
            let readable = std::fs::Permissions::from_mode(0o644);
            let mut files = vec![(PASSWD, &*passwd, "/etc/passwd"), (GROUP, &*group, "/etc/group")];
            if guest.is_some() {
                files.push((NODE_PROXY, node_proxy::TEXT, node_proxy::PATH));
            }
            for (name, text, target) in files {
                folder.create(name, 0o644, text.as_bytes())?;
                let path = folder.path().join(name);
                // The umask of this process says nothing about who reads it inside.
                std::fs::set_permissions(&path, readable.clone()).map_err(|cause| data_dir(&path, cause))?;
                binds.push(view.bound(&path, target, true, private)?);
            }
            if let Some(guest) = guest {
                let cache = self.config.data_dir.join("cache");
                let guest = guest.extract(&cache).map_err(|cause| data_dir(&cache, cause))?;
                binds.push(view.bound(&guest, GUEST, true, labelling.ours(Relabel::Shared))?);
            }
            if by_socket {
                folder.make_folder(AGENT, 0o1777)?;
                binds.push(view.bound(&folder.path().join(AGENT), AGENT_INSIDE, false, private)?);
            }
        }
        if let Some(socket) = &host_podman {
            binds.push(Bind {
                source: socket.clone(),
                target: hatches::SOCKET.to_owned(),
                read_only: false,
                relabel: Relabel::Not,
            });
        }
        let id = spec.id();
        let instance = connected.images.instance().to_owned();
        let created_secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // In a virtual machine the numbers are its own.
        let expected = if info.place == Place::Here { expected } else { Vec::new() };
        let argv = match guest {
            Some(_) => arguments(spec, &identity, hatch, by_socket, guarded, expected.clone()),
            None => agentless::first_process(agentless_limit(spec)),
        };
        let mut container = hardening::container(
            kind,
            info,
            Wanted {
                name: labels::name(&spec.container_prefix, &instance, &id),
                image: resolved.image.id.clone(),
                labels: labels::of(&instance, &id, &fingerprint, spec.lifetime, created_secs),
                argv,
                identity: &identity,
                prebuilt: resolved.prebuilt,
                binds,
                home_in_memory: spec.home.is_none().then_some(HOME),
                network: spec.network.value,
                memory: spec.limits.memory.map(|setting| setting.value),
                cpus: spec.limits.cpus.map(|setting| setting.value),
                pids: spec.limits.pids.map(|setting| setting.value),
                runtime: spec.runtime.as_ref().map(|setting| setting.value.clone()),
                gpus: spec.gpus.as_ref().map(|setting| match &setting.value {
                    Gpus::All => engine::Gpus::All,
                    Gpus::Ids(ids) => engine::Gpus::Ids(ids.clone()),
                }),
                hatch,
            },
        );
        if !by_socket {
            // Whoever takes the agent's place there is not its first process, which the relay looks at.
            let owner = if kind == EngineKind::Podman { "U" } else { "mode=1777" };
            container.tmpfs.push(engine::Tmpfs {
                target: AGENT_INSIDE.to_owned(),
                options: format!("rw,nosuid,nodev,noexec,size=64k,{owner}"),
            });
        }
        if remote && guest.is_some() {
            container.volumes.push(node_proxy::FOLDER.to_owned());
        }
        if !watched.is_empty() {
            let bytes = dangerous::encode(&watched)
                .ok_or_else(|| data_dir(folder.path(), rustix::io::Errno::OVERFLOW.into()))?;
            folder.write_watched(&bytes)?;
        }
        let record = Record {
            name: container.name.clone(),
            container: None,
            endpoint: connected.engine.endpoint(),
            fingerprint,
            created_secs,
            image_env: resolved.image.env.clone(),
            way: None,
            files: spec.managed_files.is_some(),
            groups: Vec::new(),
            watched: !watched.is_empty(),
        };
        folder.write(&record)?;
        let mut notes = notes_of(spec, &resolved);
        notes.append(&mut shown_notes);
        if hatch == Hatch::NestedPodman
            && spec.limits.pids.is_some()
            && info.process_limit(kind) == ProcessLimit::Users
        {
            notes.push(format!("`pids_max` is not enforced: {}", hatches::UNBOUNDED));
        }
        Ok(Prepared { folder, record, container, notes, expected })
    }

    /// Makes and starts the container and waits until its agent answers.
    async fn start(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        connected: &Connected,
        folder: &Folder,
        mut record: Record,
        container: &ContainerSpec,
        expected: Vec<(String, u64, u64)>,
    ) -> Result<Served> {
        let engine = &connected.engine;
        let id = self.create(connected, container, &spec.id()).await?;
        record.container = Some(id.clone());
        send_guest(connected, &id).await?;
        engine.start(&id).await?;
        let served = match connected.means {
            Means::Socket(_) => self.meet_by_socket(spec, connected, folder, &mut record).await,
            Means::Relay(_) => self.meet_by_relay(spec, connected, folder, &mut record).await,
            Means::Engine(_) => self.meet_by_engine(spec, connected, folder, &mut record, &expected).await,
        };
        match served {
            Ok(served) => Ok(served),
            Err(Failed::Error(error)) => Err(error),
            Err(Failed::Over) => Err(self.why_over(connected, container, &spec.id()).await),
        }
    }

    /// Makes the container. One of ours that is in the way, and that nothing is written down of, goes.
    async fn create(
        self: &Arc<Self>,
        connected: &Connected,
        container: &ContainerSpec,
        id: &SandboxId,
    ) -> Result<String> {
        let engine = &connected.engine;
        let deadline = Instant::now() + NAME_FREE_WITHIN;
        loop {
            let message = match engine.create(container).await {
                Err(EngineError::Conflict { message }) => message,
                created => return Ok(created?),
            };
            let over = Instant::now() > deadline;
            match engine.inspect(&container.name).await? {
                // It has just gone, or is going: an engine keeps its name to the last.
                None if !over => tokio::time::sleep(Duration::from_millis(50)).await,
                Some(other) if self.is_in_the_way(&other, container, id).await? && !over => {
                    engine.remove(&other.id).await?;
                }
                Some(_) => return Err(taken(&container.name)),
                None => return Err(EngineError::Conflict { message }.into()),
            }
        }
    }

    /// Whether a container that has the name of one to be made is ours, and nothing is written down of it.
    async fn is_in_the_way(
        self: &Arc<Self>,
        other: &Container,
        container: &ContainerSpec,
        id: &SandboxId,
    ) -> Result<bool> {
        let ours = other.labels.get(labels::INSTANCE) == container.labels.get(labels::INSTANCE);
        Ok(ours && !self.written_but(id).await?.iter().any(|record| record.is(other)))
    }
}

/// What there is once a container can be made.
struct Prepared {
    folder: Folder,
    record: Record,
    container: ContainerSpec,
    notes: Vec<String>,
    /// What must be mounted where.
    expected: Vec<(String, u64, u64)>,
}

/// The agent and its arguments.
fn arguments(
    spec: &SandboxSpec,
    identity: &Identity,
    hatch: Hatch,
    by_socket: bool,
    guards: Vec<String>,
    mounted: Vec<(String, u64, u64)>,
) -> Vec<String> {
    let directory = place::of(&[], Some(spec), None, &[]).cwd;
    let arguments = ContainerArgs {
        socket: SOCKET_INSIDE.to_owned(),
        owner: identity.peer,
        cwd: directory.map_or_else(|| "/".to_owned(), |path| path.to_string()),
        idle: match spec.lifetime {
            Lifetime::Ephemeral => None,
            Lifetime::Idle(idle) => Some(idle),
        },
        held: spec.lifetime == Lifetime::Ephemeral,
        relay: !by_socket,
        privileged: hatch == Hatch::NestedPodman,
        egress: spec.network.value != Network::Open,
        guards,
        mounted,
        rlimits: vec![(Resource::Core, 0)],
    };
    let mut argv = vec![GUEST.to_owned()];
    argv.extend(arguments.to_args());
    argv
}

/// A time as the protocol has it; never 0, which would mean for ever.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Puts the agent into a container of an engine that cannot mount it.
async fn send_guest(connected: &Connected, container: &str) -> Result<()> {
    let Means::Relay(guest) = &connected.means else { return Ok(()) };
    if connected.info.place != Place::Remote {
        return Ok(());
    }
    let guest = guest.clone();
    let archive = long(move || guest_archive(&guest)).await?;
    Ok(connected.engine.put_archive(container, node_proxy::FOLDER, archive).await?)
}

/// The agent's program, and what lies beside it, as an archive.
fn guest_archive(guest: &Guest) -> Result<Vec<u8>> {
    let failed = |cause| data_dir(Path::new("guest"), cause);
    let guest = guest.bytes().map_err(failed)?;
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in
        [("guest", 0o555, &guest[..]), (NODE_PROXY, 0o444, node_proxy::TEXT.as_bytes())]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_cksum();
        archive.append_data(&mut header, name, bytes).map_err(failed)?;
    }
    archive.into_inner().map_err(failed)
}

/// What a person should know of the image that it was made of.
fn notes_of(spec: &SandboxSpec, resolved: &Resolved) -> Vec<String> {
    let hidden = &resolved.facts.home_entries;
    if hidden.is_empty() {
        return Vec::new();
    }
    let what = if spec.home.is_some() { "the home that lasts" } else { "a new home" };
    let named = hidden.iter().take(3).map(|name| plain(name)).collect::<Vec<_>>().join(", ");
    vec![format!("the image has files of its own in {HOME} ({named}), which {what} hides")]
}

/// A text of others' in one line, without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect()
}

fn data_dir(path: &Path, cause: std::io::Error) -> Error {
    moltis_host::Error::DataDir { path: path.to_owned(), cause }.into()
}

fn taken(name: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "container-name-taken",
            format!("the name {name} belongs to somebody else's container"),
        )
        .fix("remove or rename that container, or set another `container_prefix`"),
    )
}
