//! What a folder held at one moment, and what was made in it since.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moltis_agent_protocol::message::ByteString;
use rustix::fs::{OFlags, Stat, fstat};
use serde::{Deserialize, Serialize};

use super::pattern::Patterns;
use super::walk::{self, Todo, Walk};

/// A directory that was changed this shortly before it was read may be changed again without its time telling.
const GRAIN: Duration = Duration::from_millis(100);

/// A time that no directory has: it is always read again.
const NEVER: i64 = i64::MIN;

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

/// Something that a pattern names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its path in the folder.
    pub path: ByteString,
    /// What it is.
    pub kind: Kind,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// When it last changed, in nanoseconds since 1970.
    pub changed: i64,
}

/// A directory that was looked into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    path: ByteString,
    device: u64,
    inode: u64,
    /// When its names last changed, in nanoseconds since 1970. The kernel sets it, and no call can set it back.
    changed: i64,
}

/// What a folder held at one moment. It is small enough to be kept, and cheap to compare with: a directory whose time
/// has not changed is not read again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    found: Vec<Found>,
    directories: Vec<Known>,
    whole: bool,
}

/// What was made since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Paths in the folder of what patterns name and was not there: hostile text.
    pub paths: Vec<Vec<u8>>,
    /// Whether all was looked at.
    pub whole: bool,
}

impl Survey {
    /// Looks through a folder. Blocks.
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn take(folder: BorrowedFd<'_>, patterns: &Patterns) -> io::Result<Self> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let settled = i64::try_from(began.saturating_sub(GRAIN).as_nanos()).unwrap_or(NEVER);
        let mut walk = Walk::new(folder, patterns);
        let mut directories = Vec::new();
        walk.todo.push_back(Todo { path: Vec::new(), state: patterns.start() });
        while let Some(todo) = walk.todo.pop_front() {
            let path = todo.path.clone();
            if let Some(stat) = walk.look(todo, |_, _| true) {
                let changed = Some(changed(&stat)).filter(|time| *time < settled).unwrap_or(NEVER);
                directories.push(Known {
                    path: path.into(),
                    device: stat.st_dev,
                    inode: stat.st_ino,
                    changed,
                });
            } else if path.is_empty() {
                return Err(io::Error::other("the folder cannot be read"));
            }
        }
        Ok(Self { found: walk.found, directories, whole: walk.whole })
    }

    /// What patterns name, what lies near the top first.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Whether all of the folder was looked at that is not passed over by its name.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// What the same patterns name in the same folder now and did not name then, or named something else by. Blocks
    /// for one look at each directory, and for the reading of those that changed.
    pub fn made_since(&self, folder: BorrowedFd<'_>, patterns: &Patterns) -> Made {
        let mut walk = Walk::new(folder, patterns);
        for known in &self.directories {
            let now = if known.path.is_empty() {
                fstat(folder)
            } else {
                walk::open(folder, &known.path, OFlags::PATH).and_then(fstat)
            };
            let then = (known.device, known.inode, known.changed);
            match now {
                Ok(now) if (now.st_dev, now.st_ino, changed(&now)) == then => continue,
                // What is gone, or behind a link by now, is met at its new place, if it has one.
                Err(errno) if walk::is_nothing(errno) => continue,
                // The look at it says why not.
                _ => {}
            }
            if let Some(state) = patterns.state(&known.path) {
                walk.todo.push_back(Todo { path: known.path.to_vec(), state });
            }
        }
        if walk.todo.is_empty() {
            return Made { paths: Vec::new(), whole: true };
        }
        let known: HashMap<&[u8], &Known> =
            self.directories.iter().map(|known| (known.path.as_slice(), known)).collect();
        let mut seen: HashSet<Vec<u8>> = walk.todo.iter().map(|todo| todo.path.clone()).collect();
        while let Some(todo) = walk.todo.pop_front() {
            walk.look(todo, |path, inode| {
                // One that is still what it was has been seen to above.
                known.get(path).is_none_or(|known| known.inode != inode) && seen.insert(path.to_vec())
            });
        }
        // By what it is, not by its path: a folder may be renamed with all that it holds.
        let then: HashSet<_> = self.found.iter().map(identity).collect();
        let mut paths: Vec<Vec<u8>> = walk
            .found
            .iter()
            .filter(|found| !then.contains(&identity(found)))
            .map(|found| found.path.to_vec())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        Made { paths, whole: walk.whole }
    }
}

/// What tells it from others. A link is not protected: another one may have its inode's number by now.
fn identity(found: &Found) -> (u64, u64, Kind, i64) {
    (found.device, found.inode, found.kind, if found.kind == Kind::Link { found.changed } else { 0 })
}

/// When an object last changed, in nanoseconds since 1970.
pub fn changed(stat: &Stat) -> i64 {
    stat.st_ctime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec as i64)
}
