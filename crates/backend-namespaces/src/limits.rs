//! How limits on a whole sandbox are kept here: cgroup v2 by delegation, a systemd scope, or cgroup v1 as root;
//! processes also by `RLIMIT_NPROC` inside the sandbox's own user namespace. Everything in this module blocks for
//! as long as the kernel takes (a fraction of a millisecond; [`Group::attach`] up to some 15 ms); call it off the
//! async threads.

mod group;
mod membership;
mod scope;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Error, Limits, Promise, Result, SandboxId};
use sha2::{Digest, Sha256};

pub use group::{Group, OomKills};
use membership::Membership;

/// Folder beneath the caller's group that holds our groups.
const PARENT: &str = "moltis";

/// A resource as the kernel's controllers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// The values that a group is to keep; absent ones are left to the kernel's default of no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Values {
    /// Bytes, swap counted.
    memory: Option<u64>,
    /// Cores.
    cpus: Option<f64>,
    /// Processes and threads.
    pids: Option<u64>,
}

impl Values {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Processor time in microseconds per period of that many microseconds. The kernel takes no quota under a
    /// millisecond and no period over a second.
    fn cpu_quota(cpus: f64) -> Result<(u64, u64)> {
        let period = if cpus < 0.01 { 1_000_000 } else { 100_000 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and `as` saturates"
        )]
        let quota = (cpus * period as f64).floor() as u64;
        if quota < 1000 {
            return Err(Error::Invalid(
                Diagnosis::new("cpu-quota-too-small", format!("a CPU quota of {cpus} cores cannot be kept"))
                    .cause("the kernel's smallest quota is a thousandth of a core")
                    .fix("use --cpus 0.01 or more"),
            ));
        }
        // Four hours a period is beyond any machine and within what every kernel takes.
        Ok((quota.min(14_400_000_000), period))
    }
}

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
pub struct Limiter {
    /// Marks the groups of one data directory: 16 hexadecimal digits.
    tag: String,
    /// Whether `RLIMIT_NPROC` bounds a sandbox.
    nproc_holds: bool,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    V2(v2::Place),
    Scope(scope::Manager),
    V1(v1::Places),
    /// None, and why.
    Nothing(String),
}

impl Limiter {
    /// Looks for a way, in order: cgroup v2 below our own group, a systemd scope of the caller's manager, cgroup v1
    /// as root. `data_dir` marks our groups, so that two data directories never sweep each other's. `host_uid` is the
    /// uid that the sandbox's user has on the host: `RLIMIT_NPROC` holds only if it is not 0.
    pub fn discover(data_dir: &Path, host_uid: u32) -> Self {
        let membership = Membership::of_self();
        let way = match v2::Place::find(&membership) {
            Ok(place) => Way::V2(place),
            Err(no_v2) => match scope::Manager::find(&membership) {
                Some(manager) => Way::Scope(manager),
                None => match v1::Places::find(&membership) {
                    Ok(places) => Way::V1(places),
                    // Say what concerns this machine: the version that holds the memory controller.
                    Err(no_v1) if membership.v1(Controller::Memory).is_some() => Way::Nothing(no_v1),
                    Err(_) => Way::Nothing(no_v2),
                },
            },
        };
        Self { tag: tag(data_dir), nproc_holds: host_uid != 0, way }
    }

    /// What is kept, and for what is not, why and what would enable it.
    pub fn promises(&self) -> LimitPromises {
        let pids = if self.nproc_holds { Promise::Held } else { self.promise(Controller::Pids) };
        LimitPromises { memory: self.promise(Controller::Memory), cpus: self.promise(Controller::Cpu), pids }
    }

    fn promise(&self, controller: Controller) -> Promise {
        let kept = match &self.way {
            Way::V2(place) => place.keeps(controller),
            Way::Scope(manager) => manager.keeps(controller),
            Way::V1(places) => places.keeps(controller),
            Way::Nothing(reason) => Err(reason.clone()),
        };
        match kept {
            Ok(()) => Promise::Held,
            Err(reason) => Promise::NotEnforced(reason),
        }
    }

    /// One or two words for notes and `sandbox status`: `cgroup v2`, `systemd scope`, `cgroup v1`, `rlimits`.
    pub fn mechanism(&self) -> &'static str {
        match self.way {
            Way::V2(_) => "cgroup v2",
            Way::Scope(_) => "systemd scope",
            Way::V1(_) => "cgroup v1",
            Way::Nothing(_) => "rlimits",
        }
    }

    /// The `RLIMIT_NPROC` (hard and soft) that the launch helper sets in the child *after* it is in its own user
    /// namespace under its non-root uid and before it serves; `None` when no limit is asked for or it would not hold.
    /// It bounds processes and threads of the sandbox, the agent's own included. (Set before the namespace is made it
    /// would count everything that the user runs on the host.)
    pub fn nproc(&self, limits: &Limits) -> Option<u64> {
        if self.nproc_holds { limits.pids.map(|pids| pids.value) } else { None }
    }

    /// What a group has to keep of `limits` here.
    fn values(&self, limits: &Limits) -> Values {
        let keeps = |controller| self.promise(controller).is_held();
        Values {
            memory: limits.memory.map(|s| s.value).filter(|_| keeps(Controller::Memory)),
            cpus: limits.cpus.map(|s| s.value).filter(|_| keeps(Controller::Cpu)),
            // One more hierarchy of version 1 costs a launch half a millisecond and adds nothing to the rlimit.
            pids: limits
                .pids
                .map(|s| s.value)
                .filter(|_| keeps(Controller::Pids) && !(self.nproc_holds && matches!(self.way, Way::V1(_)))),
        }
    }

    /// Makes the groups of a sandbox with its limits set, before anything of it runs. `None` when there is nothing
    /// for a group to keep (no limits, or no mechanism: the caller has judged the promises already). A group of the
    /// same sandbox that is left over is ended and replaced, unless another process holds it.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-failed` or `cgroup-busy`, `Invalid` for a CPU quota under a thousandth of a
    /// core; nothing is left behind.
    pub fn create(&self, id: &SandboxId, limits: &Limits) -> Result<Option<Group>> {
        let values = self.values(limits);
        if values.is_empty() {
            return Ok(None);
        }
        let name = format!("{}-{id}", self.tag);
        let mut attempts = 0;
        loop {
            let made = match &self.way {
                Way::V2(place) => place.create(&name, &values),
                Way::Scope(manager) => manager.create(&name, &values),
                Way::V1(places) => places.create(&name, &values),
                Way::Nothing(_) => return Ok(None),
            };
            // Another sandbox's removal may have taken the empty folder above from under us.
            attempts += 1;
            match made {
                Err(_) if attempts < 10 && self.parents().iter().any(|parent| !parent.exists()) => {}
                made => return made.map(Some),
            }
        }
    }

    /// The group of a sandbox that another process made: below the same group as ours, or at one of these directories,
    /// which that process kept a record of ([`Group::directories`]). Directories that do not carry this sandbox's name
    /// are left alone.
    pub fn find(&self, id: &SandboxId, recorded: &[PathBuf]) -> Option<Group> {
        let name = format!("{}-{id}", self.tag);
        if let Way::Scope(manager) = &self.way {
            // Of scopes systemd keeps the account.
            return manager.reopen(&name);
        }
        let mut all: Vec<PathBuf> = self.parents().into_iter().map(|parent| parent.join(&name)).collect();
        let others = recorded.iter().filter(|directory| named(directory, &name));
        all.extend(others.cloned());
        all.sort_unstable();
        all.dedup();
        Group::reopen(all)
    }

    /// Ends and removes the groups of this data directory, below the same group as ours, whose sandbox is `gone`;
    /// returns whose they were. A group that another process holds (it may be about to start its sandbox) is left alone.
    /// `gone` is asked about a group that is there and held, never from a list made before: a sandbox that starts
    /// meanwhile would not be on it.
    pub fn sweep(&self, gone: impl Fn(&SandboxId) -> bool) -> Vec<SandboxId> {
        let mut swept = Vec::new();
        for (id, group) in self.ours() {
            if group.hold() && gone(&id) && group.remove().is_ok() && !swept.contains(&id) {
                swept.push(id);
            }
        }
        swept
    }

    /// All groups of this data directory, one hierarchy at a time.
    fn ours(&self) -> Vec<(SandboxId, Group)> {
        let of_name = |name: &str| SandboxId::parse(name.strip_prefix(&self.tag)?.strip_prefix('-')?);
        if let Way::Scope(manager) = &self.way {
            let scopes = manager.list(&self.tag).into_iter();
            return scopes.filter_map(|name| Some((of_name(&name)?, manager.reopen(&name)?))).collect();
        }
        let mut found = Vec::new();
        for parent in self.parents() {
            let Ok(entries) = std::fs::read_dir(&parent) else { continue };
            for entry in entries.flatten() {
                let Some(id) = entry.file_name().to_str().and_then(of_name) else { continue };
                if let Some(group) = Group::reopen(vec![entry.path()]) {
                    found.push((id, group));
                }
            }
        }
        found
    }

    /// The directories that hold our groups, one for each hierarchy.
    fn parents(&self) -> Vec<PathBuf> {
        match &self.way {
            Way::V2(place) => vec![place.parent()],
            Way::V1(places) => places.parents(),
            Way::Scope(_) | Way::Nothing(_) => Vec::new(),
        }
    }
}

fn named(directory: &Path, name: &str) -> bool {
    directory.starts_with("/sys/fs/cgroup")
        && directory.file_name().is_some_and(|last| last.to_str() == Some(name))
        && !directory.components().any(|part| part == std::path::Component::ParentDir)
}

/// What marks the groups of a data directory.
fn tag(data_dir: &Path) -> String {
    let path = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let mut hash = Sha256::new();
    hash.update(b"moltis data directory\0");
    hash.update(path.as_os_str().as_encoded_bytes());
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The error of a group that cannot be made or entered.
fn failed(what: impl std::fmt::Display, cause: impl std::fmt::Display) -> Error {
    Error::Unavailable(
        Diagnosis::new("cgroup-failed", format!("the sandbox's limits cannot be set: {what}")).cause(cause),
    )
}
