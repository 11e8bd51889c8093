//! SELinux: which folders get a label that containers may use. Ours do; a user's keeps its own unless that is asked for.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use moltis_sandbox::{Diagnosis, Error, Result};

use crate::engine::Relabel;

/// Types of files that a container may use.
const USABLE: [&str; 3] = ["container_file_t", "container_ro_file_t", "svirt_sandbox_file_t"];

/// How labels are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// The engine confines by none.
    Off,
    /// The engine enforces them.
    Enforced,
}

impl Labels {
    /// What becomes of the label of a folder of ours.
    pub fn ours(self, wanted: Relabel) -> Relabel {
        match self {
            Self::Off => Relabel::Not,
            Self::Enforced => wanted,
        }
    }

    /// What becomes of the label of a user's folder. Blocks on a look-up.
    ///
    /// # Errors
    /// `selinux-label` when a container could not use it and nobody asked for another label.
    pub fn users(self, path: &Path, handle: BorrowedFd<'_>, relabel: bool) -> Result<Relabel> {
        if self == Self::Off {
            return Ok(Relabel::Not);
        }
        if relabel {
            return Ok(Relabel::Shared);
        }
        let mut label = [0u8; 512];
        // The handle may be of a kind that no attribute can be read from; the path behind it is the same object.
        let own = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let length = rustix::fs::getxattr(own.as_str(), "security.selinux", &mut label[..]).unwrap_or(0);
        let label = String::from_utf8_lossy(&label[..length]).trim_end_matches('\0').to_owned();
        judge(path, &label)
    }
}

fn judge(path: &Path, label: &str) -> Result<Relabel> {
    let kind = label.split(':').nth(2).unwrap_or_default();
    // Without a label nothing is known, and the engine's own answer has to do.
    if label.is_empty() || USABLE.contains(&kind) {
        return Ok(Relabel::Not);
    }
    let path = path.display();
    Err(Error::Refused(
        Diagnosis::new("selinux-label", format!("SELinux would not let a container use {path}"))
            .cause(format!("its label is {label}"))
            .fix(format!(
                "chcon -Rt container_file_t {path}, or set `selinux_relabel = true` to have that done"
            )),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_folder_is_never_relabelled_without_a_word() {
        let path = Path::new("/w");
        for label in ["", "system_u:object_r:container_file_t:s0", "u:r:svirt_sandbox_file_t:s0:c1,c2"] {
            assert_eq!(judge(path, label).unwrap(), Relabel::Not, "{label}");
        }
        let error = judge(path, "unconfined_u:object_r:user_home_t:s0").unwrap_err();
        assert_eq!((error.kind(), error.code()), ("refused", "selinux-label"));
        assert!(error.diagnosis().fix.as_ref().unwrap().contains("chcon -Rt container_file_t /w"));
        assert_eq!(Labels::Off.ours(Relabel::Shared), Relabel::Not);
        assert_eq!(Labels::Enforced.ours(Relabel::Private), Relabel::Private);
    }
}
