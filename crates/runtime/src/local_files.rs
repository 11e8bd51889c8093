//! The caller's own files and folders, as the near end of a copy into or out of a sandbox. What comes out of a sandbox
//! is not trusted: it stays beneath the folder that it is copied to, replaces nothing unless told to, and brings no
//! setuid bits, owners or devices.

use std::ffi::{CStr, CString, OsStr};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use moltis_agent_protocol::tar::Time;
use moltis_sandbox::files::TreeSummary;
use moltis_sandbox::{ByteStream, EntryKind, Metadata, Result};
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens, lstat, mkdirat,
    open, readlink, stat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::bridge::{PIECE, consume, produce};
use crate::runtime::off_thread;
use crate::tree::failure::{exists, kernel, shown, wrong_kind};
use crate::tree::object::{self, NotOpened};
use crate::tree::pack::{Pack, Source, pack};
use crate::tree::part::{Part, clean};
use crate::tree::unpack::{Rules, leads_out, unpack};

pub use crate::tree::left_out::LeftOut;
pub use crate::tree::unpack::Unpacked;

/// What is at a path, with links on the way followed, and at its end if `follow`; `None` when there is nothing.
///
/// # Errors
/// When it cannot be looked at.
pub async fn look(path: &Path, follow: bool) -> Result<Option<Metadata>> {
    let path = path.to_owned();
    off_thread(move || match if follow { stat(&path) } else { lstat(&path) } {
        Ok(stat) => Ok(Some(object::described(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(&path, "looked at", errno)),
    })
    .await
}

/// A link that lies somewhere in a folder, if there is one: its path.
///
/// # Errors
/// When the folder cannot be read.
pub async fn find_link(path: &Path) -> Result<Option<PathBuf>> {
    let path = path.to_owned();
    off_thread(move || {
        let mut waiting = vec![path];
        while let Some(folder) = waiting.pop() {
            let failed = |error| failed(&folder, "read", errno(&error));
            for entry in std::fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let kind = entry.file_type().map_err(failed)?;
                if kind.is_symlink() {
                    return Ok(Some(entry.path()));
                }
                if kind.is_dir() {
                    waiting.push(entry.path());
                }
            }
        }
        Ok(None)
    })
    .await
}

/// A path without links and dots.
///
/// # Errors
/// When something on it is not there.
pub async fn real_path(path: &Path) -> Result<PathBuf> {
    let path = path.to_owned();
    off_thread(move || path.canonicalize().map_err(|error| failed(&path, "found", errno(&error)))).await
}

/// Whether a folder has nothing in it.
///
/// # Errors
/// When it cannot be read.
pub async fn is_empty(path: &Path) -> Result<bool> {
    let path = path.to_owned();
    off_thread(move || {
        let entries = Dir::new(open_folder(&path)?).map_err(|e| failed(&path, "read", e))?;
        let is_real = |name: &CStr| name != c"." && name != c"..";
        Ok(entries.filter_map(std::result::Result::ok).all(|entry| !is_real(entry.file_name())))
    })
    .await
}

/// A file's content and what it is. A FIFO, socket or device is not opened.
///
/// # Errors
/// When it is no file, or cannot be opened.
pub async fn read(path: &Path) -> Result<(Metadata, ByteStream)> {
    let path = path.to_owned();
    let opened = off_thread({
        let path = path.clone();
        move || {
            // Followed, as any path of the caller's own is.
            let found = stat(&path).map_err(|e| failed(&path, "read", e))?;
            if object::kind(&found) != EntryKind::File {
                return Err(wrong_kind(path.as_os_str().as_bytes(), object::kind(&found)));
            }
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = open(&path, flags, Mode::empty()).map_err(|e| failed(&path, "read", e))?;
            let stat = fstat(&file).map_err(|e| failed(&path, "read", e))?;
            Ok((file, object::described(&stat)))
        }
    });
    let (file, metadata) = opened.await?;
    let content = produce(move |out| {
        loop {
            let mut buffer = vec![0; PIECE];
            match rustix::io::read(&file, &mut buffer[..]) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    buffer.truncate(count);
                    out.give(buffer.into())?;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(&path, "read", errno)),
            }
        }
    });
    Ok((metadata, content))
}

/// A folder as a tar stream. With a `prefix` all names begin with it, and the folder itself is the first entry.
/// FIFOs, sockets and devices are left out, which is noted.
///
/// # Errors
/// When it is no folder, or cannot be opened. What cannot be read in it is an error of the stream.
pub async fn read_tree(path: &Path, prefix: &[u8], left_out: &LeftOut) -> Result<ByteStream> {
    let path = path.to_owned();
    let shown = path.as_os_str().as_bytes().to_vec();
    let top = off_thread(move || open_folder(&path)).await?;
    let (prefix, left_out) = (prefix.to_vec(), left_out.clone());
    let tree = Pack { source: Source::Directory(top), shown, prefix, links: true, left_out };
    Ok(produce(move |out| pack(tree, out)))
}

/// A link as a tar stream in which it has this name.
///
/// # Errors
/// When it is no link any more.
pub async fn read_link(path: &Path, name: &[u8]) -> Result<ByteStream> {
    let (path, name) = (path.to_owned(), name.to_vec());
    let shown = path.as_os_str().as_bytes().to_vec();
    let source = off_thread(move || {
        let stat = lstat(&path).map_err(|e| failed(&path, "read", e))?;
        let target = readlink(&path, Vec::new()).map_err(|e| failed(&path, "read", e))?;
        Ok(Source::Link { target: target.into_bytes(), stat, name })
    });
    let source = source.await?;
    let tree = Pack { source, shown, prefix: Vec::new(), links: true, left_out: LeftOut::default() };
    Ok(produce(move |out| pack(tree, out)))
}

/// Writes a file at once when all content has arrived; on any error what was there stays. Its name is not followed if
/// it is a link.
///
/// # Errors
/// `file-exists` when something is there and may not be replaced; those of the content.
pub async fn write(path: &Path, content: ByteStream, metadata: Metadata, replace: bool) -> Result<u64> {
    let path = path.to_owned();
    consume(content, move |inflow| {
        let (folder, name) = place(&path)?;
        if !replace && object::stat(&folder, &*name).is_ok() {
            return Err(exists(path.as_os_str().as_bytes()));
        }
        clean(&folder);
        let mut part =
            Part::new(std::os::fd::AsFd::as_fd(&folder)).map_err(|e| failed(&path, "written", e))?;
        let mut size = 0;
        while let Some(bytes) = inflow.next(u64::MAX)? {
            size += bytes.len() as u64;
            let written = part.file().write_all(&bytes);
            written.map_err(|e| failed(&path, "written", errno(&e)))?;
        }
        futimens(&*part.file(), &times(&metadata)).map_err(|e| failed(&path, "written", e))?;
        match part.take_name(&name, metadata.mode, replace) {
            Ok(_) => Ok(size),
            Err(NotOpened::Kind(found)) => Err(wrong_kind(path.as_os_str().as_bytes(), found)),
            Err(NotOpened::Kernel(Errno::EXIST)) => Err(exists(path.as_os_str().as_bytes())),
            Err(NotOpened::Kernel(errno)) => Err(failed(&path, "written", errno)),
        }
    })
    .await
}

/// Unpacks a tar stream into a folder, which is not followed if it is a link. One that is missing is made, and gets the
/// mode and time of `metadata`.
///
/// # Errors
/// When something in it leads out of the folder, is there already and may not be replaced, or cannot be made.
pub async fn write_tree(path: &Path, tar: ByteStream, metadata: Metadata, replace: bool) -> Result<Unpacked> {
    let path = path.to_owned();
    consume(tar, move |inflow| {
        let (above, name) = place(&path)?;
        let is_new = match mkdirat(&above, &*name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed(&path, "written", errno)),
        };
        let folder = object::directory(&above, &*name).map_err(|why| match why {
            NotOpened::Kind(found) => wrong_kind(path.as_os_str().as_bytes(), found),
            NotOpened::Kernel(errno) => failed(&path, "written", errno),
        })?;
        clean(&folder);
        let rules = Rules { replace, links: true, exact: true, max_file: u64::MAX };
        let top = folder.try_clone().map_err(|e| failed(&path, "written", errno(&e)))?;
        let unpacked = unpack(top, rules, inflow)?;
        if is_new {
            futimens(&folder, &times(&metadata)).map_err(|e| failed(&path, "written", e))?;
            let mode = Mode::from_raw_mode((metadata.mode & object::MODE) as _);
            fchmod(&folder, mode).map_err(|e| failed(&path, "written", e))?;
        }
        Ok(unpacked)
    })
    .await
}

/// Makes a link. One that is there, or a file, is replaced by it if `replace`.
///
/// # Errors
/// `file-exists` when something is there and may not be replaced.
pub async fn write_link(path: &Path, target: &OsStr, replace: bool) -> Result<Unpacked> {
    let (path, target) = (path.to_owned(), target.to_owned());
    off_thread(move || {
        let failed = |errno| failed(&path, "made", errno);
        let (folder, name) = place(&path)?;
        match symlinkat(&target, &folder, &*name) {
            Err(Errno::EXIST) if replace => {
                let found = object::kind(&object::stat(&folder, &*name).map_err(failed)?);
                if !matches!(found, EntryKind::File | EntryKind::Symlink) {
                    return Err(wrong_kind(path.as_os_str().as_bytes(), found));
                }
                unlinkat(&folder, &*name, AtFlags::empty()).map_err(failed)?;
                symlinkat(&target, &folder, &*name).map_err(failed)?;
            }
            Err(Errno::EXIST) => return Err(exists(path.as_os_str().as_bytes())),
            other => other.map_err(failed)?,
        }
        let is_out = leads_out(name.to_bytes(), target.as_bytes());
        Ok(Unpacked {
            summary: TreeSummary { entries: 1, bytes: 0 },
            leading_out: u64::from(is_out),
            one_leading_out: is_out.then(|| name.into_bytes()),
        })
    })
    .await
}

fn times(metadata: &Metadata) -> Timestamps {
    let nanos = metadata.modified_nanos;
    let time =
        Time { seconds: nanos.div_euclid(1_000_000_000), nanos: nanos.rem_euclid(1_000_000_000) as u32 };
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() },
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|e| failed(path, "opened", e))
}

/// The folder that a path lies in, and its name there.
fn place(path: &Path) -> Result<(OwnedFd, CString)> {
    let name = path.file_name().map(OsStr::as_bytes).and_then(|name| CString::new(name).ok());
    let name = name.ok_or_else(|| failed(path, "used", Errno::INVAL))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((open_folder(above)?, name))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// `what` did not happen to it.
fn failed(path: &Path, what: &str, errno: Errno) -> moltis_sandbox::Error {
    kernel(
        errno,
        format!("`{}` here, outside of the sandbox, cannot be {what}", shown(path.as_os_str().as_bytes())),
    )
}
