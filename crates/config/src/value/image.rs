//! Image references, taken apart by the rules of the OCI distribution so that nothing is pasted into a command.

use std::fmt;

use super::{Context, Text};
use crate::error::InvalidValue;

/// A valid image reference: `[registry[:port]/]path[:tag][@algorithm:digest]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageReference(String);

impl ImageReference {
    /// The base that is used when nobody names one.
    pub fn default_base() -> Self {
        Self("docker.io/library/ubuntu:24.04".to_owned())
    }

    /// The reference as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An image reference.
pub struct Image;

impl Text for Image {
    type Value = ImageReference;

    const NAME: &'static str = "image reference";
    const EXAMPLE: &'static str = "docker.io/library/debian:12";

    fn parse(text: &str, _: &Context) -> Result<ImageReference, InvalidValue> {
        match check(text) {
            Ok(()) => Ok(ImageReference(text.to_owned())),
            Err(why) => Err(InvalidValue::malformed(text, "an image reference", why)),
        }
    }

    fn text(value: &ImageReference) -> String {
        value.0.clone()
    }
}

fn check(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.contains("://") {
        return Err("it is a name, not a URL: leave off the scheme");
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    if let Some(digest) = digest {
        let hex = digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
        let hex = hex.or_else(|| digest.strip_prefix("sha512:").filter(|hex| hex.len() == 128));
        if !hex.is_some_and(|hex| hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))) {
            return Err("after @ comes sha256: and 64 hexadecimal digits");
        }
    }
    // A colon after the last slash begins the tag; one before it belongs to the registry's port.
    let name_end = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[name_end..].find(':') {
        Some(at) => (&rest[..name_end + at], Some(&rest[name_end + at + 1..])),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        let first = tag.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        let others = tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        if !first || !others || tag.len() > 128 {
            return Err("the tag may hold letters, digits, _, . and -, at most 128 characters");
        }
    }
    if name.is_empty() || name.len() > 255 {
        return Err("the name must have 1 to 255 characters");
    }
    let parts: Vec<_> = name.split('/').collect();
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost";
    let path = match parts.as_slice() {
        [registry, path @ ..] if !path.is_empty() && is_registry(registry) => {
            if !valid_registry(registry) {
                return Err("the registry must be a host name, with :port if need be");
            }
            path
        }
        path => path,
    };
    if path.iter().all(|part| valid_part(part)) {
        return Ok(());
    }
    if path.iter().any(|part| part.bytes().any(|b| b.is_ascii_uppercase())) {
        return Err("the name must be lower-case");
    }
    Err("the name may hold lower-case letters and digits, joined by ., _, __ or -, with / between its parts")
}

fn valid_registry(registry: &str) -> bool {
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (registry, None),
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn valid_part(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut separator = String::new();
    let mut words = 0;
    for c in part.chars() {
        if c.is_ascii() && word(c as u8) {
            let joins =
                matches!(separator.as_str(), "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-');
            if !joins || (words == 0 && !separator.is_empty()) {
                return false;
            }
            separator.clear();
            words += 1;
        } else {
            separator.push(c);
        }
    }
    words > 0 && separator.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        let digest = format!("ubuntu@sha256:{}", "a".repeat(64));
        let good = [
            "ubuntu",
            "ubuntu:24.04",
            "docker.io/library/ubuntu:24.04",
            "localhost:5000/a/b__c-d.e:v1",
            "ghcr.io/x/y",
            "a--b",
            digest.as_str(),
        ];
        for text in good {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let bad = [
            "",
            "Ubuntu",
            "a b",
            "--privileged",
            "-v",
            "a/",
            "/a",
            "a//b",
            "a:",
            "a:-x",
            "a@sha256:12",
            "a..b",
            "a___b",
            "https://x/y",
            "a\n",
            "x.y:99999/a",
            "ünï",
        ];
        for text in bad {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
