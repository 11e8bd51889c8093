//! What a sandbox sees of files: a few folders of the host, each held by a handle, under names of our own choosing.
//!
//! A guest path is taken apart into names. Each is opened from the directory before it and never through a link; a link
//! is read and its target walked from the sandbox's own root, so that links lead anywhere inside and nowhere else.
//! Everything here blocks, for a moment.

pub mod files;
pub mod lent;
mod quota;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use quota::Quota;
pub use walk::{Follow, Spot};

/// Most links on the way to one file, as the kernel has it.
pub const MAX_LINKS: usize = 40;

/// A folder or file of the host that shows inside.
#[derive(Debug)]
pub struct Root {
    /// Where, as the names of the path.
    at: Vec<Vec<u8>>,
    /// What: opened with `O_PATH`.
    handle: Arc<OwnedFd>,
    /// Whether it is a directory; else a regular file.
    pub directory: bool,
    /// Whether it may be changed.
    pub writable: bool,
    /// Paths below it that stay as they are, though it may be changed.
    pub protected: BTreeSet<Vec<u8>>,
    /// Bytes that it may hold, if that is bounded here.
    pub quota: Option<Quota>,
}

impl Root {
    /// This object at this absolute guest path, which holds no `.` and `..`.
    pub fn new(at: &str, handle: OwnedFd, directory: bool, writable: bool) -> Self {
        let at = at.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect();
        Self { at, handle: Arc::new(handle), directory, writable, protected: BTreeSet::new(), quota: None }
    }

    /// The guest path.
    pub fn path(&self) -> Vec<u8> {
        [&b"/"[..], &self.at.join(&b'/')].concat()
    }

    /// The object.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// All that a sandbox sees.
#[derive(Debug)]
pub struct Tree {
    roots: Vec<Root>,
}

impl Tree {
    /// Of these; where two are at one place the later one shows.
    pub fn new(roots: Vec<Root>) -> Self {
        Self { roots }
    }

    /// What shows of the host.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// Bytes that its folders hold beyond what they may, counted now. Blocks for as long as counting takes.
    pub fn excess(&self) -> u64 {
        let of = |root: &Root| root.quota.as_ref().map(|quota| quota.excess(root.handle()));
        self.roots.iter().filter_map(of).fold(0, u64::saturating_add)
    }

    /// The one at exactly this place.
    fn root_at(&self, place: &[Vec<u8>]) -> Option<usize> {
        self.roots.iter().rposition(|root| root.at == place)
    }

    /// Whether there is a root further down from this place, which is therefore a directory.
    fn leads_on(&self, place: &[Vec<u8>]) -> bool {
        self.roots.iter().any(|root| root.at.len() > place.len() && root.at.starts_with(place))
    }

    /// Names below this place under which a root shows, or leads on to one.
    fn names_below<'a>(&'a self, place: &'a [Vec<u8>]) -> BTreeSet<&'a [u8]> {
        let below =
            self.roots.iter().filter(|root| root.at.len() > place.len() && root.at.starts_with(place));
        below.map(|root| root.at[place.len()].as_slice()).collect()
    }
}
