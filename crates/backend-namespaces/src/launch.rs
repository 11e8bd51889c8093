//! One launch, seen from the host: starts the helper, hands over the plan, hears of the child, lets it go on, and
//! ends it if anything is wrong. Everything here blocks; none of it takes long on a healthy machine.

mod helper;

use std::os::fd::{BorrowedFd, OwnedFd};

use moltis_agent_protocol::launch::{MAX_PLAN_BYTES, Plan, Report};
use rustix::io::Errno;

use crate::error::{Error, Result, of_fault};
use crate::process::Process;
use helper::Helper;

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

/// Starts a helper from `guest` (the guest binary in memory) and hands it the plan; comes back when the child exists.
///
/// # Errors
/// [`Error::Spawn`], [`Error::Launch`] and what a fault stands for. Nothing is left behind.
pub fn start(guest: BorrowedFd<'_>, plan: &Plan, descriptors: Descriptors) -> Result<Child> {
    let bytes = encode(plan)?;
    let helper = Helper::spawn(guest)?;
    // A helper that dies while it is being told may still have said why.
    let sent = helper.hand_over(&bytes, descriptors);
    match helper.report()? {
        Some((Report::Born { pid, placed }, fds)) => {
            let mut fds = fds.into_iter();
            let pidfd = fds.next().ok_or(Error::Died)?;
            Ok(Child { process: Some(Process::child(pid, pidfd)), netns: fds.next(), placed, helper })
        }
        Some((Report::Failed(fault), _)) => Err(of_fault(fault)),
        Some((Report::Ready, _)) => Err(Error::Died),
        None => Err(sent.err().unwrap_or(Error::Died)),
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
            Some((Report::Failed(fault), _)) => Err(of_fault(fault)),
            Some((Report::Born { .. }, _)) => Err(Error::Died),
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
    let bytes = postcard::to_stdvec(plan).map_err(|_| Error::system("the plan cannot be encoded")(Errno::INVAL))?;
    if bytes.len() > MAX_PLAN_BYTES {
        return Err(Error::system("the sandbox has too many mounts")(Errno::TOOBIG));
    }
    Ok(bytes)
}
