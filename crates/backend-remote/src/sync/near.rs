//! Changes to the workspace on this machine. Every one of them holds only if what is there is what was expected there: an
//! editor may have been faster, and nothing of it is ever lost. No link is followed, and nothing is made outside. It blocks.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::tar::Time;
use moltis_host::tree::archive::split;
use moltis_host::tree::object::{self, NotOpened};
use moltis_host::tree::part::{Part, random_name};
use moltis_host::tree::place::step;
use rustix::fs::{
    AtFlags, Gid, Mode, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chownat, fchmod, fchown,
    fstat, futimens, linkat, mkdirat, renameat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::node::{Node, Seen, Stamp};
use super::scan::{mode, stamp};

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Made {
    /// It was made; this is there now. `None`: nothing.
    Done(Option<Stamp>),
    /// Something else is there than was expected. Nothing was changed.
    Other,
    /// The kernel did not let it happen.
    Failed(Errno),
}

/// Where changes are made.
pub struct Near {
    top: OwnedFd,
    /// Whose the workspace is, if we are root: what is made in it is theirs.
    owner: Option<(Uid, Gid)>,
}

/// A file that has all its content, and no lasting name yet.
pub struct Fresh<'a> {
    /// The file.
    pub part: Part<'a>,
}

impl From<Errno> for Made {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl Near {
    /// Beneath this directory.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(top: impl AsFd) -> Result<Self, Errno> {
        let top = object::directory(top, c".").map_err(|why| match why {
            NotOpened::Kernel(errno) => errno,
            NotOpened::Kind(_) => Errno::NOTDIR,
        })?;
        let stat = fstat(&top)?;
        let is_root = rustix::process::geteuid().is_root();
        let owner = (is_root && (stat.st_uid, stat.st_gid) != (0, 0))
            .then(|| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
        Ok(Self { top, owner })
    }

    /// The directory that a path is in, and its name there. What is missing on the way is made, if asked for.
    ///
    /// # Errors
    /// What stands for it.
    pub fn place(&self, path: &[u8], make: bool) -> Result<(OwnedFd, CString), Made> {
        let (above, name) = split(path);
        let mut at = object::directory(&self.top, c".").map_err(not_opened)?;
        for part in above.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let is_new = make && object::stat(&at, part).is_err();
            at = step(&at, part, make).map_err(not_opened)?;
            if let (true, Some((uid, gid))) = (is_new, self.owner) {
                fchown(&at, Some(uid), Some(gid))?;
            }
        }
        let name = CString::new(name).map_err(|_| Made::Failed(Errno::INVAL))?;
        Ok((at, name))
    }

    /// Makes a directory, or gives one its mode.
    pub fn directory(&self, path: &[u8], mode: u32, expected: Option<&Seen>) -> Made {
        let (parent, name) = match self.place(path, true) {
            Ok(place) => place,
            Err(made) => return made,
        };
        let is_there = expected.is_some_and(|seen| seen.node.is_directory());
        if !is_there && expected.is_some() {
            match remove(&parent, &name, expected) {
                Made::Done(None) => {}
                made => return made,
            }
        }
        if !is_there {
            match mkdirat(&parent, &*name, Mode::from_raw_mode(0o700)) {
                Ok(()) => {}
                // It was made on the way to something in it.
                Err(Errno::EXIST) => {}
                Err(errno) => return errno.into(),
            }
        }
        let directory = match object::directory(&parent, &*name) {
            Ok(directory) => directory,
            Err(why) => return not_opened(why),
        };
        if let (false, Some((uid, gid))) = (is_there, self.owner)
            && let Err(errno) = fchown(&directory, Some(uid), Some(gid))
        {
            return errno.into();
        }
        let done = fchmod(&directory, Mode::from_raw_mode((mode & object::MODE) as _))
            .and_then(|()| fstat(&directory));
        match done {
            Ok(stat) => Made::Done(Some(stamp(&stat))),
            Err(errno) => errno.into(),
        }
    }

    /// Makes a link, whatever its target.
    pub fn link(&self, path: &[u8], target: &[u8], expected: Option<&Seen>) -> Made {
        let (parent, name) = match self.place(path, true) {
            Ok(place) => place,
            Err(made) => return made,
        };
        let fresh = random_name();
        if let Err(errno) = symlinkat(target, &parent, &*fresh) {
            return errno.into();
        }
        if let Some((uid, gid)) = self.owner {
            let _ = chownat(&parent, &*fresh, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        }
        let made = take(&parent, &fresh, &name, expected);
        let _ = unlinkat(&parent, &*fresh, AtFlags::empty());
        made
    }

    /// Gives a file that was written its mode, its time and its name.
    pub fn file(
        &self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        mut fresh: Fresh<'_>,
        mode: u32,
        mtime: Time,
        expected: Option<&Seen>,
    ) -> Made {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() },
        };
        let file = fresh.part.file();
        let ready = match self.owner {
            Some((uid, gid)) => fchown(&*file, Some(uid), Some(gid)),
            None => Ok(()),
        }
        .and_then(|()| fchmod(&*file, Mode::from_raw_mode((mode & object::MODE) as _)))
        .and_then(|()| futimens(&*file, &times));
        if let Err(errno) = ready {
            return errno.into();
        }
        // A crash of the machine must not leave an empty file under a name that had content.
        if expected.is_some()
            && let Err(error) = file.sync_data()
        {
            return Errno::from_io_error(&error).unwrap_or(Errno::IO).into();
        }
        // What is dropped with it is what has its first name then: the file that was there before.
        take(parent, fresh.part.name(), name, expected)
    }

    /// Sets the mode of a file.
    pub fn mode(&self, path: &[u8], bits: u32, expected: &Seen) -> Made {
        let (parent, name) = match self.place(path, false) {
            Ok(place) => place,
            Err(made) => return made,
        };
        let (file, stat) = match object::file(&parent, &*name) {
            Ok(opened) => opened,
            Err(why) => return not_opened(why),
        };
        if stamp(&stat) != expected.stamp {
            return Made::Other;
        }
        match fchmod(&file, Mode::from_raw_mode((bits & object::MODE) as _)).and_then(|()| fstat(&file)) {
            Ok(stat) => Made::Done(Some(stamp(&stat))),
            Err(errno) => errno.into(),
        }
    }

    /// Removes a file, a link, or a directory that is empty.
    pub fn remove(&self, path: &[u8], expected: &Seen) -> Made {
        match self.place(path, false) {
            Ok((parent, name)) => remove(&parent, &name, Some(expected)),
            Err(Made::Failed(Errno::NOENT)) => Made::Done(None),
            Err(made) => made,
        }
    }
}

fn not_opened(why: NotOpened) -> Made {
    match why {
        NotOpened::Kind(_) => Made::Other,
        NotOpened::Kernel(errno) => errno.into(),
    }
}

/// Whether something is what was expected. Moving a thing changes the time of its last change.
fn is(stat: &Stat, expected: &Seen, moved: bool) -> bool {
    let (now, then) = (stamp(stat), expected.stamp);
    let same_kind = match (object::kind(stat), &expected.node) {
        (moltis_sandbox::EntryKind::File, Node::File { mode: bits, .. }) => mode(stat) == *bits,
        (moltis_sandbox::EntryKind::Directory, Node::Directory { .. }) => return now.inode == then.inode,
        (moltis_sandbox::EntryKind::Symlink, Node::Link { .. }) => true,
        _ => false,
    };
    same_kind
        && (now.inode, now.size, now.modified) == (then.inode, then.size, then.modified)
        && (moved || now.changed == then.changed)
}

/// Gives what is called `fresh` the name of what is expected there, which gets the name `fresh`.
fn take(parent: impl AsFd, fresh: &CStr, name: &CStr, expected: Option<&Seen>) -> Made {
    let parent = parent.as_fd();
    let taken = match expected {
        None => name_anew(parent, fresh, name),
        Some(expected) => {
            if expected.node.is_directory() {
                match remove(parent, name, Some(expected)) {
                    Made::Done(None) => return take(parent, fresh, name, None),
                    made => return made,
                }
            }
            match object::stat(parent, name) {
                Ok(stat) if is(&stat, expected, false) => {}
                Ok(_) | Err(Errno::NOENT) => return Made::Other,
                Err(errno) => return errno.into(),
            }
            match renameat_with(parent, fresh, parent, name, RenameFlags::EXCHANGE) {
                Err(Errno::INVAL | Errno::NOSYS) => match replace(parent, fresh, name, expected) {
                    Ok(true) => Ok(()),
                    Ok(false) => return Made::Other,
                    Err(errno) => Err(errno),
                },
                Ok(()) => {
                    // Between the look and the exchange somebody may have been faster.
                    match object::stat(parent, fresh) {
                        Ok(stat) if is(&stat, expected, true) => Ok(()),
                        _ => {
                            let back = renameat_with(parent, fresh, parent, name, RenameFlags::EXCHANGE);
                            return back.map_or_else(Made::from, |()| Made::Other);
                        }
                    }
                }
                other => other,
            }
        }
    };
    match taken.and_then(|()| object::stat(parent, name)) {
        Ok(stat) => Made::Done(Some(stamp(&stat))),
        Err(Errno::EXIST | Errno::NOENT) => Made::Other,
        Err(errno) => errno.into(),
    }
}

/// Gives a thing another name, which nothing has.
fn name_anew(parent: BorrowedFd<'_>, from: &CStr, name: &CStr) -> Result<(), Errno> {
    match renameat_with(parent, from, parent, name, RenameFlags::NOREPLACE) {
        // Some file systems cannot do that, but none replaces anything with a second name.
        Err(Errno::INVAL | Errno::NOSYS) => {
            linkat(parent, from, parent, name, AtFlags::empty())?;
            unlinkat(parent, from, AtFlags::empty())
        }
        other => other,
    }
}

/// As an exchange, where the file system has none: what is there is moved aside and looked at, and gets its name back if
/// it is something else. For a moment nothing has the name. Whether it was replaced.
fn replace(parent: BorrowedFd<'_>, fresh: &CStr, name: &CStr, expected: &Seen) -> Result<bool, Errno> {
    let aside = random_name();
    match renameat(parent, name, parent, &*aside) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    if !object::stat(parent, &*aside).is_ok_and(|stat| is(&stat, expected, true)) {
        return name_anew(parent, &aside, name).map(|()| false);
    }
    match name_anew(parent, fresh, name) {
        Ok(()) => unlinkat(parent, &*aside, AtFlags::empty()).map(|()| true),
        // Whoever was there has written a file anew, in the place of the one that is aside.
        Err(Errno::EXIST) => unlinkat(parent, &*aside, AtFlags::empty()).map(|()| false),
        Err(errno) => name_anew(parent, &aside, name).and(Err(errno)),
    }
}

/// Removes what is expected.
fn remove(parent: impl AsFd, name: &CStr, expected: Option<&Seen>) -> Made {
    let parent = parent.as_fd();
    let Some(expected) = expected else { return Made::Other };
    match object::stat(parent, name) {
        Ok(stat) if is(&stat, expected, false) => {}
        Ok(_) => return Made::Other,
        Err(Errno::NOENT) => return Made::Done(None),
        Err(errno) => return errno.into(),
    }
    if expected.node.is_directory() {
        return match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Made::Done(None),
            Err(errno) => errno.into(),
        };
    }
    // It is moved aside and looked at there, where nobody else reaches it by its name.
    let aside = random_name();
    match renameat(parent, name, parent, &*aside) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Made::Done(None),
        Err(errno) => return errno.into(),
    }
    match object::stat(parent, &*aside) {
        Ok(stat) if is(&stat, expected, true) => match unlinkat(parent, &*aside, AtFlags::empty()) {
            Ok(()) => Made::Done(None),
            Err(errno) => errno.into(),
        },
        _ => match name_anew(parent, &aside, name) {
            Ok(()) => Made::Other,
            Err(errno) => errno.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn seen(folder: &std::path::Path, name: &str) -> Seen {
        let top = fs::File::open(folder).unwrap();
        let stat = object::stat(&top, name.as_bytes()).unwrap();
        let node = Node::File { hash: [0; 32], size: stamp(&stat).size, mode: mode(&stat) };
        Seen { node, stamp: stamp(&stat), settled: true }
    }

    #[test]
    fn a_file_system_without_an_exchange_loses_nobody_s_file() {
        let folder = tempfile::tempdir().unwrap();
        let (old, fresh) = (folder.path().join("file"), folder.path().join("fresh"));
        let write = || {
            fs::write(&old, "old").unwrap();
            fs::write(&fresh, "new").unwrap();
            seen(folder.path(), "file")
        };
        let top = fs::File::open(folder.path()).unwrap();
        let replaced = |expected: &Seen| replace(top.as_fd(), c"fresh", c"file", expected);
        let names = || fs::read_dir(folder.path()).unwrap().count();

        let expected = write();
        assert_eq!(replaced(&expected), Ok(true));
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), names()), ("new", 1));

        // Another file is there by now.
        let expected = write();
        fs::remove_file(&old).unwrap();
        fs::write(&old, "an editor's").unwrap();
        assert_eq!(replaced(&expected), Ok(false));
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), names()), ("an editor's", 2));

        fs::remove_file(&old).unwrap();
        assert_eq!((replaced(&expected), names()), (Ok(false), 1));
    }
}
