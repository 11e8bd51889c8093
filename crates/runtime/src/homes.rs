//! Home folders: which host folder stands behind `/home/sandbox`, and the managed files beside it.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use moltis_config::Config;
use moltis_config::words::HomePersistence;
use moltis_host::remove;
use moltis_sandbox::{BackendName, SandboxId, SandboxSpec, SessionKey};
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

/// The folder of a session's home on the in-process shell: what it keeps there lies beside the other backends', whose
/// programs are others. `None` where nothing is kept. Nothing is made.
pub fn on_wasm(config: &Config, key: &SessionKey) -> Option<PathBuf> {
    let data = &config.data_dir.value;
    let sandbox = &config.tools.exec.sandbox;
    match sandbox.home_persistence.value {
        HomePersistence::Off => None,
        HomePersistence::Session => Some(wasm_folder(data, key).join("home")),
        HomePersistence::Shared => Some(data.join(&sandbox.shared_home_dir.value).join("wasm")),
    }
}

/// Where the in-process shell keeps what belongs to a session.
fn wasm_folder(data_dir: &Path, key: &SessionKey) -> PathBuf {
    data_dir.join("sandbox/wasm").join(SandboxId::of(key).as_str())
}

/// Whether a backend is an engine whose sandboxes may be another user than the one of the other backends.
pub fn is_engine(backend: BackendName) -> bool {
    matches!(backend, BackendName::Docker | BackendName::Podman)
}

/// The folder that stands for a home on a container engine. A rootful engine's sandboxes are another user than root, to
/// whom what root's own sandboxes left in a home would be closed; so root's homes there are folders of their own, one for
/// each such user, beside the one of the other backends. Blocks on a look-up.
pub fn on_engine(home: PathBuf, workspace: Option<&Path>) -> PathBuf {
    match moltis_backend_container::home_owner(rustix::process::geteuid().as_raw(), workspace) {
        Some(uid) => of_user(home, uid),
        None => home,
    }
}

fn of_user(home: PathBuf, uid: u32) -> PathBuf {
    let mut name = home.into_os_string();
    name.push(format!("-{uid}"));
    PathBuf::from(name)
}

/// The folders of one home that are there, as [`on_engine`] names them, its own first. Blocks.
pub fn all(home: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if std::fs::symlink_metadata(home).is_ok() {
        found.push(home.to_owned());
    }
    let (Some(folder), Some(name)) = (home.parent(), home.file_name()) else { return found };
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    let uid = |entry: &std::fs::DirEntry| -> Option<u32> {
        let suffix = entry.file_name().into_vec();
        let digits = suffix.strip_prefix(name.as_bytes())?.strip_prefix(b"-")?;
        let uid = std::str::from_utf8(digits).ok()?.parse().ok()?;
        // As we write it, and not with a sign or zeros.
        (digits == u32::to_string(&uid).as_bytes()).then_some(uid)
    };
    let mut users: Vec<u32> = entries.flatten().filter_map(|entry| uid(&entry)).collect();
    users.sort_unstable();
    found.extend(users.into_iter().map(|uid| of_user(home.to_owned(), uid)));
    found
}

/// Removes the home that a session has to itself, whatever commands left there; `false` when there is none.
pub fn purge(data_dir: &Path, key: &SessionKey) -> Result<bool, RuntimeError> {
    let mut places = all(&data_dir.join("sandbox/home/session").join(SandboxId::of(key).as_str()));
    places.extend(Some(wasm_folder(data_dir, key)).filter(|place| std::fs::symlink_metadata(place).is_ok()));
    let mut any = false;
    for place in places {
        let homes = place.parent().unwrap_or(data_dir);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let removed = match (rustix::fs::open(homes, flags, Mode::empty()), place.file_name()) {
            (Ok(homes), Some(name)) => CString::new(name.as_bytes())
                .map_err(|_| Errno::INVAL.into())
                .and_then(|name| remove::tree(homes, &name, remove::PATIENCE)),
            (Err(Errno::NOENT), _) | (_, None) => Ok(false),
            (Err(errno), _) => Err(errno.into()),
        };
        any |= removed.map_err(|why| RuntimeError::NotRemovable { place, why })?;
    }
    Ok(any)
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

/// Makes the home of a sandbox, if it has one that lasts. Blocks.
///
/// # Errors
/// `data-dir-unusable`.
pub fn make(spec: &SandboxSpec) -> moltis_sandbox::Result<()> {
    let Some(home) = &spec.home else { return Ok(()) };
    let made = private_folder(home).and_then(|()| open_to_owner(home));
    Ok(made.map_err(|e| RuntimeError::data_directory(home, e))?)
}

/// Makes the folder of managed files. On a rootful engine whoever reads it inside is not root, to whom alone it would be
/// open: root's is open to all for reading, where nobody gets to it past the data directory.
pub fn files_folder(folder: &Path, data_dir: &Path) -> io::Result<()> {
    private_folder(folder)?;
    if !rustix::process::geteuid().is_root() || std::fs::metadata(data_dir)?.mode() & 0o011 != 0 {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A link was put there by the owner, who sees to what it leads to.
    let Ok(handle) = rustix::fs::open(folder, flags, Mode::empty()) else { return Ok(()) };
    let found = rustix::fs::fstat(&handle)?;
    let (mode, readable) = (Mode::from_raw_mode(found.st_mode & 0o7777), Mode::from_raw_mode(0o755));
    if found.st_uid != 0 || mode.contains(readable) {
        return Ok(());
    }
    Ok(rustix::fs::fchmod(&handle, mode | readable)?)
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
        let (other, stranger) = (of_user(home("a"), 1000), homes.join("a-01000"));
        for folder in [&other, &of_user(home("b"), 7), &stranger] {
            std::fs::create_dir_all(folder.join("in")).unwrap();
        }
        for word in ["a", "b"] {
            std::fs::create_dir_all(wasm_folder(temp.path(), &key(word)).join("home")).unwrap();
            std::fs::create_dir_all(home(word).join("closed/below")).unwrap();
            std::fs::write(home(word).join("closed/file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(home("b"), home("a").join("link")).unwrap();
        std::fs::set_permissions(home("a").join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
        assert!(purge(temp.path(), &key("a")).unwrap());
        assert!(
            !wasm_folder(temp.path(), &key("a")).exists() && wasm_folder(temp.path(), &key("b")).exists()
        );
        assert!(!home("a").exists() && !other.exists() && stranger.exists());
        assert_eq!(all(&home("a")), Vec::<PathBuf>::new());
        assert_eq!(all(&home("b")), [home("b"), of_user(home("b"), 7)]);
        assert!(home("b").join("closed/file").exists());
        assert!(!purge(temp.path(), &key("a")).unwrap());

        std::fs::write(home("a"), "").unwrap();
        let error = moltis_sandbox::Error::from(purge(temp.path(), &key("a")).unwrap_err());
        assert_eq!((error.kind(), error.code()), ("unavailable", "home-not-removable"));
        assert!(error.diagnosis().cause.is_some() && error.diagnosis().fix.is_some());
    }

    #[test]
    fn a_home_of_root_is_one_for_each_user_on_a_rootful_engine() {
        let home = PathBuf::from("/data/sandbox/home/shared");
        let root = rustix::process::geteuid().is_root();
        let expected = if root { "/data/sandbox/home/shared-1000" } else { "/data/sandbox/home/shared" };
        assert_eq!(on_engine(home.clone(), None), Path::new(expected));
        assert_eq!(on_engine(home, Some(Path::new("/"))), Path::new(expected));
    }

    #[test]
    fn managed_files_of_root_are_open_behind_a_closed_data_directory_alone() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let root = rustix::process::geteuid().is_root();
        for (data, expected) in [(0o700, if root { 0o755 } else { 0o700 }), (0o755, 0o700)] {
            let temp = tempfile::tempdir().unwrap();
            std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(data)).unwrap();
            let files = temp.path().join("files");
            for _ in 0..2 {
                files_folder(&files, temp.path()).unwrap();
                assert_eq!(mode(&files), expected);
            }
            std::fs::set_permissions(&files, std::fs::Permissions::from_mode(0o700)).unwrap();
            files_folder(&files, temp.path()).unwrap();
            assert_eq!(mode(&files), expected);
        }
    }
}
