//! What a relay shows to the agent of its sandbox.

use std::io::Read;

use moltis_agent_protocol::relay::{SECRET_BYTES, Secret};

/// The secret of one sandbox. It is never shown: not in arguments, variables, messages or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct RelaySecret(Secret);

impl RelaySecret {
    /// A new one, from the system's random numbers.
    ///
    /// # Errors
    /// When there are none.
    pub fn generate() -> std::io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// One that was kept.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be kept where only the owner of the sandbox can read.
    pub fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for RelaySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RelaySecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same_and_none_is_shown() {
        let (one, other) = (RelaySecret::generate().unwrap(), RelaySecret::generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(RelaySecret::from_bytes(*one.as_bytes()), one);
        assert_eq!(format!("{one:?}"), "RelaySecret(…)");
    }
}
