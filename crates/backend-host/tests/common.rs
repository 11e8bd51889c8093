//! What the tests share: backends over a folder of their own, commands run to their end, processes told apart.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use moltis_backend_host::{Config, NoneBackend, RestrictedHostBackend};
use moltis_sandbox::{
    Backend, Command, Exec, ExecEvent, ExecRequest, GuestPath, Lifetime, Mount, MountMode, Origin, Outcome,
    Sandbox, SandboxSpec, SessionKey, Setting,
};

/// Longest that anything is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

static NEXT: AtomicU32 = AtomicU32::new(1);

fn number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A place of its own for one test.
pub struct Here {
    temp: tempfile::TempDir,
}

impl Here {
    pub fn new() -> Self {
        Self { temp: tempfile::Builder::new().prefix("moltis-host-").tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn restricted(&self) -> RestrictedHostBackend {
        RestrictedHostBackend::new(config(&self.path()))
    }

    pub fn none(&self) -> NoneBackend {
        NoneBackend::new(config(&self.path()))
    }

    /// Where the backends of the host keep the folders of their sandboxes.
    pub fn run(&self) -> PathBuf {
        self.data().join("run-host")
    }

    /// Folders of sandboxes that are still there.
    pub fn run_folders(&self) -> Vec<String> {
        names(&self.run())
    }

    pub fn scratch_folders(&self) -> Vec<String> {
        names(&self.data().join("sandbox/scratch"))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub fn config(base: &Path) -> Config {
    Config { data_dir: base.join("data"), config_dir: Some(base.join("config")) }
}

/// A spec of a session that nothing else uses.
pub fn ephemeral() -> SandboxSpec {
    let key = format!("host test {} {}", std::process::id(), number());
    SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Ephemeral)
}

/// The same with a life of its own.
pub fn lasting() -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime::Idle(Duration::from_secs(60)), ..ephemeral() }
}

pub fn with_workspace(mut spec: SandboxSpec, source: &Path, mode: MountMode) -> SandboxSpec {
    let mount = Mount { source: source.to_owned(), target: "/workspace".into(), mode };
    spec.workspace = Some(Setting::new(mount, Origin::Flag));
    spec
}

pub async fn open(backend: &dyn Backend, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
    backend.open(spec).await.unwrap()
}

pub fn shell(line: impl Into<OsString>) -> ExecRequest {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(30));
    request
}

pub fn guest(path: impl Into<PathBuf>) -> GuestPath {
    use std::os::unix::ffi::OsStringExt;
    GuestPath::new(path.into().into_os_string().into_vec()).unwrap()
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub outcome: Outcome,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

pub async fn run(sandbox: &dyn Sandbox, request: ExecRequest) -> Ran {
    finish(sandbox.exec(request).await.unwrap()).await
}

/// Runs a line that must succeed, and returns what it printed.
pub async fn said(sandbox: &dyn Sandbox, line: &str) -> String {
    let ran = run(sandbox, shell(line)).await;
    assert_eq!(ran.outcome.exit_code(), 0, "{line}: {}", String::from_utf8_lossy(&ran.stderr));
    ran.text().to_owned()
}

pub async fn finish(mut exec: Exec) -> Ran {
    let (mut stdout, mut stderr, mut outcome) = (Vec::new(), Vec::new(), None);
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(exit) => outcome = Some(exit),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } => {}
        }
    }
    Ran { stdout, stderr, outcome: outcome.unwrap() }
}

/// `sleep` for a length that nothing else sleeps.
#[derive(Clone, Debug)]
pub struct Marker(String);

impl Marker {
    pub fn new() -> Self {
        Self::named(&format!("8{:07}.{:04}", std::process::id(), number()))
    }

    pub fn named(length: &str) -> Self {
        Self(length.to_owned())
    }

    pub fn length(&self) -> &str {
        &self.0
    }

    pub fn sleep(&self) -> String {
        format!("sleep {}", self.0)
    }

    pub fn pids(&self) -> Vec<u32> {
        let wanted = format!("sleep\0{}\0", self.0);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted.as_bytes())
        })
        .collect()
    }

    pub async fn becomes(&self, count: usize) {
        until(&format!("{count} × {}", self.sleep()), || self.pids().len() == count).await;
    }
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Pid of the agent of the only sandbox here.
pub fn agent_pid(here: &Here) -> u32 {
    let [id] = &here.run_folders()[..] else { panic!("not one sandbox: {:?}", here.run_folders()) };
    let record = std::fs::read(here.run().join(id).join("host.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    u32::try_from(record["process"]["pid"].as_u64().unwrap()).unwrap()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Closes a sandbox and makes sure that nothing of it is left but a lasting one's scratch folder.
pub async fn close(here: &Here, sandbox: Arc<dyn Sandbox>) {
    sandbox.close().await.unwrap();
    assert_eq!(here.run_folders(), Vec::<String>::new());
}
