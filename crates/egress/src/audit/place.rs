//! Where the log lies, and how its files are opened: a link, a pipe or another user's file is not taken for one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::EgressError;

/// Name of the file that is written to. Older ones have `.1` to `.4` behind it.
const NAME: &str = "network-audit.jsonl";

/// Name of the file whose lock orders writers. It is empty and never renamed.
const LOCK: &str = "network-audit.lock";

/// The data directory, held open.
#[derive(Debug)]
pub(super) struct Place {
    folder: OwnedFd,
    path: PathBuf,
}

/// How the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// By whoever looks which files there are.
    Shared,
    /// By whoever writes or renames.
    Exclusive,
}

/// What tells a file from every other while it is there.
pub(super) type Identity = (u64, u64);

impl Place {
    /// Opens the data directory.
    ///
    /// # Errors
    /// `Audit` when it cannot be opened.
    pub fn open(data_dir: &Path) -> Result<Self, EgressError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(data_dir, flags, Mode::empty())
            .map_err(|e| EgressError::Audit { place: data_dir.to_owned(), source: e.into() })?;
        Ok(Self { folder, path: data_dir.to_owned() })
    }

    /// The kernel's answer about a file of the log.
    pub fn failed(&self, source: impl Into<io::Error>) -> EgressError {
        EgressError::Audit { place: self.path.join(NAME), source: source.into() }
    }

    /// The file that is written to, made if it is missing.
    ///
    /// # Errors
    /// `AuditNotOurs`, and the kernel's.
    pub fn for_writing(&self) -> Result<File, EgressError> {
        self.file(NAME, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE).map_err(|error| match error {
            NotOpen::Kernel(error) => self.failed(error),
            NotOpen::NotOurs(error) => error,
        })
    }

    /// The file of this age, 0 being the one that is written to; `None` when there is none.
    ///
    /// # Errors
    /// `AuditNotOurs`, and the kernel's.
    pub fn for_reading(&self, age: u32) -> Result<Option<File>, EgressError> {
        match self.file(&name(age), OFlags::RDONLY) {
            Ok(file) => Ok(Some(file)),
            Err(NotOpen::Kernel(Errno::NOENT)) => Ok(None),
            Err(NotOpen::Kernel(error)) => Err(self.failed(error)),
            Err(NotOpen::NotOurs(error)) => Err(error),
        }
    }

    /// Which file of this age there is.
    pub fn identity(&self, age: u32) -> Option<Identity> {
        self.look(&name(age))
    }

    /// Renames each file to the next age, up to the first age that is free or `kept`, whose file is given up. The file
    /// that is written to is missing afterwards. Whoever is killed in between leaves an age free, which the next one
    /// uses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rotate(&self, kept: u32) -> io::Result<()> {
        let free = (1..kept).find(|age| self.identity(*age).is_none()).unwrap_or(kept);
        for age in (0..free).rev() {
            rustix::fs::renameat(&self.folder, name(age), &self.folder, name(age + 1))?;
        }
        Ok(())
    }

    /// The file of the lock; `None` when it is missing and not to be made.
    fn lock_file(&self, make: bool) -> Result<Option<File>, EgressError> {
        let flags = if make { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY };
        match self.file(LOCK, flags) {
            Ok(file) => Ok(Some(file)),
            Err(NotOpen::Kernel(Errno::NOENT)) if !make => Ok(None),
            Err(NotOpen::Kernel(error)) => Err(self.failed(error)),
            Err(NotOpen::NotOurs(error)) => Err(error),
        }
    }

    /// Takes the lock, which ends when the file is closed. Asks again until `give_up` says so: a wait in the kernel
    /// could not be given up. `None` when it was, or when there is no lock to share, as where nothing was ever written.
    ///
    /// # Errors
    /// `AuditNotOurs`, and the kernel's.
    pub fn lock(&self, hold: Hold, mut give_up: impl FnMut() -> bool) -> Result<Option<File>, EgressError> {
        let operation = match hold {
            Hold::Shared => FlockOperation::NonBlockingLockShared,
            Hold::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let mut pause = std::time::Duration::from_micros(200);
        let Some(mut file) = self.lock_file(hold == Hold::Exclusive)? else { return Ok(None) };
        loop {
            match rustix::fs::flock(&file, operation) {
                // Somebody may have removed the file meanwhile: then others lock another one.
                Ok(()) if identity_of(&file) == self.look(LOCK) => return Ok(Some(file)),
                Ok(()) => {
                    let Some(other) = self.lock_file(hold == Hold::Exclusive)? else { return Ok(None) };
                    file = other;
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(std::time::Duration::from_millis(20));
                }
                Err(error) => return Err(self.failed(error)),
            }
            if give_up() {
                return Ok(None);
            }
        }
    }

    fn look(&self, name: &str) -> Option<Identity> {
        rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|is| of(&is))
    }

    fn file(&self, name: &str, flags: OFlags) -> Result<File, NotOpen> {
        let not_ours =
            |found| NotOpen::NotOurs(EgressError::AuditNotOurs { place: self.path.join(name), found });
        // A pipe would hold the opening up without NONBLOCK, which means nothing to a file.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::LOOP) => return Err(not_ours("a link")),
            Err(Errno::ISDIR) => return Err(not_ours("a directory")),
            Err(Errno::NXIO) => return Err(not_ours("a pipe or a socket")),
            Err(error) => return Err(NotOpen::Kernel(error)),
        };
        let is = rustix::fs::fstat(&file).map_err(NotOpen::Kernel)?;
        match FileType::from_raw_mode(is.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(not_ours("a directory")),
            _ => return Err(not_ours("no regular file")),
        }
        if is.st_uid != rustix::process::geteuid().as_raw() {
            return Err(not_ours("a file of another user"));
        }
        if is.st_mode & 0o077 != 0 {
            // A copy that was restored, say. It tells who spoke to whom.
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(NotOpen::Kernel)?;
        }
        Ok(File::from(file))
    }
}

enum NotOpen {
    Kernel(Errno),
    NotOurs(EgressError),
}

fn name(age: u32) -> String {
    if age == 0 { NAME.to_owned() } else { format!("{NAME}.{age}") }
}

/// Which file this is.
pub(super) fn identity_of(file: &File) -> Option<Identity> {
    rustix::fs::fstat(file).ok().map(|is| of(&is))
}

// The fields have other types on other systems.
#[allow(clippy::unnecessary_cast)]
fn of(is: &Stat) -> Identity {
    (is.st_dev as u64, is.st_ino as u64)
}
