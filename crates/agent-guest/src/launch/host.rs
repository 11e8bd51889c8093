//! The helper's side of the socket pair with the host.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use moltis_agent_protocol::launch::{
    CHUNK_BYTES, CONTROL_FD, Fault, GO, Header, MAX_DESCRIPTORS, Plan, Report, Stage,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::{At, fault};
use crate::startup;

/// What the host hands over.
pub struct Handover {
    /// What to make.
    pub plan: Plan,
    /// The bound socket that the agent will listen on.
    pub listener: OwnedFd,
    /// Its end of file ends the sandbox.
    pub lifeline: Option<OwnedFd>,
    /// The cgroup to create the child in.
    pub cgroup: Option<OwnedFd>,
    /// Handles of [`Plan::handed`].
    pub sources: Vec<OwnedFd>,
}

/// The connection. It is not owned by a value, since helper and child both hold it until one of them lets go.
pub struct Host(());

impl Host {
    /// Takes up the connection that this program was started with, and closes whatever else was inherited.
    pub fn connect() -> std::io::Result<Self> {
        startup::close_all_but(&[CONTROL_FD])?;
        Ok(Self(()))
    }

    fn socket(&self) -> BorrowedFd<'static> {
        // SAFETY: the descriptor is open from the start of the program until `close`, after which nothing here is
        // called any more; a number that is not open would only be an error.
        unsafe { BorrowedFd::borrow_raw(CONTROL_FD) }
    }

    /// Lets go of the connection. Nothing may be reported afterwards.
    pub fn close(&self) {
        // SAFETY: this program owns the descriptor and holds no other owner of it.
        drop(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) });
    }

    /// Receives the header, its descriptors and the plan.
    pub fn receive(&self) -> Result<Handover, Fault> {
        let bad = |what: &str| fault(Stage::Plan, what, Errno::PROTO);
        let mut bytes = [0; Header::BYTES];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            self.socket(),
            &mut [std::io::IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .at(Stage::Plan, "header")?;
        let mut descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten();
        if received.bytes != Header::BYTES {
            return Err(bad("header"));
        }
        let header = Header::decode(bytes).ok_or_else(|| bad("header"))?;
        let listener = descriptors.next().ok_or_else(|| bad("no socket"))?;
        let mut optional = |wanted: bool, what: &str| match (wanted, wanted.then(|| descriptors.next())) {
            (true, Some(Some(fd))) => Ok(Some(fd)),
            (true, _) => Err(bad(what)),
            (false, _) => Ok(None),
        };
        let lifeline = optional(header.lifeline, "no lifeline")?;
        let cgroup = optional(header.cgroup, "no cgroup")?;
        let sources: Vec<OwnedFd> = descriptors.collect();

        let length = header.plan_bytes as usize;
        let mut plan = vec![0; length];
        let mut have = 0;
        while have < length {
            let end = length.min(have + CHUNK_BYTES);
            let (count, _) = rustix::net::recv(self.socket(), &mut plan[have..end], RecvFlags::empty())
                .at(Stage::Plan, "plan")?;
            if count == 0 {
                return Err(bad("the plan ends early"));
            }
            have += count;
        }
        let plan: Plan = postcard::from_bytes(&plan).map_err(|_| bad("the plan does not decode"))?;
        if plan.handed.len() != sources.len() {
            return Err(bad("handles missing"));
        }
        Ok(Handover { plan, listener, lifeline, cgroup, sources })
    }

    /// Tells the host something; `false` if it cannot be told.
    pub fn report(&self, report: &Report, descriptors: &[BorrowedFd<'_>]) -> bool {
        let Ok(bytes) = postcard::to_stdvec(report) else { return false };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return false;
        }
        rustix::net::sendmsg(self.socket(), &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
            .is_ok()
    }

    /// Waits until the host has put the child where it belongs.
    pub fn wait_for_go(&self) -> Result<(), Fault> {
        let mut byte = [0; 1];
        match rustix::net::recv(self.socket(), &mut byte, RecvFlags::empty()) {
            Ok((1, _)) if byte == GO => Ok(()),
            // The host is gone: so is everybody who would read a report.
            Ok(_) => Err(fault(Stage::Go, "the host", Errno::PIPE)),
            Err(errno) => Err(fault(Stage::Go, "the host", errno)),
        }
    }
}
