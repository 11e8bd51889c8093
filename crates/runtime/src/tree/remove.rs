//! Removing an entry, or a whole tree.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_sandbox::{EntryKind, Result};
use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;

use super::failure::{kernel, shown};
use super::object::{self, NotOpened};
use super::place::Place;
use super::walk::{Found, Visit, walk};

/// Deepest directory that is walked to. One that lies deeper is moved up first.
const MAX_DEPTH: usize = 64;

/// Removes an entry; of a link, the link. A directory must be empty, unless `recursive`.
///
/// # Errors
/// When something cannot be removed; the rest of a tree is then still there.
pub fn remove(place: &Place, path: &[u8], recursive: bool) -> Result<()> {
    let failed = |errno: Errno| kernel(errno, format!("`{}` cannot be removed", shown(path)));
    let Place { directory, name } = place;
    let stat = object::stat(directory, &**name).map_err(failed)?;
    if object::kind(&stat) != EntryKind::Directory {
        return unlinkat(directory, &**name, AtFlags::empty()).map_err(failed);
    }
    let mut moved = 0;
    loop {
        match unlinkat(directory, &**name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
            other => return other.map_err(failed),
        }
        let top = match object::directory(directory, &**name) {
            Ok(top) => top,
            Err(NotOpened::Kernel(errno)) => return Err(failed(errno)),
            Err(NotOpened::Kind(_)) => return Err(failed(Errno::NOTDIR)),
        };
        let aside = top.try_clone().map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let mut removal = Removal { top: aside, shown_top: path, moved, removed: 0 };
        walk(top, path, &mut removal)?;
        if removal.removed == 0 && removal.moved == moved {
            // Something is put there as fast as it is removed, or cannot be.
            return Err(failed(Errno::NOTEMPTY));
        }
        moved = removal.moved;
    }
}

struct Removal<'a> {
    top: OwnedFd,
    shown_top: &'a [u8],
    moved: u64,
    removed: u64,
}

impl Removal<'_> {
    fn unlink(&mut self, directory: BorrowedFd<'_>, found: &Found<'_>, flags: AtFlags) -> Result<()> {
        match unlinkat(directory, found.name, flags) {
            Ok(()) => {
                self.removed += 1;
                Ok(())
            }
            // Somebody else was faster, or puts more into it, which the next round finds.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => {
                let whole = [self.shown_top, b"/", found.path].concat();
                Err(kernel(errno, format!("`{}` cannot be removed", shown(&whole))))
            }
        }
    }
}

impl Visit for Removal<'_> {
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>> {
        match object::directory(found.directory, found.name) {
            Ok(directory) if found.depth < MAX_DEPTH => Ok(Some(directory)),
            Ok(_) => {
                self.moved += 1;
                let name = CString::new(format!(".moltis-removed-{}-{}", std::process::id(), self.moved));
                let name = name.unwrap_or_default();
                match renameat(found.directory, found.name, self.top.as_fd(), &*name) {
                    Ok(()) | Err(Errno::NOENT) => Ok(None),
                    // The name is taken by what an earlier try has moved.
                    Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(None),
                    Err(errno) => {
                        let whole = [self.shown_top, b"/", found.path].concat();
                        Err(kernel(errno, format!("`{}` cannot be removed", shown(&whole))))
                    }
                }
            }
            Err(NotOpened::Kernel(Errno::NOENT)) => Ok(None),
            Err(NotOpened::Kind(_)) => self.unlink(found.directory, &found, AtFlags::empty()).map(|()| None),
            // A directory that may not be read can be removed if it is empty.
            Err(NotOpened::Kernel(_)) => {
                self.unlink(found.directory, &found, AtFlags::REMOVEDIR).map(|()| None)
            }
        }
    }

    fn leave(&mut self, found: Found<'_>) -> Result<()> {
        self.unlink(found.directory, &found, AtFlags::REMOVEDIR)
    }
}
