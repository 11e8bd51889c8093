//! Becoming the user of a sandbox in its user namespace, with the two capabilities that its network takes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities,
};

use super::{last_error, named};

/// Asks a namespace for the user namespace that owns it, `ioctl_nsfs(2)`.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// To make an interface (`NET_ADMIN`), and to enter the network namespace and shed the view of the host's files
/// (`SYS_ADMIN`); both only within the sandbox's user namespace.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::SYS_ADMIN);

/// Enters the user namespace that owns `netns` as this user of it, whom capabilities stay with across `execve`.
pub fn become_user_of(netns: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        // The host's groups of root are worth something outside; in the namespace they cannot be named.
        // SAFETY: an empty list, no pointer is read.
        if unsafe { libc::setgroups(0, std::ptr::null()) } != 0 {
            return Err(last_error("setgroups"));
        }
    }
    let owner = owner(netns)?;
    move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User)).map_err(named("setns"))?;
    // SAFETY: integers only, and this process has no threads that could disagree.
    let changed = unsafe { libc::setresgid(gid, gid, gid) == 0 && libc::setresuid(uid, uid, uid) == 0 };
    if !changed {
        return Err(last_error("setresuid"));
    }
    rustix::thread::set_no_new_privs(true).map_err(named("no_new_privs"))?;
    hold(NEEDED)?;
    for capability in [CapabilitySet::NET_ADMIN, CapabilitySet::SYS_ADMIN] {
        configure_capability_in_ambient_set(capability, true).map_err(named("ambient capability"))?;
    }
    Ok(())
}

/// Gives all of them up; what was started with them keeps its own.
pub fn drop_capabilities() -> io::Result<()> {
    hold(CapabilitySet::empty())
}

fn hold(capabilities: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: capabilities };
    set_capabilities(None, sets).map_err(named("capset"))
}

fn owner(netns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no argument and answers with a new descriptor.
    match unsafe { libc::ioctl(netns.as_raw_fd(), NS_GET_USERNS) } {
        -1 => Err(last_error("NS_GET_USERNS")),
        // SAFETY: nobody else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}
