//! The system call filters of a sandbox: Docker's default allow-list for a process without capabilities, less what
//! SECURITY 2 takes away. Compiled once per process on the host, handed to the guest as plain programs.

mod calls;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use moltis_sandbox::{Diagnosis, Error, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// A BPF program: consecutive `struct sock_filter` in the host's byte order, 8 bytes each, at most 4096 of them.
pub type Program = Vec<u8>;

/// The filters in the order in which the guest installs them (each by one `seccomp(SECCOMP_SET_MODE_FILTER)` after
/// `PR_SET_NO_NEW_PRIVS`). The kernel runs all of them for each call and takes the strictest answer; of two error
/// numbers that of the filter installed last, which is why the order counts.
///
/// The agent lives under them too. Install them last: `unshare`, `setns`, the mount family and `pivot_root` are
/// refused afterwards. `seccomp`, `prctl` and `landlock_*` still work.
///
/// What they answer: `EPERM` for what is not on the list, `ENOSYS` for `clone3` and for calls newer than the list (C
/// libraries then fall back), and death by `SIGSYS` for calls of another architecture.
///
/// # Errors
/// `Unavailable` with code `seccomp-unsupported` on an architecture without a filter.
pub fn programs() -> Result<&'static [Program]> {
    static PROGRAMS: OnceLock<std::result::Result<Vec<Program>, String>> = OnceLock::new();
    match PROGRAMS.get_or_init(|| compile().map_err(|error| error.to_string())) {
        Ok(programs) => Ok(programs),
        Err(cause) => Err(Error::Unavailable(
            Diagnosis::new("seccomp-unsupported", "there is no system call filter for this machine")
                .cause(cause)
                .fix("use x86_64 or aarch64, or another backend"),
        )),
    }
}

fn compile() -> seccompiler::Result<Vec<Program>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(vec![bytes(&allow_list(arch)?), bytes(&unknown_calls(arch)?)])
}

/// Everything is refused with `EPERM` but for what is listed.
fn allow_list(arch: TargetArch) -> seccompiler::Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls::allowed().map(|call| (call, Vec::new())).collect();
    // Arguments that the kernel reads as 32-bit integers are compared as such: it ignores the upper half, so a 64-bit
    // comparison would let a value with rubbish in the upper half pass for another one.
    rules.insert(libc::SYS_clone, vec![all(vec![masked(0, calls::CLONE_NEW, 0)?])?]);
    rules.insert(libc::SYS_personality, one_of(0, calls::PERSONALITIES)?);
    rules.insert(libc::SYS_socket, one_of(0, calls::FAMILIES)?);
    rules.insert(libc::SYS_socketpair, one_of(0, calls::FAMILIES)?);
    let tty = calls::REFUSED_IOCTLS.iter().map(|&request| compare(1, SeccompCmpOp::Ne, request));
    rules.insert(libc::SYS_ioctl, vec![all(tty.collect::<seccompiler::Result<_>>()?)?]);
    let filter = SeccompFilter::new(rules, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}

/// A C library takes `ENOSYS` as "this kernel is older" and does without; `EPERM` would be an error to it.
fn unknown_calls(arch: TargetArch) -> seccompiler::Result<BpfProgram> {
    let rules = calls::UNKNOWN.chain([libc::SYS_clone3]).map(|call| (call, Vec::new())).collect();
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, errno(libc::ENOSYS), arch)?.try_into()?)
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

fn compare(argument: u8, operator: SeccompCmpOp, value: u32) -> seccompiler::Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, u64::from(value))?)
}

fn masked(argument: u8, mask: u32, value: u32) -> seccompiler::Result<SeccompCondition> {
    compare(argument, SeccompCmpOp::MaskedEq(u64::from(mask)), value)
}

/// A rule that holds when all of its conditions do.
fn all(conditions: Vec<SeccompCondition>) -> seccompiler::Result<SeccompRule> {
    Ok(SeccompRule::new(conditions)?)
}

/// Rules of which one holds when the argument is one of `values`.
fn one_of(argument: u8, values: &[u32]) -> seccompiler::Result<Vec<SeccompRule>> {
    values.iter().map(|&value| all(vec![compare(argument, SeccompCmpOp::Eq, value)?])).collect()
}

fn bytes(program: &BpfProgram) -> Program {
    let mut out = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        out.extend_from_slice(&instruction.code.to_ne_bytes());
        out.extend_from_slice(&[instruction.jt, instruction.jf]);
        out.extend_from_slice(&instruction.k.to_ne_bytes());
    }
    out
}
