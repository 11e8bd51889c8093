//! What has become of a sandbox's first process, by what was written down of it.

use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::process::{Process, boot, pid_realm};

/// A process that is not taken for a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessId<'r> {
    /// Process id.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the boot.
    pub started: u64,
    /// The boot and the PID namespace in which the number means something, as [`pid_realm`] has it.
    pub realm: Cow<'r, str>,
}

/// What has become of a sandbox's first process.
#[derive(Debug)]
pub enum Whereabouts {
    /// It lives.
    Here(Process),
    /// It does not live any more.
    Over,
    /// It belongs to another PID namespace of this boot, and may live.
    Elsewhere,
}

impl ProcessId<'_> {
    /// What has become of the process; the `socket` that it alone listens on, if there is one, lies in `folder`. Blocks
    /// on files of the kernel's.
    pub fn whereabouts(&self, folder: impl AsFd, socket: Option<&str>) -> Whereabouts {
        if self.realm == pid_realm() {
            return Process::find(self.pid, self.started).map_or(Whereabouts::Over, Whereabouts::Here);
        }
        if !self.realm.starts_with(boot()) || socket.is_some_and(|socket| is_deserted(folder, socket)) {
            return Whereabouts::Over;
        }
        Whereabouts::Elsewhere
    }
}

/// Whether a socket is there on which nobody listens. Of a socket that the first
/// process alone holds, and that has listened, it means the end of that process, in whichever PID namespace it was.
pub fn is_deserted(folder: impl AsFd, socket: &str) -> bool {
    let refused = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = openat(folder, socket, flags, Mode::empty())?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", there.as_raw_fd()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Something else in its place refuses as well, and says nothing about the agent.
        let is_socket = FileType::from_raw_mode(fstat(&there)?.st_mode) == FileType::Socket;
        rustix::io::Result::Ok(is_socket && connect(&socket, &address) == Err(Errno::CONNREFUSED))
    };
    refused().unwrap_or(false)
}
