//! Snapshots: what a sandbox held at a moment, from which others can begin.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a snapshot: `snap-` and 16 hexadecimal digits. It says nothing of the session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SnapshotId(String);

impl SnapshotId {
    const PREFIX: &str = "snap-";

    /// `None` unless it is an id as they are given out, so that it can be a part of a path or of a tag.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (digits.len() == 16 && digits.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("no id of a snapshot")
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a snapshot of a backend's sandboxes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotKind {
    /// What was written to its file system. Processes and memory are not in it.
    FileSystem,
    /// That and its memory, with the processes that ran.
    MemoryAndFileSystem,
}

/// From what a sandbox begins instead of from nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beginning {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// What [`Backend::commit`](crate::Backend::commit) gave for it, if it gave anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_of_one_form_alone() {
        let good = "snap-0123456789abcdef";
        assert_eq!(SnapshotId::parse(good).unwrap().as_str(), good);
        for bad in [
            "",
            "snap-",
            "snap-0123456789ABCDEF",
            "snap-0123456789abcde/",
            "0123456789abcdef",
            "snap-../../../../etc",
        ] {
            assert_eq!(SnapshotId::parse(bad), None, "{bad}");
        }
        assert!(serde_json::from_str::<SnapshotId>("\"../x\"").is_err());
    }
}
