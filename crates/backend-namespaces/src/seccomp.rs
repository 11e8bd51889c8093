//! The system call filters of a sandbox: Docker's default allow-list for a process without capabilities, less what
//! lets a process reach deeper into the kernel, or out of the sandbox, than its commands need. Compiled once per process
//! on the host, handed to the guest as plain programs.

mod calls;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use moltis_sandbox::{Diagnosis, Error, Result};
use tree::{Instruction, Verdict};

/// A BPF program: consecutive `struct sock_filter` in the host's byte order, 8 bytes each, at most 4096 of them.
pub type Program = Vec<u8>;

/// The filters in the order in which the guest installs them (each by one `seccomp(SECCOMP_SET_MODE_FILTER)` after
/// `PR_SET_NO_NEW_PRIVS`). There is one.
///
/// The agent lives under them too. Install them last: `unshare`, `setns`, the mount family and `pivot_root` are
/// refused afterwards. `seccomp`, `prctl` and `landlock_*` still work.
///
/// What they answer: `EPERM` for what is not on the list, `ENOSYS` for `clone3`, `openat2` and calls newer than the
/// list (programs then fall back), and death by `SIGSYS` for calls of another architecture.
///
/// # Errors
/// `Unavailable` with code `seccomp-unsupported` on an architecture without a filter.
pub fn programs() -> Result<&'static [Program]> {
    static PROGRAMS: OnceLock<Option<Vec<Program>>> = OnceLock::new();
    let compiled = PROGRAMS.get_or_init(|| Some(vec![filter(architecture()?)]));
    compiled.as_deref().ok_or_else(|| {
        Error::Unavailable(
            Diagnosis::new("seccomp-unsupported", "there is no system call filter for this machine")
                .cause(format!("it is a {} machine", std::env::consts::ARCH))
                .fix("use x86_64 or aarch64, or another backend"),
        )
    })
}

/// `AUDIT_ARCH_*` of `<linux/audit.h>`.
fn architecture() -> Option<u32> {
    match std::env::consts::ARCH {
        "x86_64" => Some(0xc000_003e),
        "aarch64" => Some(0xc000_00b7),
        _ => None,
    }
}

/// Everything is refused with `EPERM` but for what is listed; what is newer than the list does not exist.
fn filter(architecture: u32) -> Program {
    const REFUSED: u16 = libc::EPERM as u16;
    // A C library takes this as "this kernel is older" and does without; `EPERM` would be an error to it.
    const MISSING: u16 = libc::ENOSYS as u16;
    const FCHMODAT2: i64 = 452;
    let allowed: BTreeSet<i64> = calls::allowed().collect();
    let verdict = |number: u32| match i64::from(number) {
        libc::SYS_clone3 => Verdict::Errno(MISSING),
        number if calls::UNKNOWN.contains(&number) => Verdict::Errno(MISSING),
        libc::SYS_clone => Verdict::NoBit(0, calls::CLONE_NEW, REFUSED),
        libc::SYS_personality => Verdict::OneOf(0, calls::PERSONALITIES, REFUSED),
        libc::SYS_socket | libc::SYS_socketpair => Verdict::OneOf(0, calls::FAMILIES, REFUSED),
        libc::SYS_ioctl => Verdict::NoneOf(1, calls::REFUSED_IOCTLS, REFUSED),
        libc::SYS_openat2 => Verdict::Errno(MISSING),
        libc::SYS_openat => Verdict::NotBoth([(2, calls::CREATE), (3, calls::SET_ID)], REFUSED),
        libc::SYS_fchmod => Verdict::NoBit(1, calls::SET_ID, REFUSED),
        libc::SYS_fchmodat | libc::SYS_mknodat | FCHMODAT2 => Verdict::NoBit(2, calls::SET_ID, REFUSED),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => Verdict::NotBoth([(1, calls::CREATE), (2, calls::SET_ID)], REFUSED),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod | libc::SYS_creat | libc::SYS_mknod => Verdict::NoBit(1, calls::SET_ID, REFUSED),
        libc::SYS_prlimit64
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setattr => Verdict::OneOf(0, calls::ITSELF, REFUSED),
        // `PRIO_PROCESS` and `IOPRIO_WHO_PROCESS`, of the caller itself.
        libc::SYS_setpriority => Verdict::Exactly([(0, 0), (1, 0)], REFUSED),
        libc::SYS_ioprio_set => Verdict::Exactly([(0, 1), (1, 0)], REFUSED),
        number if allowed.contains(&number) => Verdict::Allow,
        _ => Verdict::Errno(REFUSED),
    };
    let program = tree::program(architecture, calls::UNKNOWN.end as u32, Verdict::Errno(REFUSED), verdict);
    program.into_iter().flat_map(Instruction::bytes).collect()
}
