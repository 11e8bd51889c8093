//! One launch, seen from the host: starts the helper, hands over the plan, hears of the child, lets it go on, and
//! ends it if anything is wrong. Everything here blocks; none of it takes long on a healthy machine.

mod helper;

use std::os::fd::OwnedFd;

use moltis_agent_protocol::launch::{MAX_PLAN_BYTES, Plan, Report};
use moltis_host::process::Process;
use rustix::io::Errno;

use crate::error::{Error, Result, of_fault};
pub use helper::Helper;

/// What goes with a plan.
#[derive(Debug)]
pub struct Descriptors {
    /// A bound socket that nobody listens on yet.
    pub listener: OwnedFd,
    /// The read end of the pipe whose end ends the sandbox.
    pub lifeline: Option<OwnedFd>,
    /// A cgroup (version 2) to create the child in.
    pub cgroup: Option<OwnedFd>,
    /// Handles of [`Plan::handed`].
    pub sources: Vec<OwnedFd>,
}

/// A child that exists and builds its root, but does not serve before it is told to. Dropping it ends it.
#[derive(Debug)]
pub struct Child {
    process: Option<Process>,
    netns: Option<OwnedFd>,
    placed: bool,
    helper: Helper,
}

/// Starts a helper from the guest binary in memory. It waits for its plan, which can be made meanwhile.
///
/// # Errors
/// [`Error::Spawn`].
pub fn spawn() -> Result<Helper> {
    Helper::spawn(moltis_agent::binary::memfd().map_err(Error::Spawn)?)
}

/// Hands the plan to a helper; comes back when the child exists.
///
/// # Errors
/// [`Error::Launch`] and what a fault stands for. Nothing is left behind.
pub fn start(helper: Helper, plan: &Plan, descriptors: Descriptors) -> Result<Child> {
    let bytes = encode(plan)?;
    // A helper that dies while it is being told may still have said why.
    let sent = helper.hand_over(&bytes, descriptors);
    let mut child = match helper.report()? {
        Some((Report::Born { pid, placed }, fds)) => {
            let pidfd = fds.into_iter().next().ok_or(Error::Died)?;
            Child { process: Some(Process::child(pid, pidfd)), netns: None, placed, helper }
        }
        Some((report, _)) => return Err(unexpected(report)),
        None => return Err(sent.err().unwrap_or(Error::Died)),
    };
    if plan.report_netns {
        match child.helper.report()? {
            Some((Report::Network, fds)) => child.netns = fds.into_iter().next(),
            Some((report, _)) => return Err(unexpected(report)),
            None => return Err(Error::Died),
        }
    }
    Ok(child)
}

/// The error of a report that is not the one that was waited for.
fn unexpected(report: Report) -> Error {
    match report {
        Report::Failed(fault) => of_fault(fault),
        Report::Born { .. } | Report::Network | Report::Ready => Error::Died,
    }
}

impl Child {
    /// Process id of the sandbox's PID 1, as this process sees it.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Handle of the sandbox's PID 1.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Its network namespace, if the plan asked for it.
    pub fn netns(&self) -> Option<&OwnedFd> {
        self.netns.as_ref()
    }

    /// Whether it was created in its cgroup.
    pub fn placed(&self) -> bool {
        self.placed
    }

    /// Lets the child go on, now that it is where it belongs, and waits until it is confined and listens.
    ///
    /// # Errors
    /// What a fault stands for. Nothing is left behind.
    pub fn go(mut self) -> Result<Process> {
        let sent = self.helper.go();
        match self.helper.report()? {
            Some((Report::Ready, _)) => self.process.take().ok_or(Error::Died),
            Some((report, _)) => Err(unexpected(report)),
            None => Err(sent.err().unwrap_or(Error::Died)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
            process.wait_briefly();
        }
    }
}

fn encode(plan: &Plan) -> Result<Vec<u8>> {
    let bytes =
        postcard::to_stdvec(plan).map_err(|_| Error::system("the plan cannot be encoded")(Errno::INVAL))?;
    if bytes.len() > MAX_PLAN_BYTES {
        return Err(Error::system("the sandbox has too many mounts")(Errno::TOOBIG));
    }
    Ok(bytes)
}
