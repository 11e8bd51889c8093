//! A container that was started, until whoever serves in it has answered, or has not.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_agent::Transport;
use moltis_agent::client::Patience;
use moltis_agent::presence::{Presence, presence};
use moltis_agent::sandbox::hold;
use moltis_agent::transport::RelaySecret;
use moltis_host::process::Process;
use moltis_sandbox::{Diagnosis, Error, Lifetime, Result, SandboxId, SandboxSpec};

use super::{MAX_WORDS, data_dir, millis, plain, send_guest};
use crate::agentless::{self, Agentless};
use crate::backend::{Folder, State, remove_named};
use crate::connected::Connected;
use crate::engine::ContainerSpec;
use crate::reach::{self, RelayWay};
use crate::record::{Record, Way};
use crate::served::{Link, Served};
use crate::{labels, oom};

/// How long a container that was started may take until its agent answers.
const SERVES_WITHIN: Duration = Duration::from_secs(20);

/// Why a sandbox that was started cannot be used.
pub(super) enum Failed {
    /// Its first process is over.
    Over,
    Error(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl State {
    pub(super) async fn meet_by_socket(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        connected: &Connected,
        folder: &Folder,
        record: &mut Record,
    ) -> Result<Served, Failed> {
        let found = connected.engine.inspect(record.handle()).await.map_err(Error::from)?;
        let pid = found.filter(|container| container.lives()).map_or(0, |container| container.pid);
        let process = if pid == 0 { None } else { Process::open(pid).ok() };
        let process = process.ok_or(Failed::Over)?;
        record.way = Some(reach::by_socket(&process).ok_or(Failed::Over)?);
        record.groups = oom::groups_of(pid);
        folder.rewrite(record).map_err(Error::from)?;
        let deadline = Instant::now() + SERVES_WITHIN;
        let mut pause = Duration::from_micros(500);
        loop {
            if let Ok(transport) = reach::socket(folder.handle(), pid) {
                let transport: Arc<dyn Transport> = Arc::new(transport);
                let ends = |patience| process.ends_within(patience);
                match presence(&*transport, pid, idle_of(spec), ends).await {
                    Presence::Answers => {
                        return self.held(spec, record.clone(), Some(process), transport).await;
                    }
                    Presence::Over => return Err(Failed::Over),
                    Presence::Silent(error) | Presence::Foreign(error) if Instant::now() > deadline => {
                        return Err(error.into());
                    }
                    Presence::Silent(_) | Presence::Foreign(_) => {}
                }
            }
            if process.ends_within(pause).await {
                return Err(Failed::Over);
            }
            if Instant::now() > deadline {
                return Err(not_serving(SERVES_WITHIN).into());
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    pub(super) async fn meet_by_relay(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        connected: &Connected,
        folder: &Folder,
        record: &mut Record,
    ) -> Result<Served, Failed> {
        let secret = RelaySecret::generate().map_err(|cause| data_dir(Path::new("/dev/urandom"), cause))?;
        record.way = Some(Way::Relay { secret: labels::hex(secret.as_bytes()) });
        folder.rewrite(record).map_err(Error::from)?;
        let engine = &connected.engine;
        let way = RelayWay::new(Arc::clone(engine), record.handle().to_owned(), secret);
        let deadline = Instant::now() + SERVES_WITHIN;
        // The first relay tells the agent the secret: no command may run before that.
        while let Err(error) = way.ready().await {
            let lives = engine.inspect(record.handle()).await.map_err(Error::from)?;
            if !lives.is_some_and(|container| container.lives()) {
                return Err(Failed::Over);
            }
            if Instant::now() > deadline {
                return Err(Error::from(error).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let transport: Arc<dyn Transport> = Arc::new(way);
        loop {
            let ends = |_| async { false };
            let error = match presence(&*transport, 1, idle_of(spec), ends).await {
                Presence::Answers => return self.held(spec, record.clone(), None, transport).await,
                Presence::Over => return Err(Failed::Over),
                Presence::Silent(error) | Presence::Foreign(error) => error,
            };
            let lives = engine.inspect(record.handle()).await.map_err(Error::from)?;
            if !lives.is_some_and(|container| container.lives()) {
                return Err(Failed::Over);
            }
            if Instant::now() > deadline {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn held(
        &self,
        spec: &SandboxSpec,
        record: Record,
        process: Option<Process>,
        transport: Arc<dyn Transport>,
    ) -> Result<Served, Failed> {
        let hold = match spec.lifetime {
            Lifetime::Ephemeral => Some(hold(&*transport, Patience::default()).await.map_err(Error::from)?),
            Lifetime::Idle(_) => None,
        };
        Ok(Served { record, process, link: Link::Agent(transport), hold, notes: Vec::new() })
    }

    /// Without an agent: the container runs what waits, and the engine answers for the rest.
    pub(super) async fn meet_by_engine(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        connected: &Connected,
        folder: &Folder,
        record: &mut Record,
        expected: &[(String, u64, u64)],
    ) -> Result<Served, Failed> {
        let engine = &connected.engine;
        let idle = match spec.lifetime {
            Lifetime::Ephemeral => None,
            Lifetime::Idle(idle) => Some(idle),
        };
        record.way = Some(Way::Engine { idle_millis: idle.map_or(0, millis) });
        folder.rewrite(record).map_err(Error::from)?;
        let (handle, env) = (record.handle().to_owned(), &record.image_env);
        let agentless = Agentless::new(Arc::clone(engine), handle, env, idle.is_none(), idle);
        let met = async {
            agentless.greet(true).await?;
            agentless.check_mounts(expected).await
        };
        match met.await {
            Ok(()) => {}
            Err(error) => {
                let lives = engine.inspect(record.handle()).await.map_err(Error::from)?;
                let lives = lives.is_some_and(|container| container.lives());
                return Err(if lives { Failed::Error(error) } else { Failed::Over });
            }
        }
        let link = Link::Engine(agentless);
        Ok(Served { record: record.clone(), process: None, link, hold: None, notes: Vec::new() })
    }

    /// Why a container was over before its agent answered: told by another one, which is kept until it has been asked.
    pub(super) async fn why_over(
        self: &Arc<Self>,
        connected: &Connected,
        container: &ContainerSpec,
        sandbox: &SandboxId,
    ) -> Error {
        let engine = &connected.engine;
        let mut again = container.clone();
        again.name = format!("{}-why", container.name);
        (again.auto_remove, again.keep_logs) = (false, true);
        let said = async {
            let id = self.create(connected, &again, sandbox).await?;
            send_guest(connected, &id).await?;
            engine.start(&id).await?;
            let _ = tokio::time::timeout(Duration::from_secs(5), engine.wait(&id)).await;
            let found = engine.inspect(&id).await?;
            let words = engine.logs(&id, MAX_WORDS).await?;
            Ok::<_, Error>((found, String::from_utf8_lossy(&words).trim().to_owned()))
        };
        let said = said.await;
        let _ = remove_named(connected, &again.name).await;
        let cause = match said {
            Ok((Some(found), _)) if found.oom_killed => "the kernel killed it for want of memory".to_owned(),
            Ok((Some(found), words)) => {
                let code = found.exit_code.map_or_else(String::new, |code| format!(" (exit code {code})"));
                let words = if words.is_empty() { found.error } else { words };
                format!("{}{code}", plain(&words))
            }
            Ok((None, words)) => plain(&words),
            Err(error) => return error,
        };
        Error::Unavailable(
            Diagnosis::new("container-start-failed", "the container ended before it answered")
                .cause(cause)
                .fix("moltis sandbox status; look at the engine's own log"),
        )
    }
}

fn idle_of(spec: &SandboxSpec) -> Option<u64> {
    match spec.lifetime {
        Lifetime::Ephemeral => None,
        Lifetime::Idle(idle) => Some(millis(idle)),
    }
}

/// How long a sandbox without an agent lives that nobody uses.
pub(super) fn agentless_limit(spec: &SandboxSpec) -> Duration {
    match spec.lifetime {
        Lifetime::Ephemeral => agentless::FORSAKEN,
        Lifetime::Idle(idle) => idle,
    }
}

fn not_serving(patience: Duration) -> Error {
    Error::Unavailable(
        Diagnosis::new("container-start-failed", "the agent in the container does not answer")
            .cause(format!("nothing listens on its socket after {} s", patience.as_secs()))
            .fix("moltis sandbox status; look at the engine's own log"),
    )
}
