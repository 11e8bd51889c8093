//! Removing a tree of files that something hostile has made, and may still be changing: beneath a directory handle,
//! following no link, entering no other mount.
//!
//! A directory that is closed to its owner is opened by giving its owner all rights to it. No depth costs more than a
//! bounded number of descriptors: what lies deeper is moved up first. Neither entries that are added as fast as others
//! are removed nor a slow disk keep it busy without end.

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fchmod, fstat, openat, renameat, unlinkat};
use rustix::io::{self, Errno};

/// Time that the removal of a tree may take, where nothing speaks for another one.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Directories that are open at a time. One that lies deeper is moved up before it is emptied.
const MAX_OPEN: usize = 32;

/// Times that a tree is gone through. Where nothing is added meanwhile, once is enough on most file systems.
const ROUNDS: u32 = 8;

/// Why a tree is still there, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRemoved {
    /// The kernel refused to remove something.
    Kernel {
        /// Path of that below the tree's top; empty for the top itself.
        path: Vec<u8>,
        /// What it said.
        errno: Errno,
    },
    /// Something puts more into it while it is removed.
    Refilled,
    /// The time is over. What was removed until then is gone.
    Late(Duration),
}

impl NotRemoved {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Kernel { errno: Errno::XDEV | Errno::BUSY, .. } => "unmount it (`umount`), and try again",
            Self::Kernel { errno: Errno::ACCESS | Errno::PERM, .. } => {
                "it belongs to another user or is immutable (`ls -l`, `lsattr`): change that, and try again"
            }
            Self::Kernel { .. } => "see what is there, and try again",
            Self::Refilled => "end what writes there, and try again",
            Self::Late(_) => "try again, which goes on from there",
        }
    }
}

impl fmt::Display for NotRemoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { path, errno: Errno::XDEV | Errno::BUSY } if path.is_empty() => {
                write!(f, "it is a mount point")
            }
            Self::Kernel { path, errno: Errno::XDEV | Errno::BUSY } => {
                write!(f, "`{}` is a mount point", String::from_utf8_lossy(path))
            }
            Self::Kernel { path, errno } if path.is_empty() => write!(f, "{}", std::io::Error::from(*errno)),
            Self::Kernel { path, errno } => {
                write!(f, "`{}`: {}", String::from_utf8_lossy(path), std::io::Error::from(*errno))
            }
            Self::Refilled => write!(f, "something puts more into it while it is removed"),
            Self::Late(patience) => write!(f, "it was not done within {} s", patience.as_secs()),
        }
    }
}

impl std::error::Error for NotRemoved {}

impl From<Errno> for NotRemoved {
    fn from(errno: Errno) -> Self {
        Self::Kernel { path: Vec::new(), errno }
    }
}

/// Removes the directory `name` of `parent` with all that is in it; `false` when there is nothing of that name. What
/// cannot be removed does not keep the rest. Blocks for as long as the disk takes, but not beyond `patience`.
///
/// # Errors
/// When something is still there; the first thing that could not be removed is named.
pub fn tree(parent: impl AsFd, name: &CStr, patience: Duration) -> Result<bool, NotRemoved> {
    let parent = parent.as_fd();
    // An empty one needs no right to be read.
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => return Ok(true),
        Err(Errno::NOENT) => return Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let top = open(parent, name)?;
    let mut removal = Removal { top, lifted: 0, end: Instant::now() + patience, patience, first: None };
    for _ in 0..ROUNDS {
        removal.first = None;
        removal.round()?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        // A right that was taken away again at the wrong moment is given again.
        if let Some(NotRemoved::Kernel { errno, .. }) = &removal.first
            && *errno != Errno::ACCESS
        {
            break;
        }
    }
    Err(removal.first.unwrap_or(NotRemoved::Refilled))
}

struct Removal {
    top: OwnedFd,
    /// Number of the last directory that was moved up.
    lifted: u64,
    end: Instant,
    patience: Duration,
    /// The first thing of this round that could not be removed.
    first: Option<NotRemoved>,
}

/// A directory that is being emptied.
struct Level {
    entries: Dir,
    name: CString,
    /// Length of the path to it.
    path: usize,
}

impl Removal {
    /// Goes through the whole tree once. Directories that are moved up have successive numbers, so that none need be
    /// remembered or looked for.
    fn round(&mut self) -> Result<(), NotRemoved> {
        let mut done = self.lifted;
        let top = openat(&self.top, c".", FLAGS, Mode::empty())?;
        self.empty(top, Vec::new())?;
        while done < self.lifted {
            done += 1;
            let name = lifted_name(done);
            let path = name.to_bytes().to_vec();
            match open(self.top.as_fd(), &name) {
                Ok(below) => {
                    self.empty(below, path.clone())?;
                    let removed = unlinkat(&self.top, &*name, AtFlags::REMOVEDIR);
                    self.note(removed, &path)?;
                }
                // Gone already: the walk had come to it.
                Err(Errno::NOENT) => {}
                Err(errno) => self.note(Err(errno), &path)?,
            }
        }
        Ok(())
    }

    /// Removes all that is in a directory. `path` is the one to it.
    fn empty(&mut self, directory: OwnedFd, mut path: Vec<u8>) -> Result<(), NotRemoved> {
        let mut levels =
            vec![Level { entries: Dir::new(directory)?, name: CString::default(), path: path.len() }];
        while let Some(level) = levels.last_mut() {
            if Instant::now() > self.end {
                return Err(NotRemoved::Late(self.patience));
            }
            path.truncate(level.path);
            match level.entries.next() {
                Some(entry) => {
                    let entry = entry.map_err(|errno| NotRemoved::Kernel { path: path.clone(), errno })?;
                    let name = entry.file_name();
                    if [c".", c".."].contains(&name) {
                        continue;
                    }
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(name.to_bytes());
                    let is_deep = levels.len() >= MAX_OPEN;
                    let Some(level) = levels.last() else { return Ok(()) };
                    if let Some(below) = self.entry(level.entries.fd()?, &entry, &path, is_deep)? {
                        levels.push(Level {
                            entries: Dir::new(below)?,
                            name: name.to_owned(),
                            path: path.len(),
                        });
                    }
                }
                None => {
                    let Some(left) = levels.pop() else { return Ok(()) };
                    let Some(above) = levels.last() else { return Ok(()) };
                    let removed = unlinkat(above.entries.fd()?, &*left.name, AtFlags::REMOVEDIR);
                    self.note(removed, &path)?;
                }
            }
        }
        Ok(())
    }

    /// Removes an entry, or gives the opened directory that must be emptied first.
    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        entry: &rustix::fs::DirEntry,
        path: &[u8],
        is_deep: bool,
    ) -> Result<Option<OwnedFd>, NotRemoved> {
        let name = entry.file_name();
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => file_type(&stat),
                Err(errno) => return self.note(Err(errno), path).map(|()| None),
            },
            kind => kind,
        };
        if kind != FileType::Directory {
            let removed = unlinkat(directory, name, AtFlags::empty());
            return self.note(removed, path).map(|()| None);
        }
        let below = match open(directory, name) {
            Ok(below) if !is_deep => return Ok(Some(below)),
            Ok(below) => below,
            // One that is not ours, and so cannot be opened, may be empty.
            Err(Errno::ACCESS | Errno::PERM) => {
                let removed = match unlinkat(directory, name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Errno::PERM),
                    other => other,
                };
                return self.note(removed, path).map(|()| None);
            }
            Err(errno) => return self.note(Err(errno), path).map(|()| None),
        };
        drop(below);
        let moved = self.lift(directory, name);
        self.note(moved, path).map(|()| None)
    }

    /// Moves a directory up to the top, under a name that is free. An empty directory of that name is replaced: it goes
    /// as well.
    fn lift(&mut self, directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.lifted += 1;
            match renameat(directory, name, &self.top, &*lifted_name(self.lifted)) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR)
                    if Instant::now() < self.end => {}
                other => return other,
            }
        }
    }

    /// Remembers what could not be removed, if it is the first; only what would stop everything else too is an error.
    fn note(&mut self, removed: io::Result<()>, path: &[u8]) -> Result<(), NotRemoved> {
        match removed {
            // Somebody else was faster.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // Something was put into it or took its place, or what is in it could not be removed: the next round sees.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP) => Ok(()),
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::BUSY | Errno::XDEV)) => {
                self.first.get_or_insert_with(|| NotRemoved::Kernel { path: path.to_vec(), errno });
                Ok(())
            }
            Err(errno) => Err(NotRemoved::Kernel { path: path.to_vec(), errno }),
        }
    }
}

fn lifted_name(number: u64) -> CString {
    CString::new(format!(".moltis-removed-{number}")).unwrap_or_default()
}

#[allow(clippy::useless_conversion, reason = "the width of the field differs between platforms")]
fn file_type(stat: &rustix::fs::Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode.into())
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Opens a directory, never a link or a mount point, and gives its owner all rights to it.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let directory = match sys::open(parent, name, FLAGS) {
        Err(Errno::ACCESS) => sys::open_closed(parent, name)?,
        other => other?,
    };
    let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        match fchmod(&directory, Mode::RWXU) {
            // Not ours: the privileges of this process decide then.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(directory)
}

#[cfg(target_os = "linux")]
mod sys {
    use std::os::fd::AsRawFd;

    use rustix::fs::{ResolveFlags, StatxFlags, openat2, statx};

    use super::*;

    /// Opens a directory of the same mount.
    pub fn open(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        match openat2(parent, name, flags, Mode::empty(), resolve) {
            // Old, or filtered as in a container.
            Err(Errno::NOSYS | Errno::PERM) => {
                let directory = openat(parent, name, flags, Mode::empty())?;
                if mount_of(&directory)? == mount_of(parent)? { Ok(directory) } else { Err(Errno::XDEV) }
            }
            other => other,
        }
    }

    /// Opens a directory that is closed to its owner.
    pub fn open_closed(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = open(parent, name, flags)?;
        // By the handle, since the name could be made to mean something else.
        rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
        openat(&handle, c".", FLAGS, Mode::empty())
    }

    /// The mount that an object lies in; 0 on kernels that do not say (before 5.8).
    fn mount_of(object: impl AsFd) -> io::Result<u64> {
        statx(object, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map(|found| found.stx_mnt_id)
    }
}

#[cfg(not(target_os = "linux"))]
mod sys {
    use rustix::fs::chmodat;

    use super::*;

    /// Opens a directory of the same file system.
    pub fn open(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
        let directory = openat(parent, name, flags, Mode::empty())?;
        if fstat(&directory)?.st_dev == fstat(parent)?.st_dev { Ok(directory) } else { Err(Errno::XDEV) }
    }

    /// Opens a directory that is closed to its owner.
    pub fn open_closed(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
        chmodat(parent, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)?;
        open(parent, name, FLAGS)
    }
}

#[cfg(test)]
mod tests;
