//! The agent's socket in a directory that the host sees, too. Code that ran in the directory before may have left
//! anything there: no link is followed, and what has the socket's name is replaced.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What the socket is called until it is listened on.
const ASIDE: &str = ".agent.sock.new";

/// A bound socket that is not in its place yet.
pub struct Socket {
    directory: OwnedFd,
    name: CString,
}

impl Socket {
    /// Makes a socket that everybody may connect to, beside the place `path`, and changes into its directory.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for a path without a name, `ELOOP` or `ENOTDIR` for one that leads through a link.
    pub fn bind(path: &[u8]) -> Result<(Self, OwnedFd)> {
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let name = parts.next_back().ok_or(Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = openat(CWD, "/", flags, Mode::empty())?;
        for part in parts {
            directory = openat(&directory, part, flags, Mode::empty())?;
        }
        match unlinkat(&directory, ASIDE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        // By a relative name: needs no /proc, and no length of the path is too much.
        rustix::process::fchdir(&directory)?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let before = rustix::process::umask(Mode::from_raw_mode(0o111));
        let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(ASIDE)?);
        rustix::process::umask(before);
        bound?;
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        Ok((Self { directory, name }, socket))
    }

    /// Puts the socket into its place, whatever stands there, unless that is a directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn publish(self) -> Result<()> {
        renameat(&self.directory, ASIDE, &self.directory, &self.name)
    }
}
