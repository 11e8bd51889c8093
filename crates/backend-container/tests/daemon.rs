//! A Docker of a test's own, to be killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{Engine, EngineKind, connect};

use super::support::{IMAGE, Tested, with};

/// A Docker of its own, with the test image; gone, with all that it had, when this is dropped.
pub struct Daemon {
    folder: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    /// Starts one, or says why that cannot be.
    pub async fn start(test: &str) -> Option<Self> {
        if !moltis_testkit::need::as_root(test, "a second dockerd is started") {
            return None;
        }
        if moltis_testkit::need::program("dockerd").is_none() {
            moltis_testkit::need::skip(test, "there is no dockerd");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("moltis-dockerd").tempdir().unwrap();
        Self::start_in(test, folder).await
    }

    /// Starts one in this folder, in which something may be mounted already.
    pub async fn start_in(test: &str, folder: tempfile::TempDir) -> Option<Self> {
        let process = spawn(folder.path());
        let daemon = Self { folder, process };
        daemon.answers().await;
        let image = tokio::process::Command::new("docker").args(["save", IMAGE]).output().await.unwrap();
        if !image.status.success() {
            moltis_testkit::need::skip(test, &format!("there is no {IMAGE}"));
            return None;
        }
        daemon.engine().await.load(Box::new(std::io::Cursor::new(image.stdout))).await.unwrap();
        Some(daemon)
    }

    async fn answers(&self) {
        let since = Instant::now();
        loop {
            if let Ok(engine) = connect(EngineKind::Docker, &self.environment()).await
                && engine.info().await.is_ok()
            {
                return;
            }
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(since.elapsed() < Duration::from_secs(60), "dockerd does not start: {log}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn environment(&self) -> moltis_backend_container::engine::Environment {
        with(&[("DOCKER_HOST", &format!("unix://{}", self.folder.path().join("d.sock").display()))])
    }

    pub async fn engine(&self) -> Arc<dyn Engine> {
        connect(EngineKind::Docker, &self.environment()).await.unwrap()
    }

    pub async fn tested(&self) -> Tested {
        let engine = self.engine().await;
        let image = engine.image(IMAGE).await.unwrap().unwrap().id;
        Tested { name: "second-docker", engine, image }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the processes of a program that have this daemon's folder among their arguments.
    fn end_those_of(&self, program: &str) {
        let wanted = self.folder.path().display().to_string();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line).into_owned();
            let name = line.split('\0').next().unwrap_or_default();
            if line.contains(&wanted)
                && (program.is_empty() || name == program)
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Starts it again.
    pub async fn restart(&mut self) {
        // The containerd that it had hangs where nobody reads what it says.
        self.end_those_of("containerd");
        for file in ["pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(self.folder.path().join(file));
        }
        self.process = spawn(self.folder.path());
        self.answers().await;
    }
}

fn spawn(folder: &Path) -> Child {
    let at = |name: &str| folder.join(name).display().to_string();
    let log = std::fs::File::create(folder.join("log")).unwrap();
    // A daemon without a bridge removes the one that is there: with a network namespace of its own it finds none.
    Command::new("unshare")
        .args(["--net", "dockerd"])
        .args(["--storage-driver", "vfs", "--iptables=false", "--bridge=none", "--exec-opt"])
        .arg("native.cgroupdriver=cgroupfs")
        .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
        .args(["-H", &format!("unix://{}", at("d.sock"))])
        .args(["--cgroup-parent", &format!("/{}", group_of(folder))])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The control group of its containers, which goes with it: a daemon that is killed removes none.
fn group_of(folder: &Path) -> String {
    let name = folder.file_name().unwrap().to_str().unwrap().trim_start_matches('.');
    format!("moltis-test-{name}")
}

/// Removes it in every hierarchy, once what was in it is gone.
fn remove_groups(folder: &Path) {
    let since = Instant::now();
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let group = hierarchy.path().join(group_of(folder));
        while group.exists() && since.elapsed() < Duration::from_secs(10) {
            for below in std::fs::read_dir(&group).into_iter().flatten().flatten() {
                let processes =
                    std::fs::read_to_string(below.path().join("cgroup.procs")).unwrap_or_default();
                let processes = processes.lines().filter_map(|line| line.parse().ok());
                for process in processes.filter_map(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
                }
                let _ = std::fs::remove_dir(below.path());
            }
            if std::fs::remove_dir(&group).is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A polite end takes its containerd and its containers with it.
        if let Ok(None) = self.process.try_wait() {
            let pid = rustix::process::Pid::from_child(&self.process);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let since = Instant::now();
            while let Ok(None) = self.process.try_wait() {
                if since.elapsed() > Duration::from_secs(30) {
                    let _ = self.process.kill();
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let _ = self.process.wait();
        // One that was killed leaves its containerd; that has its own folder, and so is found by it.
        self.end_those_of("");
        remove_groups(self.folder.path());
        let wanted = self.folder.path().display().to_string();
        for mount in std::fs::read_to_string("/proc/self/mounts").unwrap().lines().rev() {
            let path = mount.split(' ').nth(1).unwrap();
            if path.starts_with(&wanted) {
                let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}
