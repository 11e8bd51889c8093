//! What is drawn by lot and handed out once: tokens, keys, cookies.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::error::GatewayError;

/// Begins an admin token.
pub const TOKEN: &str = "mt_";

/// Begins an API key.
pub const KEY: &str = "mk_";

/// 256 bits by lot, after what says of which kind it is.
///
/// # Errors
/// `Random`.
pub fn draw(kind: &str) -> Result<String, GatewayError> {
    let mut bytes = [0; 32];
    fill(&mut bytes)?;
    Ok(format!("{kind}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// A short name by lot, such as of a request.
pub fn name() -> String {
    let mut bytes = [0; 12];
    // A name need not be secret; one that is no longer unique costs a line in a log.
    let _ = fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn fill(bytes: &mut [u8]) -> Result<(), GatewayError> {
    let mut source = std::fs::File::open("/dev/urandom").map_err(GatewayError::Random)?;
    source.read_exact(bytes).map_err(GatewayError::Random)
}

/// What is kept of a secret.
pub fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_plain_and_never_the_same() {
        let (a, b) = (draw(KEY).unwrap(), draw(KEY).unwrap());
        assert!(a != b && a.len() == 46 && a.starts_with("mk_"));
        assert!(a.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)));
        assert_eq!(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
