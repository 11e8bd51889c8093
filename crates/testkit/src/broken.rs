//! A backend that breaks one promise at a time. The suite is held against it: it must fail, and in the right places only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use moltis_sandbox::exec::{ExecEvents, ProcessId, TerminalSize};
use moltis_sandbox::files::{EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{
    Activity, Backend, BackendName, ByteStream, Detection, Duplex, Exec, ExecControl, ExecEvent, ExecRequest,
    Files, Forwarder, GuestPath, Lifetime, Metadata, MountMode, Outcome, ProcessInfo, Result, Sandbox,
    SandboxId, SandboxRecord, SandboxSpec, SessionKey, Status, Usage,
};

/// One broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Commands run without their time-out.
    LosesTimeOut,
    /// Standard error comes as standard output.
    MergesStreams,
    /// Of every piece of output above 4 KiB the last byte is lost.
    DropsBytes,
    /// `cancel` does nothing.
    IgnoresCancel,
    /// Leftovers are not told.
    HidesLeftovers,
    /// Output of a command that has no input comes only when it is over.
    HoldsOutput,
    /// Output is taken whether or not it is read.
    ReadsAhead,
    /// The loss of the caller goes unnoticed.
    IgnoresLoss,
    /// A signal is told as an exit code.
    TellsSignalsAsCodes,
    /// Standard input is thrown away.
    LosesInput,
    /// The working directory that was asked for is not used.
    IgnoresCwd,
    /// The caller's environment comes in.
    LeaksEnvironment,
    /// Every command runs twice.
    RunsTwice,
    /// A read-only workspace can be written to.
    WritableWorkspace,
    /// Limits are taken and not applied.
    IgnoresLimits,
    /// Closing a sandbox does nothing.
    NeverCloses,
    /// Existing files are replaced unasked.
    Overwrites,
    /// A source that breaks off is taken for a whole file.
    WritesHalves,
    /// The terminal never hears of its new size.
    IgnoresResize,
    /// Checking finds no fault with any spec.
    ChecksNothing,
    /// Whatever runs under the key is adopted, though it is of another spec.
    AdoptsOtherSpecs,
    /// Adopting starts what is not there.
    AdoptStarts,
    /// Finding starts again what was closed.
    FindStarts,
    /// It is never said to be in use.
    NeverInUse,
    /// Asking how long it has been idle is taken for use.
    AskingIsUse,
    /// An idle sandbox does not end.
    NeverIdle,
    /// A sandbox that has ended is handed out again.
    KeepsTheDead,
    /// Each opening of a session makes a sandbox.
    ForgetsSessions,
    /// What is kept of a session is not purged.
    NeverPurges,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 29] = [
        Self::LosesTimeOut,
        Self::MergesStreams,
        Self::DropsBytes,
        Self::IgnoresCancel,
        Self::HidesLeftovers,
        Self::HoldsOutput,
        Self::ReadsAhead,
        Self::IgnoresLoss,
        Self::TellsSignalsAsCodes,
        Self::LosesInput,
        Self::IgnoresCwd,
        Self::LeaksEnvironment,
        Self::RunsTwice,
        Self::WritableWorkspace,
        Self::IgnoresLimits,
        Self::NeverCloses,
        Self::Overwrites,
        Self::WritesHalves,
        Self::IgnoresResize,
        Self::ChecksNothing,
        Self::AdoptsOtherSpecs,
        Self::AdoptStarts,
        Self::FindStarts,
        Self::NeverInUse,
        Self::AskingIsUse,
        Self::NeverIdle,
        Self::KeepsTheDead,
        Self::ForgetsSessions,
        Self::NeverPurges,
    ];

    /// Its name in kebab-case.
    pub fn name(self) -> String {
        let mut name = String::new();
        for (at, letter) in format!("{self:?}").char_indices() {
            if letter.is_ascii_uppercase() && at > 0 {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

/// Wraps a backend so that it breaks this promise.
pub fn broken(inner: Arc<dyn Backend>, fault: Fault) -> Arc<dyn Backend> {
    Arc::new(BrokenBackend { inner, fault, opened: Mutex::default() })
}

/// A sandbox and the spec that it was opened for.
type Opened = (SandboxSpec, Arc<dyn Sandbox>);

struct BrokenBackend {
    inner: Arc<dyn Backend>,
    fault: Fault,
    /// What was opened here, by id.
    opened: Mutex<HashMap<SandboxId, Opened>>,
}

#[async_trait]
impl Backend for BrokenBackend {
    fn name(&self) -> BackendName {
        self.inner.name()
    }

    async fn detect(&self) -> Detection {
        self.inner.detect().await
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let mut spec = spec.clone();
        if self.fault == Fault::WritableWorkspace
            && let Some(workspace) = &mut spec.workspace
        {
            workspace.value.mode = MountMode::Rw;
        }
        if self.fault == Fault::IgnoresLimits {
            spec.limits = moltis_sandbox::Limits::default();
        }
        if self.fault == Fault::NeverIdle
            && let Lifetime::Idle(idle) = &mut spec.lifetime
        {
            *idle *= 100;
        }
        if self.fault == Fault::KeepsTheDead
            && let Some((former, sandbox)) = self.opened(&spec.id())
            && former.fingerprint() == spec.fingerprint()
        {
            return Ok(sandbox);
        }
        if self.fault == Fault::ForgetsSessions
            && spec.lifetime != Lifetime::Ephemeral
            && let Some(key) = SessionKey::new(format!("{} {}", spec.key, crate::context::unique()))
        {
            spec.key = key;
        }
        let sandbox = self.wrap(self.inner.open(&spec).await?);
        if matches!(self.fault, Fault::KeepsTheDead | Fault::FindStarts) {
            let opened = (spec.clone(), sandbox.clone());
            self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(spec.id(), opened);
        }
        Ok(sandbox)
    }

    async fn check(&self, spec: &SandboxSpec) -> Result<()> {
        if self.fault == Fault::ChecksNothing {
            return Ok(());
        }
        self.inner.check(spec).await
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let found = match self.fault {
            Fault::AdoptsOtherSpecs => self.inner.find(&spec.id()).await?,
            Fault::AdoptStarts => Some(self.inner.open(spec).await?),
            _ => self.inner.adopt(spec).await?,
        };
        Ok(found.map(|inner| self.wrap(inner)))
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let mut found = self.inner.find(id).await?;
        if found.is_none()
            && self.fault == Fault::FindStarts
            && let Some((spec, _)) = self.opened(id)
        {
            found = Some(self.inner.open(&spec).await?);
        }
        Ok(found.map(|inner| self.wrap(inner)))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        self.inner.list().await
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        self.inner.remove(id).await
    }

    async fn purge(&self, id: &SandboxId) -> Result<()> {
        if self.fault == Fault::NeverPurges {
            return Ok(());
        }
        self.inner.purge(id).await
    }
}

impl BrokenBackend {
    fn opened(&self, id: &SandboxId) -> Option<Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn wrap(&self, inner: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        let fault = self.fault;
        Arc::new(BrokenSandbox { files: BrokenFiles { inner: inner.clone(), fault }, inner, fault })
    }
}

struct BrokenSandbox {
    inner: Arc<dyn Sandbox>,
    files: BrokenFiles,
    fault: Fault,
}

impl BrokenSandbox {
    fn events(&self, events: ExecEvents, input: bool) -> ExecEvents {
        let fault = self.fault;
        let changed = move |event: Result<ExecEvent>| -> Result<ExecEvent> {
            Ok(match (fault, event?) {
                (Fault::MergesStreams, ExecEvent::Stderr(bytes)) => ExecEvent::Stdout(bytes),
                (Fault::DropsBytes, ExecEvent::Stdout(bytes)) if bytes.len() > 4096 => {
                    ExecEvent::Stdout(bytes.slice(..bytes.len() - 1))
                }
                (Fault::HidesLeftovers, ExecEvent::Exit(outcome)) => {
                    ExecEvent::Exit(Outcome { leftovers: Vec::new(), leftovers_total: 0, ..outcome })
                }
                (Fault::TellsSignalsAsCodes, ExecEvent::Exit(outcome)) => {
                    ExecEvent::Exit(Outcome { status: Status::Code(outcome.status.shell_code()), ..outcome })
                }
                (_, event) => event,
            })
        };
        let events = events.map(changed);
        match fault {
            Fault::HoldsOutput if !input => ExecEvents::new(held(events)),
            Fault::ReadsAhead | Fault::IgnoresLoss => ExecEvents::new(ahead(events, fault)),
            _ => ExecEvents::new(events),
        }
    }
}

/// Nothing but `Started` until the command is over.
fn held(
    events: impl futures_util::Stream<Item = Result<ExecEvent>> + Send + 'static,
) -> impl futures_util::Stream<Item = Result<ExecEvent>> + Send + 'static {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        let mut kept = Vec::new();
        loop {
            let next = tokio::select! {
                next = events.next() => next,
                // The caller's loss passes on.
                () = sender.closed() => return,
            };
            match next {
                Some(Ok(event @ ExecEvent::Started(_))) => {
                    let _ = sender.send(Ok(event));
                }
                Some(event) => kept.push(event),
                None => break,
            }
        }
        for event in kept {
            let _ = sender.send(event);
        }
    });
    receiving(receiver)
}

/// Takes what comes, in front of a caller that may not read or may be gone.
fn ahead(
    events: impl futures_util::Stream<Item = Result<ExecEvent>> + Send + 'static,
    fault: Fault,
) -> impl futures_util::Stream<Item = Result<ExecEvent>> + Send + 'static {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    // Back-pressure is kept where only the loss is to be broken.
    let room =
        Arc::new(tokio::sync::Semaphore::new(if fault == Fault::ReadsAhead { usize::MAX >> 4 } else { 4 }));
    let taken = room.clone();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        loop {
            let next = tokio::select! {
                next = events.next() => next,
                () = sender.closed(), if fault == Fault::ReadsAhead => return,
            };
            let Some(event) = next else { return };
            if !sender.is_closed()
                && let Ok(permit) = taken.acquire().await
            {
                permit.forget();
            }
            let _ = sender.send(event);
        }
    });
    receiving(receiver).inspect(move |_| room.add_permits(1))
}

fn receiving(
    receiver: tokio::sync::mpsc::UnboundedReceiver<Result<ExecEvent>>,
) -> impl futures_util::Stream<Item = Result<ExecEvent>> + Send + 'static {
    futures_util::stream::unfold(
        receiver,
        |mut receiver| async move { Some((receiver.recv().await?, receiver)) },
    )
}

struct BrokenControl {
    inner: Box<dyn ExecControl>,
    fault: Fault,
}

#[async_trait]
impl ExecControl for BrokenControl {
    async fn stdin(&mut self, bytes: Bytes) -> Result<()> {
        if self.fault == Fault::LosesInput {
            return Ok(());
        }
        self.inner.stdin(bytes).await
    }

    async fn close_stdin(&mut self) -> Result<()> {
        self.inner.close_stdin().await
    }

    async fn resize(&mut self, size: TerminalSize) -> Result<()> {
        if self.fault == Fault::IgnoresResize {
            return Ok(());
        }
        self.inner.resize(size).await
    }

    async fn signal(&mut self, signal: i32) -> Result<()> {
        self.inner.signal(signal).await
    }

    async fn cancel(&mut self) -> Result<()> {
        if self.fault == Fault::IgnoresCancel {
            return Ok(());
        }
        self.inner.cancel().await
    }
}

#[async_trait]
impl Sandbox for BrokenSandbox {
    fn id(&self) -> &SandboxId {
        self.inner.id()
    }

    fn is_new(&self) -> bool {
        self.inner.is_new()
    }

    async fn activity(&self) -> Result<Activity> {
        let activity = self.inner.activity().await?;
        Ok(match self.fault {
            Fault::NeverInUse => Activity { operations: 0, ..activity },
            Fault::AskingIsUse => Activity { idle: Duration::ZERO, ..activity },
            _ => activity,
        })
    }

    async fn usage(&self) -> Result<Option<Usage>> {
        self.inner.usage().await
    }

    async fn exec(&self, mut request: ExecRequest) -> Result<Exec> {
        match self.fault {
            Fault::LosesTimeOut => request.timeout = None,
            Fault::IgnoresCwd => request.cwd = None,
            Fault::LeaksEnvironment => {
                let own = std::env::vars_os().filter(|(n, _)| n != "PATH" && n != "HOME" && n != "LANG");
                request.env = own.chain(request.env).collect();
            }
            Fault::RunsTwice if !request.background && request.terminal.is_none() => {
                let mut first = request.clone();
                first.stdin = false;
                if let Ok(mut exec) = self.inner.exec(first).await {
                    // Long enough for what is short, and not for what waits.
                    let running = async { while exec.events.next().await.is_some() {} };
                    let _ = tokio::time::timeout(Duration::from_millis(300), running).await;
                }
            }
            _ => {}
        }
        let input = request.stdin;
        let Exec { events, control } = self.inner.exec(request).await?;
        Ok(Exec {
            events: self.events(events, input),
            control: Box::new(BrokenControl { inner: control, fault: self.fault }),
        })
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.inner.processes().await
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        self.inner.attach(process, stdout, stderr, follow).await
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        self.inner.stop(process).await
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        self.inner.connect(port).await
    }

    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>> {
        self.inner.listen(port).await
    }

    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        self.inner.egress().await
    }

    async fn close(&self) -> Result<()> {
        if self.fault == Fault::NeverCloses {
            return Ok(());
        }
        self.inner.close().await
    }

    async fn close_if_idle(&self) -> Result<bool> {
        if self.fault == Fault::NeverCloses {
            return Ok(self.inner.activity().await?.operations == 0);
        }
        self.inner.close_if_idle().await
    }
}

struct BrokenFiles {
    inner: Arc<dyn Sandbox>,
    fault: Fault,
}

#[async_trait]
impl Files for BrokenFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        self.inner.files().stat(path, follow).await
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        self.inner.files().list(path).await
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        self.inner.files().read(path, offset, length).await
    }

    async fn write(
        &self,
        path: &GuestPath,
        mut options: WriteOptions,
        content: ByteStream,
    ) -> Result<Metadata> {
        let content = match self.fault {
            Fault::WritesHalves => content.take_while(|p| std::future::ready(p.is_ok())).boxed(),
            _ => content,
        };
        if self.fault == Fault::Overwrites {
            options.overwrite = true;
        }
        self.inner.files().write(path, options, content).await
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        self.inner.files().mkdir(path, parents).await
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        self.inner.files().remove(path, recursive).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        let replace = replace || self.fault == Fault::Overwrites;
        self.inner.files().rename(from, to, replace).await
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        self.inner.files().download(path).await
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        self.inner.files().upload(path, tar).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_names_of_their_own() {
        let names: std::collections::BTreeSet<String> = Fault::ALL.into_iter().map(Fault::name).collect();
        assert_eq!(names.len(), Fault::ALL.len());
        assert_eq!(Fault::LosesTimeOut.name(), "loses-time-out");
    }
}
