//! A machine of fake backends, whose engines live and die as a test says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use moltis_config::words::Failover as Policy;
use moltis_config::{BackendChoice, Config};
use moltis_sandbox::exec::{Ending, ExecControl, ExecEvents, ProcessId, TerminalSize};
use moltis_sandbox::{
    Activity, Backend, BackendName, BuildRequest, BuildSink, BuiltImage, Cleaned, Command, Detection,
    Diagnosis, Duplex, Error, Exec, ExecEvent, ExecRequest, Files, Forwarder, Guarantees, ImageChoice,
    ImageInfo, Images, Legacy, Origin, Outcome, ProcessInfo, Promise, Result, Sandbox, SandboxId,
    SandboxRecord, SandboxSpec, SessionKey, Setting, Status, Usable,
};

use crate::registry::Registry;
use crate::{OpenSession, Runtime, SessionRequest};

/// What an engine does.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) down: AtomicBool,
    /// The image cannot be had.
    pub(crate) no_image: AtomicBool,
    pub(crate) opened: AtomicU32,
    pub(crate) builds: AtomicU32,
    pub(crate) assigned: AtomicU32,
    /// Lines that ran.
    pub(crate) ran: Mutex<Vec<String>>,
    /// Sandboxes by id, with their fingerprints.
    pub(crate) live: Mutex<HashMap<SandboxId, Arc<FakeSandbox>>>,
    /// Those of `live` that were stopped, if the engine is one that does so.
    pub(crate) stopped: Mutex<HashMap<SandboxId, Arc<FakeSandbox>>>,
    /// What an earlier program left.
    pub(crate) legacy: Mutex<Vec<Legacy>>,
}

pub(crate) struct Fake {
    name: BackendName,
    isolates: bool,
    pub(crate) memory: bool,
    images: bool,
    pub(crate) engine: Arc<Engine>,
}

impl Fake {
    pub(crate) fn new(name: BackendName) -> Self {
        let isolates = name != BackendName::RestrictedHost;
        let images = matches!(name, BackendName::Docker | BackendName::Podman | BackendName::AppleContainer);
        Self { name, isolates, memory: isolates, images, engine: Arc::default() }
    }

    fn guarantees(&self) -> Guarantees {
        let promise = |held: bool| if held { Promise::Held } else { Promise::not_enforced("not here") };
        let isolation = || promise(self.isolates);
        Guarantees {
            filesystem: isolation(),
            kernel: promise(false),
            environment: promise(true),
            network_blocked: isolation(),
            network_trusted: promise(false),
            network_open: isolation(),
            memory: promise(self.memory),
            cpus: isolation(),
            pids: isolation(),
            terminal: promise(true),
            background: promise(true),
            forward: promise(true),
            workspace: isolation(),
            home: isolation(),
            managed_files: isolation(),
            adopt: promise(true),
            images: promise(self.images),
            packages: promise(self.images),
            rootfs: promise(false),
            runtime: promise(false),
            gpus: promise(false),
            host_podman: promise(false),
            nested_podman: promise(false),
        }
    }
}

pub(crate) fn unreachable_engine() -> Diagnosis {
    Diagnosis::new("engine-unreachable", "the engine does not answer").fix("start it")
}

fn absent() -> Diagnosis {
    Diagnosis::new("image-unavailable", "the image cannot be pulled")
}

#[async_trait]
impl Backend for Fake {
    fn name(&self) -> BackendName {
        self.name
    }

    async fn detect(&self) -> Detection {
        tokio::task::yield_now().await;
        if self.engine.down.load(Ordering::SeqCst) {
            return Detection::Unusable(unreachable_engine());
        }
        let guarantees = self.guarantees();
        Detection::Usable(Box::new(Usable {
            version: "1".into(),
            guarantees,
            left_off: Vec::new(),
            notes: Vec::new(),
        }))
    }

    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        tokio::task::yield_now().await;
        if self.engine.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable(unreachable_engine()));
        }
        self.engine.opened.fetch_add(1, Ordering::SeqCst);
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        let sandbox = Arc::new(FakeSandbox { id: id.clone(), fingerprint, engine: Arc::clone(&self.engine) });
        self.engine.live.lock().unwrap().insert(id, Arc::clone(&sandbox));
        Ok(sandbox)
    }

    fn assigns(&self) -> bool {
        self.images
    }

    async fn assign(&self, pooled: &SandboxSpec, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        tokio::task::yield_now().await;
        let mut live = self.engine.live.lock().unwrap();
        if live.remove(&pooled.id()).is_none() {
            return Err(Error::Unavailable(Diagnosis::new("container-gone", "it has ended")));
        }
        self.engine.assigned.fetch_add(1, Ordering::SeqCst);
        let (id, fingerprint) = (spec.id(), spec.fingerprint());
        let sandbox = Arc::new(FakeSandbox { id: id.clone(), fingerprint, engine: Arc::clone(&self.engine) });
        live.insert(id, Arc::clone(&sandbox));
        Ok(sandbox)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let live = self.engine.live.lock().unwrap();
        let same = live.get(&spec.id()).filter(|sandbox| sandbox.fingerprint == spec.fingerprint());
        Ok(same.map(|sandbox| Arc::clone(sandbox) as Arc<dyn Sandbox>))
    }

    fn revives(&self) -> bool {
        self.name == BackendName::Daytona
    }

    async fn is_stopped(&self, id: &SandboxId) -> Result<bool> {
        Ok(self.engine.stopped.lock().unwrap().contains_key(id))
    }

    async fn revive(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        let mut stopped = self.engine.stopped.lock().unwrap();
        let same = stopped.get(&spec.id()).is_some_and(|one| one.fingerprint == spec.fingerprint());
        let Some(sandbox) = same.then(|| stopped.remove(&spec.id())).flatten() else { return Ok(None) };
        self.engine.live.lock().unwrap().insert(spec.id(), Arc::clone(&sandbox));
        Ok(Some(sandbox))
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
        let live = self.engine.live.lock().unwrap();
        Ok(live.get(id).map(|sandbox| Arc::clone(sandbox) as Arc<dyn Sandbox>))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>> {
        Ok(Vec::new())
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        if self.engine.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable(unreachable_engine()));
        }
        self.engine.live.lock().unwrap().remove(id);
        self.engine.stopped.lock().unwrap().remove(id);
        Ok(())
    }

    fn images(&self) -> Option<&dyn Images> {
        self.images.then_some(self)
    }

    async fn legacy(&self) -> Result<Vec<Legacy>> {
        Ok(self.engine.legacy.lock().unwrap().clone())
    }

    async fn discard_legacy(&self, legacy: &Legacy) -> Result<()> {
        self.engine.legacy.lock().unwrap().retain(|known| known.id != legacy.id);
        Ok(())
    }
}

#[async_trait]
impl Images for Fake {
    async fn is_ready(&self, _: &ImageChoice) -> Result<bool> {
        Ok(!self.engine.no_image.load(Ordering::SeqCst))
    }

    async fn build(&self, _: &BuildRequest, _: &BuildSink) -> Result<BuiltImage> {
        self.engine.builds.fetch_add(1, Ordering::SeqCst);
        Err(Error::Unavailable(absent()))
    }

    async fn list(&self) -> Result<Vec<ImageInfo>> {
        Ok(Vec::new())
    }

    async fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn clean(&self, _: &[ImageChoice]) -> Result<Cleaned> {
        Ok(Cleaned::default())
    }

    async fn check(&self, reference: &str) -> Result<()> {
        if reference == "wrong:arch" {
            return Err(Error::Refused(Diagnosis::new("image-wrong-architecture", "it is of another kind")));
        }
        Ok(())
    }
}

pub(crate) struct FakeSandbox {
    id: SandboxId,
    fingerprint: String,
    engine: Arc<Engine>,
}

struct NoControl;

#[async_trait]
impl ExecControl for NoControl {
    async fn stdin(&mut self, _: Bytes) -> Result<()> {
        Ok(())
    }
    async fn close_stdin(&mut self) -> Result<()> {
        Ok(())
    }
    async fn resize(&mut self, _: TerminalSize) -> Result<()> {
        Ok(())
    }
    async fn signal(&mut self, _: i32) -> Result<()> {
        Ok(())
    }
    async fn cancel(&mut self) -> Result<()> {
        Ok(())
    }
}

fn lost() -> Error {
    Error::Lost(Diagnosis::new("command-lost", "the sandbox went away"))
}

fn over() -> Outcome {
    Outcome {
        status: Status::Code(0),
        ending: Ending::Exited,
        duration: Duration::ZERO,
        stdout_bytes: 0,
        stderr_bytes: 0,
        leftovers: Vec::new(),
        leftovers_total: 0,
        out_of_memory: false,
        newly_dangerous: Vec::new(),
        newly_dangerous_total: 0,
        notes: Vec::new(),
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn is_new(&self) -> bool {
        true
    }

    async fn activity(&self) -> Result<Activity> {
        Ok(Activity { operations: 0, idle: Duration::ZERO, commands: 0, uptime: Duration::ZERO })
    }

    /// `die` takes the engine down and is lost; `break` is lost while the engine lives; all else prints its line.
    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        let Command::Shell(line) = request.command else { unreachable!() };
        let line = line.into_string().unwrap();
        self.engine.ran.lock().unwrap().push(line.clone());
        let mut events = vec![Ok(ExecEvent::Started(ProcessId(1)))];
        match line.as_str() {
            "die" => {
                self.engine.down.store(true, Ordering::SeqCst);
                events.push(Err(lost()));
            }
            "break" => events.push(Err(lost())),
            _ => {
                events.push(Ok(ExecEvent::Stderr(Bytes::from(line))));
                events.push(Ok(ExecEvent::Exit(over())));
            }
        }
        Ok(Exec { events: ExecEvents::new(stream::iter(events)), control: Box::new(NoControl) })
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        Ok(Vec::new())
    }

    async fn attach(&self, _: ProcessId, _: u64, _: u64, _: bool) -> Result<Exec> {
        unreachable!()
    }

    async fn stop(&self, _: ProcessId) -> Result<Outcome> {
        unreachable!()
    }

    fn files(&self) -> &dyn Files {
        unreachable!()
    }

    async fn connect(&self, _: u16) -> Result<Box<dyn Duplex>> {
        unreachable!()
    }

    async fn listen(&self, _: u16) -> Result<Box<dyn Forwarder>> {
        unreachable!()
    }

    async fn close(&self) -> Result<()> {
        self.engine.live.lock().unwrap().remove(&self.id);
        Ok(())
    }
}

/// A machine: backends that outlive the runtimes, and a data directory.
pub(crate) struct Machine {
    _temp: tempfile::TempDir,
    pub(crate) fakes: Vec<Arc<Fake>>,
    pub(crate) config: Config,
}

impl Machine {
    pub(crate) fn new(names: &[BackendName], choice: BackendChoice) -> Self {
        Self::of(names.iter().map(|name| Fake::new(*name)).collect(), choice)
    }

    pub(crate) fn of(fakes: Vec<Fake>, choice: BackendChoice) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.data_dir.value = temp.path().canonicalize().unwrap().join("data");
        config.tools.exec.sandbox.backend = Setting::new(choice, Origin::File);
        Self { _temp: temp, fakes: fakes.into_iter().map(Arc::new).collect(), config }
    }

    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.config.tools.exec.sandbox.failover = Setting::new(policy, Origin::File);
        self
    }

    fn registry(&self) -> Registry {
        Registry::of(self.fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Backend>).collect())
    }

    pub(crate) async fn try_start(&self) -> Result<Runtime> {
        Runtime::start(self.config.clone(), Vec::new(), self.registry()).await
    }

    pub(crate) async fn start(&self) -> Runtime {
        self.try_start().await.unwrap()
    }

    /// The runtime of one command.
    pub(crate) fn command(&self) -> Runtime {
        Runtime::of_one_command(self.config.clone(), Vec::new(), self.registry())
    }

    pub(crate) fn engine(&self, name: BackendName) -> &Engine {
        &self.fakes.iter().find(|fake| fake.name == name).unwrap().engine
    }

    pub(crate) fn down(&self, name: BackendName, down: bool) {
        self.engine(name).down.store(down, Ordering::SeqCst);
    }
}

impl Engine {
    /// Stops its sandboxes, as when nobody used them.
    pub(crate) fn stop_all(&self) {
        let live: Vec<_> = self.live.lock().unwrap().drain().collect();
        self.stopped.lock().unwrap().extend(live);
    }
}

pub(crate) fn request(name: &str) -> SessionRequest {
    SessionRequest::new(SessionKey::new(name).unwrap())
}

pub(crate) async fn open(runtime: &Runtime, name: &str) -> Result<OpenSession> {
    runtime.open_session(&request(name)).await
}

/// Runs a line; where it ran, or how it failed.
pub(crate) async fn run(session: &mut OpenSession, line: &str) -> Result<BackendName> {
    let mut exec = session.exec(ExecRequest::new(Command::Shell(line.into()))).await?;
    while let Some(event) = exec.events.next().await {
        event?;
    }
    Ok(session.backend)
}

pub(crate) async fn ran(runtime: &Runtime, name: &str, line: &str) -> Result<BackendName> {
    run(&mut open(runtime, name).await?, line).await
}
