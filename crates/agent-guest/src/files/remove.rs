//! Removing an entry, or a whole tree.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use moltis_agent_protocol::message::{EntryKind, FailureCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};
use super::roots::{self, Access};
use super::walk::{Found, Visit, walk};
use super::{Result, object, path};
use crate::connection::Connection;

/// Entries that are removed between two looks at whether the host still waits.
const LOOK_EVERY: u32 = 1024;

/// Removes what `path` names; of a link, the link.
pub fn remove(conn: &Connection, path: &[u8], recursive: bool) -> Result<()> {
    let failed = |e: Errno| kernel(e, format!("`{}` cannot be removed", shown(path)));
    let Some((above, name)) = path::split(path) else {
        return Err(plain(
            FailureCode::Invalid,
            format!("`{}` cannot be removed: it ends in `/`, `.` or `..`", shown(path)),
        )
        .into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::open(above, flags, Mode::empty()).map_err(failed)?;
    roots::judge(&above, path, Access::Write)?;
    let stat = rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if object::kind(&stat) != EntryKind::Directory {
        return Ok(rustix::fs::unlinkat(&above, name, AtFlags::empty()).map_err(failed)?);
    }
    if !recursive {
        return Ok(rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR).map_err(failed)?);
    }
    match open(&above, name) {
        Ok(top) => walk(top, path, &mut Removal { conn, top: path, count: 0 })?,
        // One that is not ours may still be empty.
        Err(Errno::ACCESS | Errno::PERM) => {}
        Err(e) => return Err(mount_or(e, path).into()),
    }
    Ok(rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR).map_err(failed)?)
}

struct Removal<'a> {
    conn: &'a Connection,
    top: &'a [u8],
    count: u32,
}

impl Removal<'_> {
    fn whole(&self, found: &Found<'_>) -> Vec<u8> {
        [self.top, b"/", found.path].concat()
    }

    fn unlink(&self, found: &Found<'_>, flags: AtFlags) -> Result<()> {
        match rustix::fs::unlinkat(found.directory, found.name, flags) {
            // Somebody else was faster.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(kernel(e, format!("`{}` cannot be removed", shown(&self.whole(found)))).into()),
        }
    }
}

impl Visit for Removal<'_> {
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>> {
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(LOOK_EVERY) && is_closed(self.conn) {
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        if !matches!(found.kind, FileType::Directory | FileType::Unknown) {
            self.unlink(&found, AtFlags::empty())?;
            return Ok(None);
        }
        match open(found.directory, found.name) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => self.unlink(&found, AtFlags::empty()).map(|()| None),
            Err(Errno::ACCESS | Errno::PERM) => self.unlink(&found, AtFlags::REMOVEDIR).map(|()| None),
            Err(e) => Err(mount_or(e, &self.whole(&found)).into()),
        }
    }

    fn leave(&mut self, found: Found<'_>) -> Result<()> {
        self.unlink(&found, AtFlags::REMOVEDIR)
    }
}

/// Opens a directory to empty it, unless it is a mount point: what is mounted in the sandbox is not the tree's. One that
/// is closed to us, its owner, is opened by its mode.
fn open(parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let handle = handle(parent, name)?;
    let stat = rustix::fs::fstat(&handle)?;
    if !Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU)
        && stat.st_uid == rustix::process::geteuid().as_raw()
    {
        // By the handle, since the name could be made to mean something else.
        rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
    }
    rustix::fs::openat(&handle, c".", READ, Mode::empty())
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A mere handle of a directory of the same mount.
fn handle(parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve) {
        // Filtered, as in a sandbox, or old.
        Err(Errno::NOSYS) => {
            let directory = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            if mount_of(&directory)? == mount_of(&parent)? { Ok(directory) } else { Err(Errno::XDEV) }
        }
        other => other,
    }
}

/// The mount that an object lies in; 0 on kernels that do not say (before 5.8).
fn mount_of(object: impl AsFd) -> Result<u64, Errno> {
    let flags = rustix::fs::StatxFlags::MNT_ID;
    rustix::fs::statx(object, c"", AtFlags::EMPTY_PATH, flags).map(|found| found.stx_mnt_id)
}

fn mount_or(errno: Errno, path: &[u8]) -> moltis_agent_protocol::message::Failure {
    match errno {
        Errno::XDEV => plain(
            FailureCode::Denied,
            format!("`{}` is a mount point and stays, with what is in it", shown(path)),
        ),
        e => kernel(e, format!("`{}` cannot be removed", shown(path))),
    }
}

fn is_closed(conn: &Connection) -> bool {
    let mut fds = [PollFd::new(conn, PollFlags::RDHUP)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
}
