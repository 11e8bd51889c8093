//! Labels: what says that a container or an image is ours, whose, and what it was made by. Names say nothing.

use std::collections::BTreeMap;
use std::path::Path;

use moltis_sandbox::{Lifetime, SandboxId};
use sha2::{Digest, Sha256};

/// The data directory that a container or an image belongs to, as [`instance`] says it.
pub const INSTANCE: &str = "org.moltis.instance";
/// The sandbox's opaque id.
pub const SESSION: &str = "org.moltis.session";
/// Fingerprint of the spec that it was made by.
pub const FINGERPRINT: &str = "org.moltis.fingerprint";
/// When it was made, in seconds since 1970.
pub const CREATED: &str = "org.moltis.created";
/// `ephemeral` or `session`.
pub const LIFETIME: &str = "org.moltis.lifetime";

/// Labels that earlier versions gave their containers, which bore no instance.
pub const LEGACY: [&str; 2] = ["org.moltis.managed-files-mount", "org.moltis.podman-mode"];

/// What stands for a data directory in an engine: a hash of the machine and of the directory's own identity, so that two
/// directories on one engine, or a directory and its copy, are never taken for each other, wherever they are moved to.
/// The identity is the inode and when it was made; the number of its device, which another boot may change, counts only
/// where the file system does not know that time. Blocks on two look-ups.
///
/// # Errors
/// When the directory cannot be looked at.
pub fn instance(data_dir: &Path) -> std::io::Result<String> {
    use std::os::unix::fs::MetadataExt;

    let found = std::fs::metadata(data_dir)?;
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(b"moltis instance\0");
    hash.update(machine.trim().as_bytes());
    let made = found.created().ok().and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
    let made = made.map_or_else(|| format!("device {}", found.dev()), |made| made.as_nanos().to_string());
    hash.update(format!("\0{made}\0{}", found.ino()).as_bytes());
    Ok(hex(&hash.finalize()[..10]))
}

/// The labels of a sandbox's container.
pub fn of(
    instance: &str,
    id: &SandboxId,
    fingerprint: &str,
    lifetime: Lifetime,
    created_secs: u64,
) -> BTreeMap<String, String> {
    let lifetime = match lifetime {
        Lifetime::Ephemeral => "ephemeral",
        Lifetime::Idle(_) => "session",
    };
    [
        (INSTANCE, instance.to_owned()),
        (SESSION, id.to_string()),
        (FINGERPRINT, fingerprint.to_owned()),
        (CREATED, created_secs.to_string()),
        (LIFETIME, lifetime.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The name of a sandbox's container: for people only. It differs between data directories, and stays below the 64
/// characters that every engine takes.
pub fn name(prefix: &str, instance: &str, id: &SandboxId) -> String {
    let prefix: String = prefix.chars().take(24).collect();
    let instance: String = instance.chars().take(8).collect();
    let id: String = id.as_str().chars().take(24).collect();
    format!("{prefix}-{instance}-{id}")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::SessionKey;

    use super::*;

    #[test]
    fn a_copy_of_a_data_directory_is_another_instance_and_a_moved_one_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let place = |name: &str| temp.path().join(name);
        for name in ["a", "b"] {
            std::fs::create_dir(place(name)).unwrap();
        }
        let a = instance(&place("a")).unwrap();
        assert_ne!(a, instance(&place("b")).unwrap());
        std::fs::rename(place("a"), place("c")).unwrap();
        assert_eq!(a, instance(&place("c")).unwrap());
        assert!(instance(&place("a")).is_err());
    }

    #[test]
    fn a_name_is_short_and_tells_nothing_of_the_key() {
        let key = SessionKey::new("secret ".repeat(70)).unwrap();
        let id = SandboxId::of(&key);
        let one = name(&"p".repeat(100), "0123456789", &id);
        assert!(one.len() <= 64 && !one.contains("secret"), "{one}");
        assert_ne!(one, name(&"p".repeat(100), "9123456789", &id));
    }
}
