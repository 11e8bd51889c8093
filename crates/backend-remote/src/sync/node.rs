//! What is known of one file, directory or link, on either side.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// SHA-256 of a file's content.
pub type Hash = [u8; 32];

/// What something is, without when and where: two sides agree when their nodes are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Node {
    /// A regular file.
    File {
        /// Its content.
        hash: Hash,
        /// Bytes of it.
        size: u64,
        /// Permission bits, `0o777` at most.
        mode: u32,
    },
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link, whose target means nothing here.
    Link {
        /// Its target, as it was written.
        target: Vec<u8>,
    },
}

impl Node {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// Bytes of content.
    pub fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            _ => 0,
        }
    }
}

/// By what one side knows that something has not been touched. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Inode.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the content.
    pub modified: i64,
    /// Last change of anything; nobody can set it.
    pub changed: i64,
}

/// Something that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// What it was.
    pub node: Node,
    /// How it was stamped.
    pub stamp: Stamp,
    /// Whether the same stamp means the same content. What was changed just before it was looked at may be changed again
    /// within the same tick of the clock.
    pub settled: bool,
}

/// One side: paths below the top, names with single slashes between.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// The directories above a path, outer ones first.
pub fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}
