//! What an engine was to mount, held against what it did. It mounts by path, and resolves both ends of it itself: whoever
//! may write to a folder above can have put a link there by then, and taken it away again since.

use std::collections::HashSet;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::about;

/// What must be mounted somewhere.
#[derive(Debug, PartialEq, Eq)]
pub struct Mounted {
    device: u64,
    inode: u64,
    path: Vec<u8>,
}

impl Mounted {
    /// Reads `DEV:INO:PATH`.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(3, |byte| *byte == b':');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let (device, inode) = (number()?, number()?);
        let path = parts.next().filter(|path| path.starts_with(b"/"))?.to_vec();
        Some(Self { device, inode, path })
    }

    /// Sees that it is there: that something is mounted at this very path, which no link is a part of, and that it is the
    /// right thing.
    fn see(&self, points: &HashSet<Vec<u8>>) -> Result<(), String> {
        let shown = || String::from_utf8_lossy(&self.path).into_owned();
        let (found, is_link) = look(&self.path).map_err(|errno| about(&shown(), errno))?;
        if !is_link && points.contains(&self.path) && found == (self.device, self.inode) {
            return Ok(());
        }
        Err(format!("{}: what the engine has mounted is not what was to be mounted", shown()))
    }
}

/// Sees that all of it is there.
///
/// # Errors
/// One sentence that names the first that is not.
pub fn see(all: &[Mounted]) -> Result<(), String> {
    if all.is_empty() {
        return Ok(());
    }
    let mounts =
        std::fs::read("/proc/self/mountinfo").map_err(|error| about("/proc/self/mountinfo", error))?;
    let points = points(&mounts);
    all.iter().try_for_each(|mounted| mounted.see(&points))
}

/// Device and inode of what is at a path, and whether that is a link; none is followed.
fn look(path: &[u8]) -> rustix::io::Result<((u64, u64), bool)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(CWD, c"/", flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        at = openat(&at, name, flags, Mode::empty())?;
        // With `O_PATH` a link is opened itself.
        if names.peek().is_some() && FileType::from_raw_mode(fstat(&at)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    let found = fstat(&at)?;
    Ok(((found.st_dev, found.st_ino), FileType::from_raw_mode(found.st_mode) == FileType::Symlink))
}

/// The mount points of `mountinfo`.
fn points(mountinfo: &[u8]) -> HashSet<Vec<u8>> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect()
}

/// A path as it is, of which the kernel writes some bytes as `\ooo`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                plain.push(
                    digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_else_is_mounted_there_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        // Its own path holds no link.
        let folder = temp.path().canonicalize().unwrap();
        let found = folder.metadata().unwrap();
        let right = |path: &std::path::Path| Mounted {
            device: found.dev(),
            inode: found.ino(),
            path: path.as_os_str().as_bytes().to_vec(),
        };
        let mounted = |path: &std::path::Path| HashSet::from([path.as_os_str().as_bytes().to_vec()]);
        right(&folder).see(&mounted(&folder)).unwrap();
        let is_noticed = |mounted: &Mounted, points: &HashSet<Vec<u8>>| {
            assert!(mounted.see(points).unwrap_err().contains("not what was to be mounted"));
        };
        is_noticed(&Mounted { inode: found.ino() + 1, ..right(&folder) }, &mounted(&folder));
        // It is the right one, and was mounted elsewhere: a link stood there at that moment.
        is_noticed(&right(&folder), &HashSet::new());
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        is_noticed(&right(&link), &mounted(&link));
        std::fs::create_dir(folder.join("below")).unwrap();
        let behind = link.join("below");
        assert!(right(&behind).see(&mounted(&behind)).is_err());
    }

    #[test]
    fn mount_points_are_read_as_they_are() {
        let text = b"22 1 0:21 / /proc rw - proc proc rw\n23 1 8:1 /x /a\\040b\\134c rw - ext4 /dev/a rw\n";
        assert_eq!(points(text), HashSet::from([b"/proc".to_vec(), b"/a b\\c".to_vec()]));
    }
}
