//! An entry of an opened directory: what it is, and how it is opened.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use moltis_sandbox::{EntryKind, Metadata};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Permission bits that are kept: none that would change who runs a program.
pub const MODE: u32 = 0o777;

/// What an object is.
pub fn kind(stat: &Stat) -> EntryKind {
    // The width of the field differs between platforms.
    #[allow(clippy::useless_conversion)]
    match FileType::from_raw_mode(stat.st_mode.into()) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

/// An entry, which is not followed.
pub fn stat(directory: impl AsFd, name: impl Arg) -> Result<Stat, Errno> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Metadata of an entry; of a link, the link's.
pub fn metadata(directory: impl AsFd, name: impl Arg + Copy) -> Result<Metadata, Errno> {
    let stat = stat(&directory, name)?;
    let target = match kind(&stat) {
        // It may be gone or another thing by now; what is known of it is told.
        EntryKind::Symlink => readlinkat(&directory, name, Vec::new()).ok(),
        _ => None,
    };
    Ok(Metadata { target: target.map(|target| OsString::from_vec(target.into_bytes())), ..described(&stat) })
}

/// Metadata of what is no link.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "widths differ between platforms")]
pub fn described(stat: &Stat) -> Metadata {
    Metadata {
        kind: kind(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: u32::from(stat.st_mode) & 0o7777,
        modified_nanos: i64::from(stat.st_mtime)
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        uid: stat.st_uid,
        gid: stat.st_gid,
        target: None,
    }
}

/// Why an entry was not opened.
#[derive(Debug)]
pub enum NotOpened {
    /// It is of another kind.
    Kind(EntryKind),
    /// The kernel said this.
    Kernel(Errno),
}

impl From<Errno> for NotOpened {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

/// Opens a regular file for reading. Anything else is not opened; should it take the place of a file at this very
/// moment, opening it does not block and it is closed again unused.
pub fn file(directory: impl AsFd, name: impl Arg + Copy) -> Result<(OwnedFd, Stat), NotOpened> {
    let is_file = |stat: &Stat| match kind(stat) {
        EntryKind::File => Ok(()),
        other => Err(NotOpened::Kind(other)),
    };
    is_file(&stat(&directory, name)?)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&directory, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP => NotOpened::Kind(EntryKind::Symlink),
        errno => NotOpened::Kernel(errno),
    })?;
    let stat = fstat(&file)?;
    is_file(&stat)?;
    Ok((file, stat))
}

/// Opens a directory, which is not followed if it is a link.
pub fn directory(parent: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, NotOpened> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(&parent, name, flags, Mode::empty()) {
        Ok(directory) => Ok(directory),
        Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => match stat(&parent, name) {
            Ok(stat) if kind(&stat) != EntryKind::Directory => Err(NotOpened::Kind(kind(&stat))),
            _ => Err(errno.into()),
        },
        Err(errno) => Err(errno.into()),
    }
}
