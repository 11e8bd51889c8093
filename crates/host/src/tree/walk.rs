//! A walk through a tree by directory handles: no link is followed, and what is read of a directory at a time is
//! bounded.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_sandbox::Result;
use rustix::fs::Dir;
use rustix::io::Errno;

use super::failure::{kernel, shown};

/// An entry that the walk has come to.
pub struct Found<'a> {
    /// The directory that it is in.
    pub directory: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a CStr,
    /// Its path below the top of the walk.
    pub path: &'a [u8],
    /// Directories between the top and this one.
    pub depth: usize,
}

/// What is done on a walk.
pub trait Visit {
    /// At every entry. An opened directory is walked through next.
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>>;
    /// At a directory, after all that is in it.
    fn leave(&mut self, found: Found<'_>) -> Result<()>;
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
    name: CString,
    /// Length of the path to it.
    path: usize,
}

impl Level {
    fn new(directory: OwnedFd, name: CString, path: usize) -> Result<Self, Errno> {
        let entries = Dir::read_from(&directory)?;
        Ok(Self { directory, entries, name, path })
    }
}

/// Walks through everything below `top`. `shown_top` is its path, for messages. As many directories are open as the
/// tree is deep: the visitor bounds that.
pub fn walk(top: OwnedFd, shown_top: &[u8], visit: &mut impl Visit) -> Result<()> {
    let failed = |path: &[u8], errno: Errno| {
        let whole = [shown_top, b"/", path].concat();
        kernel(errno, format!("the directory `{}` cannot be read", shown(&whole)))
    };
    let mut path = Vec::new();
    let mut levels = vec![Level::new(top, CString::default(), 0).map_err(|e| failed(b"", e))?];
    loop {
        let depth = levels.len() - 1;
        let Some(level) = levels.last_mut() else { return Ok(()) };
        path.truncate(level.path);
        match level.entries.next() {
            Some(entry) => {
                let entry = entry.map_err(|e| failed(&path, e))?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.to_bytes());
                let found = Found { directory: level.directory.as_fd(), name, path: &path, depth };
                if let Some(below) = visit.enter(found)? {
                    let next =
                        Level::new(below, name.to_owned(), path.len()).map_err(|e| failed(&path, e))?;
                    levels.push(next);
                }
            }
            None => {
                let Some(done) = levels.pop() else { return Ok(()) };
                let Some(above) = levels.last() else { return Ok(()) };
                let depth = levels.len() - 1;
                visit.leave(Found {
                    directory: above.directory.as_fd(),
                    name: &done.name,
                    path: &path,
                    depth,
                })?;
            }
        }
    }
}
