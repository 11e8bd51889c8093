//! A session's own folder: where its commands start when no workspace is named. It stays with the session, and goes
//! with an ephemeral sandbox.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_host::remove;
use moltis_sandbox::SandboxId;
use rustix::io::Errno;

use crate::error::{Error, Result, blocks};
use crate::folder::private;

/// Time that a removal may take. Nothing of the sandbox lives any more, so it is the disk's alone.
const PATIENCE: Duration = Duration::from_secs(120);

fn parent(data_dir: &Path) -> PathBuf {
    data_dir.join("sandbox/scratch")
}

/// Makes the folder, 0700, unless it is there. Blocks.
///
/// # Errors
/// When it cannot be made, or is not ours.
pub fn make(data_dir: &Path, id: &SandboxId) -> Result<PathBuf> {
    blocks();
    let parent = parent(data_dir);
    let path = parent.join(id.as_str());
    std::fs::create_dir_all(data_dir.join("sandbox")).map_err(|e| Error::Folder(parent.clone(), e))?;
    let made = private(rustix::fs::CWD, &parent, true)
        .and_then(|parent| private(&parent, Path::new(id.as_str()), true));
    match made {
        Ok(_) => Ok(path),
        Err(Errno::PERM) => Err(Error::Foreign(path)),
        Err(errno) => Err(Error::Folder(path, errno.into())),
    }
}

/// Removes the folder and all in it, whatever commands left there: folders without permissions, and trees too deep for
/// a path. Blocks for as long as the disk takes, within bounds.
///
/// # Errors
/// When something in it cannot be removed, such as a file that was made immutable.
pub fn remove(data_dir: &Path, id: &SandboxId) -> Result<()> {
    blocks();
    let parent = parent(data_dir);
    let folder = match private(rustix::fs::CWD, &parent, false) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(Error::Folder(parent, errno.into())),
    };
    let removed = CString::new(id.as_str()).map_err(|_| Errno::INVAL.into());
    match removed.and_then(|name| remove::tree(&folder, &name, PATIENCE)) {
        Ok(_) => Ok(()),
        Err(why) => Err(Error::NotRemoved(parent.join(id.as_str()), why)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use moltis_sandbox::SessionKey;
    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn whatever_was_left_there_goes_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let outside = temp.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "").unwrap();

        remove(temp.path(), &id).unwrap();
        let top = make(temp.path(), &id).unwrap();
        assert_eq!(std::fs::metadata(&top).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(make(temp.path(), &id).unwrap(), top);
        std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
        std::fs::write(top.join(".moltis-removed-1"), "").unwrap();
        for n in 0..300 {
            std::fs::create_dir_all(top.join(format!("many/{n}/below"))).unwrap();
            std::fs::write(top.join(format!("many/{n}/file")), "").unwrap();
        }
        std::fs::set_permissions(top.join("many/7"), std::fs::Permissions::from_mode(0o000)).unwrap();
        // Deeper than any path.
        let mut handle = rustix::fs::open(&top, OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..1500 {
            rustix::fs::mkdirat(&handle, "deep", Mode::RWXU).unwrap();
            handle = rustix::fs::openat(&handle, "deep", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        remove(temp.path(), &id).unwrap();
        assert!(!top.exists());
        assert!(outside.join("file").exists());
    }
}
