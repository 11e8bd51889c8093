//! Mode `launch`: a short-lived helper that makes a sandbox by the host's plan, and the child it leaves behind, which
//! builds the root, confines itself and goes on as the agent.
//!
//! Neither has threads, so that a raw `clone` is all it takes. The child's parent is the host, not the helper.

mod chown;
mod descriptor;
mod host;
mod idmap;
pub(crate) mod loopback;
mod mount;
mod namespaces;
mod root;
mod target;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use moltis_agent_protocol::launch::{Fault, Plan, Report, Stage};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::confine;
use crate::guarded::Guarded;
use crate::rlimits::CommandLimits;
use crate::serve::{self, PeerRule, ServeConfig};
use crate::startup;
use host::{Handover, Host};
use namespaces::Born;

/// Runs the helper; in the child it does not return. The exit code tells nothing that the report does not.
pub fn run() -> i32 {
    let Ok(host) = Host::connect() else { return 1 };
    match launch(&host) {
        Ok(()) => 0,
        Err(fault) => {
            host.report(&Report::Failed(fault), &[]);
            1
        }
    }
}

fn launch(host: &Host) -> Result<(), Fault> {
    // The files below /proc/<child> through which an ordinary caller writes the id maps belong to root while the
    // child is not dumpable. It runs nothing but this code until that is set back.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(Stage::Plan, "PR_SET_DUMPABLE")?;
    let _ = rustix::thread::set_name(c"moltis-guest");
    let Handover { plan, listener, lifeline, cgroup, sources } = host.receive()?;
    confine::set_oom_score_adj(plan.oom_score_adj);
    let handed = idmap::clone_handed(&plan, &sources)?;
    drop(sources);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .at(Stage::Namespaces, "socketpair")?;
    match namespaces::clone_child(cgroup.as_ref().map(AsFd::as_fd)).at(Stage::Namespaces, "clone")? {
        Born::Child => {
            drop((ours, cgroup));
            // The helper lets go by a byte; its death before that shows as the end of the connection.
            if rustix::io::read(&theirs, &mut [0u8; 1]) != Ok(1) {
                std::process::exit(1);
            }
            let fault = match become_agent(host, &plan, handed, &listener, theirs) {
                Ok(guarded) => serve_by(host, plan, listener, lifeline, guarded),
                Err(fault) => fault,
            };
            host.report(&Report::Failed(fault), &[]);
            std::process::exit(1)
        }
        Born::Parent { pid, pidfd, placed } => {
            drop((theirs, handed, listener, lifeline));
            // First of all, since it is the host that must reap the child, whatever becomes of it.
            host.report(&Report::Born { pid, placed }, &[pidfd.as_fd()]);
            namespaces::map_ids(pid, &plan.identity)?;
            // From here on the child builds its root.
            rustix::io::write(&ours, &[1]).at(Stage::IdMaps, "the child")?;
            let network = namespaces::make_network(pidfd.as_fd()).at(Stage::Namespaces, "network")?;
            if plan.report_netns {
                host.report(&Report::Network, &[network.as_fd()]);
            }
            descriptor::send(ours.as_fd(), network.as_fd()).at(Stage::Network, "the child")
        }
    }
}

/// Everything between the id maps and the first connection, in the only order that works.
fn become_agent(
    host: &Host,
    plan: &Plan,
    handed: Vec<OwnedFd>,
    listener: &OwnedFd,
    helper: OwnedFd,
) -> Result<Vec<Guarded>, Fault> {
    namespaces::become_user(&plan.identity)?;
    rustix::process::setsid().at(Stage::Identity, "setsid")?;
    rustix::system::sethostname(&plan.hostname).at(Stage::Network, "sethostname")?;
    let guarded = root::build(&plan.root, handed)?;
    let network = descriptor::receive(helper.as_fd()).at(Stage::Network, "the helper")?;
    namespaces::enter_network(network.as_fd()).at(Stage::Network, "setns")?;
    drop((network, helper));
    startup::null_stdio().map_err(|e| fault(Stage::Root, "/dev/null", errno_of(&e)))?;
    host.wait_for_go()?;
    // Only now is it in its cgroups, so that they are what the namespace shows as the root.
    namespaces::leave_cgroup_namespace().at(Stage::CgroupNamespace, "unshare")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Stage::Capabilities, "PR_SET_DUMPABLE")?;
    // What the agent does first is listen; a socket that cannot is better told now.
    rustix::net::listen(listener, 128).at(Stage::Listen, "listen")?;
    rustix::process::chdir(std::ffi::OsStr::new("/")).at(Stage::Root, "/")?;
    confine::apply(plan)?;
    Ok(guarded)
}

/// Tells the host and serves. It comes back only when the host is gone.
fn serve_by(
    host: &Host,
    plan: Plan,
    listener: OwnedFd,
    lifeline: Option<OwnedFd>,
    guarded: Vec<Guarded>,
) -> Fault {
    if !host.report(&Report::Ready, &[]) {
        return fault(Stage::Go, "the host", Errno::PIPE);
    }
    host.close();
    serve::run(ServeConfig {
        listener,
        lifeline,
        idle: (plan.agent.idle_millis > 0).then(|| Duration::from_millis(plan.agent.idle_millis)),
        ready: None,
        cwd: plan.agent.directory.into_vec(),
        peers: PeerRule { owner: plan.agent.owner_uid, outside: true, relay: false },
        oom_score_adj: plan.oom_score_adj,
        limits: CommandLimits::default(),
        roots: None,
        guarded,
        held_within: None,
        egress: plan.agent.egress,
    })
}

/// A fault at `stage` with the kernel's answer about `what`.
pub(crate) fn fault(stage: Stage, what: impl AsRef<[u8]>, errno: Errno) -> Fault {
    let what = what.as_ref();
    let shown = &what[..what.len().min(4096)];
    Fault { stage, what: shown.to_vec().into(), errno: errno.raw_os_error() }
}

/// Errors of the standard library as the kernel's number.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)
}

/// Says at which stage, and about what, the kernel said no.
pub(crate) trait At<T> {
    /// The fault for an error.
    fn at(self, stage: Stage, what: impl AsRef<[u8]>) -> Result<T, Fault>;
}

impl<T> At<T> for rustix::io::Result<T> {
    fn at(self, stage: Stage, what: impl AsRef<[u8]>) -> Result<T, Fault> {
        self.map_err(|errno| fault(stage, what, errno))
    }
}
