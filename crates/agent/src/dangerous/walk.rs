//! One look through directories, by a handle of the folder above them all.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat2, statat};
use rustix::io::Errno;

use super::pattern::{self, Patterns, State};
use super::survey::{Found, Kind, changed};

/// Entries looked at, at most. That many take some 20 ms.
const MAX_ENTRIES: usize = 50_000;

/// Directories looked into, at most.
pub const MAX_DIRECTORIES: usize = 5_000;

/// Names taken note of, at most: each becomes a mount.
pub const MAX_FOUND: usize = 1_000;

/// Deepest directory that is looked into.
const MAX_DEPTH: usize = 40;

/// Times that a path is tried again while somebody renames what it goes through.
const TRIES: usize = 4;

/// A directory to be looked into.
pub struct Todo {
    /// Its path, without a slash at either end; empty for the folder itself.
    pub path: Vec<u8>,
    /// What is looked for in it.
    pub state: State,
}

/// The directory that is being looked into.
struct Here<'d> {
    directory: &'d OwnedFd,
    path: &'d [u8],
    state: State,
    depth: usize,
}

/// What one look has come upon, and may still cost.
pub struct Walk<'f> {
    folder: BorrowedFd<'f>,
    patterns: &'f Patterns,
    entries: usize,
    directories: usize,
    buffer: Vec<u8>,
    /// Directories to come, those near the top first.
    pub todo: VecDeque<Todo>,
    /// What patterns name, in the order in which it was come upon.
    pub found: Vec<Found>,
    /// Whether all was looked at that should have been.
    pub whole: bool,
}

impl<'f> Walk<'f> {
    /// Nothing has been looked at.
    pub fn new(folder: BorrowedFd<'f>, patterns: &'f Patterns) -> Self {
        Self {
            folder,
            patterns,
            entries: MAX_ENTRIES,
            directories: MAX_DIRECTORIES,
            buffer: Vec::with_capacity(32 * 1024),
            todo: VecDeque::new(),
            found: Vec::new(),
            whole: true,
        }
    }

    /// Looks into one directory. `enter` says whether to look into one in it, of this path and inode number. The
    /// directory's own metadata, from before it was read; `None` if it is not there, or not looked into.
    pub fn look(&mut self, todo: Todo, mut enter: impl FnMut(&[u8], u64) -> bool) -> Option<Stat> {
        let Todo { path, mut state } = todo;
        let (Some(left), true) = (self.directories.checked_sub(1), self.found.len() < MAX_FOUND) else {
            self.whole = false;
            return None;
        };
        self.directories = left;
        let directory = match open(self.folder, &path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(directory) => directory,
            Err(errno) => {
                self.whole &= is_nothing(errno);
                return None;
            }
        };
        let before = fstat(&directory).ok()?;
        if state.roams() && last(&path) == pattern::TAGGED && has(directory.as_fd(), "CACHEDIR.TAG") {
            state.settle();
        }
        let depth = path.iter().filter(|byte| **byte == b'/').count();
        let here = Here { directory: &directory, path: &path, state, depth };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut all = true;
        while let Some(entry) = entries.next() {
            let left = self.entries.checked_sub(1);
            let (Ok(entry), Some(left)) = (entry, left) else {
                all = false;
                break;
            };
            self.entries = left;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.consider(&here, name, entry.file_type(), entry.ino(), &mut enter);
            }
        }
        self.buffer = buffer;
        if !all {
            // However many names there are, those that matter most are not lost among them.
            self.whole = false;
            for name in self.patterns.literals(&here.state) {
                self.consider(&here, name, FileType::Unknown, 0, &mut enter);
            }
        }
        Some(before)
    }

    /// Judges one name.
    fn consider(
        &mut self,
        here: &Here<'_>,
        name: &[u8],
        kind: FileType,
        inode: u64,
        enter: &mut impl FnMut(&[u8], u64) -> bool,
    ) {
        // Most entries are files with names that mean nothing.
        let step = self.patterns.step(&here.state, name);
        if !step.is_match && !step.leads_on && (step.into.is_none() || kind == FileType::RegularFile) {
            return;
        }
        let (kind, inode) = match kind {
            FileType::Unknown => match statat(here.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => (FileType::from_raw_mode(stat.st_mode), stat.st_ino),
                Err(_) => return,
            },
            kind => (kind, inode),
        };
        let named = match kind {
            FileType::Directory => step.is_match && !step.is_file,
            FileType::RegularFile => step.is_match || (step.leads_on && pattern::is_git(name)),
            FileType::Symlink => step.is_match || step.leads_on,
            _ => false,
        };
        if named {
            self.take(here.directory, here.path, name);
        }
        if let (FileType::Directory, Some(state)) = (kind, step.into) {
            let path = join(here.path, name);
            if here.depth >= MAX_DEPTH || self.todo.len() > MAX_DIRECTORIES {
                self.whole = false;
            } else if enter(&path, inode) {
                self.todo.push_back(Todo { path, state });
            }
        }
    }

    fn take(&mut self, directory: &OwnedFd, path: &[u8], name: &[u8]) {
        // Gone by now: it was not there.
        let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => Kind::Link,
            _ => return,
        };
        if self.found.len() >= MAX_FOUND {
            self.whole = false;
            return;
        }
        let path = join(path, name).into();
        self.found.push(Found {
            path,
            kind,
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: changed(&stat),
        });
    }
}

/// Opens a directory beneath the folder; a link anywhere on the way is an error.
pub fn open(folder: BorrowedFd<'_>, path: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..TRIES {
        match openat2(folder, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            answer => return answer,
        }
    }
    openat2(folder, path, flags, Mode::empty(), resolve)
}

/// Whether the kernel says that there is no directory of this name.
pub fn is_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP)
}

fn has(directory: BorrowedFd<'_>, name: &str) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(path.len() + name.len() + 1);
    if !path.is_empty() {
        whole.extend_from_slice(path);
        whole.push(b'/');
    }
    whole.extend_from_slice(name);
    whole
}
