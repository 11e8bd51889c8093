//! Locks on byte ranges of one small file beside the database.
//!
//! They are open file description locks: the kernel drops them when the holder ends, however it ends, so that a
//! killed process leaves no lock behind and a lock that is held means a process that lives, in whatever pid
//! namespace. The file is empty, is never removed, and is never the database itself, because closing any descriptor
//! of the database would drop SQLite's own locks on it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A byte of the lock file, and what a lock on it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// Shared by everyone who has the database open; exclusive to move it aside.
    Use,
    /// Exclusive while the database is made, brought up to date or moved aside.
    Setup,
    /// Exclusive while a session's sandbox is started or ended. The number is the session's.
    Session(i64),
    /// Exclusive as long as a process lives that runs commands. The number is drawn by lot.
    Owner(i64),
}

impl Byte {
    /// How many sessions there may be; their bytes begin at 16.
    const SESSIONS: i64 = 1 << 60;
    /// Where the bytes of owners begin, and how many there are.
    const OWNERS: i64 = 1 << 61;

    fn offset(self) -> libc::off_t {
        match self {
            Self::Use => 0,
            Self::Setup => 1,
            Self::Session(number) => 16 + (number & (Self::SESSIONS - 1)),
            Self::Owner(number) => Self::OWNERS + (number & (Self::OWNERS - 1)),
        }
    }
}

/// How a byte is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Together with others that share it.
    Shared,
    /// Alone.
    Exclusive,
    /// Not at all.
    None,
}

/// The open lock file. Locks belong to this descriptor and end with it.
#[derive(Debug)]
pub struct LockFile(File);

impl LockFile {
    /// Opens the file, or makes it for its owner alone.
    ///
    /// # Errors
    /// The kernel's, among them `ELOOP` when a link lies there.
    pub fn open(place: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        options.open(place).map(Self)
    }

    /// Changes the lock on a byte without waiting; `false` when another descriptor is in the way.
    ///
    /// # Errors
    /// The kernel's, for instance on a file system without locks.
    pub fn set(&self, byte: Byte, hold: Hold) -> io::Result<bool> {
        let kind = match hold {
            Hold::Shared => libc::F_RDLCK,
            Hold::Exclusive => libc::F_WRLCK,
            Hold::None => libc::F_UNLCK,
        };
        let mut range = range(byte, kind);
        loop {
            // SAFETY: the descriptor is open, and the pointer is to a flock that lives through the call.
            if unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) } == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    /// Whether another descriptor has any lock on the byte. This one's own locks do not count.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_held(&self, byte: Byte) -> io::Result<bool> {
        let mut range = range(byte, libc::F_WRLCK);
        // SAFETY: as in `set`; the kernel writes its answer into the same flock.
        if unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(range.l_type != libc::F_UNLCK as libc::c_short)
    }
}

fn range(byte: Byte, kind: libc::c_int) -> libc::flock {
    // SAFETY: flock is plain data for which all zeroes is a value; the pid must be zero for these locks.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = byte.offset();
    range.l_len = 1;
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_held_by_one_descriptor_or_shared() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("lock");
        let (a, b) = (LockFile::open(&place).unwrap(), LockFile::open(&place).unwrap());
        assert!(a.set(Byte::Session(7), Hold::Exclusive).unwrap());
        assert!(!b.set(Byte::Session(7), Hold::Exclusive).unwrap());
        assert!(b.set(Byte::Session(9), Hold::Exclusive).unwrap());
        assert!(b.is_held(Byte::Session(7)).unwrap());
        assert!(!a.is_held(Byte::Session(7)).unwrap(), "one's own lock does not count");
        drop(a);
        assert!(b.set(Byte::Session(7), Hold::Exclusive).unwrap());

        let a = LockFile::open(&place).unwrap();
        assert!(a.set(Byte::Use, Hold::Shared).unwrap() && b.set(Byte::Use, Hold::Shared).unwrap());
        assert!(!a.set(Byte::Use, Hold::Exclusive).unwrap());
        assert!(b.set(Byte::Use, Hold::None).unwrap());
        assert!(a.set(Byte::Use, Hold::Exclusive).unwrap());
    }

    #[test]
    fn bytes_do_not_collide() {
        let bytes = [
            Byte::Use,
            Byte::Setup,
            Byte::Session(1),
            Byte::Session(i64::MAX),
            Byte::Owner(0),
            Byte::Owner(i64::MAX),
            Byte::Owner(i64::MIN),
        ];
        for byte in bytes {
            assert!((0..i64::MAX).contains(&byte.offset()), "{byte:?}");
        }
        assert!(Byte::Session(i64::MAX).offset() < Byte::Owner(0).offset());
        assert!(Byte::Setup.offset() < Byte::Session(0).offset());
    }
}
