//! Making and moving: operations without content.

use std::os::fd::{BorrowedFd, OwnedFd};

use moltis_agent_protocol::message::{EntryKind, Failure, FailureCode};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};
use super::roots::{self, Access};
use super::{object, path};

/// Permission bits of new directories, before the mask.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Makes a directory; with `parents` also those above, and an existing one is no error.
pub fn mkdir(path: &[u8], parents: bool) -> Result<(), Failure> {
    let failed = |e| kernel(e, format!("the directory `{}` cannot be made", shown(path)));
    if parents {
        return make_all(CWD, path).map(drop).map_err(failed);
    }
    let Some((directory, name)) = path::split(path) else {
        // `/`, `.` and `..` are there already, or nowhere.
        return Err(failed(if object::find(path, true).is_ok() { Errno::EXIST } else { Errno::NOENT }));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).map_err(failed)?;
    roots::judge(&directory, path, Access::Write)?;
    rustix::fs::mkdirat(directory, name, DIRECTORY_MODE).map_err(failed)
}

/// Opens the directory at `path` below `base`, making what is missing on the way. Links are followed, as in any path.
pub fn make_all(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let start: &[u8] = if path.starts_with(b"/") { b"/" } else { b"." };
    let mut current = rustix::fs::openat(base, start, flags, Mode::empty())?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let next = match rustix::fs::openat(&current, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                roots::judge_errno(&current, Access::Write)?;
                match rustix::fs::mkdirat(&current, name, DIRECTORY_MODE) {
                    // Somebody else made it; or it is a link to nowhere, which opening it finds out.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                rustix::fs::openat(&current, name, flags, Mode::empty())
            }
            other => other,
        };
        current = next?;
    }
    roots::judge_errno(&current, Access::Write)?;
    Ok(current)
}

/// Moves an entry.
pub fn rename(from: &[u8], to: &[u8], replace: bool) -> Result<(), Failure> {
    let failed = |e: Errno| {
        let what = format!("`{}` cannot be moved to `{}`", shown(from), shown(to));
        match e {
            Errno::XDEV => kernel(e, format!("{what}, which lies on another mount")),
            Errno::INVAL => kernel(e, format!("{what}, which lies inside it")),
            Errno::EXIST | Errno::NOTEMPTY if !replace => {
                plain(FailureCode::Exists, format!("`{}` exists", shown(to)))
            }
            e => kernel(e, what),
        }
    };
    let (Some((from_above, from_name)), Some((to_above, to_name))) = (path::split(from), path::split(to))
    else {
        return Err(plain(
            FailureCode::Invalid,
            format!(
                "`{}` cannot be moved to `{}`: neither may end in `/`, `.` or `..`",
                shown(from),
                shown(to)
            ),
        ));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let from_above = rustix::fs::open(from_above, flags, Mode::empty()).map_err(failed)?;
    roots::judge(&from_above, from, Access::Write)?;
    let to_above = rustix::fs::open(to_above, flags, Mode::empty()).map_err(failed)?;
    roots::judge(&to_above, to, Access::Write)?;
    if to.ends_with(b"/") {
        let stat = rustix::fs::statat(&from_above, from_name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if object::kind(&stat) != EntryKind::Directory {
            return Err(failed(Errno::NOTDIR));
        }
    }
    if replace {
        return rustix::fs::renameat(from_above, from_name, to_above, to_name).map_err(failed);
    }
    match rustix::fs::renameat_with(&from_above, from_name, &to_above, to_name, RenameFlags::NOREPLACE) {
        // Either the file system cannot do that, or it is a directory into itself; what follows tells them apart.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match rustix::fs::statat(&to_above, to_name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(failed(Errno::EXIST)),
                Err(Errno::NOENT) => {
                    rustix::fs::renameat(from_above, from_name, to_above, to_name).map_err(failed)
                }
                Err(e) => Err(failed(e)),
            }
        }
        other => other.map_err(failed),
    }
}
