//! An archive that an engine sends of a container's files, read entry by entry. Whoever made the image decided what is
//! in it: what is read and held of it is bounded, and nothing of it is written to a disk of ours.

use moltis_agent_protocol::tar::{BLOCK, Extended, Header, padding, text};
use tokio::io::AsyncReadExt;

use crate::engine::Bytes;

/// Bytes of long names and extended headers that one entry may have.
const MAX_META: u64 = 64 * 1024;

/// Extended headers that one entry may have.
const MAX_HEADERS: u32 = 16;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, or another name of one.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a FIFO, or something that is not known.
    Other,
}

/// One entry, before its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// The parts of its name that are not empty, `.` or `..`.
    pub parts: Vec<Vec<u8>>,
    /// Where a link leads.
    pub target: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// Why an archive cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The stream broke.
    #[error("the archive breaks off: {0}")]
    Stream(String),
    /// It is no archive as engines make them.
    #[error("the archive holds {0}")]
    Malformed(&'static str),
    /// There is more of it than is looked at.
    #[error("the archive is longer than is looked at")]
    TooLong,
}

/// An archive.
pub struct Archive {
    stream: Bytes,
    /// Bytes that may still be read.
    budget: u64,
    /// Bytes of the current entry's content, with what fills its last block, that were not read.
    content: u64,
    filling: u64,
}

impl Archive {
    /// A stream at its start, of which at most `budget` bytes are read.
    pub fn new(stream: Bytes, budget: u64) -> Self {
        Self { stream, budget, content: 0, filling: 0 }
    }

    /// The next entry; what was not taken of the one before is skipped.
    pub async fn next(&mut self) -> Result<Option<Entry>, Broken> {
        self.skip().await?;
        let mut extended = Extended::default();
        for _ in 0..=MAX_HEADERS {
            let mut block = [0; BLOCK];
            if !self.fill(&mut block).await? {
                return Ok(None);
            }
            let Some(header) = Header::read(&block).map_err(Broken::Malformed)? else { return Ok(None) };
            match header.kind {
                b'L' => extended.name = Some(text(&self.meta(&header).await?).to_vec()),
                b'K' => extended.target = Some(text(&self.meta(&header).await?).to_vec()),
                b'x' => extended.read(&self.meta(&header).await?).map_err(Broken::Malformed)?,
                b'g' => drop(self.meta(&header).await?),
                _ => return Ok(Some(self.entry(header, extended))),
            }
        }
        Err(Broken::Malformed("an entry with too many headers"))
    }

    fn entry(&mut self, header: Header, extended: Extended) -> Entry {
        let kind = match header.kind {
            0 | b'0' | b'7' if header.name.ends_with(b"/") => Kind::Directory,
            // Another name of a file that would have come before, had the archive held it.
            0 | b'0' | b'1' | b'7' => Kind::File,
            b'5' => Kind::Directory,
            b'2' => Kind::Link,
            _ => Kind::Other,
        };
        // Some archives state a size for what has no content.
        let size = match header.kind {
            b'1'..=b'6' => 0,
            _ => extended.size.unwrap_or(header.size),
        };
        (self.content, self.filling) = (size, padding(size) as u64);
        let name = extended.name.unwrap_or(header.name);
        let parts = name.split(|byte| *byte == b'/').filter(|part| !matches!(part, &b"" | &b"." | &b".."));
        Entry {
            kind,
            parts: parts.map(<[u8]>::to_vec).collect(),
            target: extended.target.unwrap_or(header.target),
            mode: header.mode,
        }
    }

    /// The first `limit` bytes of the current entry's content, and whether that is all of it.
    pub async fn content(&mut self, limit: u64) -> Result<(Vec<u8>, bool), Broken> {
        let length = self.content.min(limit);
        let whole = length == self.content;
        self.spend(length)?;
        let mut bytes = Vec::new();
        let mut part = (&mut self.stream).take(length);
        part.read_to_end(&mut bytes).await.map_err(|error| Broken::Stream(error.to_string()))?;
        self.content -= bytes.len() as u64;
        if bytes.len() as u64 == length { Ok((bytes, whole)) } else { Err(HALF) }
    }

    /// Content that describes the next entry.
    async fn meta(&mut self, header: &Header) -> Result<Vec<u8>, Broken> {
        if header.size > MAX_META {
            return Err(Broken::Malformed("a name or an extended header that is too long"));
        }
        (self.content, self.filling) = (header.size, padding(header.size) as u64);
        let bytes = self.content(MAX_META).await?.0;
        self.skip().await?;
        Ok(bytes)
    }

    async fn skip(&mut self) -> Result<(), Broken> {
        let left = std::mem::take(&mut self.content).saturating_add(std::mem::take(&mut self.filling));
        self.spend(left)?;
        let mut part = (&mut self.stream).take(left);
        let skipped = tokio::io::copy(&mut part, &mut tokio::io::sink()).await;
        match skipped.map_err(|error| Broken::Stream(error.to_string()))? {
            skipped if skipped == left => Ok(()),
            _ => Err(HALF),
        }
    }

    /// Fills the block; `false` when the stream is at its end.
    async fn fill(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, Broken> {
        self.spend(BLOCK as u64)?;
        let mut filled = 0;
        while filled < BLOCK {
            match self.stream.read(&mut block[filled..]).await {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(HALF),
                Ok(read) => filled += read,
                Err(error) => return Err(Broken::Stream(error.to_string())),
            }
        }
        Ok(true)
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Broken> {
        self.budget = self.budget.checked_sub(bytes).ok_or(Broken::TooLong)?;
        Ok(())
    }
}

const HALF: Broken = Broken::Malformed("half an entry");

#[cfg(test)]
mod tests {
    use moltis_agent_protocol::tar;
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: Vec<u8>, budget: u64) -> (Vec<(Entry, Vec<u8>)>, Option<Broken>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut archive = Archive::new(Box::new(std::io::Cursor::new(bytes)), budget);
            let mut all = Vec::new();
            loop {
                match archive.next().await {
                    Ok(Some(entry)) => match archive.content(8).await {
                        Ok((content, _)) => all.push((entry, content)),
                        Err(broken) => return (all, Some(broken)),
                    },
                    Ok(None) => return (all, None),
                    Err(broken) => return (all, Some(broken)),
                }
            }
        })
    }

    fn pack(name: &[u8], kind: tar::Kind, target: &[u8], content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let size = content.len() as u64;
        tar::Entry { kind, name, target, mode: 0o755, uid: 0, gid: 0, size, mtime: 0 }.write(&mut out);
        out.extend_from_slice(content);
        out.resize(out.len() + padding(size), 0);
        out
    }

    #[test]
    fn entries_are_read_and_their_content_is_cut() {
        let long = [b"sandbox/".as_slice(), &[b'n'; 200]].concat();
        let bytes = [
            pack(b"sandbox/", tar::Kind::Directory, b"", b""),
            pack(&long, tar::Kind::File, b"", b"0123456789"),
            pack(b"sandbox/../../l", tar::Kind::Symlink, b"/etc", b""),
            vec![0; 1024],
        ]
        .concat();
        let entry = |kind, parts: &[&[u8]], target: &[u8]| Entry {
            kind,
            parts: parts.iter().map(|part| part.to_vec()).collect(),
            target: target.to_vec(),
            mode: 0o755,
        };
        let expected = vec![
            (entry(Kind::Directory, &[b"sandbox"], b""), vec![]),
            (entry(Kind::File, &[b"sandbox", &[b'n'; 200]], b""), b"01234567".to_vec()),
            (entry(Kind::Link, &[b"sandbox", b"l"], b"/etc"), vec![]),
        ];
        assert_eq!(read(bytes.clone(), u64::MAX), (expected, None));
        let (_, broken) = read(bytes, 2048);
        assert_eq!(broken, Some(Broken::TooLong));
    }

    #[test]
    fn a_size_beyond_all_measure_takes_no_memory() {
        let mut out = Vec::new();
        let entry = tar::Entry {
            kind: tar::Kind::File,
            name: b"a",
            target: b"",
            mode: 0,
            uid: 0,
            gid: 0,
            size: 1 << 60,
            mtime: 0,
        };
        entry.write(&mut out);
        out.extend_from_slice(&[1; 100]);
        let (all, broken) = read(out, 1 << 20);
        assert_eq!((all.len(), broken), (1, Some(Broken::TooLong)));
    }

    proptest! {
        /// Whatever the bytes are, reading ends, and no more than the budget is read.
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            read(bytes, 4096);
        }

        /// The same for archives that were right before something in them was changed.
        #[test]
        fn a_broken_archive_is_read_to_an_end(at in 0usize..2048, byte in any::<u8>()) {
            let mut bytes = [
                pack(&[b'x'; 150], tar::Kind::Symlink, &[b'y'; 150], b""),
                pack(b"etc/passwd", tar::Kind::File, b"", &[b'p'; 700]),
            ].concat();
            let at = at % bytes.len();
            bytes[at] = byte;
            // Its check sum is made right again, so that what follows it is looked at.
            let start = at / BLOCK * BLOCK;
            let mut block: [u8; BLOCK] = bytes[start..start + BLOCK].try_into().unwrap();
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            bytes[start + 148..start + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            read(bytes, 1 << 16);
        }
    }
}
