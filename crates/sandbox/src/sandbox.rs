//! One running place.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::exec::ProcessId;
use crate::{Diagnosis, Error, Exec, ExecRequest, Files, GuestPath, Outcome, Result, SandboxId};

/// A two-way byte stream, such as a forwarded connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A listener inside the sandbox whose connections arrive here. Dropping it closes it.
#[async_trait]
pub trait Forwarder: Send {
    /// The port that it listens on, on the sandbox's loopback.
    fn port(&self) -> u16;
    /// The next connection that something inside made.
    async fn accept(&mut self) -> Result<Box<dyn Duplex>>;
}

/// A command that the sandbox knows: running, or over and not yet forgotten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Its number.
    pub id: ProcessId,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// What was asked for, shortened to 256 bytes.
    pub command: String,
    /// Whether it was started to run without a caller.
    pub background: bool,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
    /// How it ended, if it has.
    pub outcome: Option<Outcome>,
}

/// How much a sandbox is in use, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Commands, background commands, terminals, file and forward operations that run.
    pub operations: u32,
    /// Time since the last of them ended; zero while one runs.
    pub idle: Duration,
    /// Commands since its start.
    pub commands: u64,
    /// Time since its start.
    pub uptime: Duration,
}

/// What everything in a sandbox takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Memory that is held now, in bytes: by the sandbox's own control group where the agent can read it, without files
    /// that could be given back; else the resident memory of its processes.
    pub memory_bytes: u64,
    /// Processor time since the start, of what has ended too.
    pub cpu: Duration,
}

/// The refusal of [`Sandbox::egress`] where there is no proxy port.
pub fn no_egress() -> Error {
    Error::Refused(
        Diagnosis::new("egress-unsupported", "this sandbox has no proxy port")
            .fix("use a backend that keeps `network = \"trusted\"`: `moltis sandbox status` names them"),
    )
}

/// One running sandbox. Cloned handles (`Arc`) share it; commands, files and forwards may be used all at once.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its opaque id.
    fn id(&self) -> &SandboxId;

    /// Whether this call of `open` made it (as opposed to finding it running).
    fn is_new(&self) -> bool;

    /// Where commands run that name no directory, if that is known.
    fn directory(&self) -> Option<GuestPath> {
        None
    }

    /// How much it is in use; asking is no use.
    async fn activity(&self) -> Result<Activity>;

    /// What everything in it takes now, if that is known; asking is no use.
    ///
    /// # Errors
    /// That the sandbox cannot be asked.
    async fn usage(&self) -> Result<Option<Usage>> {
        Ok(None)
    }

    /// Starts a command.
    ///
    /// # Errors
    /// `Invalid` (no such cwd, command line too long) and `Unavailable` (the sandbox is gone or full) mean that it
    /// did not run; `Lost` that it may have.
    async fn exec(&self, request: ExecRequest) -> Result<Exec>;

    /// Background commands, running or over, oldest first.
    async fn processes(&self) -> Result<Vec<ProcessInfo>>;

    /// Watches a background command from these offsets (bytes of stdout and stderr) on. With `follow` the stream goes
    /// on until it ends, else it ends with what is there (and `Exit` only if it is over). A watcher is not a caller:
    /// dropping it ends nothing.
    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec>;

    /// Ends the whole descent of a command and waits until it is gone.
    async fn stop(&self, process: ProcessId) -> Result<Outcome>;

    /// File access.
    fn files(&self) -> &dyn Files;

    /// Connects to a port on the sandbox's loopback.
    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>>;

    /// Listens on the sandbox's loopback (0 picks a port); connections made inside arrive outside.
    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>>;

    /// Stands behind a proxy port of the sandbox: takes the connections that programs inside make to a port on their
    /// loopback, which the proxy variables name. Several may stand there at once, each behind a port of its own; once
    /// one goes, what comes by its port goes to any other, and while nobody is there programs are answered 503. Holding
    /// this is no use of the sandbox, an open connection is.
    ///
    /// # Errors
    /// `Refused` with code `egress-unsupported` where the sandbox has no such port.
    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        Err(no_egress())
    }

    /// Whether a provider keeps what programs here reach with the network `trusted`, by a list that [`allow`](Self::allow)
    /// hands it, instead of a proxy of ours.
    fn takes_list(&self) -> bool {
        false
    }

    /// Programs here reach these hosts (`example.com`, `*.example.com`) from now on, and nothing else. To be said before
    /// each command; saying the same again costs nothing.
    ///
    /// # Errors
    /// `Refused` with code `egress-unsupported` where no list is taken; those of the provider, and then nothing else may be
    /// started.
    async fn allow(&self, _hosts: &[String]) -> Result<()> {
        Err(no_egress())
    }

    /// Ends the sandbox and everything in it, and waits until nothing of it is left but its home.
    async fn close(&self) -> Result<()>;

    /// As [`close`](Self::close), but only if nothing uses it; whether it did. A sandbox with an agent of ours decides
    /// by itself: nothing can begin between its word and its end.
    ///
    /// # Errors
    /// Those of asking and of closing. After one it may be in use.
    async fn close_if_idle(&self) -> Result<bool> {
        if self.activity().await?.operations > 0 {
            return Ok(false);
        }
        self.close().await?;
        Ok(true)
    }
}
