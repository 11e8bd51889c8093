//! cgroup v1 as root: one group in each hierarchy that is needed, beneath the caller's own there.

use std::path::{Path, PathBuf};

use moltis_sandbox::Result;

use super::group::{Group, write};
use super::membership::Membership;
use super::{Controller, PARENT, Values, failed};

/// The caller's groups, as far as they can be written to.
#[derive(Clone, Debug)]
pub struct Places {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl Places {
    /// # Errors
    /// Why nothing can be limited by version 1, and what would change that.
    pub fn find(membership: &Membership) -> Result<Self, String> {
        if Controller::ALL.iter().all(|&c| membership.v1(c).is_none()) {
            return Err("no cgroup controllers are mounted".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("cgroup v1 limits need root: run Moltis as root, or boot with cgroup v2 \
                        (systemd.unified_cgroup_hierarchy=1)"
                .to_owned());
        }
        let place = |controller| membership.v1(controller).filter(|own| writable(own)).map(Path::to_owned);
        let found = Self {
            memory: place(Controller::Memory),
            cpu: place(Controller::Cpu),
            pids: place(Controller::Pids),
        };
        if found.memory.is_none() && found.cpu.is_none() && found.pids.is_none() {
            return Err(
                "the cgroup file systems are mounted read-only: in a container, mount /sys/fs/cgroup \
                        read-write"
                    .to_owned(),
            );
        }
        Ok(found)
    }

    fn own(&self, controller: Controller) -> Option<&Path> {
        match controller {
            Controller::Memory => self.memory.as_deref(),
            Controller::Cpu => self.cpu.as_deref(),
            Controller::Pids => self.pids.as_deref(),
        }
    }

    /// # Errors
    /// Why this controller cannot be used.
    pub fn keeps(&self, controller: Controller) -> Result<(), String> {
        let Some(own) = self.own(controller) else {
            return Err(format!(
                "the `{}` controller of cgroup v1 is not mounted for writing",
                controller.name()
            ));
        };
        if controller == Controller::Memory
            && !own.join("memory.memsw.limit_in_bytes").exists()
            && swap_is_on()
        {
            return Err(
                "the kernel does not count swap: boot with swapaccount=1, or turn swap off".to_owned()
            );
        }
        Ok(())
    }

    /// Where our groups are, one for each hierarchy (controllers may share one).
    pub fn parents(&self) -> Vec<PathBuf> {
        let mut parents: Vec<_> =
            Controller::ALL.iter().filter_map(|&c| Some(self.own(c)?.join(PARENT))).collect();
        parents.dedup();
        parents
    }

    /// # Errors
    /// `Unavailable`; nothing is left behind.
    pub fn create(&self, name: &str, values: &Values) -> Result<Group> {
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut writes: Vec<(usize, &str, String)> = Vec::new();
        let mut needed = |controller| {
            let path = self.own(controller)?.join(PARENT).join(name);
            let index = paths.iter().position(|p| *p == path).unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            });
            Some(index)
        };
        if let Some((bytes, index)) = values.memory.and_then(|v| Some((v, needed(Controller::Memory)?))) {
            writes.push((index, "memory.limit_in_bytes", bytes.to_string()));
            // Memory and swap together may not exceed what memory alone may; absent where swap is not counted.
            if self.memory.as_ref().is_some_and(|own| own.join("memory.memsw.limit_in_bytes").exists()) {
                writes.push((index, "memory.memsw.limit_in_bytes", bytes.to_string()));
            }
        }
        if let Some((cpus, index)) = values.cpus.and_then(|v| Some((v, needed(Controller::Cpu)?))) {
            let (quota, period) = Values::cpu_quota(cpus)?;
            writes.push((index, "cpu.cfs_period_us", period.to_string()));
            writes.push((index, "cpu.cfs_quota_us", quota.to_string()));
        }
        if let Some((pids, index)) = values.pids.and_then(|v| Some((v, needed(Controller::Pids)?))) {
            writes.push((index, "pids.max", pids.to_string()));
        }
        for parent in paths.iter().filter_map(|path| path.parent()) {
            prepare(parent)?;
        }
        let group = Group::make(paths)?;
        for (index, file, value) in writes {
            match group.set(index, file, &value) {
                Ok(()) => {}
                // A group above has a smaller quota already, which bounds the sandbox more tightly than was asked.
                Err(error) if file == "cpu.cfs_quota_us" && error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => {
                    let _ = group.remove();
                    return Err(failed(format_args!("{file} = {value}"), error));
                }
            }
        }
        Ok(group)
    }
}

/// Makes the folder of our groups.
fn prepare(parent: &Path) -> Result<()> {
    match std::fs::create_dir(parent) {
        Ok(()) => {
            // Without it (kernels before 5.11) a group's charges would not count against the groups above it.
            let _ = write(&parent.join("memory.use_hierarchy"), "1");
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(parent.display(), error)),
    }
}

/// Whether groups can be made beneath this one.
pub(super) fn writable(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Whether anything can be swapped out at all.
pub(super) fn swap_is_on() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().nth(1).is_some())
}
