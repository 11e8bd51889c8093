//! Which host paths may show in a sandbox. A source is resolved and opened once; what is judged is the
//! object that was opened, by its real path and its identity, and what is mounted beneath it; and what is mounted is
//! that same object.

mod mounts;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, FsWord, Mode, OFlags, fstat, fstatfs, lstat, openat, readlinkat};
use rustix::io::Errno;

use crate::caller::Caller;
use crate::error::{Error, Problem, Result};
use mounts::{Mounts, Place};

/// What a source is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The named workspace.
    Workspace,
    /// A mount of the configuration file.
    Mount,
    /// The root directory instead of the host's.
    Rootfs,
    /// A home folder, made for it.
    Home,
    /// The managed files, a folder made for them.
    Files,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Workspace => "workspace",
            Self::Mount => "mount source",
            Self::Rootfs => "rootfs",
            Self::Home => "home folder",
            Self::Files => "managed files folder",
        })
    }
}

impl Role {
    /// What a source of this role must be, for messages.
    pub fn shape(self) -> &'static str {
        match self {
            Self::Mount => "a directory or a regular file",
            _ => "a directory",
        }
    }

    /// Stable code of a problem with a source of this role.
    pub fn code(self, problem: Problem) -> &'static str {
        match (self, problem) {
            (Self::Workspace, Problem::Relative) => "workspace-relative",
            (Self::Workspace, Problem::Missing) => "workspace-missing",
            (Self::Workspace, Problem::Unreadable) => "workspace-unreadable",
            (Self::Workspace, Problem::WrongKind) => "workspace-not-directory",
            (Self::Workspace, Problem::Forbidden) => "workspace-refused",
            (Self::Mount, Problem::Relative) => "mount-relative",
            (Self::Mount, Problem::Missing) => "mount-missing",
            (Self::Mount, Problem::Unreadable) => "mount-unreadable",
            (Self::Mount, Problem::WrongKind) => "mount-wrong-kind",
            (Self::Mount, Problem::Forbidden) => "mount-refused",
            (Self::Rootfs, Problem::Relative) => "rootfs-relative",
            (Self::Rootfs, Problem::Missing) => "rootfs-missing",
            (Self::Rootfs, Problem::Unreadable) => "rootfs-unreadable",
            (Self::Rootfs, Problem::WrongKind) => "rootfs-not-directory",
            (Self::Rootfs, Problem::Forbidden) => "rootfs-refused",
            (Self::Home, Problem::Relative) => "home-relative",
            (Self::Home, Problem::Missing) => "home-missing",
            (Self::Home, Problem::Unreadable) => "home-unreadable",
            (Self::Home, Problem::WrongKind) => "home-not-directory",
            (Self::Home, Problem::Forbidden) => "home-refused",
            (Self::Files, Problem::Relative) => "managed-files-relative",
            (Self::Files, Problem::Missing) => "managed-files-missing",
            (Self::Files, Problem::Unreadable) => "managed-files-unreadable",
            (Self::Files, Problem::WrongKind) => "managed-files-not-directory",
            (Self::Files, Problem::Forbidden) => "managed-files-refused",
        }
    }

    /// Whether it is a folder of ours, which may lie in the data directory.
    fn is_ours(self) -> bool {
        matches!(self, Self::Home | Self::Files)
    }
}

/// A source that was opened and allowed.
#[derive(Debug)]
pub struct Judged {
    /// What it is for.
    pub role: Role,
    /// Its real path.
    pub path: PathBuf,
    /// The opened object (`O_PATH`).
    pub handle: OwnedFd,
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Owner on disk.
    pub uid: u32,
    /// Group on disk.
    pub gid: u32,
    /// Whether it is a directory; else a regular file.
    pub directory: bool,
}

impl Judged {
    /// Whether its path still leads to what was judged, without a link at its end. For mounts by path: to be asked again
    /// once the mount is made, since the path may be changed at any moment. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::SourceChanged`].
    pub fn still_there(&self) -> Result<()> {
        match lstat(&self.path) {
            Ok(found) if (found.st_dev, found.st_ino) == (self.device, self.inode) => Ok(()),
            _ => Err(Error::SourceChanged { path: self.path.clone() }),
        }
    }
}

/// A place that no source may show.
#[derive(Debug)]
struct Protected {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    what: String,
    /// Whether what lies in it is protected too; otherwise only the place and what contains it.
    inside: bool,
    /// As its file system names it.
    place: Option<Place>,
    /// What is mounted in it, where that is protected.
    mounted: Vec<Place>,
}

/// How a directory shows a protected place.
enum Relation {
    Contains,
    LiesIn,
}

impl Relation {
    fn word(&self) -> &'static str {
        match self {
            Self::Contains => "contains",
            Self::LiesIn => "lies in",
        }
    }
}

impl Protected {
    /// How a directory, by whatever name, shows the place, or a part of it that is protected too.
    fn shown_by(&self, directory: &Place) -> Option<Relation> {
        if self.place.as_ref().is_some_and(|place| place.is_within(directory)) {
            return Some(Relation::Contains);
        }
        let within = |place: &Place| directory.is_within(place);
        let inside =
            self.inside && (self.place.as_ref().is_some_and(within) || self.mounted.iter().any(within));
        inside.then_some(Relation::LiesIn)
    }
}

/// The rules of one data directory and one caller.
#[derive(Debug)]
pub struct Judge {
    protected: Vec<Protected>,
    data_dir: PathBuf,
    mounts: Mounts,
}

impl Judge {
    /// Collects the protected places. Blocks on a few look-ups.
    ///
    /// # Errors
    /// When the mounts cannot be read.
    pub fn new(data_dir: &Path, config_dir: Option<&Path>, caller: &Caller) -> Result<Self> {
        let mounts = Mounts::read().map_err(Error::system("the mounts cannot be read (mount /proc)"))?;
        let mut judge = Self { protected: Vec::new(), data_dir: real(data_dir), mounts };
        judge.protect(Path::new("/"), "the whole file system", false);
        for home in &caller.homes {
            judge.protect(home, "your home folder", false);
        }
        judge.protect(data_dir, "Moltis's data directory", true);
        if let Some(config_dir) = config_dir {
            judge.protect(config_dir, "Moltis's configuration directory", true);
        }
        for (path, what) in [
            ("/proc", "the kernel's process files"),
            ("/sys", "the kernel's device files"),
            ("/dev", "the host's devices"),
            ("/run", "the host's run-time files and sockets"),
        ] {
            judge.protect(Path::new(path), what, true);
        }
        judge.protect_engines(caller);
        Ok(judge)
    }

    /// Where container engines keep the sockets that give away the host.
    fn protect_engines(&mut self, caller: &Caller) {
        for variable in ["DOCKER_HOST", "CONTAINER_HOST", "PODMAN_HOST"] {
            let value = std::env::var_os(variable).unwrap_or_default();
            if let Some(socket) = value.as_bytes().strip_prefix(b"unix://") {
                // The folder may be as common as /tmp: only the socket, and what contains it.
                self.protect(Path::new(OsStr::from_bytes(socket)), "a container engine's socket", false);
            }
        }
        let folders = [
            ".docker/run",
            ".docker/desktop",
            ".local/share/containers/podman/machine",
            ".colima",
            ".lima",
            ".rd",
            ".orbstack/run",
        ];
        for home in &caller.homes {
            for folder in folders {
                let folder = home.join(folder);
                // One that is not there hides nothing.
                if folder.exists() {
                    self.protect(&folder, "a container engine's folder", true);
                }
            }
        }
        for path in ["/var/lib/docker", "/var/lib/containers", "/var/lib/containerd"] {
            if Path::new(path).exists() {
                self.protect(Path::new(path), "a container engine's storage", true);
            }
        }
    }

    fn protect(&mut self, path: &Path, what: &str, inside: bool) {
        let opened = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let stat = opened.as_ref().and_then(|handle| fstat(handle).ok());
        let path = opened.and_then(|handle| real_path(handle).ok()).unwrap_or_else(|| real(path));
        let identity = stat.map(|stat| (stat.st_dev, stat.st_ino));
        let what = format!("{what} ({})", path.display());
        let place = self.mounts.place(&path);
        let mounted =
            if inside { self.mounts.beneath(&path).map(mounts::Mount::place).collect() } else { Vec::new() };
        self.protected.push(Protected { path, identity, what, inside, place, mounted });
    }

    /// Opens and judges a source. Blocks on the file system.
    ///
    /// # Errors
    /// The `Source…` errors.
    pub fn judge(&self, role: Role, named: &Path) -> Result<Judged> {
        let path = || named.to_owned();
        if !named.is_absolute() || named.as_os_str().as_bytes().contains(&0) {
            return Err(Error::SourceRelative { role, path: path() });
        }
        let handle = match openat(CWD, named, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Err(Error::SourceMissing { role, path: path() }),
            Err(Errno::NOTDIR) => return Err(Error::SourceWrongKind { role, path: path() }),
            Err(errno) => return Err(Error::SourceUnreadable { role, path: path(), cause: errno.into() }),
        };
        let unreadable = |errno: Errno| Error::SourceUnreadable { role, path: path(), cause: errno.into() };
        let stat = fstat(&handle).map_err(unreadable)?;
        let directory = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile if role == Role::Mount => false,
            _ => return Err(Error::SourceWrongKind { role, path: path() }),
        };
        let real = real_path(&handle).map_err(unreadable)?;
        let judged = Judged {
            role,
            path: real,
            handle,
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: stat.st_uid,
            gid: stat.st_gid,
            directory,
        };
        self.allow(&judged)?;
        Ok(judged)
    }

    fn allow(&self, source: &Judged) -> Result<()> {
        let role = source.role;
        let forbid = |relation, what: &str| {
            Err(Error::SourceForbidden { role, path: source.path.clone(), relation, what: what.to_owned() })
        };
        if let Some(what) = kernel_file_system(&source.handle) {
            return forbid("lies in", what);
        }
        // A bind mount shows a place under another name.
        let own = self.mounts.place(&source.path);
        for place in &self.protected {
            if source.path == place.path || place.identity == Some((source.device, source.inode)) {
                return forbid("is", &place.what);
            }
            if place.path.starts_with(&source.path) {
                return forbid("contains", &place.what);
            }
            if place.inside && source.path.starts_with(&place.path) && !self.is_made_for(source) {
                return forbid("lies in", &place.what);
            }
            match own.as_ref().and_then(|own| place.shown_by(own)) {
                Some(Relation::LiesIn) if self.is_made_for(source) => {}
                Some(relation) => return forbid(relation.word(), &place.what),
                None => {}
            }
        }
        self.allow_beneath(source)
    }

    /// Judges what is mounted beneath a source, which is shown with it. Nothing of it is touched: a file system that
    /// does not answer harms nobody here.
    fn allow_beneath(&self, source: &Judged) -> Result<()> {
        for mount in self.mounts.beneath(&source.path) {
            let place = mount.place();
            let forbidden = || self.protected.iter().find(|protected| protected.shown_by(&place).is_some());
            let what = mount.kernel_file_system().map(str::to_owned);
            if let Some(what) = what.or_else(|| forbidden().map(|protected| protected.what.clone())) {
                return Err(Error::MountBeneath {
                    role: source.role,
                    path: source.path.clone(),
                    mount_point: mount.point().to_owned(),
                    what,
                });
            }
        }
        Ok(())
    }

    /// A folder of ours in the data directory, but none of those that Moltis itself works in.
    fn is_made_for(&self, source: &Judged) -> bool {
        let Ok(below) = source.path.strip_prefix(&self.data_dir) else { return false };
        let first = below.components().next().map(|part| part.as_os_str().as_bytes().to_vec());
        source.role.is_ours()
            && first.is_some_and(|first| ![&b"run"[..], b"run-host", b"cache"].contains(&first.as_slice()))
    }
}

/// A path with its links resolved as far as it exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

/// The path of an opened object, as the kernel knows it.
pub fn real_path(handle: impl AsFd) -> rustix::io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let path = readlinkat(CWD, link.as_str(), Vec::new())?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
    // "(deleted)" and "(unreachable)" objects have no path that could be judged.
    let stat = fstat(handle)?;
    if !path.is_absolute() || stat.st_nlink == 0 {
        return Err(Errno::STALE);
    }
    Ok(path)
}

/// File systems that are the kernel's own, wherever they are mounted.
fn kernel_file_system(handle: &OwnedFd) -> Option<&'static str> {
    const PROC: FsWord = 0x9fa0;
    const SYSFS: FsWord = 0x6265_6572;
    const CGROUP: FsWord = 0x0027_e0eb;
    const CGROUP2: FsWord = 0x6367_7270;
    const DEBUGFS: FsWord = 0x6462_6720;
    const TRACEFS: FsWord = 0x7472_6163;
    const SECURITYFS: FsWord = 0x7363_6673;
    const BPF: FsWord = 0xcafe_4a11;
    match fstatfs(handle).ok()?.f_type {
        PROC => Some("the kernel's process files (a proc file system)"),
        SYSFS => Some("the kernel's device files (a sysfs)"),
        CGROUP | CGROUP2 => Some("the kernel's control groups (a cgroup file system)"),
        DEBUGFS | TRACEFS | SECURITYFS | BPF => Some("a file system of the kernel's own"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// Mounts `what` beneath a workspace, in a mount namespace of a thread's own, and judges it.
    fn judged_with(prepare: impl FnOnce(&Path, &Path) + Send) -> Result<()> {
        let temp = tempfile::tempdir().unwrap();
        let temp = fs::canonicalize(temp.path()).unwrap();
        let (data, workspace) = (temp.join("data"), temp.join("workspace"));
        for folder in [&data.join("homes"), &workspace.join("m")] {
            fs::create_dir_all(folder).unwrap();
        }
        let in_thread = || {
            // SAFETY: only the mounts of this thread become its own, and it ends with this test.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
            prepare(&workspace.join("m"), &data);
            let caller = Caller { uid: 0, gid: 0, name: None, homes: Vec::new() };
            let judge = Judge::new(&data, None, &caller).unwrap();
            judge.judge(Role::Workspace, &workspace).map(drop)
        };
        let answer = std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap());
        fs::remove_dir_all(&temp).unwrap();
        answer
    }

    #[test]
    fn what_is_mounted_beneath_a_source_is_judged() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        judged_with(|_, _| {}).unwrap();
        judged_with(|point, _| mount("none", point, "tmpfs", MountFlags::empty(), None).unwrap()).unwrap();
        judged_with(|point, data| {
            fs::create_dir(data.with_file_name("other")).unwrap();
            mount_bind(data.with_file_name("other"), point).unwrap();
        })
        .unwrap();
        let kernels = |path: &'static str| judged_with(move |point, _| mount_bind(path, point).unwrap());
        for refused in [
            kernels("/proc"),
            kernels("/sys"),
            kernels("/dev"),
            kernels("/run"),
            kernels("/"),
            judged_with(|point, data| mount_bind(data, point).unwrap()),
            judged_with(|point, data| mount_bind(data.join("homes"), point).unwrap()),
            judged_with(|point, data| mount_bind(data.parent().unwrap(), point).unwrap()),
        ] {
            let error = moltis_sandbox::Error::from(refused.unwrap_err());
            assert_eq!(error.code(), "workspace-refused", "{error:?}");
            assert!(error.diagnosis().message.contains("/workspace/m"), "{error:?}");
            assert!(error.diagnosis().fix.as_ref().unwrap().contains("umount"), "{error:?}");
        }
    }

    #[test]
    fn a_source_that_was_replaced_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let workspace = temp.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        let caller = Caller { uid: 1, gid: 1, name: None, homes: Vec::new() };
        let judge = Judge::new(&temp.path().join("data"), None, &caller).unwrap();
        let judged = judge.judge(Role::Workspace, &workspace).unwrap();
        judged.still_there().unwrap();
        fs::rename(&workspace, temp.path().join("moved")).unwrap();
        assert!(judged.still_there().is_err());
        std::os::unix::fs::symlink("moved", &workspace).unwrap();
        assert!(matches!(judged.still_there(), Err(Error::SourceChanged { path }) if path == workspace));
    }

    #[test]
    fn a_source_that_is_a_place_by_another_name_is_judged_as_that_place() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        judged_with(|point, data| {
            fs::create_dir(data.with_file_name("other")).unwrap();
            mount_bind(data.with_file_name("other"), point.parent().unwrap()).unwrap();
        })
        .unwrap();
        for part in ["", "homes"] {
            let refused =
                judged_with(|point, data| mount_bind(data.join(part), point.parent().unwrap()).unwrap());
            let error = moltis_sandbox::Error::from(refused.unwrap_err());
            assert_eq!(error.code(), "workspace-refused", "{error:?}");
            assert!(error.diagnosis().message.contains("Moltis's data directory"), "{error:?}");
        }
    }
}
