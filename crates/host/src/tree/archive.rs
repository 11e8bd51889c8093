//! A tar stream, read entry by entry. Whoever wrote it is not trusted: what is held of it is bounded.

use bytes::Bytes;
use moltis_agent_protocol::tar::{BLOCK, Extended, Header, MAX_META, Time, padding, text};
use moltis_sandbox::{Error, Result};

use super::failure::{invalid, shown};
use crate::bridge::Inflow;

/// Bytes of headers that one entry may have.
const MAX_HEADERS: usize = 4 * 1024 * 1024;

/// Longest path of an entry in bytes. Longer than the kernel's own limit, since it is never given to it whole.
const MAX_PATH: usize = 1024 * 1024;

/// A tar stream.
pub struct Archive<'a> {
    inflow: &'a mut Inflow,
    /// Bytes of the current entry's content that were not taken yet.
    content: u64,
    /// Bytes that fill the current entry's last block.
    filling: u64,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// One entry, before its content.
#[derive(Debug)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Its name: names with single slashes between, none of them `.` or `..`. Empty for the top itself.
    pub path: Vec<u8>,
    /// Where a link leads.
    pub target: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of content that follow.
    pub size: u64,
    /// Last change.
    pub mtime: Time,
    /// Its headers, as they were.
    pub raw: Vec<u8>,
}

fn broken(what: &str) -> Error {
    invalid("request-invalid", format!("the archive holds {what}"), "pack it anew")
}

impl<'a> Archive<'a> {
    /// A stream at its start.
    pub fn new(inflow: &'a mut Inflow) -> Self {
        Self { inflow, content: 0, filling: 0 }
    }

    /// The next entry; what was not taken of the one before is skipped.
    ///
    /// # Errors
    /// When it is no entry that could be unpacked, or the stream breaks off.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        self.skip()?;
        let mut extended = Extended::default();
        let mut raw = Vec::new();
        let mut zeros = 0;
        loop {
            let mut block = [0; BLOCK];
            match self.inflow.fill(&mut block)? {
                0 => return Ok(None),
                BLOCK => {}
                _ => return Err(broken("half a header")),
            }
            let Some(header) = Header::read(&block).map_err(broken)? else {
                zeros += 1;
                if zeros == 2 {
                    // What follows the end is filling.
                    while self.inflow.next(u64::MAX)?.is_some() {}
                    return Ok(None);
                }
                continue;
            };
            zeros = 0;
            raw.extend_from_slice(&block);
            match header.kind {
                b'L' => extended.name = Some(text(&self.meta(&header, &mut raw)?).to_vec()),
                b'K' => extended.target = Some(text(&self.meta(&header, &mut raw)?).to_vec()),
                b'x' => extended.read(&self.meta(&header, &mut raw)?).map_err(broken)?,
                b'g' => drop(self.meta(&header, &mut raw)?),
                _ => return self.item(header, extended, raw).map(Some),
            }
        }
    }

    /// Content that describes the next entry.
    fn meta(&mut self, header: &Header, raw: &mut Vec<u8>) -> Result<Vec<u8>> {
        let whole = header.size + padding(header.size) as u64;
        if header.size > MAX_META || raw.len() as u64 + whole > MAX_HEADERS as u64 {
            return Err(broken("names or extended headers that are too long"));
        }
        let start = raw.len();
        raw.resize(start + whole as usize, 0);
        if self.inflow.fill(&mut raw[start..])? < whole as usize {
            return Err(broken("half a name"));
        }
        Ok(raw[start..start + header.size as usize].to_vec())
    }

    fn item(&mut self, header: Header, extended: Extended, raw: Vec<u8>) -> Result<Item> {
        let name = extended.name.unwrap_or(header.name);
        let refuse = |what: &str| {
            invalid("file-wrong-kind", format!("`{}` in the archive is {what}", shown(&name)), "leave it out")
        };
        let size = extended.size.unwrap_or(header.size);
        let is_directory = header.kind == b'5' || (matches!(header.kind, 0 | b'0') && name.ends_with(b"/"));
        let kind = match header.kind {
            _ if extended.is_sparse => {
                return Err(refuse("stored as a sparse file, which is not unpacked"));
            }
            _ if is_directory => Kind::Directory,
            0 | b'0' | b'7' => Kind::File,
            b'2' => Kind::Symlink,
            b'1' => return Err(refuse("a hard link, which is not unpacked")),
            b'3' | b'4' => return Err(refuse("a device, which is not unpacked")),
            b'6' => return Err(refuse("a FIFO, which is not unpacked")),
            b'S' => return Err(refuse("stored as a sparse file, which is not unpacked")),
            _ => return Err(refuse("of a kind that is not known")),
        };
        // Some archives state a size for directories and links that is none of content.
        let size = if kind == Kind::File || header.kind == b'0' || header.kind == 0 { size } else { 0 };
        let path = cleaned(&name)?;
        let target = extended.target.unwrap_or(header.target);
        match kind {
            Kind::File if path.is_empty() => return Err(broken("a file without a name")),
            Kind::Symlink if path.is_empty() || target.is_empty() || target.contains(&0) => {
                return Err(broken("a link without a name or a target"));
            }
            _ => {}
        }
        (self.content, self.filling) = (size, padding(size) as u64);
        let mtime = extended.mtime.unwrap_or(Time { seconds: header.mtime, nanos: 0 });
        Ok(Item { kind, path, target, mode: header.mode, size, mtime, raw })
    }

    /// The next bytes of the current entry's content; `None` at its end.
    ///
    /// # Errors
    /// When the stream ends in the middle of it.
    pub fn content(&mut self) -> Result<Option<Bytes>> {
        if self.content == 0 {
            return Ok(None);
        }
        match self.inflow.next(self.content)? {
            Some(bytes) => {
                self.content -= bytes.len() as u64;
                Ok(Some(bytes))
            }
            None => Err(broken("half a file")),
        }
    }

    fn skip(&mut self) -> Result<()> {
        let mut left = std::mem::take(&mut self.content).saturating_add(std::mem::take(&mut self.filling));
        while left > 0 {
            match self.inflow.next(left)? {
                Some(bytes) => left -= bytes.len() as u64,
                None => return Err(broken("half a file")),
            }
        }
        Ok(())
    }
}

/// A name from an archive, brought into plain form.
fn cleaned(name: &[u8]) -> Result<Vec<u8>> {
    let escapes = || {
        invalid(
            "archive-escapes",
            format!("`{}` in the archive leads outside of it", shown(name)),
            "pack it with plain names",
        )
    };
    if name.starts_with(b"/") {
        return Err(escapes());
    }
    if name.contains(&0) || name.len() > MAX_PATH {
        return Err(broken("a name that cannot be one"));
    }
    let parts: Vec<_> =
        name.split(|byte| *byte == b'/').filter(|part| !matches!(part, &b"" | &b".")).collect();
    if parts.contains(&&b".."[..]) { Err(escapes()) } else { Ok(parts.join(&b'/')) }
}

/// The directory part and the last name of a plain path that is not empty.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
