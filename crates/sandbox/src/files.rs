//! Files of a sandbox: the same operations on every backend, streamed, with guest paths that cannot be mistaken for
//! host paths.

use std::ffi::OsString;
use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::Result;

/// An absolute path inside a sandbox, as bytes. It has no `AsRef<Path>` on purpose: a guest path is never joined to
/// a host path.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuestPath(Vec<u8>);

impl GuestPath {
    /// Longest path in bytes (the kernel's `PATH_MAX` with its NUL).
    pub const MAX_BYTES: usize = 4095;

    /// `None` unless the path is absolute, without NUL and no longer than [`Self::MAX_BYTES`].
    pub fn new(path: impl Into<Vec<u8>>) -> Option<Self> {
        let path = path.into();
        (path.first() == Some(&b'/') && path.len() <= Self::MAX_BYTES && !path.contains(&0))
            .then_some(Self(path))
    }

    /// The raw bytes, for the protocol.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl fmt::Debug for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestPath({self})")
    }
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device: named, never opened.
    Other,
}

/// What is known of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes; of a link, the length of its target.
    pub size: u64,
    /// Permission bits (`0o7777`).
    pub mode: u32,
    /// Last change of the content, in nanoseconds since 1970.
    pub modified_nanos: i64,
    /// Owner inside the sandbox.
    pub uid: u32,
    /// Group inside the sandbox.
    pub gid: u32,
    /// Target, of a link.
    pub target: Option<OsString>,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name, any bytes but `/` and NUL.
    pub name: OsString,
    /// What it is; of a link, the link itself.
    pub metadata: Metadata,
}

/// Bytes that arrive over time; not reading holds the sender back.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// Entries that arrive over time, in no order.
pub type EntryStream = Pin<Box<dyn Stream<Item = Result<Entry>> + Send>>;

/// An open file and its content.
pub struct FileContent {
    /// The opened object's own metadata.
    pub metadata: Metadata,
    /// The asked-for range of its content.
    pub content: ByteStream,
}

/// How to write a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits for a new file; an existing one keeps its own unless this is set.
    pub mode: Option<u32>,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
    /// Make missing directories above it.
    pub parents: bool,
}

/// What a whole-tree upload did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeSummary {
    /// Files, directories and links made.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
}

/// File access inside one sandbox. FIFOs, sockets and devices are never opened.
#[async_trait]
pub trait Files: Send + Sync {
    /// Metadata; of a link itself unless `follow`.
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata>;
    /// Entries of a directory, without `.` and `..`.
    async fn list(&self, path: &GuestPath) -> Result<EntryStream>;
    /// Content from `offset` on, `length` bytes at most.
    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent>;
    /// Replaces the file at once when all content has arrived; on any error the old content stays.
    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata>;
    /// Makes a directory; with `parents` also those above, and an existing one is no error.
    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()>;
    /// Removes a file, link or empty directory; with `recursive` a whole tree, never following links.
    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()>;
    /// Moves within the sandbox; refuses an existing target unless `replace`.
    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()>;
    /// The tree at `path` as a tar stream with names relative to it (files, directories, links, modes, times).
    async fn download(&self, path: &GuestPath) -> Result<ByteStream>;
    /// Unpacks a tar stream beneath the directory `path`, which is made if missing. Names that leave it are refused.
    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary>;
}
