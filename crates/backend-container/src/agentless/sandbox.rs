//! A sandbox without an agent, as it is handed out.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::{Closer, Inspect, Place};
use moltis_agentless::{ScriptFiles, is_name};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Duplex, Exec, ExecRequest, Files, Forwarder, GuestPath, Outcome, ProcessInfo, Result, Sandbox,
    SandboxId,
};

use super::steward::Steward;
use super::tools::{self, Tools};
use super::{FORSAKEN, exec, failure};
use crate::engine::{Container, Engine};

/// Why no command runs in the background.
pub const NO_BACKGROUND: &str =
    "without an agent nobody inside keeps the output of a command that runs without a caller";
/// Why no port is forwarded.
pub const NO_FORWARD: &str = "without an agent nobody inside connects or listens";

/// Variables that engines set by themselves.
const OF_ENGINES: [&str; 7] = ["HOSTNAME", "HOME", "container", "PATH", "TERM", "LANG", "TZ"];

/// What all uses of one handle share.
pub struct Agentless {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) container: String,
    place: OnceLock<Place>,
    /// Names of the variables that the container would give every program.
    pub(super) given: Vec<String>,
    pub(super) steward: Arc<Steward>,
    operations: AtomicU32,
    commands: AtomicU64,
    began: Instant,
    last: Mutex<Instant>,
    /// How often it is told that it is in use.
    beat: Duration,
}

/// One use of a sandbox, as long as this lives.
pub struct Busy {
    sandbox: Arc<Agentless>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let left = self.sandbox.operations.fetch_sub(1, Ordering::SeqCst) - 1;
        *self.sandbox.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let steward = Arc::clone(&self.sandbox.steward);
            runtime.spawn(async move { steward.ask(format!("use {left}")).await });
        }
    }
}

impl Agentless {
    /// For this container. `held`: it ends with this; otherwise it ends when it was idle for `idle`, which only whoever
    /// made it knows.
    pub fn new(
        engine: Arc<dyn Engine>,
        container: String,
        image_env: &[String],
        held: bool,
        idle: Option<Duration>,
    ) -> Arc<Self> {
        let named = image_env.iter().filter_map(|variable| variable.split_once('=')).map(|(name, _)| name);
        let given = named.chain(OF_ENGINES).filter(|name| is_name(name)).map(str::to_owned).collect();
        let beat = idle.unwrap_or(FORSAKEN) / 4;
        let sandbox = Arc::new(Self {
            steward: Steward::new(Arc::clone(&engine), container.clone(), held),
            engine,
            container,
            place: OnceLock::new(),
            given,
            operations: AtomicU32::new(0),
            commands: AtomicU64::new(0),
            began: Instant::now(),
            last: Mutex::new(Instant::now()),
            beat: beat.clamp(Duration::from_millis(200), Duration::from_secs(15)),
        });
        beats(&sandbox, held);
        sandbox
    }

    /// Whether its container lives.
    pub async fn lives(&self) -> Result<bool> {
        let found: Option<Container> = self.engine.inspect(&self.container).await?;
        Ok(found.is_some_and(|container| container.lives()))
    }

    /// The same with what commands find around them.
    pub fn at(self: Arc<Self>, place: Place) -> Arc<Self> {
        let _ = self.place.set(place);
        self
    }

    /// What commands find around them.
    pub(super) fn place(&self) -> Place {
        let nowhere = || Place { env: Vec::new(), cwd: None, shell: "/bin/sh".into() };
        self.place.get().cloned().unwrap_or_else(nowhere)
    }

    /// Finds out whether it can be used. With `use_it` its idle time begins anew; only to look is no use of it.
    ///
    /// # Errors
    /// Those of the steward.
    pub async fn greet(&self, use_it: bool) -> Result<()> {
        let order = if use_it { "beat" } else { "look" };
        self.steward.ask(order.to_owned()).await.map(drop)
    }

    /// Whether at each of these paths is what was judged: the engine mounts by path, which may lead elsewhere by then.
    ///
    /// # Errors
    /// `mount-changed`; those of running a program.
    pub async fn check_mounts(self: &Arc<Self>, expected: &[(String, u64, u64)]) -> Result<()> {
        if expected.is_empty() {
            return Ok(());
        }
        tools::check_mounts(self, expected).await
    }

    /// Begins a use of it.
    pub(super) async fn begin(self: &Arc<Self>, command: bool) -> Result<Busy> {
        let count = self.operations.fetch_add(1, Ordering::SeqCst) + 1;
        let busy = Busy { sandbox: Arc::clone(self) };
        if command {
            self.commands.fetch_add(1, Ordering::Relaxed);
        }
        self.steward.ask(format!("use {count}")).await?;
        Ok(busy)
    }

    async fn activity(&self) -> Result<Activity> {
        let said = self.steward.ask("uses".to_owned()).await?;
        let all: u32 = said
            .iter()
            .filter_map(|line| line.strip_prefix("u ")?.trim().parse::<u32>().ok())
            .fold(0, u32::saturating_add);
        let operations = all.max(self.operations.load(Ordering::SeqCst));
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Activity {
            operations,
            idle: if operations > 0 { Duration::ZERO } else { last.elapsed() },
            commands: self.commands.load(Ordering::Relaxed),
            uptime: self.began.elapsed(),
        })
    }
}

/// Tells the first process that somebody is there: always, where the sandbox is held, else while something runs.
fn beats(sandbox: &Arc<Agentless>, held: bool) {
    let (weak, every): (Weak<Agentless>, _) = (Arc::downgrade(sandbox), sandbox.beat);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(sandbox) = weak.upgrade() else { return };
            if held || sandbox.operations.load(Ordering::SeqCst) > 0 {
                let _ = sandbox.greet(true).await;
            }
        }
    });
}

/// A running sandbox without an agent.
pub struct AgentlessSandbox {
    id: SandboxId,
    is_new: bool,
    inner: Arc<Agentless>,
    files: ScriptFiles,
    closer: Box<dyn Closer>,
    inspector: Option<Arc<dyn Inspect>>,
}

impl AgentlessSandbox {
    /// Hands it out.
    pub fn new(
        id: SandboxId,
        is_new: bool,
        inner: Arc<Agentless>,
        closer: Box<dyn Closer>,
        inspector: Option<Arc<dyn Inspect>>,
    ) -> Self {
        let files = ScriptFiles::new(Arc::new(Tools(Arc::clone(&inner))));
        Self { id, is_new, inner, files, closer, inspector }
    }
}

#[async_trait]
impl Sandbox for AgentlessSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn directory(&self) -> Option<GuestPath> {
        self.inner.place().cwd
    }

    async fn activity(&self) -> Result<Activity> {
        self.inner.activity().await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        exec::start(&self.inner, request, self.inspector.clone()).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        Ok(Vec::new())
    }

    async fn attach(&self, _: ProcessId, _: u64, _: u64, _: bool) -> Result<Exec> {
        Err(failure::declared("background", NO_BACKGROUND))
    }

    async fn stop(&self, _: ProcessId) -> Result<Outcome> {
        Err(failure::declared("background", NO_BACKGROUND))
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, _: u16) -> Result<Box<dyn Duplex>> {
        Err(failure::declared("forward", NO_FORWARD))
    }

    async fn listen(&self, _: u16) -> Result<Box<dyn Forwarder>> {
        Err(failure::declared("forward", NO_FORWARD))
    }

    async fn close(&self) -> Result<()> {
        self.closer.close().await
    }
}
