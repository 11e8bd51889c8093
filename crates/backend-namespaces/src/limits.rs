//! How limits on a whole sandbox are kept here: cgroup v2 by delegation, a systemd scope, or cgroup v1 as root;
//! processes also by `RLIMIT_NPROC` inside the sandbox's own user namespace. Everything in this module blocks for
//! as long as the kernel takes (a fraction of a millisecond; [`Group::attach`] up to some 15 ms); call it off the
//! async threads.

use std::os::fd::OwnedFd;
use std::path::Path;

use moltis_sandbox::{Limits, Promise, Result, SandboxId};

/// What is kept of each limit, as [`moltis_sandbox::Guarantees`] wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPromises {
    /// `memory_limit`.
    pub memory: Promise,
    /// `cpu_quota`.
    pub cpus: Promise,
    /// `pids_max`.
    pub pids: Promise,
}

/// The way in which this process can limit a sandbox, found out once.
#[derive(Clone, Debug)]
pub struct Limiter {}

impl Limiter {
    /// Looks for a way, in order: cgroup v2 below our own group, a systemd scope of the caller's manager, cgroup v1
    /// as root. `data_dir` marks our groups, so that two data directories never sweep each other's. `host_uid` is the
    /// uid that the sandbox's user has on the host: `RLIMIT_NPROC` holds only if it is not 0.
    pub fn discover(data_dir: &Path, host_uid: u32) -> Self {
        let _ = (data_dir, host_uid);
        Self {}
    }

    /// What is kept, and for what is not, why and what would enable it.
    pub fn promises(&self) -> LimitPromises {
        let not = || Promise::not_enforced("not built yet");
        LimitPromises { memory: not(), cpus: not(), pids: not() }
    }

    /// One or two words for notes and `sandbox status`: `cgroup v2`, `systemd scope`, `cgroup v1`, `rlimits`.
    pub fn mechanism(&self) -> &'static str {
        "rlimits"
    }

    /// The `RLIMIT_NPROC` (hard and soft) that the launch helper sets in the child *after* it is in its own user
    /// namespace under its non-root uid and before it serves; `None` when no limit is asked for or it would not hold.
    /// It bounds processes and threads of the sandbox, the agent's own included.
    pub fn nproc(&self, limits: &Limits) -> Option<u64> {
        limits.pids.map(|pids| pids.value)
    }

    /// Makes the groups of a sandbox with its limits set, before anything of it runs. `None` when there is nothing
    /// for a group to keep (no limits, or no mechanism: the caller has judged the promises already). A group of the
    /// same sandbox that is left over is ended and replaced.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-failed`; nothing is left behind.
    pub fn create(&self, id: &SandboxId, limits: &Limits) -> Result<Option<Group>> {
        let _ = (id, limits);
        Ok(None)
    }

    /// The groups of a sandbox that another process made, if they can be reached from here.
    pub fn find(&self, id: &SandboxId) -> Option<Group> {
        let _ = id;
        None
    }

    /// Ends and removes the groups of this data directory whose sandbox is not in `live`; returns whose they were.
    /// A group younger than ten seconds is left alone: its sandbox may be about to start.
    pub fn sweep(&self, live: &[SandboxId]) -> Vec<SandboxId> {
        let _ = live;
        Vec::new()
    }
}

/// The groups of one sandbox, one in each hierarchy that is needed. Dropping it leaves them as they are; they hold
/// until [`remove`](Self::remove) or a sweep.
#[derive(Debug)]
pub struct Group {}

impl Group {
    /// Puts a process (pid in this process's pid namespace) and what it will fork into the groups. Must succeed
    /// before the sandbox serves. On an otherwise idle machine the first one takes the kernel an RCU grace period
    /// (5 to 15 ms), so run it beside the building of the root instead of before it.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-failed`: the sandbox must not be used.
    pub fn attach(&self, pid: u32) -> Result<()> {
        let _ = pid;
        Ok(())
    }

    /// For `clone3(CLONE_INTO_CGROUP)`, which costs nothing: the directory of the only group, on cgroup v2. When it
    /// was used [`attach`](Self::attach) is not needed.
    pub fn directory(&self) -> Option<std::io::Result<OwnedFd>> {
        None
    }

    /// How many processes of the sandbox the kernel killed for memory.
    pub fn oom_kills(&self) -> u64 {
        0
    }

    /// Kills what is in the groups and removes them, with retries for a second while the kernel takes the dead away.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-busy` when something in them cannot be killed (the sweep tries again).
    pub fn remove(&self) -> Result<()> {
        Ok(())
    }
}
