//! Paths of the new root, walked without following a link: what was mounted there may have been arranged by an
//! earlier command.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::launch::TargetPolicy;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, mkdirat, openat2, renameat_with, statat,
};
use rustix::io::{Errno, Result};

use super::mount::kind_of;

/// What a mount point must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A directory.
    Directory,
    /// Anything but a directory or a link.
    File,
}

impl Shape {
    /// The shape that can carry a mount of this kind.
    pub fn of(kind: FileType) -> Self {
        if kind == FileType::Directory { Self::Directory } else { Self::File }
    }

    fn fits(self, kind: FileType) -> bool {
        match self {
            Self::Directory => kind == FileType::Directory,
            Self::File => kind != FileType::Directory && kind != FileType::Symlink,
        }
    }
}

/// How often a mount point that somebody else keeps changing is tried.
const TRIES: usize = 8;

/// Opens an absolute path of the new root.
pub fn open(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let path = relative(path);
    beneath(root, if path.is_empty() { b"." } else { path }, OFlags::empty())
}

/// Opens a mount point, making it and what is above it where the policy says so.
pub fn mount_point(root: BorrowedFd<'_>, path: &[u8], shape: Shape, policy: TargetPolicy) -> Result<OwnedFd> {
    for _ in 0..TRIES {
        match open(root, path) {
            Ok(handle) if shape.fits(kind_of(&handle)?) => return Ok(handle),
            Ok(_) if policy == TargetPolicy::Displace => displace(root, path)?,
            Ok(handle) => {
                let is_directory = kind_of(&handle)? == FileType::Directory;
                return Err(if is_directory { Errno::ISDIR } else { Errno::NOTDIR });
            }
            Err(Errno::NOENT) => match make(root, path, shape) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            },
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

fn make(root: BorrowedFd<'_>, path: &[u8], shape: Shape) -> Result<()> {
    let (above, name) = split(relative(path));
    let above = directories(root, above)?;
    match shape {
        Shape::Directory => mkdirat(&above, name, Mode::from_raw_mode(0o755)),
        Shape::File => openat2(
            &above,
            name,
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o644),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )
        .map(drop),
    }
}

/// Opens a directory, making what is missing.
fn directories(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut at = beneath(root, b".", OFlags::DIRECTORY)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = match beneath(at.as_fd(), name, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                beneath(at.as_fd(), name, OFlags::DIRECTORY)?
            }
            answer => answer?,
        };
    }
    Ok(at)
}

/// Renames what stands in a mount point's place, so that nothing of it is lost and nothing of it is followed.
fn displace(root: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
    let (above, name) = split(relative(path));
    let above = beneath(root, if above.is_empty() { b"." } else { above }, OFlags::DIRECTORY)?;
    for number in 1..=999 {
        let mut aside = name.to_vec();
        aside.extend_from_slice(format!(".displaced-{number}").as_bytes());
        // The look first spares a file system without RENAME_NOREPLACE nothing but a race with itself.
        if statat(&above, aside.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            continue;
        }
        match renameat_with(&above, name, &above, aside.as_slice(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            // Another launch was faster.
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

fn beneath(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // EAGAIN: a rename elsewhere raced with the walk.
    for _ in 0..TRIES {
        match openat2(at, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::AGAIN)
}

/// An absolute path of the new root without its first slashes.
pub fn relative(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    &path[start..]
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_the_last_name() {
        assert_eq!(split(relative(b"/home/sandbox/files")), (&b"home/sandbox"[..], &b"files"[..]));
        assert_eq!(split(relative(b"/workspace")), (&b""[..], &b"workspace"[..]));
        assert_eq!(relative(b"/"), b"");
    }
}
