//! The private key, from its file.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use moltis_sandbox::Diagnosis;
use russh::keys::PrivateKey;

use crate::error::{Error, Result};

/// Bytes of a key file, at most.
const MAX: u64 = 64 << 10;

/// Reads a private key that only its owner may read, who is this user or root. Blocks.
///
/// # Errors
/// [`Error::Missing`], which never shows what is in the file.
pub fn read(path: &Path) -> Result<Arc<PrivateKey>> {
    let shown = path.display();
    let wrong = |code, message: String, cause: String, fix: &str| {
        Error::Missing(Diagnosis::new(code, message).cause(cause).fix(fix))
    };
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    let unreadable = |cause: std::io::Error| {
        wrong(
            "firecracker-ssh-key-missing",
            format!("the key {shown} cannot be read"),
            cause.to_string(),
            "set `firecracker_ssh_key` to a private key that `sandbox` in the root file system lets in, or remove \
             the setting: our agent then comes with an initrd and needs no SSH",
        )
    };
    let file = opened.map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(unreadable(std::io::Error::other("it is no regular file")));
    }
    if !may_own(found.uid(), rustix::process::geteuid().as_raw()) {
        return Err(wrong(
            "firecracker-ssh-key-owner",
            format!("the key {shown} is another user's"),
            format!("it belongs to the user {}, who may change it", found.uid()),
            "`chown` it to the user that Moltis runs as, or to root",
        ));
    }
    if found.mode() & 0o077 != 0 {
        return Err(wrong(
            "firecracker-ssh-key-open",
            format!("the key {shown} may be read by others"),
            format!("its mode is {:o}", found.mode() & 0o777),
            "`chmod 600` it",
        ));
    }
    let mut text = String::new();
    let bad = |cause: String| {
        wrong(
            "firecracker-ssh-key-format",
            format!("{shown} is no private key that can be used"),
            cause,
            "make one without a passphrase: `ssh-keygen -t ed25519 -N '' -f FILE` (RSA is not taken)",
        )
    };
    file.take(MAX).read_to_string(&mut text).map_err(|cause| bad(cause.to_string()))?;
    let key = russh::keys::decode_secret_key(&text, None).map_err(|cause| match cause {
        russh::keys::Error::KeyIsEncrypted => bad("it has a passphrase".to_owned()),
        _ => bad("it is of a form or kind that is not known".to_owned()),
    })?;
    if key.algorithm().is_rsa() {
        return Err(bad("it is an RSA key".to_owned()));
    }
    Ok(Arc::new(key))
}

/// Whether the key of this user is taken by that one.
fn may_own(owner: u32, us: u32) -> bool {
    owner == us || owner == 0
}

#[cfg(test)]
mod tests {
    use super::may_own;

    #[test]
    fn a_key_is_ours_or_roots() {
        let taken =
            [(1000, 1000), (0, 1000), (0, 0), (1000, 0), (1001, 1000)].map(|(owner, us)| may_own(owner, us));
        assert_eq!(taken, [true, true, true, false, false]);
    }
}
