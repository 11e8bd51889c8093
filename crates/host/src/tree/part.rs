//! Replacing a file at once: the content goes to a new file beside it, which takes its name when all has arrived.
//!
//! Whoever writes such a file holds a lock on it. One without a lock is left of a writer that was killed, and the next
//! writer in the same directory removes it.

use std::collections::hash_map::RandomState;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};

use moltis_sandbox::EntryKind;
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, fchmod, flock, fstat, linkat, openat, renameat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::object::{self, NotOpened};

const PREFIX: &[u8] = b".moltis-part-";

/// Entries of a directory that are looked at for what was left.
const MAX_LOOKED_THROUGH: usize = 100_000;

/// Digits after the prefix.
const DIGITS: usize = 32;

/// A file without a lasting name: removed unless it takes one.
pub struct Part<'a> {
    directory: BorrowedFd<'a>,
    name: CString,
    file: File,
    named: bool,
}

impl<'a> Part<'a> {
    /// Makes one that only its owner can read.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(directory: BorrowedFd<'a>) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..16 {
            let name = random_name();
            let file = match openat(directory, &*name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST | Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let part = Self { directory, name, file, named: false };
            // Between its making and its lock somebody else may have taken it for one that was left. Where there are no
            // locks nothing is ever taken for that.
            let is_taken =
                flock(&part.file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
            if !is_taken && fstat(&part.file)?.st_nlink > 0 {
                return Ok(part);
            }
        }
        Err(Errno::EXIST)
    }

    /// The name that it has for now. Whatever has that name when this is dropped is removed.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// The file, to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it its mode and its name. Only a file is replaced, and only if asked for.
    ///
    /// # Errors
    /// `EXIST` when something of that name is there and is not to be replaced; another kind of thing is never replaced.
    /// `BUSY` when somebody put something else in its place.
    pub fn take_name(mut self, name: &CStr, mode: u32, replace: bool) -> Result<File, NotOpened> {
        fchmod(&self.file, Mode::from_raw_mode((mode & object::MODE) as _))?;
        let (directory, from) = (self.directory, &*self.name);
        if replace {
            match object::stat(directory, name) {
                Ok(stat) if object::kind(&stat) != EntryKind::File => {
                    return Err(NotOpened::Kind(object::kind(&stat)));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            renameat(directory, from, directory, name)?;
        } else {
            match renameat_with(directory, from, directory, name, RenameFlags::NOREPLACE) {
                // Some file systems cannot do that, but none replaces anything with a second name.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    linkat(directory, from, directory, name, AtFlags::empty())?;
                    unlinkat(directory, from, AtFlags::empty())?;
                }
                other => other?,
            }
        }
        self.named = true;
        // Whoever else may write to the directory can put something else under our first name.
        let (ours, there) = (fstat(&self.file)?, object::stat(directory, name)?);
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
            return Err(NotOpened::Kernel(Errno::BUSY));
        }
        Ok(self.file.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if !self.named {
            let _ = unlinkat(self.directory, &*self.name, AtFlags::empty());
        }
    }
}

/// A name that nothing has, by which [`is_part`] knows what has no lasting name yet.
pub fn random_name() -> CString {
    // Nobody need be unable to guess it: it is made only if nothing of that name is there.
    let random = || RandomState::new().hash_one(0);
    let digits = format!("{:016x}{:016x}", random(), random());
    CString::new([PREFIX, digits.as_bytes()].concat()).unwrap_or_default()
}

/// Whether a file of this name is one of ours that has no lasting name yet.
pub fn is_part(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Removes what killed writers have left in a directory, as far as it is looked through: it is not known to end.
pub fn clean(directory: impl AsFd) {
    let Ok(entries) = Dir::read_from(&directory) else { return };
    for entry in
        entries.take(MAX_LOOKED_THROUGH).flatten().filter(|entry| is_part(entry.file_name().to_bytes()))
    {
        let Ok((file, _)) = object::file(&directory, entry.file_name()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Whoever else came to the same end was faster.
            let _ = unlinkat(&directory, entry.file_name(), AtFlags::empty());
        }
    }
}
