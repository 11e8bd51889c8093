//! Sources that a privileged caller hands over: cloned from their handles and shown with the sandbox's user in the
//! place of their owner, by a user namespace that lives only as long as it takes to make the mount.

use std::os::fd::{AsFd, OwnedFd};

use moltis_agent_protocol::launch::{Fault, Owner, Plan, Stage, WithoutIdmap};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::namespaces::{last_errno, write_proc};
use super::{At, chown, fault, mount};

/// Clones every handed source, in order.
pub fn clone_handed(plan: &Plan, sources: &[OwnedFd]) -> Result<Vec<OwnedFd>, Fault> {
    let mut namespaces: Vec<(Owner, OwnedFd)> = Vec::new();
    let mut trees = Vec::with_capacity(sources.len());
    for (handed, source) in plan.handed.iter().zip(sources) {
        let mut tree = mount::clone_handle(source.as_fd()).at(Stage::Handed, &handed.path)?;
        if let Some(owner) = handed.owner {
            let known = namespaces.iter().position(|(have, _)| *have == owner);
            let index = match known {
                Some(index) => index,
                None => {
                    let outside = Owner { uid: plan.identity.outside_uid, gid: plan.identity.outside_gid };
                    namespaces.push((owner, user_namespace(owner, outside)?));
                    namespaces.len() - 1
                }
            };
            match mount::set_idmap(tree.as_fd(), namespaces[index].1.as_fd()) {
                Ok(()) => {}
                // The kernel or the file system does not know idmapped mounts (EINVAL), or does not allow them to us.
                Err(errno @ (Errno::INVAL | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS)) => {
                    match handed.without_idmap {
                        WithoutIdmap::Refuse => return Err(fault(Stage::Idmap, &handed.path, errno)),
                        WithoutIdmap::Plain => {}
                        WithoutIdmap::Chown => {
                            let identity = &plan.identity;
                            chown::tree(source.as_fd(), identity.outside_uid, identity.outside_gid)
                                .at(Stage::Idmap, &handed.path)?;
                        }
                    }
                    // A failed attempt may have left part of the tree changed.
                    tree = mount::clone_handle(source.as_fd()).at(Stage::Handed, &handed.path)?;
                }
                Err(errno) => return Err(fault(Stage::Idmap, &handed.path, errno)),
            }
        }
        mount::set_attributes(tree.as_fd(), handed.attributes).at(Stage::Handed, &handed.path)?;
        trees.push(tree);
    }
    Ok(trees)
}

/// A user namespace that maps `owner` to `outside` and nothing else. A process is needed to have one.
fn user_namespace(owner: Owner, outside: Owner) -> Result<OwnedFd, Fault> {
    let parent = std::process::id();
    // SAFETY: a fork with a new user namespace; the process has one thread, and the child only waits to be killed.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        0 => {
            // SAFETY: asks for a signal at the parent's death, and waits.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have ended before that took hold.
                if libc::getppid().unsigned_abs() != parent {
                    libc::_exit(1);
                }
                loop {
                    libc::pause();
                }
            }
        }
        1.. => {
            let pid = pid as i32;
            let made = write_proc(pid, "uid_map", &format!("{} {} 1\n", owner.uid, outside.uid))
                .and_then(|()| write_proc(pid, "gid_map", &format!("{} {} 1\n", owner.gid, outside.gid)))
                .and_then(|()| {
                    let path = format!("/proc/{pid}/ns/user");
                    openat(CWD, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                        .at(Stage::Idmap, &path)
                });
            // SAFETY: the child is ours and not yet reaped, so the number is still its own.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
            made
        }
        _ => Err(fault(Stage::Idmap, "clone", last_errno())),
    }
}
