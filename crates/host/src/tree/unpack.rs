//! Unpacking a tar stream beneath a directory.
//!
//! Links are made when all else is there, and are never followed. Times and modes of directories are set at the end
//! too, since what is put into a directory changes its time, and a closed one takes nothing. How much is remembered
//! for that is bounded.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::tar::Time;
use moltis_sandbox::files::TreeSummary;
use moltis_sandbox::{EntryKind, Error, Result};
use rustix::fs::{
    AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens, mkdirat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::archive::{Archive, Item, Kind, split};
use super::failure::{exists, invalid, kernel, shown, too_large, wrong_kind};
use super::object::{self, NotOpened};
use super::part::Part;
use super::place::step;
use crate::bridge::Inflow;

/// Bytes that may be spent on remembering directories, and as many on links.
const MAX_REMEMBERED: usize = 16 * 1024 * 1024;

/// Directories on the way to the last place that stay open: archives mostly go on near where they are.
const OPEN: usize = 64;

/// What may be unpacked, and how.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether files that are there may be replaced.
    pub replace: bool,
    /// Whether links are made; else an archive with one is refused.
    pub links: bool,
    /// Whether permission bits and times are kept; else files are 0644, or 0755 if they can be run.
    pub exact: bool,
    /// Most bytes of a file.
    pub max_file: u64,
}

/// What was unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// How much.
    pub summary: TreeSummary,
    /// Links that lead out of the tree.
    pub leading_out: u64,
    /// One of them.
    pub one_leading_out: Option<Vec<u8>>,
}

/// Unpacks beneath `top`.
///
/// # Errors
/// When the archive is broken, leads out of its top, or holds what is not allowed; what was unpacked before stays, each
/// file of it whole.
pub fn unpack(top: OwnedFd, rules: Rules, inflow: &mut Inflow) -> Result<Unpacked> {
    let mut unpacking = Unpacking {
        beneath: Beneath { top, last: Vec::new(), way: VecDeque::new() },
        rules,
        done: Unpacked::default(),
        directories: Vec::new(),
        links: Vec::new(),
        remembered: [0; 2],
    };
    let mut archive = Archive::new(inflow);
    while let Some(item) = archive.next_item()? {
        match item.kind {
            Kind::Directory => unpacking.directory(item)?,
            Kind::File => unpacking.file(item, &mut archive)?,
            Kind::Symlink => unpacking.later(item)?,
        }
    }
    unpacking.finish()
}

struct Unpacking {
    beneath: Beneath,
    rules: Rules,
    done: Unpacked,
    directories: Vec<Item>,
    links: Vec<Item>,
    remembered: [usize; 2],
}

fn failed(path: &[u8], errno: Errno) -> Error {
    kernel(errno, format!("`{}` of the tree cannot be written", shown(path)))
}

fn not_opened(path: &[u8], why: NotOpened) -> Error {
    match why {
        NotOpened::Kind(found) => wrong_kind(path, found),
        NotOpened::Kernel(Errno::EXIST) => exists(path),
        NotOpened::Kernel(errno) => failed(path, errno),
    }
}

fn times(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() },
    }
}

/// The mode of a file that keeps nothing of its own but whether it can be run.
pub fn plain_mode(mode: u32) -> u32 {
    if mode & 0o100 == 0 { 0o644 } else { 0o755 }
}

impl Unpacking {
    fn directory(&mut self, mut item: Item) -> Result<()> {
        if item.path.is_empty() {
            return Ok(());
        }
        let (above, name) = split(&item.path);
        let parent = self.beneath.directory(above, &item.path)?;
        let is_new = match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed(&item.path, errno)),
        };
        let directory = object::directory(parent, name).map_err(|why| not_opened(&item.path, why))?;
        self.done.summary.entries += 1;
        // One that was there keeps its mode and its time: whoever keeps it closed has a reason.
        if !self.rules.exact || !is_new {
            return Ok(());
        }
        // It stays passable for its owner until all is unpacked.
        fchmod(&directory, Mode::from_raw_mode(((item.mode & object::MODE) | 0o700) as _))
            .map_err(|e| failed(&item.path, e))?;
        item.raw = Vec::new();
        remember(&mut self.directories, &mut self.remembered[0], item);
        Ok(())
    }

    fn file(&mut self, item: Item, archive: &mut Archive<'_>) -> Result<()> {
        let Rules { replace, exact, max_file, .. } = self.rules;
        if item.size > max_file {
            return Err(too_large(&item.path, max_file));
        }
        let (above, name) = split(&item.path);
        let parent = self.beneath.directory(above, &item.path)?;
        let name = CString::new(name).map_err(|_| failed(&item.path, Errno::INVAL))?;
        if !replace && object::stat(parent, &*name).is_ok() {
            return Err(exists(&item.path));
        }
        let mut part = Part::new(parent).map_err(|e| failed(&item.path, e))?;
        while let Some(bytes) = archive.content()? {
            let written = part.file().write_all(&bytes);
            written.map_err(|e| failed(&item.path, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        }
        let mode = if exact { item.mode & object::MODE } else { plain_mode(item.mode) };
        if exact {
            futimens(&*part.file(), &times(item.mtime)).map_err(|e| failed(&item.path, e))?;
        }
        part.take_name(&name, mode, replace).map_err(|why| not_opened(&item.path, why))?;
        self.done.summary.entries += 1;
        self.done.summary.bytes += item.size;
        Ok(())
    }

    /// Keeps a link for the end.
    fn later(&mut self, mut item: Item) -> Result<()> {
        if !self.rules.links {
            let message =
                format!("`{}` of the tree is a link, and managed files hold none", shown(&item.path));
            return Err(invalid("file-wrong-kind", message, "leave it out, or copy what it leads to"));
        }
        item.raw = Vec::new();
        match remember(&mut self.links, &mut self.remembered[1], item) {
            None => Ok(()),
            // There are very many. Made now it does no harm either, since none is followed.
            Some(item) => self.link(&item),
        }
    }

    fn link(&mut self, item: &Item) -> Result<()> {
        let (above, name) = split(&item.path);
        let parent = self.beneath.directory(above, &item.path)?;
        match symlinkat(&*item.target, parent, name) {
            Err(Errno::EXIST) if self.rules.replace => {
                let stat = object::stat(parent, name).map_err(|e| failed(&item.path, e))?;
                match object::kind(&stat) {
                    EntryKind::File | EntryKind::Symlink => {
                        unlinkat(parent, name, AtFlags::empty()).map_err(|e| failed(&item.path, e))?;
                        symlinkat(&*item.target, parent, name).map_err(|e| failed(&item.path, e))?;
                    }
                    other => return Err(wrong_kind(&item.path, other)),
                }
            }
            Err(Errno::EXIST) => return Err(exists(&item.path)),
            other => other.map_err(|e| failed(&item.path, e))?,
        }
        // Not every file system keeps times of links.
        let _ = utimensat(parent, name, &times(item.mtime), AtFlags::SYMLINK_NOFOLLOW);
        self.done.summary.entries += 1;
        if leads_out(&item.path, &item.target) {
            self.done.leading_out += 1;
            self.done.one_leading_out.get_or_insert_with(|| item.path.clone());
        }
        Ok(())
    }

    /// Makes the links, then gives the directories their times and modes. What cannot be set any more, because a
    /// directory was moved or replaced meanwhile, is left.
    fn finish(mut self) -> Result<Unpacked> {
        for item in std::mem::take(&mut self.links) {
            self.link(&item)?;
        }
        let mut directories = std::mem::take(&mut self.directories);
        // Deepest first: one that is closed cannot be passed any more.
        directories.sort_by(|a, b| b.path.cmp(&a.path));
        for item in &directories {
            if let Ok(directory) = self.beneath.directory(&item.path, &item.path) {
                let _ = futimens(directory, &times(item.mtime));
                let _ = fchmod(directory, Mode::from_raw_mode((item.mode & object::MODE) as _));
            }
        }
        Ok(self.done)
    }
}

/// Remembers an item; gives it back when there is no room.
fn remember(items: &mut Vec<Item>, spent: &mut usize, item: Item) -> Option<Item> {
    *spent += item.path.len() + item.target.len() + size_of::<Item>();
    if *spent > MAX_REMEMBERED {
        return Some(item);
    }
    items.push(item);
    None
}

/// Whether a link leads out of the tree that it lies in, as far as its words say.
pub fn leads_out(path: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return true,
            },
            _ => depth += 1,
        }
    }
    false
}

/// A directory, and the way to the last place beneath it that was used.
struct Beneath {
    top: OwnedFd,
    /// Path of the last place.
    last: Vec<u8>,
    /// The lowest directories on the way there, each with the length of its path.
    way: VecDeque<(usize, OwnedFd)>,
}

impl Beneath {
    /// The directory at a plain path; what is missing on the way is made. `entry` is for messages.
    fn directory(&mut self, path: &[u8], entry: &[u8]) -> Result<BorrowedFd<'_>> {
        let is_on_the_way = |length: usize, last: &[u8]| {
            path.len() >= length
                && path[..length] == last[..length]
                && matches!(path.get(length), None | Some(b'/'))
        };
        while self.way.back().is_some_and(|(length, _)| !is_on_the_way(*length, &self.last)) {
            self.way.pop_back();
        }
        let mut at = self.way.back().map_or(0, |(length, _)| *length);
        self.last.clear();
        self.last.extend_from_slice(path);
        while at < path.len() {
            let start = if at == 0 { 0 } else { at + 1 };
            let end =
                path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |slash| start + slash);
            let parent = self.way.back().map_or(self.top.as_fd(), |(_, directory)| directory.as_fd());
            let directory = step(parent, &path[start..end], true).map_err(|why| match why {
                NotOpened::Kind(found) => wrong_kind(&path[..end], found),
                NotOpened::Kernel(errno) => failed(entry, errno),
            })?;
            self.way.push_back((end, directory));
            if self.way.len() > OPEN {
                self.way.pop_front();
            }
            at = end;
        }
        Ok(self.way.back().map_or(self.top.as_fd(), |(_, directory)| directory.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_to_lead_out_by_their_words() {
        for (path, target, out) in [
            ("a", "b", false),
            ("a/b", "../c", false),
            ("a/b", "../../c", true),
            ("a", "..", true),
            ("a/b/c", "x/../../../../y", true),
            ("a/b", "x/../../y", false),
            ("a", "/etc/passwd", true),
        ] {
            assert_eq!(leads_out(path.as_bytes(), target.as_bytes()), out, "{path} -> {target}");
        }
    }
}
