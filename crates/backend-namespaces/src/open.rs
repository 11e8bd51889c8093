//! Network `open`: user-mode networking by `pasta` or `slirp4netns`, never the host's network namespace.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use moltis_sandbox::{Promise, Result};

/// Which program connects the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `pasta`, of the package `passt`.
    Pasta,
    /// `slirp4netns`.
    Slirp4netns,
}

/// The program that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connector {
    /// Which one.
    pub kind: Kind,
    /// Where.
    pub path: PathBuf,
}

impl Connector {
    /// Looks for `pasta`, then `slirp4netns` in the directories of `path` (the value of `PATH`), and for `/dev/net/tun`.
    pub fn find(path: &OsStr) -> Option<Self> {
        let _ = path;
        None
    }

    /// What `network = "open"` is worth here.
    pub fn promise(found: Option<&Self>) -> Promise {
        let _ = found;
        Promise::not_enforced("not built yet")
    }

    /// What the sandbox's `/etc/resolv.conf` must say with this connector. Known before the launch.
    pub fn resolv_conf(&self) -> String {
        String::new()
    }

    /// Connects a launched sandbox and waits until its interface is up.
    ///
    /// `guest` is a path that executes the guest binary (its memfd's `/proc/self/fd/N`, inheritable, or a file): a
    /// small process of it (`moltis-guest uplink`) enters the sandbox's user namespace, runs the connector there under
    /// the sandbox's uid, and ends it when the sandbox ends, whatever happens to this process. `netns` is the
    /// sandbox's network namespace (opened by the launch helper before the child became non-dumpable), `agent` a pidfd
    /// of its PID 1. `uid` and `gid` are those of the sandbox's user *inside* (1000).
    ///
    /// # Errors
    /// `Unavailable` with code `open-failed`, with what the connector said. Nothing is left running.
    pub async fn connect(
        &self,
        guest: &Path,
        netns: BorrowedFd<'_>,
        agent: BorrowedFd<'_>,
        uid: u32,
        gid: u32,
    ) -> Result<Uplink> {
        let _ = (guest, netns, agent, uid, gid);
        Ok(Uplink {})
    }

    /// The refusal when there is no connector: code `open-needs-pasta`.
    pub fn missing() -> moltis_sandbox::Error {
        moltis_sandbox::Error::Refused(moltis_sandbox::Diagnosis::new("open-needs-pasta", ""))
    }
}

/// A sandbox's connection to the network. It ends with the sandbox, not with this value: dropping it leaves it running.
#[derive(Debug)]
pub struct Uplink {}

impl Uplink {
    /// Ends the connection and waits for it. Not needed when the sandbox is ending anyway.
    pub async fn stop(self) {}
}
