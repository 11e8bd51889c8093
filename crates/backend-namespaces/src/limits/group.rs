//! The groups of one sandbox: entering, counting, ending, removing.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{failed, scope};

/// How long [`Group::remove`] waits for the kernel to take the dead away.
const PATIENCE: Duration = Duration::from_secs(5);

/// The groups of one sandbox, one in each hierarchy that is needed. Dropping it leaves them as they are; they hold
/// until [`remove`](Self::remove) or a sweep. While a value lives no other process sweeps them.
#[derive(Debug)]
pub struct Group {
    directories: Vec<Directory>,
    /// A scope is made by attaching the first process.
    scope: Option<scope::Scope>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// The open directory carries the lock that says "in use".
    handle: File,
}

impl Group {
    /// Makes the directories, all or none; an empty one of the same name that nobody holds is replaced. The limits
    /// are written by the caller afterwards.
    pub(super) fn make(paths: Vec<PathBuf>) -> Result<Self> {
        let mut group = Self { directories: Vec::with_capacity(paths.len()), scope: None };
        for path in paths {
            if let Err(error) = group.add(&path) {
                // What was made so far is empty.
                let _ = group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        if let Err(error) = std::fs::create_dir(path) {
            if error.kind() != ErrorKind::AlreadyExists {
                return Err(failed(path.display(), error));
            }
            if let Some(left) = Self::reopen(vec![path.to_owned()]) {
                if !left.hold() {
                    return Err(busy(path, "another process holds it"));
                }
                left.remove()?;
            }
            std::fs::create_dir(path).map_err(|error| failed(path.display(), error))?;
        }
        let handle = File::open(path).map_err(|error| {
            let _ = std::fs::remove_dir(path);
            failed(path.display(), error)
        })?;
        self.directories.push(Directory { path: path.to_owned(), handle });
        if !self.hold() {
            return Err(busy(path, "another process took it"));
        }
        Ok(())
    }

    /// A group that attaching the first process will make.
    pub(super) fn of_scope(scope: scope::Scope) -> Self {
        Self { directories: Vec::new(), scope: Some(scope) }
    }

    /// The group at those of `paths` that exist.
    pub(super) fn reopen(paths: Vec<PathBuf>) -> Option<Self> {
        let open = |path: PathBuf| File::open(&path).ok().map(|handle| Directory { path, handle });
        let directories: Vec<_> = paths.into_iter().filter_map(open).collect();
        (!directories.is_empty()).then_some(Self { directories, scope: None })
    }

    /// Marks the group as in use, until this value is dropped; false if another process has done so.
    pub(super) fn hold(&self) -> bool {
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        self.directories.iter().all(|d| rustix::fs::flock(d.handle.as_fd(), lock).is_ok())
    }

    /// Where the groups are, to be kept with the sandbox's record for [`super::Limiter::find`]. For a systemd scope
    /// only known once a process was attached.
    pub fn directories(&self) -> Vec<PathBuf> {
        let scope = self.scope.as_ref().and_then(scope::Scope::directory);
        self.directories.iter().map(|d| d.path.clone()).chain(scope).collect()
    }

    /// Writes a limit into the directory at `index`.
    pub(super) fn set(&self, index: usize, file: &str, value: &str) -> std::io::Result<()> {
        match self.directories.get(index) {
            Some(directory) => write(&directory.path.join(file), value),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Puts a process (pid in this process's pid namespace) and what it will fork into the groups. Must succeed
    /// before the sandbox serves. On an otherwise idle machine the first one takes the kernel an RCU grace period
    /// (5 to 15 ms), so run it beside the building of the root instead of before it. (A systemd scope takes tens of
    /// milliseconds.)
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-failed`: the sandbox must not be used.
    pub fn attach(&self, pid: u32) -> Result<()> {
        if let Some(scope) = &self.scope {
            return scope.start(pid);
        }
        for directory in &self.directories {
            let procs = directory.path.join("cgroup.procs");
            write(&procs, &pid.to_string()).map_err(|error| failed(procs.display(), error))?;
        }
        Ok(())
    }

    /// For `clone3(CLONE_INTO_CGROUP)`, which costs nothing: the directory of the only group, on cgroup v2. When it
    /// was used [`attach`](Self::attach) is not needed.
    pub fn directory(&self) -> Option<std::io::Result<OwnedFd>> {
        match self.directories.as_slice() {
            [only] if only.path.join("cgroup.events").exists() => {
                Some(only.handle.try_clone().map(OwnedFd::from))
            }
            _ => None,
        }
    }

    /// Lifts the limit on processor time. The dead need some of it to go, and many that share little of it would take
    /// longer than anybody waits.
    pub fn unthrottle(&self) {
        for directory in self.directories() {
            // Version 2 and version 1. Without it the end only takes longer.
            let _ = write(&directory.join("cpu.max"), "max");
            let _ = write(&directory.join("cpu.cfs_quota_us"), "-1");
        }
    }

    /// Kills what is in the groups and removes them, with retries for five seconds while the kernel takes the dead away.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-busy` when something in them cannot be killed (the sweep tries again).
    pub fn remove(&self) -> Result<()> {
        let directories = self.directories();
        self.unthrottle();
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_micros(200);
        loop {
            // Bind the outcome of every hierarchy before judging any: all are killed and tried in each round.
            let left: Vec<_> = directories.iter().filter_map(|path| self.try_remove(path)).collect();
            let Some((path, error)) = left.into_iter().next() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(busy(&path, error));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// One attempt; what stands in the way, if anything does.
    fn try_remove(&self, path: &Path) -> Option<(PathBuf, std::io::Error)> {
        kill_all(path);
        let removed = match &self.scope {
            // systemd removes a scope that is empty.
            Some(_) => match path.try_exists() {
                Ok(true) if !members(path).is_empty() => Err(ErrorKind::ResourceBusy.into()),
                _ => Ok(()),
            },
            None => std::fs::remove_dir(path),
        };
        if let (Ok(()), Some(parent)) = (&removed, path.parent()) {
            // The folder above goes with the last sandbox. It is ours by name; while another is in it this fails.
            if parent.file_name().is_some_and(|name| name == super::PARENT) {
                let _ = std::fs::remove_dir(parent);
            }
        }
        match removed {
            Ok(()) => None,
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some((path.to_owned(), error)),
        }
    }
}

/// The kernel's count of the processes of a sandbox that it killed for memory.
#[derive(Debug)]
pub struct OomKills(Vec<File>);

impl OomKills {
    /// Of the groups at these directories; `None` where memory is not limited by one of them.
    pub fn open(directories: &[PathBuf]) -> Option<Self> {
        // Version 2 keeps the count in `memory.events`, version 1 in `memory.oom_control`, both as `oom_kill N`.
        let files = directories.iter().filter_map(|path| {
            ["memory.events", "memory.oom_control"].iter().find_map(|name| File::open(path.join(name)).ok())
        });
        Some(Self(files.collect())).filter(|kills| !kills.0.is_empty())
    }

    /// How many so far; 0 once the groups are gone.
    pub fn count(&self) -> u64 {
        let count = |file: &File| {
            let mut bytes = [0; 512];
            let length = file.read_at(&mut bytes, 0).ok()?;
            let text = std::str::from_utf8(&bytes[..length]).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        };
        self.0.iter().filter_map(count).sum()
    }
}

fn busy(path: &Path, cause: impl std::fmt::Display) -> Error {
    Error::Unavailable(
        Diagnosis::new("cgroup-busy", format!("the group {} cannot be removed", path.display()))
            .cause(cause)
            .fix("try again; a process in it may be in uninterruptible sleep"),
    )
}

/// Writes a control file, which must exist, in one `write`.
pub(super) fn write(path: &Path, value: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Pids of a group's processes; 0 stands for one outside our pid namespace.
fn members(path: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Sends SIGKILL to all that is in a group. Version 2 does it at one stroke; version 1 has to be asked again until
/// nothing is left, but the agent is among the first and its pid namespace ends with it.
fn kill_all(path: &Path) {
    if write(&path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in members(path) {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The pid may have gone to another process since it was read: ask again now that the handle pins it.
        if belongs(pid, path) {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// Whether the process is in the group that shows at `path`: compared by the group's last name, which is ours alone.
fn belongs(pid: Pid, path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return false };
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap_or_default();
    text.lines().any(|line| line.rsplit('/').next() == Some(name))
}
