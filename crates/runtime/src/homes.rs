//! Home folders: which host folder stands behind `/home/sandbox`, and the managed files beside it.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use moltis_agent::remove;
use moltis_config::Config;
use moltis_config::words::HomePersistence;
use moltis_sandbox::{SandboxId, SessionKey};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::RuntimeError;

/// The folder of a session's home; `None` where nothing is kept. Nothing is made.
pub fn home(config: &Config, key: &SessionKey) -> Option<PathBuf> {
    let data = &config.data_dir.value;
    let sandbox = &config.tools.exec.sandbox;
    match sandbox.home_persistence.value {
        HomePersistence::Off => None,
        HomePersistence::Session => Some(data.join("sandbox/home/session").join(SandboxId::of(key).as_str())),
        // A relative folder lies in the data directory; joining an absolute one gives that one.
        HomePersistence::Shared => Some(data.join(&sandbox.shared_home_dir.value)),
    }
}

/// Removes the home that a session has to itself, whatever commands left there; `false` when there is none.
pub fn purge(data_dir: &Path, key: &SessionKey) -> Result<bool, RuntimeError> {
    let homes = data_dir.join("sandbox/home/session");
    let id = SandboxId::of(key);
    let place = homes.join(id.as_str());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let removed = match rustix::fs::open(&homes, flags, Mode::empty()) {
        Ok(homes) => CString::new(id.as_str())
            .map_err(|_| Errno::INVAL.into())
            .and_then(|name| remove::tree(homes, &name, remove::PATIENCE)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    };
    removed.map_err(|why| RuntimeError::NotRemovable { place, why })
}

/// The folder of managed files. Nothing is made.
pub fn managed_files(config: &Config) -> PathBuf {
    config.data_dir.value.join("files")
}

/// Sees that the data directory is ours and that nobody else may write to it.
///
/// # Errors
/// `data-dir-exposed`.
pub fn is_safe(data_dir: &Path) -> Result<(), RuntimeError> {
    let found = std::fs::metadata(data_dir).map_err(|e| RuntimeError::data_directory(data_dir, e))?;
    let (uid, place) = (rustix::process::geteuid().as_raw(), data_dir.display().to_string());
    if found.uid() != uid {
        let why = format!("it belongs to user {}, and this is user {uid}", found.uid());
        let fix = "run as that user, or name a directory of your own by --data-dir".to_owned();
        return Err(RuntimeError::DataDirectoryExposed { place, why, fix });
    }
    if found.mode() & 0o022 != 0 {
        let why = format!("others can write to it (mode {:o})", found.mode() & 0o7777);
        let fix = format!("chmod go-w {place}, or name a directory of your own by --data-dir");
        return Err(RuntimeError::DataDirectoryExposed { place, why, fix });
    }
    Ok(())
}

/// Makes a folder that is the owner's alone, and those above it; one that is there stays as it is.
pub fn private_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Gives the owner all permissions on a folder of ours again. Code that could write to it may have taken them away, and
/// with them the folder from every later sandbox.
pub fn open_to_owner(folder: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A link was put there by the owner, and what else it may be is judged when it is mounted.
    let Ok(handle) = rustix::fs::open(folder, flags, Mode::empty()) else { return Ok(()) };
    let found = rustix::fs::fstat(&handle)?;
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.contains(Mode::RWXU) || found.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let opened = (mode & Mode::from_raw_mode(0o7777)) | Mode::RWXU;
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), opened)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_home_goes_whatever_is_in_it_and_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let key = |word: &str| SessionKey::new(word).unwrap();
        assert!(!purge(temp.path(), &key("a")).unwrap());
        let homes = temp.path().join("sandbox/home/session");
        let home = |word| homes.join(SandboxId::of(&key(word)).as_str());
        for word in ["a", "b"] {
            std::fs::create_dir_all(home(word).join("closed/below")).unwrap();
            std::fs::write(home(word).join("closed/file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(home("b"), home("a").join("link")).unwrap();
        std::fs::set_permissions(home("a").join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
        assert!(purge(temp.path(), &key("a")).unwrap());
        assert!(!home("a").exists());
        assert!(home("b").join("closed/file").exists());
        assert!(!purge(temp.path(), &key("a")).unwrap());

        std::fs::write(home("a"), "").unwrap();
        let error = moltis_sandbox::Error::from(purge(temp.path(), &key("a")).unwrap_err());
        assert_eq!((error.kind(), error.code()), ("unavailable", "home-not-removable"));
        assert!(error.diagnosis().cause.is_some() && error.diagnosis().fix.is_some());
    }
}
