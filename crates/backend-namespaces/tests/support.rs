//! What the tests share: a data directory with a backend on it, and commands in its sandboxes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Mount, MountMode, Origin, Outcome, Result, Sandbox,
    SandboxSpec, SessionKey, Setting, Status,
};

/// Everything one test needs on the host; gone when it is dropped.
pub struct Host {
    temp: tempfile::TempDir,
    pub backend: NamespacesBackend,
}

/// What a command said and how it left.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub stdout: String,
    pub stderr: String,
    pub status: Status,
}

impl Said {
    /// Standard output of a command that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.status, Status::Code(0), "{self:?}");
        self.stdout
    }

    pub fn failed(&self) -> bool {
        self.status != Status::Code(0)
    }
}

impl Host {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let backend = backend(temp.path());
        Self { temp, backend }
    }

    /// A second backend on the same data directory, as another process would have it.
    pub fn other(&self) -> NamespacesBackend {
        backend(self.temp.path())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// A new folder beside the data directory.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A new folder in the data directory, as the runtime makes them for homes.
    pub fn own_folder(&self, name: &str) -> PathBuf {
        let path = self.folder(&format!("data/{name}"));
        // Whatever the umask: others may not write there.
        std::fs::set_permissions(self.path("data"), std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    pub async fn open(&self, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
        self.backend.open(spec).await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    /// The error of an open that must fail; and what is left behind, which must be nothing.
    pub async fn refusal(&self, spec: &SandboxSpec) -> moltis_sandbox::Error {
        match self.backend.open(spec).await {
            Ok(_) => panic!("it was opened"),
            Err(error) => {
                assert_eq!(self.left_behind(), Vec::<String>::new());
                error
            }
        }
    }

    /// Names in the run folder.
    pub fn left_behind(&self) -> Vec<String> {
        names(&self.path("data/run"))
    }

    /// Process id of a sandbox's PID 1 by its record.
    pub fn agent_pid(&self, spec: &SandboxSpec) -> u32 {
        let record = self.path("data/run").join(spec.id().as_str()).join("sandbox.json");
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        record["pid"].as_u64().unwrap() as u32
    }
}

fn backend(temp: &Path) -> NamespacesBackend {
    NamespacesBackend::new(Config { data_dir: temp.join("data"), config_dir: Some(temp.join("config")) })
}

pub fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The smallest spec, which ends with its handle.
pub fn spec(key: &str) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Ephemeral)
}

/// A spec of a sandbox that outlives its handle.
pub fn lasting(key: &str) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(60)))
}

pub fn mount(source: impl Into<PathBuf>, target: impl Into<PathBuf>, mode: MountMode) -> Mount {
    Mount { source: source.into(), target: target.into(), mode }
}

pub fn asked<T>(value: T) -> Setting<T> {
    Setting::new(value, Origin::Flag)
}

/// Runs a shell line.
pub async fn sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Said {
    try_sh(sandbox, line).await.unwrap_or_else(|e| panic!("{line}: {e:?}"))
}

/// Runs a shell line; how it ended.
pub async fn outcome(sandbox: &Arc<dyn Sandbox>, line: &str) -> Outcome {
    let mut exec = sandbox.exec(ExecRequest::new(Command::Shell(line.into()))).await.unwrap();
    loop {
        if let ExecEvent::Exit(outcome) = exec.events.next().await.unwrap().unwrap() {
            return outcome;
        }
    }
}

pub async fn try_sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<Said> {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(60));
    let mut exec = sandbox.exec(request).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return Ok(Said { stdout: text(stdout), stderr: text(stderr), status: outcome.status });
            }
            _ => {}
        }
    }
    panic!("the stream ended without an exit: {line}")
}

/// Waits until something holds; `false` if it takes more than ten seconds.
pub async fn eventually(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Whether a process exists and is not dead.
pub fn lives(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.contains(") Z "),
        Err(_) => false,
    }
}

/// Control groups on this machine whose name holds `id`.
pub fn cgroups(id: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, id: &str, depth: u32, found: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().contains(id) {
                found.push(entry.path());
            } else if depth > 0 {
                walk(&entry.path(), id, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), id, 8, &mut found);
    found
}
