//! A tree as a tar stream. No file is held in memory, and one that changes its size while it is read does not break
//! the archive: it is cut, or filled with zeros, to the size that its header states.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use moltis_agent_protocol::tar::{BLOCK, Entry, Kind, padding};
use moltis_sandbox::{EntryKind, Result};
use rustix::fs::{Stat, fstat, readlinkat};
use rustix::io::Errno;

use super::failure::{invalid, kernel, shown};
use super::left_out::LeftOut;
use super::object::{self, NotOpened};
use super::part::is_part;
use super::walk::{Found, Visit, walk};
use crate::bridge::{Out, PIECE};

/// Deepest directory that is packed: each one on the way is open.
const MAX_DEPTH: usize = 256;

/// What is packed, and how.
pub struct Pack {
    /// The directory, or one file.
    pub source: Source,
    /// Its path, for messages.
    pub shown: Vec<u8>,
    /// What stands before all names; the directory itself is then an entry too. Empty: names are relative to it.
    pub prefix: Vec<u8>,
    /// Whether links are packed; else they are left out.
    pub links: bool,
    /// Told of what is left out.
    pub left_out: LeftOut,
}

/// Where a stream begins.
pub enum Source {
    /// All that is in a directory.
    Directory(OwnedFd),
    /// One file, by this name.
    File {
        /// The file.
        file: OwnedFd,
        /// Its name.
        name: Vec<u8>,
    },
    /// One link, by this name.
    Link {
        /// Where it leads.
        target: Vec<u8>,
        /// The link's own metadata.
        stat: Stat,
        /// Its name.
        name: Vec<u8>,
    },
}

/// Packs the tree. Links are never followed; FIFOs, sockets and devices are left out.
///
/// # Errors
/// When something cannot be read, or nobody reads the stream any more.
pub fn pack(pack: Pack, out: &Out<Bytes>) -> Result<()> {
    let Pack { source, shown, prefix, links, left_out } = pack;
    let mut packing = Packing { out, shown: &shown, prefix: &prefix, links, left_out, buffer: Vec::new() };
    let top = match source {
        Source::Directory(top) => top,
        Source::File { file, name } => {
            let stat = fstat(&file).map_err(|e| packing.failed(b"", e))?;
            packing.file(&name, &file, &stat)?;
            return packing.end();
        }
        Source::Link { target, stat, name } => {
            packing.header(Kind::Symlink, &name, &target, &stat)?;
            return packing.end();
        }
    };
    if !prefix.is_empty() {
        let stat = fstat(&top).map_err(|e| packing.failed(b"", e))?;
        packing.header(Kind::Directory, b"", b"", &stat)?;
    }
    walk(top, &shown, &mut packing)?;
    packing.end()
}

struct Packing<'a> {
    out: &'a Out<Bytes>,
    shown: &'a [u8],
    prefix: &'a [u8],
    links: bool,
    left_out: LeftOut,
    buffer: Vec<u8>,
}

impl Packing<'_> {
    fn failed(&self, path: &[u8], errno: Errno) -> moltis_sandbox::Error {
        let whole = [self.shown, b"/", path].concat();
        kernel(errno, format!("`{}` cannot be read", shown(&whole)))
    }

    #[allow(clippy::useless_conversion, reason = "widths of fields differ between platforms")]
    fn header(&mut self, kind: Kind, path: &[u8], target: &[u8], stat: &Stat) -> Result<()> {
        let mut name = self.prefix.to_vec();
        if !name.is_empty() && !path.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(path);
        if kind == Kind::Directory {
            name.push(b'/');
        }
        let size = if kind == Kind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        let entry = Entry {
            kind,
            name: &name,
            target,
            mode: u32::from(stat.st_mode) & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size,
            mtime: stat.st_mtime.into(),
        };
        entry.write(&mut self.buffer);
        self.flush(PIECE)
    }

    fn file(&mut self, path: &[u8], file: &OwnedFd, stat: &Stat) -> Result<()> {
        self.header(Kind::File, path, b"", stat)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut left = size;
        while left > 0 {
            let at = self.buffer.len();
            let room = PIECE.saturating_sub(at).max(BLOCK);
            let want = usize::try_from(left).map_or(room, |left| left.min(room));
            self.buffer.resize(at + want, 0);
            let count = match rustix::io::read(file, &mut self.buffer[at..]) {
                // It has become shorter: the zeros that are there already stand for the rest.
                Ok(0) => want,
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(errno) => return Err(self.failed(path, errno)),
            };
            self.buffer.truncate(at + count);
            left -= count as u64;
            self.flush(PIECE)?;
        }
        self.buffer.resize(self.buffer.len() + padding(size), 0);
        self.flush(PIECE)
    }

    /// Gives out what has been collected if it is `least` bytes or more.
    fn flush(&mut self, least: usize) -> Result<()> {
        if self.buffer.len() < least.max(1) {
            return Ok(());
        }
        // Headers of one entry may be longer than a piece.
        let mut whole = Bytes::from(std::mem::take(&mut self.buffer));
        while !whole.is_empty() {
            self.out.give(whole.split_to(whole.len().min(PIECE)))?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.buffer.resize(self.buffer.len() + 2 * BLOCK, 0);
        self.flush(0)
    }
}

impl Visit for Packing<'_> {
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>> {
        if is_part(found.name.to_bytes()) {
            return Ok(None);
        }
        let stat = match object::stat(found.directory, found.name) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(found.path, errno)),
        };
        let opened = match object::kind(&stat) {
            EntryKind::File => object::file(found.directory, found.name),
            EntryKind::Symlink if self.links => {
                match readlinkat(found.directory, found.name, Vec::new()) {
                    Ok(target) => self.header(Kind::Symlink, found.path, target.as_bytes(), &stat)?,
                    Err(Errno::NOENT | Errno::INVAL) => {}
                    Err(errno) => return Err(self.failed(found.path, errno)),
                }
                return Ok(None);
            }
            EntryKind::Directory => match object::directory(found.directory, found.name) {
                Ok(_) if found.depth >= MAX_DEPTH => {
                    let whole = [self.shown, b"/", found.path].concat();
                    let message = format!("`{}` lies deeper than {MAX_DEPTH} folders", shown(&whole));
                    return Err(invalid("tree-too-deep", message, "copy a folder further down by itself"));
                }
                Ok(directory) => {
                    let stat = fstat(&directory).map_err(|e| self.failed(found.path, e))?;
                    self.header(Kind::Directory, found.path, b"", &stat)?;
                    return Ok(Some(directory));
                }
                Err(error) => Err(error),
            },
            EntryKind::Symlink | EntryKind::Other => {
                self.left_out.note(found.path);
                return Ok(None);
            }
        };
        match opened {
            Ok((file, stat)) => self.file(found.path, &file, &stat).map(|()| None),
            // It went, or became something else, since it was looked at.
            Err(NotOpened::Kind(_) | NotOpened::Kernel(Errno::NOENT)) => Ok(None),
            Err(NotOpened::Kernel(errno)) => Err(self.failed(found.path, errno)),
        }
    }

    fn leave(&mut self, _: Found<'_>) -> Result<()> {
        Ok(())
    }
}
