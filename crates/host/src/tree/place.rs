//! Where a path beneath a directory leads, one name after another.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use moltis_sandbox::{GuestPath, Result};
use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::failure::{invalid, kernel, shown, wrong_kind};
use super::object::{self, NotOpened};

/// A directory beneath which everything happens.
#[derive(Clone, Debug)]
pub struct Top(Arc<OwnedFd>);

/// An entry, there or not: its directory and its name.
#[derive(Debug)]
pub struct Place {
    /// The directory that it is in.
    pub directory: OwnedFd,
    /// Its name.
    pub name: CString,
}

impl Top {
    /// Everything happens beneath this directory.
    pub fn new(directory: OwnedFd) -> Self {
        Self(Arc::new(directory))
    }

    /// The directory at a path; with `make` what is missing is made.
    ///
    /// # Errors
    /// When it is not there, or something on the way is no directory.
    pub fn directory(&self, path: &GuestPath, make: bool) -> Result<OwnedFd> {
        self.reach(&parts(path)?, path.as_bytes(), make)
    }

    /// The place that a path names; `None` for the top itself.
    ///
    /// # Errors
    /// When its directory is not there, or something on the way is none.
    pub fn place(&self, path: &GuestPath, make: bool) -> Result<Option<Place>> {
        let parts = parts(path)?;
        let Some((name, above)) = parts.split_last() else { return Ok(None) };
        let directory = self.reach(above, path.as_bytes(), make)?;
        let name = CString::new(*name).map_err(|_| kernel(Errno::INVAL, failed(path.as_bytes())))?;
        Ok(Some(Place { directory, name }))
    }

    fn reach(&self, parts: &[&[u8]], path: &[u8], make: bool) -> Result<OwnedFd> {
        let mut current = self
            .0
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| kernel(Errno::from_io_error(&error).unwrap_or(Errno::IO), failed(path)))?;
        for (at, name) in parts.iter().enumerate() {
            current = match step(&current, name, make) {
                Ok(next) => next,
                Err(NotOpened::Kind(found)) => {
                    let way = [&b"/"[..], &parts[..=at].join(&b'/')].concat();
                    return Err(wrong_kind(&way, found));
                }
                Err(NotOpened::Kernel(errno)) => return Err(kernel(errno, failed(path))),
            };
        }
        Ok(current)
    }
}

fn failed(path: &[u8]) -> String {
    format!("`{}` of the managed files cannot be reached", shown(path))
}

/// Opens a directory by its name; one that is missing is made, if asked for.
pub fn step(parent: impl AsFd, name: &[u8], make: bool) -> Result<OwnedFd, NotOpened> {
    match object::directory(&parent, name) {
        Err(NotOpened::Kernel(Errno::NOENT)) if make => {
            match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            object::directory(&parent, name)
        }
        other => other,
    }
}

/// The names of a path, without empty ones and `.`.
///
/// # Errors
/// When `..` is among them: without links there is no need for it.
pub fn parts(path: &GuestPath) -> Result<Vec<&[u8]>> {
    let parts: Vec<_> =
        path.as_bytes().split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(invalid("request-invalid", format!("`{path}` holds `..`"), "write the path without"));
    }
    Ok(parts)
}
