//! Archives on their way in: only files, directories and links with names that stay beneath reach the sandbox's `tar`, and
//! in headers of our own, since every `tar` reads the odder ones in its own way.

use std::collections::HashSet;

use futures_util::StreamExt;
use moltis_agent_protocol::tar::{BLOCK, Entry, Extended, Header, Kind, MAX_META, Time, padding, text};
use moltis_sandbox::files::{ByteStream, TreeSummary};
use moltis_sandbox::{Diagnosis, Error, Result};
use tokio::io::AsyncWriteExt;

use crate::runs::Sink;

/// Bytes that may be spent on remembering links.
const MAX_REMEMBERED: usize = 16 << 20;

/// Sends a checked archive to a program; what was in it. The input ends with this, whatever becomes of it.
pub async fn checked(stdin: &mut Option<Sink>, tar: ByteStream) -> Result<TreeSummary> {
    let mut unpacking = Unpacking {
        source: Source { tar, rest: bytes::Bytes::new() },
        sink: stdin.take(),
        links: HashSet::new(),
        remembered: 0,
        summary: TreeSummary::default(),
    };
    let passed = unpacking.run().await;
    if passed.is_ok() {
        unpacking.send(&[0; 2 * BLOCK]).await;
    }
    if let Some(mut sink) = unpacking.sink.take() {
        let _ = sink.flush().await;
        let _ = sink.shutdown().await;
    }
    passed.map(|()| unpacking.summary)
}

struct Source {
    tar: ByteStream,
    rest: bytes::Bytes,
}

impl Source {
    /// Some bytes, at most this many; `None` at the end.
    async fn next(&mut self, most: u64) -> Result<Option<bytes::Bytes>> {
        while self.rest.is_empty() {
            match self.tar.next().await {
                Some(piece) => self.rest = piece?,
                None => return Ok(None),
            }
        }
        let length = self.rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Some(self.rest.split_to(length)))
    }

    /// A whole block; `None` at the end.
    async fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match self.next((BLOCK - have) as u64).await? {
                Some(piece) => {
                    block[have..have + piece.len()].copy_from_slice(&piece);
                    have += piece.len();
                }
                None if have == 0 => return Ok(None),
                None => return Err(broken("half a header")),
            }
        }
        Ok(Some(block))
    }

    async fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let Some(piece) = self.next(count).await? else { return Err(broken("half a block")) };
            count -= piece.len() as u64;
        }
        Ok(())
    }

    /// Content that describes the next entry.
    async fn meta(&mut self, header: &Header) -> Result<Vec<u8>> {
        if header.size > MAX_META {
            return Err(broken("a name or an extended header above 1 MiB"));
        }
        let mut content = Vec::new();
        let mut left = header.size;
        while left > 0 {
            let Some(piece) = self.next(left).await? else { return Err(broken("half a name")) };
            content.extend_from_slice(&piece);
            left -= piece.len() as u64;
        }
        self.skip(padding(header.size) as u64).await?;
        Ok(content)
    }
}

struct Unpacking {
    source: Source,
    sink: Option<Sink>,
    links: HashSet<Vec<u8>>,
    remembered: usize,
    summary: TreeSummary,
}

impl Unpacking {
    async fn run(&mut self) -> Result<()> {
        let mut extended = Extended::default();
        let mut zeros = 0;
        while let Some(block) = self.source.block().await? {
            let Some(header) = Header::read(&block).map_err(broken)? else {
                zeros += 1;
                if zeros == 2 {
                    // What follows the end is filling.
                    while self.source.next(u64::MAX).await?.is_some() {}
                    return Ok(());
                }
                continue;
            };
            zeros = 0;
            match header.kind {
                b'L' => extended.name = Some(text(&self.source.meta(&header).await?).to_vec()),
                b'K' => extended.target = Some(text(&self.source.meta(&header).await?).to_vec()),
                b'x' => extended.read(&self.source.meta(&header).await?).map_err(broken)?,
                b'g' => drop(self.source.meta(&header).await?),
                _ => self.entry(header, std::mem::take(&mut extended)).await?,
            }
        }
        Ok(())
    }

    async fn entry(&mut self, header: Header, extended: Extended) -> Result<()> {
        let name = extended.name.unwrap_or(header.name);
        let size = extended.size.unwrap_or(header.size);
        let Time { seconds, .. } = extended.mtime.unwrap_or(Time { seconds: header.mtime, nanos: 0 });
        let mut path = beneath(&name)?;
        let is_directory = header.kind == b'5' || (matches!(header.kind, 0 | b'0') && name.ends_with(b"/"));
        let kind = match header.kind {
            _ if is_directory => Kind::Directory,
            0 | b'0' | b'7' if !extended.is_sparse => Kind::File,
            b'2' => Kind::Symlink,
            _ => return Err(refused(&name, "neither a plain file, nor a directory, nor a symbolic link")),
        };
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.links.contains(&path[..at]) {
                return Err(refused(&name, "beneath a link that the archive holds"));
            }
        }
        if path.is_empty() {
            // The directory itself, whose content may not be a file's.
            return if kind == Kind::Directory { Ok(()) } else { Err(refused(&name, "without a name")) };
        }
        if kind == Kind::Symlink {
            self.remembered += path.len() + 64;
            if self.remembered > MAX_REMEMBERED {
                return Err(broken("more links than can be checked"));
            }
            self.links.insert(path.clone());
        } else {
            // It takes the link's place.
            self.links.remove(&path);
        }
        if kind == Kind::Directory {
            path.push(b'/');
        }
        let content = if kind == Kind::File { size } else { 0 };
        let target = extended.target.unwrap_or(header.target);
        let mut head = Vec::new();
        let entry = Entry {
            kind,
            name: &path,
            target: if kind == Kind::Symlink { &target } else { b"" },
            mode: header.mode & 0o777,
            uid: 0,
            gid: 0,
            size: content,
            mtime: seconds,
        };
        entry.write(&mut head);
        self.send(&head).await;
        let mut left = content;
        while left > 0 {
            let Some(piece) = self.source.next(left).await? else { return Err(broken("half a file")) };
            left -= piece.len() as u64;
            self.send(&piece).await;
        }
        if kind == Kind::File {
            self.source.skip(padding(content) as u64).await?;
            self.send(&[0; BLOCK][..padding(content)]).await;
        } else if header.kind != b'5' && header.kind != b'2' {
            // Some archives state a size for directories that is none of content.
            self.source.skip(size + padding(size) as u64).await?;
        }
        self.summary.entries += 1;
        self.summary.bytes += content;
        Ok(())
    }

    /// A program that takes no more says why by its end.
    async fn send(&mut self, bytes: &[u8]) {
        if let Some(sink) = &mut self.sink
            && sink.write_all(bytes).await.is_err()
        {
            self.sink = None;
        }
    }
}

/// A name without what means nothing, if it stays beneath.
fn beneath(name: &[u8]) -> Result<Vec<u8>> {
    if name.first() == Some(&b'/') {
        return Err(refused(name, "absolute"));
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(refused(name, "a name that climbs")),
            part if part.contains(&0) => return Err(refused(name, "no name")),
            part => parts.push(part),
        }
    }
    Ok(parts.join(&b'/'))
}

fn refused(name: &[u8], what: &str) -> Error {
    let name = crate::said::plain(name);
    Error::Invalid(Diagnosis::new("file-wrong-kind", format!("`{name}` in the archive is {what}")))
}

fn broken(what: &'static str) -> Error {
    Error::Invalid(
        Diagnosis::new("archive-broken", "the archive cannot be read").cause(format!("it holds {what}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_beneath() {
        assert_eq!(beneath(b"./a//b/").unwrap(), b"a/b");
        assert_eq!(beneath(b".").unwrap(), b"");
        for name in [b"/a".as_slice(), b"..", b"a/../b", b"a\0b"] {
            assert!(beneath(name).is_err());
        }
    }
}
