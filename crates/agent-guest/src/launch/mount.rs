//! The mount calls. What the user names is handled as detached mounts: cloned from a handle, given its attributes, and
//! only then put onto a handle. What is the sandbox's own goes by path, which takes a third of the calls.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

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

/// A detached copy of the tree at a handle.
pub fn clone_handle(handle: BorrowedFd<'_>) -> Result<OwnedFd> {
    open_tree(handle, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH)
}

/// A detached copy of the tree at a path, links followed.
pub fn clone_path(path: &[u8]) -> Result<OwnedFd> {
    open_tree(CWD, path, CLONE)
}

/// A copy without what is mounted beneath is refused to an ordinary user, whom it could show what those mounts hide.
const CLONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE);

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

/// Sets attributes on everything that this mount namespace holds, and cuts it off from mounts and unmounts elsewhere.
pub fn set_everywhere(attributes: u64) -> Result<()> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    set_attributes(root.as_fd(), attributes)
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

/// A new file system at a path. The attributes have the values of the older flags.
pub fn new(kind: &[u8], target: &[u8], options: &[u8], attributes: u64) -> Result<()> {
    let flags = MountFlags::from_bits_retain(u32::try_from(attributes).map_err(|_| Errno::INVAL)?);
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(kind, target, kind, flags, options.as_c_str())
}

/// Shows the tree at one path at another one too, with the attributes that it has.
pub fn bind(source: &[u8], target: &[u8]) -> Result<()> {
    rustix::mount::mount_bind_recursive(source, target)
}

/// Puts a detached mount onto a handle.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// Puts a detached mount onto a path.
pub fn attach_at(mount: BorrowedFd<'_>, target: &[u8]) -> Result<()> {
    move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// What kind of file a handle is.
pub fn kind_of(handle: impl AsFd) -> Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode))
}
