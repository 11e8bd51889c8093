//! Creating the child in its namespaces, and who its user is outside.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use moltis_agent_protocol::launch::{Fault, Identity, Stage};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::{At, fault, loopback};

/// Which side of `clone` this is.
pub enum Born {
    /// The new process.
    Child,
    /// The helper.
    Parent {
        /// Process id of the child.
        pid: i32,
        /// Handle of the child.
        pidfd: OwnedFd,
        /// Whether the child was created in the cgroup.
        placed: bool,
    },
}

/// Every namespace but two: the cgroup's must wait until the child is in its cgroups, and the network's, which takes as
/// long as all the others, is made by the helper meanwhile. `CLONE_PARENT` makes the child the host's, with the signal
/// that the helper's own end will send.
const FLAGS: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_PARENT
    | libc::CLONE_PIDFD) as u64;

/// Clones this process into new namespaces, and into `cgroup` where the kernel can.
pub fn clone_child(cgroup: Option<BorrowedFd<'_>>) -> Result<Born, Errno> {
    if let Some(cgroup) = cgroup {
        match clone_into(cgroup) {
            // A kernel before 5.7, a filter around us that knows no clone3, or a group that takes no process.
            Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM | Errno::ACCESS | Errno::BUSY) => {}
            answer => return answer,
        }
    }
    let mut pidfd: libc::c_int = -1;
    // SAFETY: without a stack and without CLONE_VM this is a fork: the child goes on here on a copy of the stack. The
    // process has one thread. The kernel writes the pidfd to the third argument.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, FLAGS | libc::SIGCHLD as u64, 0, &raw mut pidfd, 0, 0) };
    sides(pid, pidfd, false)
}

fn clone_into(cgroup: BorrowedFd<'_>) -> Result<Born, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    // clone3 takes no exit signal together with CLONE_PARENT: the kernel uses the helper's own.
    arguments.flags = FLAGS | CLONE_INTO_CGROUP;
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: as in `clone_child`; the struct outlives the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    sides(pid, pidfd, true)
}

/// `CLONE_INTO_CGROUP` of `<linux/sched.h>`.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn sides(pid: libc::c_long, pidfd: libc::c_int, placed: bool) -> Result<Born, Errno> {
    match pid {
        0 => Ok(Born::Child),
        1.. => {
            // SAFETY: the kernel has just opened it for this call.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Born::Parent { pid: pid as i32, pidfd, placed })
        }
        _ => Err(last_errno()),
    }
}

/// The error of the last direct system call.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Maps the sandbox's one user and one group.
pub fn map_ids(pid: i32, identity: &Identity) -> Result<(), Fault> {
    let line = |inside: u32, outside: u32| format!("{inside} {outside} 1\n");
    if !identity.privileged {
        // An unprivileged map of groups is allowed only once groups can no longer be dropped.
        write_proc(pid, "setgroups", "deny")?;
    }
    write_proc(pid, "uid_map", &line(identity.inside_uid, identity.outside_uid))?;
    write_proc(pid, "gid_map", &line(identity.inside_gid, identity.outside_gid))
}

/// Writes a file below `/proc/<pid>` in one write, as the maps demand.
pub fn write_proc(pid: i32, name: &str, content: &str) -> Result<(), Fault> {
    let path = format!("/proc/{pid}/{name}");
    let written = openat(CWD, path.as_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::write(&file, content.as_bytes()));
    match written {
        Ok(count) if count == content.len() => Ok(()),
        Ok(_) => Err(fault(Stage::IdMaps, name, Errno::IO)),
        Err(errno) => Err(fault(Stage::IdMaps, name, errno)),
    }
}

/// Enters the user namespace of a child and makes a network namespace that belongs to it, with loopback switched on.
pub fn make_network(child: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor is open; this process has one thread and nothing left to do in its own namespaces.
    let entered = unsafe {
        libc::setns(child.as_raw_fd(), libc::CLONE_NEWUSER) == 0 && libc::unshare(libc::CLONE_NEWNET) == 0
    };
    if !entered {
        return Err(last_errno());
    }
    loopback::up()?;
    openat(CWD, "/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Enters a network namespace.
pub fn enter_network(network: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the descriptor is open; the process has one thread.
    if unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Becomes the sandbox's user. A privileged caller's child is still the host's root towards files, so this comes
/// before anything is written.
pub fn become_user(identity: &Identity) -> Result<(), Fault> {
    if !identity.privileged {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(identity.inside_uid), Gid::from_raw(identity.inside_gid));
    rustix::thread::set_thread_groups(&[]).at(Stage::Identity, "setgroups")?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).at(Stage::Identity, "setresgid")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).at(Stage::Identity, "setresuid")
}

/// Makes the present cgroup the root that is seen inside.
pub fn leave_cgroup_namespace() -> rustix::io::Result<()> {
    // SAFETY: a cgroup namespace is not part of the memory model; no descriptor table is unshared.
    if unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } == 0 { Ok(()) } else { Err(last_errno()) }
}
