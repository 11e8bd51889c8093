//! The first eight bytes of each side: six that say what this is and two that say which version. Their form never
//! changes, so that any two versions can at least say that they do not fit.

/// Version of everything after the hello. It changes whenever a message or a frame does. One that is added after all
/// others changes none: an agent that does not know it answers `Failed` with `Invalid`, and goes on.
pub const VERSION: u16 = 6;

/// Length of a hello in bytes.
pub const HELLO_BYTES: usize = 8;

const MAGIC: &[u8; 6] = b"MOLTIS";

/// Why a hello was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The other side is not a Moltis agent or host.
    #[error("the other side does not speak the agent protocol")]
    Magic,
    /// It is, but of another version.
    #[error("the other side speaks version {theirs} of the agent protocol, this one version {VERSION}")]
    Version {
        /// The version it speaks.
        theirs: u16,
    },
}

/// Our hello.
pub fn hello() -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..6].copy_from_slice(MAGIC);
    bytes[6..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Judges the other side's hello.
///
/// # Errors
/// When the bytes are no hello, or one of another version.
pub fn check(theirs: [u8; HELLO_BYTES]) -> Result<(), HelloError> {
    if &theirs[..6] != MAGIC {
        return Err(HelloError::Magic);
    }
    match u16::from_le_bytes([theirs[6], theirs[7]]) {
        VERSION => Ok(()),
        theirs => Err(HelloError::Version { theirs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_judged_by_magic_and_version() {
        assert_eq!(check(hello()), Ok(()));
        assert_eq!(check(*b"HTTP/1.1"), Err(HelloError::Magic));
        let mut other = hello();
        other[6..].copy_from_slice(&999u16.to_le_bytes());
        assert_eq!(check(other), Err(HelloError::Version { theirs: 999 }));
    }
}
