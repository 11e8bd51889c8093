//! The walk from a guest path to the directory and the name that it stands for.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use moltis_host::tree::object;
use moltis_sandbox::EntryKind;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;

use super::{MAX_LINKS, Tree};

/// Most names on the way, links counted in.
const MAX_NAMES: usize = 4096;

/// Which links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// None: whoever asks has followed them already, and one that is met now was put there since.
    Never,
    /// Those on the way.
    Way,
    /// Those on the way, and the last.
    All,
}

/// An opened directory, or a root.
#[derive(Clone, Debug)]
enum Handle {
    /// Only there because something below it is.
    Bare,
    /// A root.
    Root(usize, Arc<OwnedFd>),
    /// A directory below that root.
    Below(usize, Arc<OwnedFd>),
}

impl Handle {
    fn opened(&self) -> Option<(usize, &Arc<OwnedFd>)> {
        match self {
            Self::Bare => None,
            Self::Root(root, handle) | Self::Below(root, handle) => Some((*root, handle)),
        }
    }
}

/// Where a path leads.
#[derive(Debug)]
pub enum Spot {
    /// A directory that is only there because something below it is: `/`, `/home`.
    Bare {
        /// Its place.
        place: Vec<Vec<u8>>,
    },
    /// One of the tree's roots.
    Root {
        /// Which.
        root: usize,
    },
    /// An entry of an opened directory, there or not.
    Entry {
        /// The root that it is below.
        root: usize,
        /// Its place in the sandbox.
        place: Vec<Vec<u8>>,
        /// The directory that it is in, opened with `O_PATH`.
        directory: Arc<OwnedFd>,
        /// Its name there.
        name: CString,
    },
}

impl Tree {
    /// Walks to what a path names. Relative ones begin at the root.
    ///
    /// # Errors
    /// What the kernel would say: `NOENT`, `NOTDIR`, `LOOP`, `NAMETOOLONG`, `ACCESS`.
    pub fn walk(&self, path: &[u8], follow: Follow) -> Result<Spot, Errno> {
        let mut todo: VecDeque<Vec<u8>> = names(path).collect();
        if let Some(spot) = self.straight(todo.make_contiguous(), follow) {
            return Ok(spot);
        }
        let top = match self.root_at(&[]) {
            Some(root) => Handle::Root(root, Arc::clone(&self.roots[root].handle)),
            None => Handle::Bare,
        };
        // The names that lead to where it is, and what is open of them.
        let (mut place, mut opened): (Vec<Vec<u8>>, Vec<Handle>) = (Vec::new(), Vec::new());
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = todo.pop_front() {
            steps += 1;
            if steps > MAX_NAMES || name.len() > 255 {
                return Err(Errno::NAMETOOLONG);
            }
            if name == b".." {
                place.pop();
                opened.pop();
                continue;
            }
            let last = todo.is_empty();
            place.push(name);
            let name = place.last().map_or(&[][..], Vec::as_slice);
            if let Some(root) = self.root_at(&place) {
                if !last && !self.roots[root].directory {
                    return Err(Errno::NOTDIR);
                }
                opened.push(Handle::Root(root, Arc::clone(&self.roots[root].handle)));
                continue;
            }
            let Some((root, directory)) = opened.last().unwrap_or(&top).opened() else {
                if self.leads_on(&place) {
                    opened.push(Handle::Bare);
                    continue;
                }
                return Err(Errno::NOENT);
            };
            let kind = match object::stat(directory, name) {
                Ok(stat) => object::kind(&stat),
                Err(Errno::NOENT) if self.leads_on(&place) => {
                    opened.push(Handle::Bare);
                    continue;
                }
                Err(Errno::NOENT) if last => {
                    let directory = Arc::clone(directory);
                    return entry(root, place, directory);
                }
                Err(errno) => return Err(errno),
            };
            match kind {
                EntryKind::Symlink if follow == Follow::All || (follow == Follow::Way && !last) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    let target = readlinkat(directory, name, Vec::new())?.into_bytes();
                    place.pop();
                    if target.first() == Some(&b'/') {
                        place.clear();
                        opened.clear();
                    }
                    for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                        todo.push_front(name);
                    }
                }
                _ if last => {
                    let directory = Arc::clone(directory);
                    return entry(root, place, directory);
                }
                EntryKind::Directory => {
                    let next = Arc::new(open_way(directory.as_fd(), name)?);
                    opened.push(Handle::Below(root, next));
                }
                EntryKind::Symlink => return Err(Errno::LOOP),
                EntryKind::File | EntryKind::Other => return Err(Errno::NOTDIR),
            }
        }
        // The path ended at a directory that is open already.
        match opened.last().unwrap_or(&top) {
            Handle::Bare => Ok(Spot::Bare { place }),
            Handle::Root(root, _) => Ok(Spot::Root { root: *root }),
            Handle::Below(root, _) => {
                let above = opened.len().checked_sub(2).map_or(&top, |at| &opened[at]);
                let directory = above.opened().map(|(_, handle)| Arc::clone(handle)).ok_or(Errno::NOENT)?;
                entry(*root, place, directory)
            }
        }
    }

    /// The same at once, where no link, `..` or root lies on the way; the walk says what there is otherwise.
    fn straight(&self, names: &[Vec<u8>], follow: Follow) -> Option<Spot> {
        let (last, way) = names.split_last()?;
        if names.len() > MAX_NAMES || names.iter().any(|name| name == b".." || name.len() > 255) {
            return None;
        }
        let beneath = |root: &&super::Root| names.len() > root.at.len() && names.starts_with(&root.at);
        let root = self.roots.iter().filter(beneath).max_by_key(|root| root.at.len())?;
        // Between a root and one that lies in it may be links.
        let outer = self.roots.iter().filter(|outer| root.at.len() > outer.at.len());
        let outer = outer.filter(|outer| root.at.starts_with(&outer.at)).map(|outer| outer.at.len()).max();
        if outer.is_some_and(|outer| outer + 1 != root.at.len()) || self.root_at(names).is_some() {
            return None;
        }
        let index = self.root_at(&root.at)?;
        let top = &self.roots[index].handle;
        let directory = match &way[root.at.len()..] {
            [] => Arc::clone(top),
            way => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                Arc::new(openat2(top, way.join(&b'/'), flags, Mode::empty(), resolve).ok()?)
            }
        };
        match object::stat(&directory, last.as_slice()) {
            Ok(stat) if object::kind(&stat) == EntryKind::Symlink && follow == Follow::All => return None,
            Ok(_) => {}
            Err(Errno::NOENT) if !self.leads_on(names) => {}
            Err(_) => return None,
        }
        entry(index, names.to_vec(), directory).ok()
    }

    /// Opens the directory that a path leads to.
    ///
    /// # Errors
    /// As [`walk`](Self::walk), and `NOTDIR`.
    pub fn open_directory(&self, spot: &Spot) -> Result<OwnedFd, Errno> {
        match spot {
            Spot::Bare { .. } => Err(Errno::ACCESS),
            Spot::Root { root } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(self.roots[*root].handle(), c".", flags, Mode::empty())
            }
            Spot::Entry { directory, name, .. } => {
                let flags = OFlags::RDONLY
                    | OFlags::DIRECTORY
                    | OFlags::NOFOLLOW
                    | OFlags::NONBLOCK
                    | OFlags::CLOEXEC;
                openat(directory, &**name, flags, Mode::empty())
            }
        }
    }

    /// Whether what is at a spot may be changed, and its directory.
    pub fn may_change(&self, spot: &Spot) -> Result<(), Errno> {
        let (root, place) = match spot {
            Spot::Bare { .. } => return Err(Errno::ROFS),
            Spot::Root { root } => (&self.roots[*root], None),
            Spot::Entry { root, place, .. } => (&self.roots[*root], Some(place)),
        };
        if !root.writable {
            return Err(Errno::ROFS);
        }
        let below = place.map(|place| place[root.at.len()..].join(&b'/')).unwrap_or_default();
        if root.is_protected(&below) { Err(Errno::ROFS) } else { Ok(()) }
    }
}

impl super::Root {
    /// Whether this path below it stays as it is: it is protected, lies in something that is, or holds it.
    pub fn is_protected(&self, below: &[u8]) -> bool {
        self.protected.iter().any(|kept| {
            let within = |outer: &[u8], inner: &[u8]| {
                inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            within(kept, below) || (!below.is_empty() && within(below, kept))
        })
    }
}

/// The entry that a place names last.
fn entry(root: usize, place: Vec<Vec<u8>>, directory: Arc<OwnedFd>) -> Result<Spot, Errno> {
    let name = CString::new(place.last().map_or(&[][..], Vec::as_slice)).map_err(|_| Errno::INVAL)?;
    Ok(Spot::Entry { root, place, directory, name })
}

fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec)
}

/// Opens a directory to go on from: it need not be readable.
fn open_way(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}
