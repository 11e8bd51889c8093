//! A sandbox whose agent does the work: what every backend with an agent of ours hands out.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent_protocol::message::{FailureCode, Reply, Request};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Duplex, Exec, ExecRequest, Files, Forwarder, GuestPath, Outcome, ProcessInfo, Result, Sandbox,
    SandboxId, Usage,
};

use crate::client::{Connection, Patience};
use crate::error::Subject;
use crate::files::AgentFiles;
use crate::transport::Transport;
use crate::{egress, exec, forward};

/// What the backend knows of the place that its sandbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sandbox's own variables (`HOME`, `PATH` and so on); those of a request come on top.
    pub env: Vec<(OsString, OsString)>,
    /// Where commands run that name no directory; absent: the agent's own default.
    pub cwd: Option<GuestPath>,
    /// The shell for command lines, a path inside the sandbox.
    pub shell: OsString,
}

/// Ends a sandbox and cleans up after it. Supplied by the backend, which knows what there is to clean up.
#[async_trait]
pub trait Closer: Send + Sync {
    /// Ends the sandbox and everything in it, and waits until nothing of it is left but its home. May be called more
    /// than once.
    async fn close(&self) -> Result<()>;
}

/// Finds out on the host what the agent cannot know of a command, or cannot be believed. Supplied by the backend.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Looks right before a command starts, without waiting; what it finds is given to [`after`](Self::after).
    fn before(&self) -> u64;

    /// The outcome of a command that is over, with what was found added.
    async fn after(&self, before: u64, outcome: Outcome) -> Outcome;
}

/// A running sandbox with an agent of ours.
pub struct AgentSandbox {
    id: SandboxId,
    is_new: bool,
    place: Place,
    transport: Arc<dyn Transport>,
    patience: Patience,
    files: AgentFiles,
    closer: Box<dyn Closer>,
    inspector: Option<Arc<dyn Inspect>>,
}

impl AgentSandbox {
    /// A sandbox that `transport` reaches. `is_new` says whether this call of `open` made it.
    pub fn new(
        id: SandboxId,
        is_new: bool,
        place: Place,
        transport: Arc<dyn Transport>,
        closer: Box<dyn Closer>,
    ) -> Self {
        let patience = Patience::default();
        let files = AgentFiles::new(Arc::clone(&transport), patience);
        Self { id, is_new, place, transport, patience, files, closer, inspector: None }
    }

    /// The same with somebody who looks at each command on the host.
    #[must_use]
    pub fn with_inspector(mut self, inspector: Option<Arc<dyn Inspect>>) -> Self {
        self.inspector = inspector;
        self
    }

    /// The same with other waiting times.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self.files = AgentFiles::new(Arc::clone(&self.transport), patience);
        self
    }

    /// How the agent is reached.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn inspect(&self) -> Option<Inspection> {
        self.inspector.as_ref().map(|inspector| Inspection::begin(Arc::clone(inspector)))
    }

    /// Where its commands run.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

#[async_trait]
impl Sandbox for AgentSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn directory(&self) -> Option<GuestPath> {
        self.place.cwd.clone()
    }

    async fn activity(&self) -> Result<Activity> {
        let status = status(&*self.transport, self.patience).await?;
        Ok(Activity {
            operations: status.busy,
            idle: Duration::from_millis(status.idle_millis),
            commands: status.commands,
            uptime: Duration::from_millis(status.uptime_millis),
        })
    }

    async fn usage(&self) -> Result<Option<Usage>> {
        Ok(usage(&*self.transport, self.patience).await?)
    }

    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        let start = exec::assemble(&self.place, request)?;
        let inspection = self.inspect();
        Ok(exec::start(&self.transport, start, self.patience, inspection).await?)
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        Ok(exec::processes(&*self.transport, self.patience).await?)
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        let inspection = self.inspect();
        let wish = exec::Wish { process, offsets: [stdout, stderr], follow };
        Ok(exec::attach(&self.transport, wish, self.patience, inspection).await?)
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        let inspection = self.inspect();
        let outcome = exec::stop(&*self.transport, process, self.patience).await?;
        Ok(match inspection {
            Some(inspection) => inspection.finish(outcome).await,
            None => outcome,
        })
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        Ok(Box::new(forward::connect(&*self.transport, port, self.patience).await?))
    }

    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>> {
        Ok(Box::new(forward::listen(&self.transport, port, self.patience).await?))
    }

    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        Ok(Box::new(egress::stand(&self.transport, self.patience).await?))
    }

    async fn close(&self) -> Result<()> {
        self.closer.close().await
    }

    async fn close_if_idle(&self) -> Result<bool> {
        let agreed = match shutdown_if_idle(&*self.transport, self.patience).await {
            Ok(agreed) => agreed,
            // It has ended since, and is cleaned up after.
            Err(crate::Error::Gone) => true,
            Err(error) => return Err(error.into()),
        };
        if agreed {
            self.closer.close().await?;
        }
        Ok(agreed)
    }
}

/// What an inspector finds out about one command.
#[derive(Clone)]
pub(crate) struct Inspection {
    inspector: Arc<dyn Inspect>,
    before: u64,
}

impl Inspection {
    fn begin(inspector: Arc<dyn Inspect>) -> Self {
        let before = inspector.before();
        Self { inspector, before }
    }

    pub(crate) async fn finish(self, outcome: Outcome) -> Outcome {
        self.inspector.after(self.before, outcome).await
    }
}

/// What an agent knows of itself.
pub use moltis_agent_protocol::message::Status as AgentStatus;

/// Asks an agent what it knows of itself; also the way to find out whether it answers at all.
///
/// # Errors
/// As [`Connection::open`].
pub async fn status(transport: &dyn Transport, patience: Patience) -> crate::error::Result<AgentStatus> {
    let mut connection = Connection::open(transport, &Request::Status, patience).await?;
    match connection.answer(Subject::Agent).await? {
        Reply::Status(status) => Ok(status),
        _ => Err(crate::Error::unexpected("status")),
    }
}

/// Time for an answer that is good for a look alone.
const LOOK: Duration = Duration::from_secs(5);

/// Asks an agent what everything in its sandbox takes; nothing where it cannot say: an older agent does not know the
/// question, and of very many processes none makes the sum.
///
/// # Errors
/// As [`Connection::open`].
pub async fn usage(
    transport: &dyn Transport,
    patience: Patience,
) -> crate::error::Result<Option<moltis_sandbox::Usage>> {
    let patience =
        Patience { hello: patience.hello.min(LOOK), answer: patience.answer.min(LOOK), ..patience };
    let mut connection = Connection::open(transport, &Request::Usage, patience).await?;
    match connection.answer(Subject::Agent).await {
        Ok(Reply::Usage(usage)) => Ok(Some(moltis_sandbox::Usage {
            memory_bytes: usage.memory_bytes,
            cpu: Duration::from_micros(usage.cpu_micros),
        })),
        Ok(_) => Err(crate::Error::unexpected("usage")),
        Err(crate::Error::Failed(_, failure))
            if matches!(failure.code, FailureCode::Invalid | FailureCode::Exhausted) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Sets the idle time (milliseconds, 0 for never) after which an agent ends itself.
///
/// # Errors
/// As [`Connection::open`].
pub async fn configure(
    transport: &dyn Transport,
    idle_millis: u64,
    patience: Patience,
) -> crate::error::Result<()> {
    let mut connection = Connection::open(transport, &Request::Configure { idle_millis }, patience).await?;
    connection.done(Subject::Agent).await
}

/// A sandbox that is held: it ends when this is dropped, or when the process that has it ends, however it does.
#[must_use = "the sandbox ends when this is dropped"]
pub struct Held {
    connection: Connection,
}

impl Held {
    /// Waits until the sandbox has ended, or the way to it has.
    pub async fn ended(&mut self) {
        // Nothing is ever said on it; a sandbox that does say something is broken.
        let _ = self.connection.reader.part().await;
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// Holds a sandbox: it ends with what is returned here. Holding is no use; its idle time runs.
///
/// # Errors
/// As [`Connection::open`]; [`Failed`](crate::Error::Failed) with `Busy` when somebody else holds it.
pub async fn hold(transport: &dyn Transport, patience: Patience) -> crate::error::Result<Held> {
    let mut connection = Connection::open(transport, &Request::Hold, patience).await?;
    match connection.answer(Subject::Agent).await? {
        Reply::Done => Ok(Held { connection }),
        _ => Err(crate::Error::unexpected("instead of done")),
    }
}

/// Tells an agent to end its sandbox. It answers before it does so; the backend waits for the end by its own means.
///
/// # Errors
/// As [`Connection::open`].
pub async fn shutdown(transport: &dyn Transport, patience: Patience) -> crate::error::Result<()> {
    let mut connection = Connection::open(transport, &Request::Shutdown, patience).await?;
    connection.done(Subject::Agent).await
}

/// Tells an agent to end its sandbox if nothing uses it; whether it does. From the answer on nothing begins there. The
/// backend waits for the end by its own means.
///
/// # Errors
/// As [`Connection::open`].
pub async fn shutdown_if_idle(transport: &dyn Transport, patience: Patience) -> crate::error::Result<bool> {
    let mut connection = Connection::open(transport, &Request::ShutdownIfIdle, patience).await?;
    match connection.answer(Subject::Agent).await {
        Ok(Reply::Done) => Ok(true),
        Ok(_) => Err(crate::Error::unexpected("instead of done")),
        Err(crate::Error::Failed(_, failure)) if failure.code == FailureCode::Busy => Ok(false),
        Err(error) => Err(error),
    }
}
