//! What a sandbox leaves behind, told by its own namespaces and cgroups and not by counting on the whole machine, so that
//! other tests may run at the same time.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::{Command, ExecEvent, ExecRequest, Sandbox};

use crate::{Fail, fail, process};

/// Where a sandbox says that its things are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Where commands start.
    pub cwd: String,
    /// `$HOME`.
    pub home: String,
}

/// The marks of one sandbox on a shared kernel.
#[derive(Debug, Default)]
pub struct Leak {
    namespaces: BTreeSet<String>,
    /// Keeps the namespaces' numbers from being given to others, so that a number goes on meaning this sandbox.
    held: Vec<File>,
    cgroups: BTreeSet<PathBuf>,
}

impl Leak {
    /// Asks a running sandbox where things are and, on a shared kernel, notes its namespaces and cgroups that are not this
    /// process's own.
    pub async fn watch(sandbox: &dyn Sandbox, shared_kernel: bool) -> Result<(Self, Whereabouts), Fail> {
        // The command stays while the host looks at it: the agent itself does not let itself be looked at.
        let line = "pwd; echo \"$HOME\"; readlink /proc/self/ns/pid /proc/self/ns/net /proc/self/ns/mnt /proc/self/ns/ipc \
                    /proc/self/ns/user /proc/self/ns/cgroup /proc/self/ns/uts; echo over; cat; exit 0";
        let mut request = ExecRequest::new(Command::Shell(OsString::from(line)));
        request.timeout = Some(Duration::from_secs(20));
        request.stdin = true;
        let mut exec = sandbox.exec(request).await?;
        let mut text = Vec::new();
        while !text.ends_with(b"over\n") {
            match exec.events.next().await {
                Some(Ok(ExecEvent::Stdout(bytes))) => text.extend_from_slice(&bytes),
                Some(Ok(ExecEvent::Exit(outcome))) => fail!("looking at the sandbox ended with {outcome:?}"),
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(e.into()),
                None => fail!("looking at the sandbox ended without an Exit"),
            }
        }
        let own: BTreeSet<String> = process::namespaces(std::process::id()).into_iter().collect();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::to_owned);
        let (cwd, home) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let namespaces: BTreeSet<String> =
            lines.filter(|ns| shared_kernel && ns.contains(":[") && !own.contains(ns)).collect();
        let namespaces = its_own(namespaces);
        let own_groups: BTreeSet<PathBuf> = process::cgroups(std::process::id()).into_iter().collect();
        let mut leak = Self { namespaces, ..Self::default() };
        for pid in leak.members() {
            leak.cgroups.extend(process::cgroups(pid).into_iter().filter(|g| !own_groups.contains(g)));
            if leak.held.is_empty() {
                leak.held = process::hold_namespaces(pid);
            }
        }
        exec.control.close_stdin().await?;
        while let Some(event) = exec.events.next().await {
            event?;
        }
        if leak.held.is_empty() {
            // Numbers that may be given away mean nothing; what is marked or lies in a folder is still found.
            leak.namespaces.clear();
        }
        Ok((leak, Whereabouts { cwd, home }))
    }

    /// Whether anything was found by which to know the sandbox again.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The host's pids of everything in the sandbox's namespaces.
    pub fn members(&self) -> Vec<u32> {
        if self.namespaces.is_empty() {
            return Vec::new();
        }
        process::pids()
            .into_iter()
            .filter(|pid| process::namespaces(*pid).iter().any(|ns| self.namespaces.contains(ns)))
            .collect()
    }

    /// The cgroups that were made for the sandbox.
    pub fn cgroups(&self) -> impl Iterator<Item = &Path> {
        self.cgroups.iter().map(PathBuf::as_path)
    }

    /// What is still there, after waiting this long at most for it to go.
    pub async fn left(&self, within: Duration) -> Vec<String> {
        let end = Instant::now() + within;
        loop {
            let left = self.now();
            if left.is_empty() || Instant::now() >= end {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn now(&self) -> Vec<String> {
        let mut left = Vec::new();
        for pid in self.members() {
            left.push(format!("process {pid} ({})", process::command_line(pid)));
        }
        for group in &self.cgroups {
            if group.exists() {
                left.push(format!("cgroup {}", group.display()));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for ns in &self.namespaces {
            if mounts.contains(ns.as_str()) {
                left.push(format!("a mount that holds {ns}"));
            }
        }
        left
    }

    /// Fails unless the sandbox can be told apart by at least a pid and a mount namespace.
    pub fn must_be_told_apart(&self) -> Result<(), Fail> {
        for kind in ["pid:", "mnt:", "net:"] {
            if !self.namespaces.iter().any(|ns| ns.starts_with(kind)) {
                fail!("the sandbox has no {kind} namespace of its own");
            }
        }
        Ok(())
    }
}

/// Those namespaces that no process is in which was there before this one: an engine of a user's own lends its user
/// namespace to all its containers.
fn its_own(mut namespaces: BTreeSet<String>) -> BTreeSet<String> {
    let begin = process::began(std::process::id());
    for pid in process::pids().into_iter().filter(|pid| process::began(*pid) < begin) {
        for lent in process::namespaces(pid) {
            namespaces.remove(&lent);
        }
    }
    namespaces
}

/// Processes of the host that work in a folder or below it.
pub fn workers(folder: &Path) -> Vec<String> {
    process::pids()
        .into_iter()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder)))
        .map(|pid| format!("process {pid} ({}) works in the case's folder", process::command_line(pid)))
        .collect()
}

/// Mounts of this process's namespace that lie beneath a folder.
pub fn mounts_below(folder: &Path) -> Vec<String> {
    let Some(folder) = folder.to_str() else { return Vec::new() };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|target| target.starts_with(folder))
        .map(|target| format!("mount at {target}"))
        .collect()
}

/// Run folders of sandboxes that are still in a data directory.
pub fn run_folders(data: &Path) -> Vec<String> {
    ["run", "run/docker", "run/podman", "run-host", "sandbox/wasm"]
        .into_iter()
        .filter_map(|folder| std::fs::read_dir(data.join(folder)).ok())
        .flatten()
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| moltis_sandbox::SandboxId::parse(n).is_some()))
        .map(|e| format!("run folder {}", e.path().display()))
        .collect()
}
