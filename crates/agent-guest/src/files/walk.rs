//! A walk through a tree by directory handles: no path is used twice, no link is followed, and neither the depth of
//! the tree nor the number of its entries decides how many descriptors or how much stack it takes.
//!
//! The directories nearest the top stay open. Below them only the current one is: the way back is `..`, and the walk
//! ends if that is not where it came from.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::message::FailureCode;
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};
use super::{Result, object};

/// Directories that stay open.
const OPEN: usize = 64;

/// Bytes for the kernel's answer to one reading of a directory.
const SPACE: usize = 32 * 1024;

/// An entry that the walk has come to.
pub struct Found<'a> {
    /// The directory that it is in.
    pub directory: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a std::ffi::CStr,
    /// What it is, if the directory says so; `Unknown` else.
    pub kind: FileType,
    /// Its path below the top of the walk.
    pub path: &'a [u8],
}

/// What is done on a walk.
pub trait Visit {
    /// At every entry. An opened directory is walked through next.
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>>;
    /// At a directory, after all that is in it.
    fn leave(&mut self, found: Found<'_>) -> Result<()>;
}

struct Level {
    /// The directory, unless it was closed on the way down.
    directory: Option<OwnedFd>,
    identity: (u64, u64),
    /// Its name in the one above.
    name: CString,
    /// Length of the path to it.
    path: usize,
    /// Entries that were read and not yet come to.
    waiting: Vec<(CString, FileType)>,
    /// Whether all of its entries have been read.
    exhausted: bool,
}

impl Level {
    fn new(directory: OwnedFd, name: CString, path: usize) -> Result<Self, Errno> {
        let identity = object::identity(&rustix::fs::fstat(&directory)?);
        Ok(Self { directory: Some(directory), identity, name, path, waiting: Vec::new(), exhausted: false })
    }

    /// Reads some more entries, or all that are left.
    fn read(&mut self, space: &mut [MaybeUninit<u8>], all: bool) -> Result<(), Errno> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let mut found = Vec::new();
        let mut entries = RawDir::new(directory, space);
        self.exhausted = true;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                found.push((name.to_owned(), entry.file_type()));
            }
            if !all && entries.is_buffer_empty() && !found.is_empty() {
                self.exhausted = false;
                break;
            }
        }
        found.reverse();
        // Only ever called when none is waiting, or when all the others must be read before the directory is closed.
        found.append(&mut self.waiting);
        self.waiting = found;
        Ok(())
    }
}

/// Walks through everything below `top`, which must be open for reading. `shown_top` is its path, for messages.
pub fn walk(top: OwnedFd, shown_top: &[u8], visit: &mut impl Visit) -> Result<()> {
    let failed = |path: &[u8], e: Errno| {
        kernel(e, format!("the directory `{}` cannot be read", shown(&[shown_top, b"/", path].concat())))
    };
    let mut path = Vec::new();
    let mut space = vec![MaybeUninit::uninit(); SPACE];
    let mut levels = vec![Level::new(top, CString::default(), 0).map_err(|e| failed(&path, e))?];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path);
        if let Some((name, kind)) = level.waiting.pop() {
            let Some(directory) = &level.directory else { return Err(moved(shown_top, &path).into()) };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            let found = Found { directory: directory.as_fd(), name: &name, kind, path: &path };
            let Some(below) = visit.enter(found)? else { continue };
            let next = Level::new(below, name, path.len()).map_err(|e| failed(&path, e))?;
            if levels.len() > OPEN
                && let Some(level) = levels.last_mut()
            {
                // What is left in it is read now: where its reading stood is lost with the descriptor.
                if !level.exhausted {
                    level.read(&mut space, true).map_err(|e| failed(&path, e))?;
                }
                level.directory = None;
            }
            levels.push(next);
        } else if !level.exhausted {
            level.read(&mut space, false).map_err(|e| failed(&path, e))?;
        } else if let Some(done) = levels.pop()
            && let Some(above) = levels.last_mut()
        {
            if above.directory.is_none() {
                above.directory = Some(back(&done, above).ok_or_else(|| moved(shown_top, &path))?);
            }
            let Some(directory) = &above.directory else { return Err(moved(shown_top, &path).into()) };
            visit.leave(Found {
                directory: directory.as_fd(),
                name: &done.name,
                kind: FileType::Directory,
                path: &path,
            })?;
        }
    }
    Ok(())
}

/// The directory above, if it is the one that the walk came from.
fn back(from: &Level, above: &Level) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(from.directory.as_ref()?, c"..", flags, Mode::empty()).ok()?;
    let identity = object::identity(&rustix::fs::fstat(&directory).ok()?);
    (identity == above.identity).then_some(directory)
}

fn moved(top: &[u8], path: &[u8]) -> moltis_agent_protocol::message::Failure {
    let whole = [top, b"/", path].concat();
    plain(FailureCode::Io, format!("`{}` was moved while the tree was being walked", shown(&whole)))
}
