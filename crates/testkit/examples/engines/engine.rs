//! One engine under measure, and the same by its own means.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use moltis_backend_container::engine::{Engine, EngineKind, Environment, ExecSpec, connect};
use moltis_backend_container::{Config, ContainerBackend};
use moltis_sandbox::SandboxSpec;
use moltis_testkit::process;
use tokio::sync::OnceCell;

use crate::IMAGE;

/// First part of the names of what this makes.
const PREFIX: &str = "moltis-bench";

/// An engine, and a data directory of its own.
pub struct Place {
    pub kind: EngineKind,
    pub backend: Arc<ContainerBackend>,
    folder: tempfile::TempDir,
    engine: OnceCell<Arc<dyn Engine>>,
    next: AtomicU32,
}

impl Place {
    pub fn new(kind: EngineKind) -> Self {
        let folder = tempfile::Builder::new().prefix("moltis-bench-").tempdir().unwrap();
        for data in ["data", "program"] {
            std::fs::create_dir(folder.path().join(data)).unwrap();
        }
        let backend = ContainerBackend::new(Config {
            kind,
            data_dir: folder.path().join("data"),
            config_dir: None,
            host_data_dir: None,
            prefix: PREFIX.to_owned(),
            environment: Environment::of_process(),
        });
        Self { kind, backend: Arc::new(backend), folder, engine: OnceCell::new(), next: AtomicU32::new(0) }
    }

    /// The engine's word, which is also its program.
    pub fn word(&self) -> &'static str {
        match self.kind {
            EngineKind::Docker => "docker",
            EngineKind::Podman => "podman",
            EngineKind::Apple => "container",
        }
    }

    pub fn spec(&self, what: &str) -> SandboxSpec {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        crate::spec(&format!("{what} {number}"), Duration::from_secs(600))
    }

    async fn engine(&self) -> &Arc<dyn Engine> {
        let found = || async { connect(self.kind, &Environment::of_process()).await.unwrap() };
        self.engine.get_or_init(found).await
    }

    /// Name of the one container of the backend.
    pub fn container(&self) -> String {
        self.named_in("data")
    }

    /// The engine's own exec of `true`, waited for.
    pub async fn engine_exec(&self, container: &str) {
        let engine = self.engine().await;
        let argv = vec!["true".to_owned()];
        let spec = ExecSpec { argv, user: None, directory: None, env: Vec::new(), terminal: None };
        let mut running = engine.exec(container, &spec).await.unwrap();
        while running.output.next().await.unwrap().is_some() {}
        while engine.exec_result(&running.id).await.unwrap().is_none() {}
    }

    /// The program, on a data directory of its own.
    pub fn moltis(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("MOLTIS_DATA_DIR", self.folder.path().join("program"))
            .env("MOLTIS_CONFIG_DIR", self.folder.path().join("none"))
            .env("MOLTIS_TOOLS__EXEC__SANDBOX__RESOURCE_LIMITS__MEMORY_LIMIT", "512M");
        command
    }

    /// Name of the one container that the program has made.
    pub fn named_by_program(&self) -> String {
        self.named_in("program")
    }

    fn named_in(&self, data: &str) -> String {
        let run = self.folder.path().join(data).join("run").join(self.word());
        let mut sandboxes = std::fs::read_dir(run).unwrap();
        let record = std::fs::read(sandboxes.next().unwrap().unwrap().path().join("sandbox.json")).unwrap();
        assert!(sandboxes.next().is_none());
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["name"].as_str().unwrap().to_owned()
    }

    /// The engine's own run of `true` with what our containers have.
    pub fn plain_run(&self) -> Command {
        let folder = self.folder.path().join("plain");
        std::fs::create_dir_all(folder.join("agent")).unwrap();
        for name in ["passwd", "group", "guest"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let mut command = Command::new(self.word());
        command.args(["run", "--rm", "--network", "none", "--user", "1000:1000", "--hostname", "sandbox"]);
        command.args(["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--workdir", "/"]);
        command.args(["--memory", "512m", "--memory-swap", "512m", "--pids-limit", "1024"]);
        command.args(["--log-driver", "none", "--no-healthcheck"]);
        let own = if self.kind == EngineKind::Docker { ",uid=1000,gid=1000" } else { "" };
        for (target, options) in [
            ("/tmp", "rw,nosuid,nodev,exec,size=256m,mode=1777".to_owned()),
            ("/run", format!("rw,nosuid,nodev,noexec,size=64m,mode=1777{own}")),
            ("/home/sandbox", format!("rw,nosuid,nodev,exec,size=512m,mode=1777{own}")),
        ] {
            command.args(["--tmpfs", &format!("{target}:{options}")]);
        }
        if self.kind == EngineKind::Docker {
            let hardware =
                ["/sys/firmware", "/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/class/block"];
            for path in hardware.into_iter().filter(|path| Path::new(path).exists()) {
                command.args(["--tmpfs", &format!("{path}:ro,nosuid,nodev,noexec,size=4k")]);
            }
        }
        for (name, target, mode) in [
            ("passwd", "/etc/passwd", "ro"),
            ("group", "/etc/group", "ro"),
            ("guest", "/.moltis/guest", "ro"),
            ("agent", "/.moltis/agent", "rw"),
        ] {
            command.args(["-v", &format!("{}:{target}:{mode}", folder.join(name).display())]);
        }
        command.args(["--entrypoint", "true", IMAGE]);
        command
    }

    /// The agents of the backend's containers, by the records of its data directory.
    pub fn agents(&self) -> Vec<u32> {
        let run = self.folder.path().join("data/run").join(self.word());
        let pid = |entry: std::fs::DirEntry| {
            let record = std::fs::read(entry.path().join("sandbox.json")).ok()?;
            let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
            u32::try_from(record["way"]["socket"]["pid"].as_u64()?).ok()
        };
        std::fs::read_dir(run).unwrap().flatten().filter_map(pid).collect()
    }
}

/// Resident memory of a process in bytes, shared pages counted in full.
pub fn resident(pid: u32) -> u64 {
    process::memory(pid).unwrap_or(0)
}

/// How many descriptors a process has.
pub fn descriptors(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count() as u64)
}
