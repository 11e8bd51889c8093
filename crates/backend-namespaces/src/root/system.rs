//! System folders: the host's own, or those of a root directory that the user names.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moltis_agent_protocol::launch::TargetPolicy;
use moltis_host::sources::{Judged, Role, real_path};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, fstat, openat2, readlinkat, statat};
use rustix::io::Errno;

use super::{NODEV, NOSUID, Plan, READ_ONLY, etc};
use crate::error::{Error, Result};
use crate::landlock::Access;

/// Folders of the host that programs live in.
const FOLDERS: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// Top-level names of a root directory that the sandbox brings itself.
const OURS: &[&[u8]] = &[
    b"boot",
    b"dev",
    b"etc",
    b"home",
    b"lost+found",
    b"media",
    b"mnt",
    b"proc",
    b"root",
    b"run",
    b"sys",
    b"tmp",
    b"var",
    b"workspace",
];

/// Longest file of `/etc` that is copied instead of mounted, in bytes.
const MAX_COPIED: u64 = 8 * 1024;

/// The host's folders.
pub fn host(plan: &mut Plan) {
    for folder in FOLDERS {
        if folder == &"/nix/store" && Path::new(folder).is_dir() {
            plan.directory("/nix", 0o755);
        }
        if let Some(directory) = entry(plan, Path::new(folder)) {
            plan.allow_kind(folder.as_bytes(), directory, Access::Read);
        }
    }
    etc::host(plan);
}

/// One path of the host: a link stays a link if it leads to what is there anyway, else what it leads to is mounted.
/// Answers whether what was mounted is a directory; `None` when nothing was.
pub fn entry(plan: &mut Plan, path: &Path) -> Option<bool> {
    let mut found = fs::symlink_metadata(path).ok()?;
    if found.is_symlink() {
        let real = fs::canonicalize(path).ok()?;
        let visible = ["/usr", "/nix/store"].iter().any(|place| real.starts_with(place));
        if let (true, Ok(link)) = (visible, fs::read_link(path)) {
            plan.symlink(path.as_os_str().as_bytes(), link.as_os_str().as_bytes());
            return None;
        }
        found = fs::metadata(&real).ok()?;
    }
    if !found.is_dir() && !found.is_file() {
        return None;
    }
    // A few bytes are written faster than a mount is made.
    if found.is_file()
        && found.len() <= MAX_COPIED
        && let Ok(content) = fs::read(path)
        && let Some(path) = path.to_str()
    {
        plan.file(path, content);
        return Some(false);
    }
    plan.host(path, found.is_dir());
    Some(found.is_dir())
}

/// The folders of a root directory, and what programs need of its `/etc`.
pub fn rootfs(plan: &mut Plan, rootfs: Judged) -> Result<()> {
    for name in names(&rootfs.handle)? {
        if !OURS.contains(&name.as_slice()) {
            rootfs_entry(plan, &rootfs.handle, &name, &joined(b"/", &name))?;
        }
    }
    if let Ok(etc_handle) = beneath(&rootfs.handle, b"etc", OFlags::DIRECTORY) {
        for name in names(&etc_handle)? {
            if etc::is_needed(&name) {
                rootfs_entry(plan, &etc_handle, &name, &joined(b"/etc/", &name))?;
            }
        }
    }
    Ok(())
}

/// One name of a root directory. Its links are only ever copied: what they lead to is decided inside.
fn rootfs_entry(plan: &mut Plan, directory: &OwnedFd, name: &[u8], target: &[u8]) -> Result<()> {
    let unreadable = Error::system::<Errno>("the rootfs cannot be read");
    let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found.map_err(unreadable)?,
    };
    let directory_entry = match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let link = readlinkat(directory, name, Vec::new())
                .map_err(Error::system("the rootfs cannot be read"))?;
            plan.symlink(target, link.to_bytes());
            return Ok(());
        }
        FileType::Directory => true,
        FileType::RegularFile => false,
        _ => return Ok(()),
    };
    let cannot = || Error::system::<Errno>("the rootfs cannot be read");
    let handle = beneath(directory, name, OFlags::empty()).map_err(cannot())?;
    let stat = fstat(&handle).map_err(cannot())?;
    let judged = Judged {
        role: Role::Rootfs,
        path: real_path(&handle).map_err(cannot())?,
        handle,
        device: stat.st_dev,
        inode: stat.st_ino,
        uid: stat.st_uid,
        gid: stat.st_gid,
        directory: directory_entry,
    };
    plan.allow_kind(target, directory_entry, Access::Read);
    let attributes = READ_ONLY | NOSUID | NODEV;
    let source = plan.judged(judged, attributes, None);
    let policy = if directory_entry { TargetPolicy::OwnDirectory } else { TargetPolicy::OwnFile };
    plan.mount(source, target, attributes, policy);
    Ok(())
}

fn joined(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    [prefix, name].concat()
}

fn beneath(directory: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(directory, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn names(directory: impl AsFd) -> Result<Vec<Vec<u8>>> {
    moltis_agent::dangerous::protect::names(directory).map_err(Error::system("a directory cannot be read"))
}
