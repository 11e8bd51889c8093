//! Whom commands run as, and the agent that runs them: an ordinary user without any capability, in a pid namespace of its
//! own, so that nothing of the sandbox sees the keeper, and all of it ends with the agent.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use moltis_agent_protocol::launch::{Fault, Stage};
use moltis_agent_protocol::machine::Boot;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::{Problem, Result, at};
use crate::agent::Agent;
use crate::launch::{At, fault};
use crate::peer::PeerRule;
use crate::rlimits::CommandLimits;
use crate::serve::{self, OOM_SCORE_ADJ, ServeConfig};
use crate::{confine, filter, startup};

/// The user's name in images that have one.
const NAME: &str = "sandbox";

/// Its home.
pub const HOME: &str = "/home/sandbox";

/// Its number where the image has none.
const UID: u32 = 1000;

/// The user of the machine's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User id, never 0.
    pub uid: u32,
    /// Group id, never 0.
    pub gid: u32,
    named: bool,
}

/// The user `sandbox` of the image's own list, or one with the usual number.
pub fn find() -> User {
    find_in(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
}

fn find_in(passwd: &str) -> User {
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.find_map(|fields| match fields[..] {
        [NAME, _, uid, gid, ..] => Some((uid.parse().ok()?, gid.parse().ok()?)),
        _ => None,
    });
    match found {
        Some((uid @ 1.., gid @ 1..)) => User { uid, gid, named: true },
        _ => User { uid: UID, gid: UID, named: false },
    }
}

impl User {
    /// Adds it to the image's lists if they do not have it.
    pub fn settle(&self) -> Result<()> {
        if self.named {
            return Ok(());
        }
        let add = |path: &str, line: String| {
            let mut file =
                std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(at(path))?;
            file.write_all(line.as_bytes()).map_err(at(path))
        };
        add("/etc/passwd", format!("{NAME}:x:{}:{}::{HOME}:/bin/sh\n", self.uid, self.gid))?;
        add("/etc/group", format!("{NAME}:x:{}:\n", self.gid))
    }
}

/// Starts the agent; its process as the keeper sees it.
pub fn start(user: &User, boot: &Boot, listener: OwnedFd) -> Result<i32> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::SIGCHLD;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: without a stack of its own the child goes on with a copy of this one's, as after `fork`; this program has one
    // thread.
    match unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, none, none, none, none) } {
        0 => {
            let code = match become_agent(user, boot, listener) {
                Ok(mut agent) => {
                    // The console was for what went wrong until here.
                    if startup::null_stdio().is_ok() { agent.serve() } else { serve::CANNOT_SERVE }
                }
                Err(problem) => {
                    let text = format!("moltis-guest: {problem}\n");
                    let _ = std::io::stderr().write_all(text.as_bytes());
                    serve::CANNOT_SERVE
                }
            };
            // SAFETY: ends the process without running anything of the keeper's.
            unsafe { libc::_exit(code) }
        }
        pid if pid > 0 => Ok(pid as i32),
        _ => Err(at("the agent's process")(std::io::Error::last_os_error())),
    }
}

fn become_agent(user: &User, boot: &Boot, listener: OwnedFd) -> Result<Agent> {
    let of = |fault: Fault| Problem {
        what: String::from_utf8_lossy(&fault.what).into_owned(),
        errno: Errno::from_raw_os_error(fault.errno),
    };
    startup::close_all_but(&[listener.as_raw_fd()]).map_err(at("descriptors"))?;
    let hidden = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", hidden, c"hidepid=invisible").map_err(at("the agent's /proc"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    serve::settle(OOM_SCORE_ADJ).map_err(at("/proc/self/oom_score_adj"))?;
    confine_to(user).map_err(of)?;
    startup::forbid_inspection().map_err(at("inspection"))?;
    let mut limits = CommandLimits::default();
    let core = limits.argument("--rlimit".as_ref(), "core=0".as_ref());
    let pids = boot.pids.map(|pids| limits.argument("--rlimit".as_ref(), format!("nproc={pids}").as_ref()));
    for set in std::iter::once(core).chain(pids) {
        set.map_err(|what| Problem { what, errno: Errno::INVAL })?;
    }
    Agent::new(ServeConfig {
        listener,
        lifeline: None,
        idle: Some(boot.idle_millis).filter(|millis| *millis > 0).map(Duration::from_millis),
        ready: None,
        cwd: HOME.as_bytes().to_vec(),
        // Root outside its pid namespace is the keeper.
        peers: PeerRule { owner: 0, outside: true, relay: false },
        oom_score_adj: OOM_SCORE_ADJ,
        limits,
        roots: None,
        guarded: Vec::new(),
        held_within: None,
        egress: boot.egress,
    })
    .map_err(at("the agent"))
}

/// Becomes the user, for good.
fn confine_to(user: &User) -> std::result::Result<(), Fault> {
    let stage = Stage::Capabilities;
    for capability in 0..64 {
        // SAFETY: a prctl with plain numbers; past the last capability it is refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    // SAFETY: these take plain numbers; this program has one thread.
    let became = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(user.gid, user.gid, user.gid) == 0
            && libc::setresuid(user.uid, user.uid, user.uid) == 0
    };
    if !became {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM);
        return Err(fault(stage, "the sandbox's user", errno));
    }
    rustix::thread::set_no_new_privs(true).at(stage, "no_new_privs")?;
    confine::require_no_capabilities()?;
    confine::scope()?;
    let program = filter::program()
        .ok_or_else(|| fault(Stage::Seccomp, "a system call filter for this architecture", Errno::NOSYS))?;
    confine::seccomp(&program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_s_user_is_taken_and_root_never_is() {
        let of = |text| find_in(text);
        let usual = User { uid: UID, gid: UID, named: false };
        assert_eq!(
            of("root:x:0:0::/:/bin/sh\nsandbox:x:1234:1235::/h:/bin/sh\n"),
            User { uid: 1234, gid: 1235, named: true }
        );
        for other in [
            "",
            "root:x:0:0::/:/bin/sh",
            "sandbox:x:0:0::/:/bin/sh",
            "sandbox:x:1:0::/:",
            "sandbox",
            "sandbox:x:a:b",
        ] {
            assert_eq!(of(other), usual, "{other}");
        }
    }
}
