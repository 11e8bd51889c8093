//! Mounts that somebody outside of this sandbox can take from their places: where another sandbox shares the folder
//! that holds a mount point, it can rename it, remove it or put something else there. What commands and file operations
//! would find in such a place is not what they were promised, so they are refused.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use moltis_agent_protocol::message::{Failure, FailureCode};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::{Errno, Result};

/// A mount and the place where it must be found.
#[derive(Debug)]
pub struct Guarded {
    path: CString,
    seen: Seen,
    /// Keeps the mount, and thereby its number, from going to another one.
    handle: OwnedFd,
}

/// What tells a mount from others, and its root from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl Guarded {
    /// The mount at a handle, put onto an absolute path.
    ///
    /// # Errors
    /// The kernel's; `ENOSYS` where it does not number mounts (before Linux 5.8).
    pub fn new(path: &[u8], handle: OwnedFd) -> Result<Self> {
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        let seen = look(&handle, c"", AtFlags::EMPTY_PATH)?;
        Ok(Self { path, seen, handle })
    }

    /// The mount that is found at an absolute path, which is no link.
    ///
    /// # Errors
    /// The kernel's; `ENXIO` when nothing is mounted there.
    pub fn mounted(path: &[u8]) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        let found = statx(&handle, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        let attributes = StatxAttributes::from_bits_retain(found.stx_attributes.bits());
        if !attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(Errno::NXIO);
        }
        Self::new(path, handle)
    }

    /// Whether its place still leads to it. No link is followed there; those above are directories of the root's own.
    fn is_in_place(&self) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        look(CWD, &self.path, flags) == Ok(self.seen)
    }
}

impl AsRawFd for Guarded {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}

fn look(at: impl AsFd, path: &std::ffi::CStr, flags: AtFlags) -> Result<Seen> {
    // Nothing here needs a network file system's newest word: what is compared never changes.
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(at, path, flags | AtFlags::STATX_DONT_SYNC, wanted)?;
    if !StatxFlags::from_bits_retain(found.stx_mask).contains(wanted) {
        return Err(Errno::NOSYS);
    }
    Ok(Seen {
        mount: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
    })
}

/// The refusal, if one of them is not where it must be. It looks into file systems that may be slow to answer: not for
/// PID 1 itself.
pub fn refusal(guarded: &[Guarded]) -> Option<Failure> {
    let lost = guarded.iter().find(|guarded| !guarded.is_in_place())?;
    Some(Failure {
        code: FailureCode::MountLost,
        message: format!("what was mounted at {} has been taken away", lost.path.to_string_lossy()),
        errno: None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_mount_is_told_from_a_folder_and_a_link() {
        assert!(Guarded::mounted(b"/proc").is_ok());
        assert_eq!(Guarded::mounted(b"/proc/self/task").unwrap_err(), Errno::NXIO);
        assert_eq!(Guarded::mounted(b"/proc/self").unwrap_err(), Errno::NOTDIR);
        assert_eq!(Guarded::mounted(b"/proc/none").unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn anything_else_in_its_place_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("files");
        std::fs::create_dir(&place).unwrap();
        let handle = rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let guarded = [Guarded::new(place.as_os_str().as_bytes(), handle).unwrap()];
        assert_eq!(refusal(&guarded), None);
        let aside = temp.path().join("aside");
        std::fs::rename(&place, &aside).unwrap();
        assert_eq!(refusal(&guarded).unwrap().code, FailureCode::MountLost);
        std::os::unix::fs::symlink("aside", &place).unwrap();
        assert!(refusal(&guarded).is_some(), "a link that leads to it is not it");
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert!(refusal(&guarded).is_some());
        std::fs::remove_dir(&place).unwrap();
        std::fs::rename(&aside, &place).unwrap();
        assert_eq!(refusal(&guarded), None);
    }
}
