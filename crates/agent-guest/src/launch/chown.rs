//! Giving a folder of ours to the sandbox's user, where the file system cannot map ids.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, openat2};
use rustix::io::{Errno, Result};

/// Deepest nesting that is followed.
const MAX_DEPTH: usize = 256;

/// Changes the owner of everything in the tree, never following a link and never leaving its file system.
pub fn tree(top: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<()> {
    let top = open_directory(top, b".")?;
    entries(&top, Uid::from_raw(uid), Gid::from_raw(gid), MAX_DEPTH)?;
    rustix::fs::fchown(&top, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

fn entries(directory: &OwnedFd, uid: Uid, gid: Gid, depth: usize) -> Result<()> {
    if depth == 0 {
        return Err(Errno::LOOP);
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        // A name that is not known to be something else may be a directory; one that is not answers ENOTDIR.
        if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            match open_directory(directory.as_fd(), name) {
                Ok(below) => entries(&below, uid, gid, depth - 1)?,
                Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        match chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(at, name, flags, Mode::empty(), resolve)
}
