//! The folders that file tools may reach, judged here by what they really are. The agent gets their real paths, opens
//! what a request names, and goes by where the opened object really lies.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use moltis_sandbox::{Mount, MountMode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::protected::Protected;

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
        let real = open(path).and_then(real_path);
        let path = real.map_err(|errno| Error::Folder(path.to_owned(), errno.into()))?;
        Ok(Self { path, mode })
    }

    /// The named workspace.
    ///
    /// # Errors
    /// When it is not there, no directory, or a folder that must not be a workspace.
    pub fn workspace(mount: &Mount, protected: &Protected) -> Result<Self> {
        let named = || mount.source.clone();
        if !mount.source.is_absolute() || mount.source.as_os_str().as_bytes().contains(&0) {
            return Err(Error::WorkspaceRelative(named()));
        }
        let unreadable = |errno: Errno| Error::WorkspaceUnreadable(named(), errno.into());
        let handle = open(&mount.source).map_err(|errno| match errno {
            Errno::NOENT => Error::WorkspaceMissing(named()),
            Errno::NOTDIR => Error::WorkspaceKind(named()),
            errno => unreadable(errno),
        })?;
        let path = real_path(&handle).map_err(unreadable)?;
        if let Some((relation, what)) = protected.refuses(&path, &handle) {
            return Err(Error::WorkspaceRefused { path, relation, what: what.to_owned() });
        }
        if let Some((mount_point, what)) = protected.beneath(&path) {
            let (mount_point, what) = (mount_point.to_owned(), what.to_owned());
            return Err(Error::WorkspaceMount { path, mount_point, what });
        }
        Ok(Self { path, mode: mount.mode })
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

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// The path of an opened folder, as the kernel knows it. `STALE` for one that was removed or cannot be reached.
fn real_path(handle: impl AsFd) -> rustix::io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let real = PathBuf::from(OsString::from_vec(rustix::fs::readlink(link, Vec::new())?.into_bytes()));
    if !real.is_absolute() || rustix::fs::fstat(handle)?.st_nlink == 0 {
        return Err(Errno::STALE);
    }
    Ok(real)
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
        let (work, data, home, other_home) =
            (make("work"), make("above/data"), make("homes/one"), make("other/home"));
        make("above/data/run");
        make("homes/one/project");
        make("homes/one/.docker/run/below");
        let protected = Protected::new(&data, None, &[home, other_home]).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", base.join("link")).unwrap();
        let code = |path: &Path| -> String {
            match Root::workspace(&mount(path), &protected) {
                Ok(_) => "ok".into(),
                Err(error) => moltis_sandbox::Error::from(error).code().to_owned(),
            }
        };
        assert_eq!(code(&work), "ok");
        assert_eq!(code(&base.join("homes/one/project")), "ok");
        for refused in ["/", "/proc", "/sys/kernel", "/dev", "/run", "/proc/self/fd"] {
            assert_eq!(code(Path::new(refused)), "workspace-refused", "{refused}");
        }
        for refused in [
            "link",
            "above",
            "above/data",
            "above/data/run",
            "homes/one",
            "homes/one/../one",
            "homes",
            "other/home",
            "other",
            "",
            "homes/one/.docker",
            "homes/one/.docker/run",
            "homes/one/.docker/run/below",
        ] {
            assert_eq!(code(&base.join(refused)), "workspace-refused", "{refused}");
        }
        assert_eq!(code(&base.join("file")), "workspace-not-directory");
        assert_eq!(code(&base.join("file/below")), "workspace-not-directory");
        assert_eq!(code(&base.join("none")), "workspace-missing");
        assert_eq!(code(Path::new("relative")), "workspace-relative");
        let refused = Root::workspace(&mount(&base.join("homes")), &protected).unwrap_err();
        let words = format!(
            "the workspace {0}/homes is refused: it contains your home folder ({0}/homes/one)",
            base.display()
        );
        assert_eq!(refused.to_string(), words);
    }

    #[test]
    fn the_agent_is_told_the_real_path() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("a b:c");
        std::fs::create_dir(&real).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let protected = Protected::new(Path::new("/none"), None, &[]).unwrap();
        let root = Root::workspace(&mount(&link), &protected).unwrap();
        let expected = ["--root".to_owned(), format!("ro:{}", real.display())].map(OsString::from);
        assert_eq!(root.arguments(), expected);
    }
    /// Judges the folder `workspace` beneath a new one, in a mount namespace of a thread's own, once `prepare` has
    /// mounted something there; `data` is the data directory.
    fn judged_with(prepare: impl FnOnce(&Path, &Path) + Send) -> Result<Root> {
        use rustix::mount::{MountPropagationFlags, mount_change};
        use rustix::thread::{UnshareFlags, unshare_unsafe};
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let (data, workspace) = (base.join("data"), base.join("workspace"));
        for folder in [&data.join("run"), &workspace.join("m"), &base.join("other/deep")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let in_thread = || {
            // SAFETY: only the mounts of this thread become its own, and it ends with this test.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
            prepare(&workspace, &data);
            Root::workspace(&mount(&workspace), &Protected::new(&data, None, &[]).unwrap())
        };
        std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap())
    }

    #[test]
    fn a_workspace_is_judged_with_what_is_mounted_beneath_it_and_as_a_mount_itself() {
        use rustix::mount::{MountFlags, mount, mount_bind};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        judged_with(|_, _| {}).unwrap();
        judged_with(|at, _| mount("none", at.join("m"), "tmpfs", MountFlags::empty(), None).unwrap())
            .unwrap();
        judged_with(|at, data| mount_bind(data.with_file_name("other"), at.join("m")).unwrap()).unwrap();
        judged_with(|at, data| mount_bind(data.with_file_name("other"), at).unwrap()).unwrap();
        let beneath = |path: &'static str| judged_with(move |at, _| mount_bind(path, at.join("m")).unwrap());
        let own =
            |below: &'static str| judged_with(move |at, data| mount_bind(data.join(below), at).unwrap());
        for (refused, names) in [
            (beneath("/proc"), "/workspace/m"),
            (beneath("/sys"), "/workspace/m"),
            (beneath("/dev"), "/workspace/m"),
            (beneath("/"), "/workspace/m"),
            (judged_with(|at, data| mount_bind(data, at.join("m")).unwrap()), "/workspace/m"),
            (judged_with(|at, data| mount_bind(data.join("run"), at.join("m")).unwrap()), "/workspace/m"),
            (
                judged_with(|at, data| mount_bind(data.parent().unwrap(), at.join("m")).unwrap()),
                "/workspace/m",
            ),
            // The workspace is the data directory by another name, or a part of it.
            (own(""), "Moltis's data directory"),
            (own("run"), "Moltis's data directory"),
        ] {
            let error = moltis_sandbox::Error::from(refused.unwrap_err());
            assert_eq!(error.code(), "workspace-refused", "{error:?}");
            assert!(error.diagnosis().message.contains(names), "{error:?}");
        }
    }
}
