//! Confinement of PID 1 before it serves: limits, capabilities, Landlock, seccomp. All of it is inherited by every
//! process in the sandbox and none of it can be undone.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use moltis_agent_protocol::launch::{Fault, Landlock, Plan, Rlimit, Stage};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::launch::{At, fault};

/// Applies all of it; the seccomp filters come last, since they forbid much of the rest.
pub fn apply(plan: &Plan) -> Result<(), Fault> {
    rlimits(&plan.rlimits)?;
    drop_capabilities()?;
    rustix::thread::set_no_new_privs(true).at(Stage::Capabilities, "no_new_privs")?;
    if let Some(rules) = &plan.landlock {
        landlock(rules)?;
    }
    for program in &plan.seccomp {
        seccomp(program)?;
    }
    Ok(())
}

/// Raises this process's OOM score; a higher one that it has already is kept, since lowering takes a capability.
/// Failing is no error: without `/proc` there is nothing to write, and the root will tell.
pub fn set_oom_score_adj(wanted: i32) {
    let path = "/proc/self/oom_score_adj";
    let have = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if have.is_some_and(|have| have < wanted) {
        let _ = std::fs::write(path, wanted.to_string());
    }
}

fn rlimits(limits: &[Rlimit]) -> Result<(), Fault> {
    for limit in limits {
        let what = format!("rlimit {}", limit.resource);
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct outlives the calls; a resource that does not exist is an error.
        let set = unsafe {
            libc::getrlimit(limit.resource as _, &raw mut now) == 0 && {
                let value = limit.value.min(now.rlim_max);
                let new = libc::rlimit { rlim_cur: value, rlim_max: value };
                libc::setrlimit(limit.resource as _, &raw const new) == 0
            }
        };
        if !set {
            return Err(fault(Stage::Rlimit, what, last_errno()));
        }
    }
    Ok(())
}

/// Empties every capability set as far as this process may, and makes sure that it has none. What an engine has taken
/// away already cannot be taken away again; without a capability in a set, and without new privileges, nothing that is
/// left in the bounding set can be had.
///
/// # Errors
/// When a capability is left that this process could use.
pub fn require_no_capabilities() -> Result<(), Fault> {
    // The first thing that needs a capability which is not there ends it, and may have left the later ones undone.
    let _ = drop_capabilities();
    let none = CapabilitySet::empty();
    let _ = rustix::thread::clear_ambient_capability_set();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).at(Stage::Capabilities, "capset")?;
    let have = rustix::thread::capabilities(None).at(Stage::Capabilities, "capget")?;
    if have.effective | have.permitted | have.inheritable != none {
        return Err(fault(Stage::Capabilities, "capabilities are left", Errno::PERM));
    }
    for capability in 0..64 {
        // SAFETY: a prctl with plain numbers.
        match unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, capability, 0, 0) } {
            0 => {}
            // Past the last one that this kernel knows.
            -1 if last_errno() == Errno::INVAL && capability > 0 => break,
            _ => return Err(fault(Stage::Capabilities, "ambient capabilities are left", Errno::PERM)),
        }
    }
    Ok(())
}

/// Empties every capability set and locks the ways in which they could fill again.
pub fn drop_capabilities() -> Result<(), Fault> {
    // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and the locks of all four; KEEP_CAPS itself stays off.
    let bits = CapabilitiesSecureBits::from_bits_retain(0b1110_1111);
    rustix::thread::set_capabilities_secure_bits(bits).at(Stage::Capabilities, "securebits")?;
    for capability in 0..64 {
        // SAFETY: a prctl with plain numbers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            match last_errno() {
                // Past the last one that this kernel knows.
                Errno::INVAL => break,
                errno => return Err(fault(Stage::Capabilities, "bounding set", errno)),
            }
        }
    }
    rustix::thread::clear_ambient_capability_set().at(Stage::Capabilities, "ambient set")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).at(Stage::Capabilities, "capset")
}

/// Keeps processes from abstract sockets and from signalling outside of this sandbox, where the kernel can; without it
/// they are kept apart by their namespaces alone.
///
/// # Errors
/// When a kernel that can refuses.
pub fn scope() -> Result<(), Fault> {
    const ABI_WITH_SCOPES: libc::c_long = 6;
    // `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL`.
    const SCOPES: u64 = 0b11;
    const VERSION: u32 = 1; // LANDLOCK_CREATE_RULESET_VERSION
    // SAFETY: with this flag the kernel takes no struct and only answers a number. (An engine's filter may refuse.)
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0, VERSION)
    };
    if abi < ABI_WITH_SCOPES {
        return Ok(());
    }
    landlock(&Landlock { handled: 0, scoped: SCOPES, rules: Vec::new() })
}

/// `struct landlock_ruleset_attr` up to ABI 6.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

const LANDLOCK_RULE_PATH_BENEATH: libc::c_int = 1;

pub fn landlock(landlock: &Landlock) -> Result<(), Fault> {
    let attr =
        RulesetAttr { handled_access_fs: landlock.handled, handled_access_net: 0, scoped: landlock.scoped };
    // A kernel before ABI 6 refuses a longer struct only when what it does not know is not zero.
    // SAFETY: the struct outlives the call.
    let ruleset = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size_of::<RulesetAttr>(), 0)
    };
    if ruleset < 0 {
        return Err(fault(Stage::Landlock, "ruleset", last_errno()));
    }
    // SAFETY: the kernel has just opened it for this call.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as i32) };
    for rule in &landlock.rules {
        let opened = openat(CWD, rule.path.as_slice(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let handle = match opened {
            Err(Errno::NOENT) => continue,
            opened => opened.at(Stage::Landlock, &rule.path)?,
        };
        let attr = PathBeneathAttr { allowed_access: rule.rights, parent_fd: handle.as_raw_fd() };
        // SAFETY: both descriptors are open and the struct outlives the call.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset.as_raw_fd(),
                LANDLOCK_RULE_PATH_BENEATH,
                &raw const attr,
                0,
            )
        };
        if added != 0 {
            return Err(fault(Stage::Landlock, &rule.path, last_errno()));
        }
    }
    // SAFETY: the ruleset is open.
    if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } != 0 {
        return Err(fault(Stage::Landlock, "restrict", last_errno()));
    }
    Ok(())
}

pub fn seccomp(program: &[u8]) -> Result<(), Fault> {
    let bad = || fault(Stage::Seccomp, "program", Errno::INVAL);
    // The plan's bytes are not aligned for the kernel's struct.
    let mut filters: Vec<libc::sock_filter> = program
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let length = u16::try_from(filters.len()).map_err(|_| bad())?;
    if length == 0 || !program.len().is_multiple_of(8) {
        return Err(bad());
    }
    let program = libc::sock_fprog { len: length, filter: filters.as_mut_ptr() };
    // SAFETY: the program points at `length` filters that outlive the call; the kernel checks and copies them.
    let set =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if set == 0 { Ok(()) } else { Err(fault(Stage::Seccomp, "filter", last_errno())) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
