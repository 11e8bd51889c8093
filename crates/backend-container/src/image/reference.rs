//! References of images: parsed by the rules of the OCI distribution, never pasted into a command.

use moltis_config::parse_image;
use moltis_sandbox::{Diagnosis, Error, Result};

/// Sees that this is a reference of an image; a bare id with its algorithm counts as one too.
///
/// # Errors
/// `image-invalid`.
pub fn see(reference: &str) -> Result<()> {
    if is_id(reference) {
        return Ok(());
    }
    match parse_image(reference) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Invalid(
            Diagnosis::new("image-invalid", error.to_string())
                .fix("write it like docker.io/library/debian:12"),
        )),
    }
}

/// Whether this is the id of an image, a digest.
pub fn is_id(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The reference as engines write it among an image's tags, as far as that can be known without one: with a tag.
pub fn with_tag(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    if name.contains([':', '@']) { reference.to_owned() } else { format!("{reference}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_references_and_ids_pass() {
        let id = format!("sha256:{}", "a".repeat(64));
        for good in ["ubuntu", "localhost:5000/a/b:c", id.as_str()] {
            assert_eq!(see(good), Ok(()), "{good}");
        }
        for bad in ["", "--privileged", "a b", "a\nRUN x", "sha256:-", "a;b", "$(x)"] {
            assert_eq!(see(bad).unwrap_err().code(), "image-invalid", "{bad}");
        }
    }

    #[test]
    fn a_tag_is_filled_in() {
        assert_eq!(with_tag("localhost:5000/a"), "localhost:5000/a:latest");
        assert_eq!(with_tag("a/b:c"), "a/b:c");
        assert_eq!(with_tag("a@sha256:0"), "a@sha256:0");
    }
}
