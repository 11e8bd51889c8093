//! Moving an entry from one opened directory to another.

use std::ffi::CStr;
use std::os::fd::AsFd;

use moltis_sandbox::{Error, GuestPath};
use rustix::fs::{RenameFlags, renameat, renameat_with};
use rustix::io::Errno;

use super::failure::{exists, invalid, kernel};
use super::object;

/// Gives an entry another place; what is there goes only where that was asked for.
///
/// # Errors
/// The kernel's; `EXIST` for what is there and stays.
pub fn rename(
    (from, old): (impl AsFd, &CStr),
    (to, new): (impl AsFd, &CStr),
    replace: bool,
) -> Result<(), Errno> {
    if replace {
        return renameat(from, old, to, new);
    }
    match renameat_with(&from, old, &to, new, RenameFlags::NOREPLACE) {
        // Some file systems cannot do that.
        Err(Errno::INVAL | Errno::NOSYS) => match object::stat(&to, new) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => renameat(from, old, to, new),
            Err(errno) => Err(errno),
        },
        other => other,
    }
}

/// Why something was not moved, in its caller's words.
pub fn failed(from: &GuestPath, to: &GuestPath, replace: bool, errno: Errno) -> Error {
    match errno {
        Errno::EXIST | Errno::NOTEMPTY if !replace => exists(to.as_bytes()),
        Errno::INVAL => invalid(
            "request-invalid",
            format!("`{from}` cannot be moved into itself"),
            "name a place outside of it",
        ),
        errno => kernel(errno, format!("`{from}` cannot be moved to `{to}`")),
    }
}
