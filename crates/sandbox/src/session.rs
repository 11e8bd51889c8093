//! Session keys and the opaque ids made from them.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The name of a session: UTF-8, 1 to 512 bytes, chosen by the caller. It never appears in a path or in an engine;
/// [`SandboxId`] stands for it there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionKey(String);

impl SessionKey {
    /// Longest key in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks the length; `None` when the key is empty, too long or holds a NUL byte.
    pub fn new(key: impl Into<String>) -> Option<Self> {
        let key = key.into();
        (!key.is_empty() && key.len() <= Self::MAX_BYTES && !key.contains('\0')).then_some(Self(key))
    }

    /// The raw key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Opaque, collision-resistant id of a sandbox: the first 20 bytes of SHA-256 over a domain and the raw session key,
/// in lower-case hexadecimal (40 characters, short enough for every engine's limit).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxId(String);

impl SandboxId {
    /// The id that stands for `key` in file names, labels and engines.
    pub fn of(key: &SessionKey) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"moltis session\0");
        hash.update(key.as_str().as_bytes());
        let digest = hash.finalize();
        Self(digest[..20].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads an id back from a file name or a label; `None` unless it is 40 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
            .then(|| Self(text.to_owned()))
    }

    /// The 40 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bounded() {
        assert_eq!(SessionKey::new(""), None);
        assert_eq!(SessionKey::new("a\0b"), None);
        assert_eq!(SessionKey::new("x".repeat(513)), None);
        assert!(SessionKey::new("x".repeat(512)).is_some());
    }

    #[test]
    fn ids_hide_the_key_and_differ() {
        let keys = ["a", "A", "a/b", "a_b", "../etc", "session:heavy", "ж"];
        let ids: std::collections::BTreeSet<_> =
            keys.iter().map(|k| SandboxId::of(&SessionKey::new(*k).unwrap())).collect();
        assert_eq!(ids.len(), keys.len());
        for id in ids {
            assert_eq!(SandboxId::parse(id.as_str()), Some(id.clone()));
        }
        assert_eq!(SandboxId::parse("../../../../../../../../../../../../etc/"), None);
    }
}
