//! Archives for file cases: built with names that a decent tool would refuse to write, and read back as plain data.

use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use futures_util::StreamExt;
use moltis_sandbox::{ByteStream, Result};

use crate::Fail;

/// What is in an archive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A directory and its mode.
    Directory(u32),
    /// A file, its mode and content.
    File(u32, Vec<u8>),
    /// A link and its target.
    Link(Vec<u8>),
}

/// A tree by name. Names are bytes, without a trailing slash.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// One archive entry with exactly this name, whatever it is.
fn entry(name: &[u8], node: &Node) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    let (kind, mode, size) = match node {
        Node::Directory(mode) => (tar::EntryType::Directory, *mode, 0),
        Node::File(mode, content) => (tar::EntryType::Regular, *mode, content.len()),
        Node::Link(_) => (tar::EntryType::Symlink, 0o777, 0),
    };
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(1_000_000_000);
    header.set_uid(0);
    header.set_gid(0);
    let raw = header.as_mut_bytes();
    raw[..100].fill(0);
    let length = name.len().min(100);
    raw[..length].copy_from_slice(&name[..length]);
    if let Node::Link(target) = node {
        let length = target.len().min(100);
        raw[157..257].fill(0);
        raw[157..157 + length].copy_from_slice(&target[..length]);
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    if let Node::File(_, content) = node {
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    }
    bytes
}

/// An archive of these entries, in this order.
pub fn archive<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a Node)>) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.into_iter().flat_map(|(name, node)| entry(name, node)).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Reads an archive back. Names lose a leading `./` and trailing slashes; the root itself is left out.
pub fn read(archive: &[u8]) -> Result<Tree, Fail> {
    let mut tree = Tree::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path_bytes().into_owned();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        let name: Vec<u8> = name.strip_suffix(b"/").unwrap_or(name).to_vec();
        if name.is_empty() || name == b"." {
            continue;
        }
        let mode = entry.header().mode()? & 0o7777;
        let node = match entry.header().entry_type() {
            tar::EntryType::Directory => Node::Directory(mode),
            tar::EntryType::Symlink => {
                Node::Link(entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default())
            }
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                Node::File(mode, content)
            }
            other => return Err(Fail::new(format!("an entry of kind {other:?}"))),
        };
        if tree.insert(name.clone(), node).is_some() {
            return Err(Fail::new(format!("{:?} twice", String::from_utf8_lossy(&name))));
        }
    }
    Ok(tree)
}

/// A stream of these bytes, in pieces.
pub fn stream(bytes: impl Into<Bytes>) -> ByteStream {
    let bytes: Bytes = bytes.into();
    let pieces: Vec<Result<Bytes>> = (0..bytes.len())
        .step_by(50_000)
        .map(|at| Ok(bytes.slice(at..bytes.len().min(at + 50_000))))
        .collect();
    futures_util::stream::iter(pieces).boxed()
}

/// A stream that brings these bytes and then breaks off.
pub fn broken_stream(bytes: impl Into<Bytes>) -> ByteStream {
    let error = moltis_sandbox::Error::Unavailable(moltis_sandbox::Diagnosis::new(
        "testkit-source-broke",
        "the source broke off",
    ));
    futures_util::stream::iter([Ok(bytes.into()), Err(error)]).boxed()
}

/// Everything that a stream brings.
pub async fn collect(mut stream: ByteStream) -> Result<Vec<u8>, Fail> {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_survive_the_round_trip() {
        let tree = Tree::from([
            (b"a".to_vec(), Node::Directory(0o755)),
            (b"a/\xff".to_vec(), Node::File(0o600, vec![7; 700])),
            (b"l".to_vec(), Node::Link(b"a".to_vec())),
        ]);
        let bytes = archive(tree.iter().map(|(n, e)| (n.as_slice(), e)));
        assert_eq!(read(&bytes).unwrap(), tree);
    }
}
