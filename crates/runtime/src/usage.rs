//! How much space folders take, measured beneath their own handles, without following links.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use moltis_sandbox::{BackendName, Error, Result, SandboxSpec};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::{self, Errno};
use serde::Serialize;

use crate::error::RuntimeError;
use crate::runtime::{Runtime, off_thread};

/// Deepest level that is looked at.
const MAX_DEPTH: usize = 128;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a tree takes, as far as it can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Bytes on disk. A file with several names in the tree counts once for each.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// What could not be looked into, and so is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Unseen>,
}

/// The folders of a tree that could not be looked into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unseen {
    /// How many there are.
    pub folders: u64,
    /// The first of them, below the top of the tree; empty for the top itself. Bytes that are not UTF-8 are replaced.
    pub first: String,
    /// Why it could not be looked into.
    pub why: Why,
}

/// Why a folder is not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// Its mode does not let us.
    Closed,
    /// It lies too deep.
    Deep,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.first.is_empty() { "." } else { &self.first };
        match self.why {
            Why::Closed => write!(f, "`{first}` is closed by its mode")?,
            Why::Deep => write!(f, "`{first}` lies deeper than {MAX_DEPTH} folders")?,
        }
        match self.folders - 1 {
            0 => Ok(()),
            1 => write!(f, ", and another folder could not be looked into"),
            more => write!(f, ", and {more} other folders could not be looked into"),
        }
    }
}

/// What a part of the data directory takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// What it is, in words.
    pub name: &'static str,
    /// Where it is.
    pub path: PathBuf,
    /// What it takes.
    #[serde(flatten)]
    pub usage: Usage,
}

/// What the data directory takes, and what is free around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// The parts.
    pub parts: Vec<Part>,
    /// Images that we built, which the engines keep in places of their own.
    pub images: Vec<ImagesUse>,
    /// Free bytes on its file system.
    pub free_bytes: u64,
    /// Free bytes below which no new command starts.
    pub floor_bytes: u64,
}

/// Our images in one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImagesUse {
    /// Whose.
    pub backend: BackendName,
    /// How many.
    pub images: u64,
    /// Bytes that they take, layers that they share with each other counted for each.
    pub bytes: u64,
}

/// Measures a tree. One that is not there takes nothing.
///
/// # Errors
/// When it cannot be read.
pub async fn of(folder: PathBuf) -> Result<Usage> {
    off_thread(move || measure(&folder)).await
}

/// Refuses what would write more into a home that is over its quota.
///
/// # Errors
/// `home-over-quota`, `home-not-measurable` when a part of it is closed or too deep, and when it cannot be measured.
pub(crate) async fn see_quota(spec: &SandboxSpec) -> Result<()> {
    let (Some(quota), Some(home)) = (spec.home_quota, spec.home.clone()) else { return Ok(()) };
    let used = of(home.clone()).await?;
    if used.bytes > quota.value {
        return Err(RuntimeError::OverQuota { used: used.bytes, quota: quota.value }.into());
    }
    match used.unseen {
        Some(unseen) => Err(RuntimeError::NotMeasurable { home, unseen }.into()),
        None => Ok(()),
    }
}

fn measure(folder: &Path) -> Result<Usage> {
    let mut measure = Measure::default();
    let measured = match openat(CWD, folder, FLAGS, Mode::empty()) {
        Ok(directory) => measure.tree(directory),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS) => {
            measure.unseen(Why::Closed);
            Ok(())
        }
        Err(errno) => Err(errno),
    };
    match measured {
        Ok(()) => Ok(measure.usage),
        Err(errno) => Err(RuntimeError::Measure { place: folder.to_owned(), source: errno.into() }.into()),
    }
}

#[derive(Default)]
struct Measure {
    usage: Usage,
    /// Path to where it is, below the top.
    path: Vec<u8>,
}

impl Measure {
    /// Adds what is in a directory. One directory is open at each level, [`MAX_DEPTH`] at most.
    fn tree(&mut self, top: OwnedFd) -> io::Result<()> {
        // Each with the length of the path to it.
        let mut levels = vec![(Dir::new(top)?, 0)];
        loop {
            let depth = levels.len();
            let Some((entries, length)) = levels.last_mut() else { return Ok(()) };
            self.path.truncate(*length);
            let Some(entry) = entries.next() else {
                levels.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            let stat = match statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Something inside removes files while they are counted.
                Err(Errno::NOENT) => continue,
                // A folder that can be listed and not entered: its other entries would fare the same.
                Err(Errno::ACCESS) => {
                    self.unseen(Why::Closed);
                    levels.pop();
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            self.usage.entries += 1;
            // The field is signed on some platforms.
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
            self.usage.bytes = self.usage.bytes.saturating_add(blocks.saturating_mul(512));
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            if depth > MAX_DEPTH {
                self.unseen(Why::Deep);
                continue;
            }
            match openat(entries.fd()?, name, FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(below) => levels.push((Dir::new(below)?, self.path.len())),
                // Replaced meanwhile: then it counts as what it showed.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(Errno::ACCESS) => self.unseen(Why::Closed),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Notes that the folder which the path leads to cannot be looked into.
    fn unseen(&mut self, why: Why) {
        let path = &self.path;
        let first = || Unseen { folders: 0, first: String::from_utf8_lossy(path).into_owned(), why };
        self.usage.unseen.get_or_insert_with(first).folders += 1;
    }
}

impl Runtime {
    /// What the data directory takes, part by part.
    ///
    /// # Errors
    /// When a part cannot be read.
    pub async fn disk(&self) -> Result<Disk> {
        let data = self.config().data_dir.value.clone();
        let shared = data.join(&self.config().tools.exec.sandbox.shared_home_dir.value);
        let mut images: Vec<ImagesUse> = Vec::new();
        // An engine that does not answer is no reason to say nothing of the rest.
        for found in self.images(None).await.map(|listed| listed.images).unwrap_or_default() {
            match images.iter_mut().find(|known| known.backend == found.backend) {
                Some(known) => {
                    known.images += 1;
                    known.bytes = known.bytes.saturating_add(found.image.size_bytes);
                }
                None => images.push(ImagesUse {
                    backend: found.backend,
                    images: 1,
                    bytes: found.image.size_bytes,
                }),
            }
        }
        off_thread(move || {
            let place = |name, path: PathBuf| Ok::<_, Error>(Part { name, usage: measure(&path)?, path });
            let mut homes = crate::homes::all(&shared);
            if homes.is_empty() {
                homes.push(shared);
            }
            let mut parts: Vec<_> =
                homes.into_iter().map(|home| place("shared home", home)).collect::<Result<_>>()?;
            parts.extend([
                place("session homes", data.join("sandbox/home/session"))?,
                place("scratch folders", data.join("sandbox/scratch"))?,
                place("snapshots", data.join("sandbox/snapshots"))?,
                place("managed files", data.join("files"))?,
                place("caches", data.join("cache"))?,
            ]);
            let free_bytes = crate::runtime::free_bytes(&data)?;
            Ok(Disk { parts, images, free_bytes, floor_bytes: crate::runtime::FREE_FLOOR })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn links_are_counted_and_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().join("home");
        std::fs::create_dir_all(home.join("a/b")).unwrap();
        std::fs::write(home.join("a/b/file"), vec![1; 100_000]).unwrap();
        std::fs::write(temp.path().join("outside"), vec![1; 10_000_000]).unwrap();
        std::os::unix::fs::symlink("../outside", home.join("link")).unwrap();
        std::os::unix::fs::symlink("..", home.join("up")).unwrap();
        let usage = measure(&home).unwrap();
        assert_eq!(usage.entries, 5);
        assert!((100_000..1_000_000).contains(&usage.bytes), "{usage:?}");
        assert_eq!(usage.unseen, None);
        assert_eq!(measure(&temp.path().join("none")).unwrap(), Usage::default());
    }

    fn drop_privileges() {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
    }

    #[test]
    fn what_lies_too_deep_is_said_not_to_be_counted() {
        let temp = tempfile::tempdir().unwrap();
        let at = |levels: usize| temp.path().join(vec!["d"; levels].join("/"));
        std::fs::create_dir_all(at(MAX_DEPTH)).unwrap();
        let usage = measure(temp.path()).unwrap();
        assert_eq!((usage.entries, usage.unseen), (MAX_DEPTH as u64, None));
        std::fs::create_dir_all(at(MAX_DEPTH + 3)).unwrap();
        let usage = measure(temp.path()).unwrap();
        let first = vec!["d"; MAX_DEPTH + 1].join("/");
        assert_eq!(usage.entries, MAX_DEPTH as u64 + 1);
        assert_eq!(usage.unseen, Some(Unseen { folders: 1, first, why: Why::Deep }));
    }

    #[test]
    fn what_is_closed_is_said_not_to_be_counted() {
        // Nothing is closed to root with its privileges; they are a thread's own.
        std::thread::spawn(closed_is_said).join().unwrap();
    }

    fn closed_is_said() {
        drop_privileges();
        let temp = tempfile::tempdir().unwrap();
        let mode = |name: &str, mode| {
            std::fs::set_permissions(temp.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["closed", "listed", "open"] {
            std::fs::create_dir_all(temp.path().join(name).join("below")).unwrap();
        }
        mode("closed", 0o000);
        mode("listed", 0o400);
        let usage = measure(temp.path()).unwrap();
        let unseen = usage.unseen.unwrap();
        assert_eq!((usage.entries, unseen.folders, unseen.why), (4, 2, Why::Closed));
        assert!(["closed", "listed"].contains(&&*unseen.first), "{unseen}");
        mode("", 0o000);
        let usage = measure(temp.path()).unwrap();
        let top = Unseen { folders: 1, first: String::new(), why: Why::Closed };
        assert_eq!(usage, Usage { bytes: 0, entries: 0, unseen: Some(top) });
        for name in ["", "closed", "listed"] {
            mode(name, 0o700);
        }
    }
}
