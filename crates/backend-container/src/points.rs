//! Mount points in folders of the host's that a sandbox writes to. An engine would make them itself, as root and through
//! links; so they are made before, beneath the folder's handle, and belong to the sandbox's user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, chownat, fstat, mkdirat,
    openat2, renameat_with, statat,
};
use rustix::io::{Errno, Result};

/// How often a mount point that somebody else keeps changing is tried.
const TRIES: usize = 8;

/// Where mount points are made, and whose they are.
#[derive(Clone, Copy)]
pub struct Points {
    /// User and group of what is made; absent: the caller's own.
    pub owner: Option<(u32, u32)>,
    /// Whether something else that stands in a point's place is renamed, so that nothing of it is lost.
    pub displace: bool,
}

impl Points {
    /// Sees that `path`, relative to `folder` and plain, is a directory or a file that can carry a mount.
    ///
    /// # Errors
    /// The kernel's; `ENOTDIR` or `EISDIR` for something of the wrong kind, `ELOOP` for a link on the way.
    pub fn ensure(self, folder: BorrowedFd<'_>, path: &[u8], directory: bool) -> Result<()> {
        let mut parts: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        let Some(last) = parts.pop() else { return Ok(()) };
        let mut at = open(folder, b".")?;
        for part in parts {
            at = match open(at.as_fd(), part) {
                Err(Errno::NOENT) => self.make(at.as_fd(), part, true)?,
                opened => opened?,
            };
        }
        for _ in 0..TRIES {
            match statat(&at, last, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => match self.make(at.as_fd(), last, directory) {
                    Err(Errno::EXIST) => {}
                    made => return made.map(drop),
                },
                Err(errno) => return Err(errno),
                Ok(found) => {
                    let kind = FileType::from_raw_mode(found.st_mode);
                    let fits =
                        if directory { kind == FileType::Directory } else { kind == FileType::RegularFile };
                    if fits {
                        return Ok(());
                    }
                    if !self.displace {
                        return Err(match kind {
                            FileType::Symlink => Errno::LOOP,
                            FileType::Directory => Errno::ISDIR,
                            _ => Errno::NOTDIR,
                        });
                    }
                    displace(at.as_fd(), last)?;
                }
            }
        }
        Err(Errno::BUSY)
    }

    fn make(self, at: BorrowedFd<'_>, name: &[u8], directory: bool) -> Result<OwnedFd> {
        if directory {
            mkdirat(at, name, Mode::from_raw_mode(0o755))?;
        }
        let made = if directory {
            open(at, name)?
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat2(at, name, flags, Mode::from_raw_mode(0o644), BENEATH)?
        };
        if let Some((uid, gid)) = self.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(&made, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        Ok(made)
    }
}

/// Gives a folder of ours to the sandbox's user, where it is somebody else's and this process may do that. What is in it
/// stays as it is.
///
/// # Errors
/// The kernel's.
pub fn give(folder: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Result<()> {
    let found = fstat(folder)?;
    if (found.st_uid, found.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    chownat(folder, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// What is found at a path beneath a folder, with no link on the way.
///
/// # Errors
/// The kernel's; `ELOOP` for a link.
pub fn look(folder: BorrowedFd<'_>, path: &[u8]) -> Result<Stat> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    fstat(openat2(folder, path, flags, Mode::empty(), BENEATH)?)
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

fn open(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(at, name, flags, Mode::empty(), BENEATH)
}

fn displace(at: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    for number in 1..=999 {
        let mut aside = name.to_vec();
        aside.extend_from_slice(format!(".displaced-{number}").as_bytes());
        match renameat_with(at, name, at, aside.as_slice(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            // Another opening was faster.
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const PLAIN: Points = Points { owner: None, displace: false };

    fn ensure(points: Points, folder: &Path, path: &str, directory: bool) -> Result<()> {
        points.ensure(fs::File::open(folder).unwrap().as_fd(), path.as_bytes(), directory)
    }

    #[test]
    fn a_point_is_made_with_what_leads_to_it_and_an_existing_one_stays() {
        let temp = tempfile::tempdir().unwrap();
        ensure(PLAIN, temp.path(), "a/b/c", true).unwrap();
        ensure(PLAIN, temp.path(), "a/file", false).unwrap();
        fs::write(temp.path().join("a/b/c/x"), "x").unwrap();
        ensure(PLAIN, temp.path(), "a/b/c", true).unwrap();
        assert!(temp.path().join("a/b/c/x").exists() && temp.path().join("a/file").is_file());
        assert_eq!(ensure(PLAIN, temp.path(), "a/file", true), Err(Errno::NOTDIR));
        assert_eq!(ensure(PLAIN, temp.path(), "a/b", false), Err(Errno::ISDIR));
    }

    #[test]
    fn no_link_is_followed_and_what_stands_in_the_way_is_kept_aside() {
        let temp = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), temp.path().join("link")).unwrap();
        assert_eq!(ensure(PLAIN, temp.path(), "link/x", true), Err(Errno::LOOP));
        assert_eq!(ensure(PLAIN, temp.path(), "link", true), Err(Errno::LOOP));
        ensure(Points { displace: true, ..PLAIN }, temp.path(), "link", true).unwrap();
        assert!(temp.path().join("link").is_dir() && temp.path().join("link.displaced-1").is_symlink());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
