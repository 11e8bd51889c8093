//! The folders that file tools may reach, judged here by what they really are. The agent gets their real paths, opens
//! what a request names, and goes by where the opened object really lies.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use moltis_host::sources::{Judge, Role, real_path};
use moltis_sandbox::{Mount, MountMode};
use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

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
    pub fn workspace(mount: &Mount, judge: &Judge) -> Result<Self> {
        let judged = judge.judge(Role::Workspace, &mount.source)?;
        Ok(Self { path: judged.path, mode: mount.mode })
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

#[cfg(test)]
mod tests {
    use moltis_host::caller::Caller;

    use super::*;

    fn judge(data: &Path, homes: &[PathBuf]) -> Judge {
        let caller = Caller { uid: 1, gid: 1, name: None, homes: homes.to_owned() };
        Judge::new(data, None, &caller).unwrap()
    }

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
        let protected = judge(&data, &[home, other_home]);
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
        let protected = judge(Path::new("/none"), &[]);
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
            Root::workspace(&mount(&workspace), &judge(&data, &[]))
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
