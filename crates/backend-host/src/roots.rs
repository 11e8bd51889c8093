//! The folders that file tools may reach, judged here by what they really are. The agent gets their real paths, opens
//! what a request names, and goes by where the opened object really lies.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use moltis_sandbox::{Mount, MountMode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Folders of the system that are no workspace, nor is anything in them.
const SYSTEM: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// A folder that file tools may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its real path, which is the guest path too.
    pub path: PathBuf,
    mode: MountMode,
}

impl Root {
    /// A folder of ours.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn ours(path: &Path, mode: MountMode) -> Result<Self> {
        Self::open(path, mode).map_err(|errno| Error::Folder(path.to_owned(), errno.into()))
    }

    /// The named workspace. `closed` are folders of ours that it may not be, contain or lie in.
    ///
    /// # Errors
    /// When it is not there, no directory, or a folder that must not be a workspace.
    pub fn workspace(mount: &Mount, closed: &[&Path], home: Option<&Path>) -> Result<Self> {
        let named = || mount.source.clone();
        if !mount.source.is_absolute() {
            return Err(Error::WorkspaceKind(named()));
        }
        let root = Self::open(&mount.source, mount.mode).map_err(|errno| match errno {
            Errno::NOTDIR => Error::WorkspaceKind(named()),
            errno => Error::WorkspaceMissing(named(), errno.into()),
        })?;
        let refuse = |why: String| Error::WorkspaceRefused(named(), why);
        let path = &root.path;
        if path == Path::new("/") {
            return Err(refuse("is the whole machine".into()));
        }
        if home.and_then(|home| home.canonicalize().ok()).is_some_and(|home| home == *path) {
            return Err(refuse("is the home folder".into()));
        }
        for folder in SYSTEM {
            if path.starts_with(folder) {
                return Err(refuse(format!("is or lies in {folder}")));
            }
        }
        for folder in closed {
            let real = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
            if path.starts_with(&real) || real.starts_with(path) {
                return Err(refuse(format!(
                    "is, contains or lies in {}, a folder of Moltis",
                    real.display()
                )));
            }
        }
        Ok(root)
    }

    fn open(path: &Path, mode: MountMode) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        let real = rustix::fs::readlink(format!("/proc/self/fd/{}", handle.as_raw_fd()), Vec::new())?;
        Ok(Self { path: PathBuf::from(OsString::from_vec(real.into_bytes())), mode })
    }

    /// The agent's arguments for it.
    pub fn arguments(&self) -> [OsString; 2] {
        let mut value = OsString::from(match self.mode {
            MountMode::Ro => "ro:",
            MountMode::Rw => "rw:",
        });
        value.push(&self.path);
        ["--root".into(), value]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(source: &Path) -> Mount {
        Mount { source: source.to_owned(), target: "/workspace".into(), mode: MountMode::Ro }
    }

    #[test]
    fn a_workspace_is_judged_by_what_it_really_is() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let make = |name: &str| {
            let path = base.join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let (work, data, home) = (make("work"), make("above/data"), make("home"));
        make("above/data/run");
        make("home/project");
        std::fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", base.join("link")).unwrap();
        let code = |path: &Path| -> String {
            match Root::workspace(&mount(path), &[&data], Some(&home)) {
                Ok(_) => "ok".into(),
                Err(error) => moltis_sandbox::Error::from(error).code().to_owned(),
            }
        };
        assert_eq!(code(&work), "ok");
        assert_eq!(code(&base.join("home/project")), "ok");
        for refused in ["/", "/proc", "/sys/kernel", "/dev", "/run"] {
            assert_eq!(code(Path::new(refused)), "workspace-refused", "{refused}");
        }
        for refused in ["link", "above", "above/data", "above/data/run", "home", "home/../home"] {
            assert_eq!(code(&base.join(refused)), "workspace-refused", "{refused}");
        }
        assert_eq!(code(&base.join("file")), "workspace-kind");
        assert_eq!(code(&base.join("none")), "workspace-missing");
        assert_eq!(code(Path::new("relative")), "workspace-kind");
    }

    #[test]
    fn the_agent_is_told_the_real_path() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("a b:c");
        std::fs::create_dir(&real).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let root = Root::workspace(&mount(&link), &[], None).unwrap();
        let expected = ["--root".to_owned(), format!("ro:{}", real.display())].map(OsString::from);
        assert_eq!(root.arguments(), expected);
    }
}
