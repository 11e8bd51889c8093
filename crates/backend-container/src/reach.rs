//! The way to a sandbox's agent: by its socket, where the engine's word for its first process can be checked, else by a
//! relay that the engine runs beside it.

mod relay;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_agent::UnixTransport;
use moltis_agent::presence::Presence;
use moltis_host::blocking::short;
use moltis_host::process::{Process, pid_realm};
use moltis_host::record::Whereabouts;
use moltis_sandbox::{Diagnosis, Error, Result, SandboxId};
use rustix::fs::{Mode, OFlags, openat};

use crate::agentless::Agentless;
use crate::backend::State;
use crate::engine::{ContainerState, Engine};
use crate::record::{AGENT, Record, SOCKET, Way};
use crate::served::{Link, Served};
pub use relay::RelayWay;

/// Between two looks at a container whose process is not known here.
const PAUSE: Duration = Duration::from_millis(100);

/// A sandbox whose first process lived a moment ago.
pub struct Reached {
    record: Record,
    process: Option<Process>,
    /// For one whose process is not known here.
    engine: Option<Arc<dyn Engine>>,
    pub(crate) link: moltis_agent::error::Result<Link>,
}

impl Reached {
    /// Its first process by our number; by the engine's, 1, where it has none here.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(1, Process::pid)
    }

    /// Whether it ends within this time.
    pub async fn ends_within(&self, patience: Duration) -> bool {
        if let Some(process) = &self.process {
            return process.ends_within(patience).await;
        }
        let Some(engine) = &self.engine else { return true };
        let deadline = Instant::now() + patience;
        loop {
            match engine.inspect(self.record.handle()).await {
                Ok(Some(container)) if container.lives() => {}
                Ok(_) => return true,
                // It cannot be told.
                Err(_) => return false,
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(PAUSE.min(patience)).await;
        }
    }

    /// With the answer, the way to it.
    pub fn served(self) -> Option<Served> {
        let Self { record, process, link, .. } = self;
        Some(Served { record, process, link: link.ok()?, hold: None, notes: Vec::new() })
    }
}

impl State {
    /// The way to a sandbox that is written down; `None` if its first process is over.
    ///
    /// # Errors
    /// `sandbox-elsewhere`; those of the engine where only it can tell.
    pub(crate) async fn reach(self: &Arc<Self>, id: &SandboxId, record: Record) -> Result<Option<Reached>> {
        match record.way.clone() {
            Some(Way::Socket { .. }) => {
                let (state, id) = (Arc::clone(self), id.clone());
                short(move || state.reach_socket(&id, record)).await
            }
            Some(Way::Relay { secret }) => {
                let connected = self.connected().await?;
                let engine = Arc::clone(&connected.engine);
                let container = match engine.inspect(record.handle()).await {
                    Ok(Some(container)) if container.lives() => container,
                    Ok(_) => return Ok(None),
                    Err(error) => return Err(self.failed(error).await),
                };
                let secret = relay::secret_of(&secret).ok_or_else(unreadable)?;
                let transport = RelayWay::new(Arc::clone(&engine), container.id, secret);
                let link = Ok(Link::Agent(Arc::new(transport)));
                Ok(Some(Reached { record, process: None, engine: Some(engine), link }))
            }
            Some(Way::Engine { idle_millis }) => {
                let connected = self.connected().await?;
                let engine = Arc::clone(&connected.engine);
                let container = match engine.inspect(record.handle()).await {
                    Ok(Some(container)) if container.lives() => container,
                    Ok(_) => return Ok(None),
                    Err(error) => return Err(self.failed(error).await),
                };
                let idle = (idle_millis > 0).then(|| Duration::from_millis(idle_millis));
                let env = &record.image_env;
                let agentless = Agentless::new(Arc::clone(&engine), container.id, env, false, idle);
                let link = Ok(Link::Engine(agentless));
                Ok(Some(Reached { record, process: None, engine: Some(engine), link }))
            }
            // Whoever was making it has died, or is at it.
            None => Ok(None),
        }
    }

    /// Without taking its folder: whoever ends it meanwhile is noticed by the connection. Blocks.
    fn reach_socket(&self, id: &SandboxId, record: Record) -> Result<Option<Reached>> {
        let Some(run) = self.run() else { return Ok(None) };
        let Some(folder) = run.open(id) else { return Ok(None) };
        let process = match run.whereabouts(&record, &folder) {
            Whereabouts::Here(process) => process,
            Whereabouts::Over => return Ok(None),
            Whereabouts::Elsewhere => return Err(elsewhere(&record)),
        };
        let link = socket(&folder, process.pid()).map(|transport| Link::Agent(Arc::new(transport)));
        Ok(Some(Reached { record, process: Some(process), engine: None, link }))
    }

    /// Says why a sandbox is silent: where nobody listens any more, code inside has taken the agent's socket away, and the
    /// sandbox is as good as broken; else the engine may know.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        id: &SandboxId,
        found: Presence,
        reached: &Reached,
    ) -> Presence {
        let Presence::Silent(error) = found else { return found };
        if reached.process.is_some() {
            let (state, id) = (Arc::clone(self), id.clone());
            let look = move || Ok::<_, Error>(state.run().and_then(|run| run.open(&id)).is_some_and(is_deaf));
            if short(look).await.unwrap_or(false) {
                return Presence::Foreign(deaf());
            }
        }
        let Ok(connected) = self.connected().await else { return Presence::Silent(error) };
        match connected.engine.inspect(reached.record.handle()).await {
            Ok(Some(container)) if container.state == ContainerState::Paused => {
                let name = &container.name;
                let diagnosis = Diagnosis::new("sandbox-silent", "the sandbox does not answer")
                    .cause(format!("its container {name} is paused"))
                    .fix(format!(
                        "unpause it (docker unpause {name}, podman unpause {name}), or end it (`moltis sandbox stop`)"
                    ));
                Presence::Silent(Error::Unavailable(diagnosis))
            }
            // It says itself what is wrong with it.
            Err(broken) => Presence::Silent(broken.into()),
            Ok(_) => Presence::Silent(error),
        }
    }
}

/// Whether nobody can listen on what stands in the place of the agent's socket. An agent that serves listens from before its
/// first command until it is over, and what listens takes connections even while it is stopped. Blocks on a look-up.
fn is_deaf(folder: impl AsFd) -> bool {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = openat(folder, AGENT, flags | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .and_then(|agent| openat(agent, SOCKET, flags | OFlags::PATH, Mode::empty()));
    let there = match there {
        Ok(there) => there,
        Err(errno) => return matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP),
    };
    let connected = SocketAddrUnix::new(format!("/proc/self/fd/{}", there.as_raw_fd())).and_then(|address| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
    });
    // The second is said of what is no socket.
    matches!(connected, Err(Errno::CONNREFUSED | Errno::NOTSOCK))
}

/// The agent's socket in a sandbox's folder, which must be listened on by this process. Blocks on a look-up.
pub fn socket(folder: impl AsFd, pid: u32) -> moltis_agent::error::Result<UnixTransport> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let agent = openat(folder, AGENT, flags, Mode::empty())
        .map_err(|errno| moltis_agent::Error::Unreachable(errno.into()))?;
    UnixTransport::open(&agent, SOCKET, pid)
}

/// The way by the socket, written down.
pub fn by_socket(process: &Process) -> Option<Way> {
    Some(Way::Socket { pid: process.pid(), started: process.started()?, realm: pid_realm().to_owned() })
}

fn unreadable() -> Error {
    Error::Unavailable(
        Diagnosis::new("sandbox-foreign", "the sandbox cannot be spoken to")
            .cause("what is written down of it cannot be read")
            .fix("end the sandbox (`moltis sandbox stop`, or `--recreate` with the next command)"),
    )
}

fn deaf() -> Error {
    Error::Unavailable(
        Diagnosis::new("sandbox-foreign", "the sandbox cannot be spoken to")
            .cause("something inside has taken its agent's socket away")
            .fix("end the sandbox (`moltis sandbox stop`, or `--recreate` with the next command)"),
    )
}

fn elsewhere(record: &Record) -> Error {
    Error::Unavailable(
        Diagnosis::new("sandbox-elsewhere", "the sandbox belongs to another PID namespace of this machine")
            .cause(format!("its container is {}", record.name))
            .fix("use it from where it was made, or end it there"),
    )
}
