//! How much space folders take, measured beneath their own handles, without following links.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use moltis_sandbox::{Error, Result, SandboxSpec};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use serde::Serialize;

use crate::error::RuntimeError;
use crate::runtime::{Runtime, off_thread};

/// Deepest level that is looked at.
const MAX_DEPTH: usize = 128;

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Bytes on disk. A file with several names in the tree counts once for each.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
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
    /// Free bytes on its file system.
    pub free_bytes: u64,
    /// Free bytes below which no new command starts.
    pub floor_bytes: u64,
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
/// `home-over-quota`, and when it cannot be measured.
pub(crate) async fn see_quota(spec: &SandboxSpec) -> Result<()> {
    let (Some(quota), Some(home)) = (spec.home_quota, spec.home.clone()) else { return Ok(()) };
    let used = of(home).await?;
    if used.bytes > quota.value {
        return Err(RuntimeError::OverQuota { used: used.bytes, quota: quota.value }.into());
    }
    Ok(())
}

fn measure(folder: &PathBuf) -> Result<Usage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut usage = Usage::default();
    match openat(rustix::fs::CWD, folder, flags, Mode::empty()) {
        Ok(directory) => {
            add(directory, 0, &mut usage).map_err(|error| {
                Error::from(RuntimeError::Measure { place: folder.clone(), source: error.into() })
            })?;
            Ok(usage)
        }
        Err(rustix::io::Errno::NOENT) => Ok(usage),
        Err(error) => Err(RuntimeError::Measure { place: folder.clone(), source: error.into() }.into()),
    }
}

fn add(directory: OwnedFd, depth: usize, usage: &mut Usage) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let stat = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Something inside removes files while they are counted.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        usage.entries += 1;
        // The field is signed on some platforms.
        usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && depth < MAX_DEPTH {
            match openat(&directory, name, flags, Mode::empty()) {
                Ok(below) => add(below, depth + 1, usage)?,
                // Replaced meanwhile, or closed to us: then it counts as what it shows.
                Err(
                    rustix::io::Errno::NOENT
                    | rustix::io::Errno::NOTDIR
                    | rustix::io::Errno::LOOP
                    | rustix::io::Errno::ACCESS,
                ) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Runtime {
    /// What the data directory takes, part by part.
    ///
    /// # Errors
    /// When a part cannot be read.
    pub async fn disk(&self) -> Result<Disk> {
        let data = self.config().data_dir.value.clone();
        let shared = data.join(&self.config().tools.exec.sandbox.shared_home_dir.value);
        off_thread(move || {
            let place = |name, path: PathBuf| Ok::<_, Error>(Part { name, usage: measure(&path)?, path });
            let parts = vec![
                place("shared home", shared)?,
                place("session homes", data.join("sandbox/home/session"))?,
                place("scratch folders", data.join("sandbox/scratch"))?,
                place("managed files", data.join("files"))?,
                place("caches", data.join("cache"))?,
            ];
            let free_bytes = crate::runtime::free_bytes(&data)?;
            Ok(Disk { parts, free_bytes, floor_bytes: crate::runtime::FREE_FLOOR })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(measure(&temp.path().join("none")).unwrap(), Usage::default());
    }
}
