//! A session's own folder: where its commands start when no workspace is named. It stays with the session, and goes
//! with an ephemeral sandbox.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use moltis_sandbox::SandboxId;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, blocks};
use crate::folder::private;

/// Attempts at emptying a folder that something else may still be filling.
const ATTEMPTS: u32 = 3;

fn parent(data_dir: &Path) -> PathBuf {
    data_dir.join("sandbox/scratch")
}

/// Makes the folder, 0700, unless it is there. Blocks.
///
/// # Errors
/// When it cannot be made, or is not ours.
pub fn make(data_dir: &Path, id: &SandboxId) -> Result<PathBuf> {
    blocks();
    let parent = parent(data_dir);
    let path = parent.join(id.as_str());
    std::fs::create_dir_all(data_dir.join("sandbox")).map_err(|e| Error::Folder(parent.clone(), e))?;
    let made = private(rustix::fs::CWD, &parent, true)
        .and_then(|parent| private(&parent, Path::new(id.as_str()), true));
    match made {
        Ok(_) => Ok(path),
        Err(Errno::PERM) => Err(Error::Foreign(path)),
        Err(errno) => Err(Error::Folder(path, errno.into())),
    }
}

/// Removes the folder and all in it, whatever commands left there: folders without permissions, and trees too deep for
/// a path. Blocks for as long as the disk takes.
///
/// # Errors
/// When something in it cannot be removed, such as a file that was made immutable.
pub fn remove(data_dir: &Path, id: &SandboxId) -> Result<()> {
    blocks();
    let parent = parent(data_dir);
    let removed = || -> rustix::io::Result<()> {
        let folder = private(rustix::fs::CWD, &parent, false)?;
        let top = open(&folder, id.as_str())?;
        for attempt in 1.. {
            empty(&top)?;
            match rustix::fs::unlinkat(&folder, id.as_str(), AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) if attempt < ATTEMPTS => {}
                other => return other,
            }
        }
        Ok(())
    };
    match removed() {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Error::Folder(parent.join(id.as_str()), errno.into())),
    }
}

/// Removes all in `top`. Folders below are moved up before they are emptied, so that no depth costs more than one
/// open folder.
fn empty(top: &OwnedFd) -> rustix::io::Result<()> {
    let mut number = 0u64;
    loop {
        let mut folders = 0u64;
        for entry in Dir::read_from(top)? {
            let entry = entry?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            if entry.file_type() != FileType::Directory && unlink(top, name)? {
                continue;
            }
            folders += 1;
            let folder = open(top, name)?;
            for below in Dir::read_from(&folder)? {
                let below = below?;
                let name = below.file_name();
                if [c".", c".."].contains(&name)
                    || (below.file_type() != FileType::Directory && unlink(&folder, name)?)
                {
                    continue;
                }
                // Moving a folder means writing to it.
                drop(open(&folder, name)?);
                number = lift(&folder, name, top, number)?;
            }
            rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?;
        }
        if folders == 0 {
            return Ok(());
        }
    }
}

/// Moves a folder up into `top` under a name that is free; the next number to try.
fn lift(folder: &OwnedFd, name: &std::ffi::CStr, top: &OwnedFd, mut number: u64) -> rustix::io::Result<u64> {
    loop {
        number += 1;
        let free = format!(".moltis-removed-{number}");
        match rustix::fs::renameat_with(folder, name, top, &*free, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(number),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Removes a file; whether it was one.
fn unlink(folder: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<bool> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // The file system did not say of what kind it is.
        Err(Errno::ISDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens a folder, never a link, and gives us all rights to it.
fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // By the handle, since a path could be made to mean something else.
    rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
    rustix::fs::openat(&handle, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use moltis_sandbox::SessionKey;

    use super::*;

    #[test]
    fn whatever_was_left_there_goes_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let outside = temp.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "").unwrap();

        remove(temp.path(), &id).unwrap();
        let top = make(temp.path(), &id).unwrap();
        assert_eq!(std::fs::metadata(&top).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(make(temp.path(), &id).unwrap(), top);
        std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
        std::fs::write(top.join(".moltis-removed-1"), "").unwrap();
        for n in 0..300 {
            std::fs::create_dir_all(top.join(format!("many/{n}/below"))).unwrap();
            std::fs::write(top.join(format!("many/{n}/file")), "").unwrap();
        }
        std::fs::set_permissions(top.join("many/7"), std::fs::Permissions::from_mode(0o000)).unwrap();
        // Deeper than any path.
        let mut handle = rustix::fs::open(&top, OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..1500 {
            rustix::fs::mkdirat(&handle, "deep", Mode::RWXU).unwrap();
            handle = rustix::fs::openat(&handle, "deep", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        remove(temp.path(), &id).unwrap();
        assert!(!top.exists());
        assert!(outside.join("file").exists());
    }
}
