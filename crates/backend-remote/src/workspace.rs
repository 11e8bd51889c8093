//! A sandbox at a provider whose workspace is carried there before something runs, and back afterwards.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use moltis_agentless::{Running, Runs, Sink, Stream, plain};
use moltis_host::caller::Caller;
use moltis_host::sources::{Judge, Judged, Role};
use moltis_sandbox::exec::{ExecEvents, ProcessId};
use moltis_sandbox::files::{ByteStream, EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{
    Activity, Diagnosis, Duplex, Error, Exec, ExecEvent, ExecRequest, Files, Forwarder, GuestPath, Metadata,
    MountMode, Outcome, ProcessInfo, Result, Sandbox, SandboxId, SandboxSpec, Usage,
};
use tokio::io::AsyncWriteExt;

use crate::sync::{Carrier, Far, Report, Step, Store, Terms, fits};

/// Most that is kept of what a script complained about.
const MAX_WORDS: usize = 400;
/// How long the last carrying may take before the machine is ended all the same.
const LAST: Duration = Duration::from_secs(600);
/// How often it is tried within that time.
const LAST_TRIES: u32 = 3;

/// A workspace that was judged and opened.
pub struct Shown {
    top: Arc<OwnedFd>,
    terms: Terms,
}

impl Shown {
    /// The workspace of a spec, if it names one. Blocks on the file system.
    ///
    /// # Errors
    /// `workspace-missing` and its like; `workspace-too-large`.
    pub fn of(spec: &SandboxSpec, data_dir: &Path, config_dir: Option<&Path>) -> Result<Option<Self>> {
        let Some(mount) = &spec.workspace else { return Ok(None) };
        let judged = judge(&mount.value.source, data_dir, config_dir)?;
        let terms = Terms {
            path: judged.path.clone(),
            identity: (judged.device, judged.inode),
            writable: mount.value.mode == MountMode::Rw,
            protect: spec.workspace_protect.clone(),
            listed: spec.workspace_upload.clone(),
            in_home: false,
        };
        Ok(Some(Self { top: Arc::new(judged.handle), terms }))
    }

    /// One that was written down, if it is still the same folder. Blocks on the file system.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn again(terms: Terms, data_dir: &Path, config_dir: Option<&Path>) -> Result<Self> {
        let judged = judge(&terms.path, data_dir, config_dir)?;
        if (judged.device, judged.inode) != terms.identity {
            return Err(Error::Unavailable(
                Diagnosis::new(
                    "workspace-missing",
                    format!("{} is another folder now", terms.path.display()),
                )
                .fix("nothing is carried to it; look into the sandbox for what is missing"),
            ));
        }
        Ok(Self { top: Arc::new(judged.handle), terms })
    }

    /// Whether it can be carried at all. Blocks on the file system.
    ///
    /// # Errors
    /// `workspace-too-large`, `workspace-unreadable`.
    pub fn fits(&self) -> Result<()> {
        fits(&self.top, &self.terms)
    }

    /// What carries it to the directory of a machine of this name.
    pub fn carrier(mut self, tools: Arc<dyn Runs>, place: Place<'_>, store: Store, machine: &str) -> Carrier {
        let directory = place.directory;
        self.terms.in_home = directory == place.home;
        let far = Arc::new(There { tools, directory: directory.as_bytes().to_vec() });
        let title = self.terms.path.display().to_string();
        let progress = Arc::new(move |step: Step| match step {
            Step::Sends(count, bytes) => {
                tracing::info!(workspace = %title, count, bytes, "the workspace is sent to the provider");
            }
            Step::Fetches(count, bytes) => {
                tracing::info!(workspace = %title, count, bytes, "changes of the workspace are fetched");
            }
            Step::Done => tracing::debug!(workspace = %title, "both sides of the workspace agree"),
        });
        Carrier::new(far, store, machine, self.terms, self.top, progress)
    }
}

/// Where a workspace lies on a machine.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The directory.
    pub directory: &'a str,
    /// The home of the machine's user.
    pub home: &'a str,
}

fn judge(path: &Path, data_dir: &Path, config_dir: Option<&Path>) -> Result<Judged> {
    let judge = Judge::new(data_dir, config_dir, &Caller::now())?;
    Ok(judge.judge(Role::Workspace, path)?)
}

/// Carries back what is left to carry, before a machine is ended. What cannot be is told in the log: the machine ends all
/// the same, since it costs money.
pub async fn last(
    tools: Arc<dyn Runs>,
    place: Place<'_>,
    store: Store,
    machine: &str,
    (data_dir, config_dir): (PathBuf, Option<PathBuf>),
) {
    let read = store.clone();
    let known = moltis_sandbox::blocking::long(move || {
        let state = read.read()?;
        Some((state.machine, Shown::again(state.terms, &data_dir, config_dir.as_deref())))
    });
    let Ok(Some((name, shown))) = known.await else { return };
    if name != machine {
        return;
    }
    let done = match shown {
        Ok(shown) => {
            let carrier = shown.carrier(tools, place, store, machine);
            match tokio::time::timeout(LAST, fetch_again(&carrier)).await {
                Ok(done) => done.map(|report| report.notes()),
                Err(_) => Err(not_carried("it took too long")),
            }
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(notes) => notes.into_iter().for_each(|note| tracing::warn!(note, "a workspace was carried back")),
        Err(error) => tracing::warn!(%error, "changes of a workspace may be lost with the sandbox that ends"),
    }
}

/// Fetches, and once more if it broke off: every time goes on from where the one before was.
async fn fetch_again(carrier: &Carrier) -> Result<Report> {
    let mut tries = 0;
    loop {
        tries += 1;
        match carrier.fetch().await {
            Err(error) if tries < LAST_TRIES => {
                tracing::warn!(%error, "a workspace is not carried back yet");
                tokio::time::sleep(Duration::from_millis(500) * tries).await;
            }
            done => return done,
        }
    }
}

fn not_carried(why: impl std::fmt::Display) -> Error {
    Error::Unavailable(
        Diagnosis::new("workspace-not-carried", "the workspace was not carried")
            .cause(why)
            .fix("run another command: it goes on from where it was"),
    )
}

/// A directory on a rented machine.
struct There {
    tools: Arc<dyn Runs>,
    directory: Vec<u8>,
}

#[async_trait]
impl Far for There {
    async fn run(&self, script: &str, args: &[&[u8]], input: Option<ByteStream>) -> Result<ByteStream> {
        let mut argv: Vec<&[u8]> = vec![b"/bin/sh", b"-c", script.as_bytes(), b"sh", &self.directory];
        argv.extend(args);
        let mut running = self.tools.start(&argv, input.is_some()).await?;
        let feeding = match (running.input(), input) {
            (Some(sink), Some(input)) => Some(tokio::spawn(feed(sink, input))),
            _ => None,
        };
        let state = Some(Printing { running, feeding, words: Vec::new() });
        Ok(Box::pin(stream::unfold(state, |state| async move {
            let mut state = state?;
            match state.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(state))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })))
    }
}

/// A script that runs.
struct Printing {
    running: Box<dyn Running>,
    feeding: Option<tokio::task::JoinHandle<Result<()>>>,
    words: Vec<u8>,
}

impl Drop for Printing {
    fn drop(&mut self) {
        if let Some(feeding) = &self.feeding {
            feeding.abort();
        }
    }
}

impl Printing {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.running.next().await? {
                Some((Stream::Stdout, piece)) => return Ok(Some(Bytes::from(piece))),
                Some((Stream::Stderr, piece)) => {
                    let room = MAX_WORDS.saturating_sub(self.words.len());
                    self.words.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                None => break,
            }
        }
        let code = self.running.end().await?;
        if let Some(feeding) = self.feeding.take()
            && feeding.is_finished()
        {
            feeding.await.unwrap_or_else(|broke| Err(not_carried(broke)))?;
        }
        match code {
            0 => Ok(None),
            44 => Err(not_carried("its directory in the sandbox has gone, or cannot be entered")),
            46 => Err(not_carried("there is no room in the sandbox's /tmp")),
            code => Err(not_carried(format!("a script ended with {code}: {}", plain(&self.words)))),
        }
    }
}

/// Sends input as far as it is taken; an error is the input's own.
async fn feed(mut sink: Sink, mut input: ByteStream) -> Result<()> {
    let mut done = Ok(());
    while let Some(piece) = input.next().await {
        match piece {
            // Its end says why it takes no more.
            Ok(piece) => {
                if sink.write_all(&piece).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                done = Err(error);
                break;
            }
        }
    }
    let _ = sink.flush().await;
    let _ = sink.shutdown().await;
    done
}

/// The sandbox, with a workspace.
pub struct Carried {
    sandbox: Arc<dyn Sandbox>,
    files: CarriedFiles,
    carrier: Arc<Carrier>,
}

impl Carried {
    /// Carries by this.
    pub fn new(sandbox: Arc<dyn Sandbox>, carrier: Arc<Carrier>) -> Self {
        let files = CarriedFiles { sandbox: Arc::clone(&sandbox), carrier: Arc::clone(&carrier) };
        Self { sandbox, files, carrier }
    }

    /// The same command, whose end is told once what changed has come back.
    fn carries(&self, exec: Exec, told: Vec<String>) -> Exec {
        let Exec { events, control } = exec;
        let state = Some((events, Arc::clone(&self.carrier), told));
        let events = stream::unfold(state, |state| async move {
            let (mut events, carrier, told) = state?;
            match events.next().await? {
                Ok(ExecEvent::Exit(mut outcome)) => {
                    outcome.notes.extend(told);
                    fetched(&carrier, &mut outcome).await;
                    Some((Ok(ExecEvent::Exit(outcome)), None))
                }
                event => Some((event, Some((events, carrier, told)))),
            }
        });
        Exec { events: ExecEvents::new(events), control }
    }
}

/// Brings back what changed, and says with a command's end what is to be said of it.
async fn fetched(carrier: &Carrier, outcome: &mut Outcome) {
    match carrier.fetch().await {
        Ok(report) => outcome.notes.extend(report.notes()),
        Err(error) => outcome.notes.push(format!("what changed was not carried back: {error}")),
    }
}

/// Nothing that was asked for has run yet.
fn before(error: Error) -> Error {
    match error {
        Error::Lost(diagnosis) => {
            Error::Unavailable(Diagnosis { code: "workspace-not-carried".into(), ..diagnosis })
        }
        error => error,
    }
}

#[async_trait]
impl Sandbox for Carried {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn is_new(&self) -> bool {
        self.sandbox.is_new()
    }

    fn directory(&self) -> Option<GuestPath> {
        self.sandbox.directory()
    }

    async fn activity(&self) -> Result<Activity> {
        self.sandbox.activity().await
    }

    async fn usage(&self) -> Result<Option<Usage>> {
        self.sandbox.usage().await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        let told = self.carrier.send().await.map_err(before)?.notes();
        Ok(self.carries(self.sandbox.exec(request).await?, told))
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.sandbox.processes().await
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        Ok(self.carries(self.sandbox.attach(process, stdout, stderr, follow).await?, Vec::new()))
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        let mut outcome = self.sandbox.stop(process).await?;
        fetched(&self.carrier, &mut outcome).await;
        Ok(outcome)
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        self.sandbox.connect(port).await
    }

    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>> {
        self.sandbox.listen(port).await
    }

    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        self.sandbox.egress().await
    }

    fn takes_list(&self) -> bool {
        self.sandbox.takes_list()
    }

    async fn allow(&self, hosts: &[String]) -> Result<()> {
        self.sandbox.allow(hosts).await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }

    async fn close_if_idle(&self) -> Result<bool> {
        self.sandbox.close_if_idle().await
    }
}

/// Its files, of which those in the workspace are carried.
struct CarriedFiles {
    sandbox: Arc<dyn Sandbox>,
    carrier: Arc<Carrier>,
}

impl CarriedFiles {
    fn is_within(&self, path: &GuestPath) -> bool {
        let Some(directory) = self.sandbox.directory() else { return false };
        let rest = path.as_bytes().strip_prefix(directory.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }

    /// Before something in the workspace is looked at.
    async fn look(&self, path: &GuestPath) -> Result<&dyn Files> {
        if self.is_within(path) {
            self.carrier.send().await.map_err(before)?;
        }
        Ok(self.sandbox.files())
    }

    /// Before something in the workspace is changed.
    async fn change(&self, path: &GuestPath) -> Result<&dyn Files> {
        if self.is_within(path) && !self.carrier.is_writable() {
            return Err(Error::Refused(
                Diagnosis::new("file-read-only", format!("`{path}` cannot be written to"))
                    .cause("the workspace is read-only")
                    .fix("name it with `:rw` (`--workspace DIR:rw`), or write to another place"),
            ));
        }
        self.look(path).await
    }

    /// After something was changed.
    async fn changed(&self, paths: &[&GuestPath]) -> Result<()> {
        if paths.iter().any(|path| self.is_within(path)) {
            self.carrier.fetch().await.map_err(before)?;
        }
        Ok(())
    }
}

#[async_trait]
impl Files for CarriedFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        self.look(path).await?.stat(path, follow).await
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        self.look(path).await?.list(path).await
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        self.look(path).await?.read(path, offset, length).await
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata> {
        let done = self.change(path).await?.write(path, options, content).await?;
        self.changed(&[path]).await.map(|()| done)
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        self.change(path).await?.mkdir(path, parents).await?;
        self.changed(&[path]).await
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        self.change(path).await?.remove(path, recursive).await?;
        self.changed(&[path]).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        self.change(from).await?;
        self.change(to).await?.rename(from, to, replace).await?;
        self.changed(&[from, to]).await
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        self.look(path).await?.download(path).await
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        let done = self.change(path).await?.upload(path, tar).await?;
        self.changed(&[path]).await.map(|()| done)
    }
}
