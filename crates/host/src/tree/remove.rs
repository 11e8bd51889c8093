//! Removing an entry, or a whole tree.

use crate::remove::{self, NotRemoved};
use moltis_sandbox::{Diagnosis, EntryKind, Error, Result};
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::failure::{kernel, shown};
use super::object;
use super::place::Place;

/// Removes an entry; of a link, the link. A directory must be empty, unless `recursive`.
///
/// # Errors
/// When something cannot be removed, which keeps only the directories that it is in; when others add to a tree as fast
/// as it is removed, or it takes too long.
pub fn remove(place: &Place, path: &[u8], recursive: bool) -> Result<()> {
    let failed = |errno: Errno| kernel(errno, format!("`{}` cannot be removed", shown(path)));
    let Place { directory, name } = place;
    let stat = object::stat(directory, &**name).map_err(failed)?;
    if object::kind(&stat) != EntryKind::Directory {
        return unlinkat(directory, &**name, AtFlags::empty()).map_err(failed);
    }
    if !recursive {
        return unlinkat(directory, &**name, AtFlags::REMOVEDIR).map_err(failed);
    }
    match remove::tree(directory, name, remove::PATIENCE) {
        Ok(_) => Ok(()),
        Err(why @ NotRemoved::Kernel { errno: Errno::XDEV | Errno::BUSY, .. }) => {
            let message = format!("`{}` cannot be removed", shown(path));
            Err(Error::Refused(Diagnosis::new("file-denied", message).cause(&why).fix(why.fix())))
        }
        Err(NotRemoved::Kernel { path: below, errno }) if below.is_empty() => Err(failed(errno)),
        Err(NotRemoved::Kernel { path: below, errno }) => {
            let whole = [path, b"/", &below].concat();
            Err(kernel(errno, format!("`{}` cannot be removed", shown(&whole))))
        }
        Err(why @ (NotRemoved::Refilled | NotRemoved::Late(_))) => Err(Error::Unavailable(
            Diagnosis::new("file-not-removable", format!("`{}` cannot be removed", shown(path)))
                .cause(&why)
                .fix(why.fix()),
        )),
    }
}
