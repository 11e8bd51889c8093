//! An object that a path named when it was opened: what it is, and how to use it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use moltis_agent_protocol::message::{ByteString, EntryKind, Failure, FailureCode, Metadata};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};
use super::roots::{self, Access};

/// Opens a mere handle of what `path` names.
pub fn find(path: &[u8], follow: bool) -> Result<OwnedFd, Failure> {
    let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let handle = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | nofollow, Mode::empty())
        .map_err(|e| kernel(e, format!("`{}` cannot be found", shown(path))))?;
    roots::judge(&handle, path, Access::Read)?;
    Ok(handle)
}

/// Opens a mere handle of an entry; of a link, the link itself.
pub fn entry(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Opens the object behind a handle for use. The caller has judged what it is.
pub fn reopen(handle: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let always = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(CWD, path, flags | always, Mode::empty())
}

/// Opens a directory to read its entries, without following a link.
pub fn directory(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// What an object is.
pub fn kind(stat: &Stat) -> EntryKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

/// The failure that something is not of the kind that is needed.
pub fn wrong_kind(path: &[u8], found: EntryKind) -> Failure {
    let what = match found {
        EntryKind::File => "is a file",
        EntryKind::Directory => "is a directory",
        EntryKind::Symlink => "is a link",
        EntryKind::Other => "is a FIFO, socket or device, which is never opened",
    };
    plain(FailureCode::WrongKind, format!("`{}` {what}", shown(path)))
}

/// Metadata of what a handle stands for. `path` is for messages.
pub fn metadata(handle: impl AsFd, path: &[u8]) -> Result<Metadata, Failure> {
    let failed = |e| kernel(e, format!("`{}` cannot be looked at", shown(path)));
    let stat = rustix::fs::fstat(&handle).map_err(failed)?;
    let target = match kind(&stat) {
        EntryKind::Symlink => Some(rustix::fs::readlinkat(&handle, c"", Vec::new()).map_err(failed)?),
        _ => None,
    };
    Ok(described(&stat, target.map(|target| ByteString::from(target.into_bytes()))))
}

/// Metadata of an entry by its name; `None` when it is gone.
pub fn entry_metadata(directory: impl AsFd, name: &std::ffi::CStr) -> Result<Option<Metadata>, Errno> {
    let stat = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let target = match kind(&stat) {
        // It may be gone or another thing by now; what is known of it is told.
        EntryKind::Symlink => rustix::fs::readlinkat(&directory, name, Vec::new()).ok(),
        _ => None,
    };
    Ok(Some(described(&stat, target.map(|target| ByteString::from(target.into_bytes())))))
}

fn described(stat: &Stat, target: Option<ByteString>) -> Metadata {
    Metadata {
        kind: kind(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified_nanos: stat
            .st_mtime
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        uid: stat.st_uid,
        gid: stat.st_gid,
        target,
    }
}

/// What tells one object from every other while it is held.
pub fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
