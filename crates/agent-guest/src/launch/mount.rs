//! Mounts as handles: cloned or made detached, given their attributes, and only then put into a tree.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType};
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::namespaces::last_errno;

/// `struct mount_attr` of `<linux/mount.h>`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// `MOUNT_ATTR_RDONLY`.
pub const READ_ONLY: u64 = 0x1;
/// `MOUNT_ATTR_NOSUID`.
pub const NOSUID: u64 = 0x2;
/// `MOUNT_ATTR_NODEV`.
pub const NODEV: u64 = 0x4;
/// `MOUNT_ATTR_IDMAP`.
const IDMAP: u64 = 0x0010_0000;

const RECURSIVE: libc::c_int = 0x8000; // AT_RECURSIVE

/// A detached copy of the tree at a path of the present tree, links followed.
pub fn clone_path(path: &[u8]) -> Result<OwnedFd> {
    open_tree(CWD, path, clone_flags())
}

/// A detached copy of the tree at a handle.
pub fn clone_handle(handle: BorrowedFd<'_>) -> Result<OwnedFd> {
    open_tree(handle, "", clone_flags() | OpenTreeFlags::AT_EMPTY_PATH)
}

fn clone_flags() -> OpenTreeFlags {
    // A copy without what is mounted beneath is refused to an ordinary user, whom it could show what those mounts hide.
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE
}

/// Sets attributes on a tree, and cuts it off from mounts and unmounts elsewhere.
pub fn set_attributes(tree: BorrowedFd<'_>, attributes: u64) -> Result<()> {
    let attr = MountAttr { set: attributes, propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    mount_setattr(tree, RECURSIVE, &attr)
}

/// Shows the owner ids on disk as the ids that `userns` maps them to.
pub fn set_idmap(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> Result<()> {
    let attr = MountAttr { set: IDMAP, userns: userns.as_raw_fd() as u64, ..MountAttr::default() };
    mount_setattr(tree, RECURSIVE, &attr)
}

/// Sets attributes on one mount.
pub fn set_own_attributes(mount: BorrowedFd<'_>, attributes: u64) -> Result<()> {
    mount_setattr(mount, 0, &MountAttr { set: attributes, ..MountAttr::default() })
}

fn mount_setattr(fd: BorrowedFd<'_>, flags: libc::c_int, attr: &MountAttr) -> Result<()> {
    // SAFETY: the descriptor is open; the struct is the kernel's first version of it and outlives the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            attr as *const MountAttr,
            size_of::<MountAttr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// A new file system with these options (an empty value is a flag) as a detached mount.
pub fn new(kind: &[u8], options: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)], attributes: u64) -> Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        match value.as_ref() {
            [] => fsconfig_set_flag(&fs, name.as_ref())?,
            value => fsconfig_set_string(&fs, name.as_ref(), value)?,
        }
    }
    fsconfig_create(&fs)?;
    let flags = MountAttrFlags::from_bits_retain(u32::try_from(attributes).map_err(|_| Errno::INVAL)?);
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Puts a detached mount onto a handle.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// What kind of file a handle is.
pub fn kind_of(handle: impl AsFd) -> Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode))
}
