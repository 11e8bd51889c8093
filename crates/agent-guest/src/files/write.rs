//! Replacing a file at once: the content goes to a new file beside it, which takes its name when all has arrived.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use moltis_agent_protocol::message::{EntryKind, Failure, FailureCode, Metadata};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::body::Body;
use super::failure::{kernel, plain, shown};
use super::roots::{self, Access};
use super::{Result, change, object, path};
use crate::connection::Connection;

/// Most links that a path may end in, one after another: the kernel's own limit.
const MAX_LINKS: usize = 40;

/// How to write.
pub struct Options {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
    /// Whether to make missing directories.
    pub parents: bool,
}

/// Writes what the host sends to the file at `path`. A link is looked through: the file that it leads to is replaced.
pub fn write(conn: &mut Connection, path: &[u8], options: Options) -> Result<Metadata> {
    let failed = |e: Errno| kernel(e, format!("`{}` cannot be written", shown(path)));
    let place = Place::find(path, options.parents)?;
    let old = match &place.old {
        Some(_) if !options.overwrite => {
            return Err(plain(FailureCode::Exists, format!("`{}` exists", shown(path))).into());
        }
        Some(old) => Some(judge(old, path)?),
        None => None,
    };
    let mode = match (options.mode, &old) {
        (Some(mode), _) => mode & 0o777,
        (None, Some(old)) => old.mode & 0o777,
        (None, None) => 0o644 & !umask(),
    };

    let mut temp = Temp::new(&place.directory).map_err(failed)?;
    let mut body = Body::new(conn);
    while let Some(bytes) = body.next(u64::MAX)? {
        temp.file.write_all(bytes).map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    }
    if let Some(old) = &old {
        // Only a privileged agent can give files away; to keep the group an ordinary one must belong to it.
        let _ = rustix::fs::fchown(
            &temp.file,
            Some(rustix::fs::Uid::from_raw(old.uid)),
            Some(rustix::fs::Gid::from_raw(old.gid)),
        );
    }
    rustix::fs::fchmod(&temp.file, Mode::from_raw_mode(mode)).map_err(failed)?;
    temp.take_name(&place, options.overwrite).map_err(failed)?;
    Ok(object::metadata(&temp.file, path)?)
}

/// What is replaced must be a file that may be written to, even though it is replaced and not written.
fn judge(old: &OwnedFd, path: &[u8]) -> Result<Metadata, Failure> {
    let metadata = object::metadata(old, path)?;
    if metadata.kind != EntryKind::File {
        return Err(object::wrong_kind(path, metadata.kind));
    }
    match object::reopen(old, OFlags::WRONLY) {
        // A program that runs cannot be written to, but replaced.
        Ok(_) | Err(Errno::TXTBSY) => Ok(metadata),
        Err(e) => Err(kernel(e, format!("`{}` cannot be written", shown(path)))),
    }
}

/// Where a file goes.
struct Place {
    directory: OwnedFd,
    name: CString,
    /// What is there now.
    old: Option<OwnedFd>,
}

impl Place {
    fn find(path: &[u8], parents: bool) -> Result<Self, Failure> {
        let failed = |e: Errno| kernel(e, format!("`{}` cannot be written", shown(path)));
        let mut base: Option<OwnedFd> = None;
        let mut rest = path.to_vec();
        for _ in 0..=MAX_LINKS {
            let base_fd = base.as_ref().map_or(CWD, |base| base.as_fd());
            let Some((above, name)) = path::split(&rest) else {
                return Err(object::wrong_kind(path, EntryKind::Directory));
            };
            if rest.ends_with(b"/") {
                return Err(plain(FailureCode::Invalid, format!("`{}` names a directory", shown(path))));
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = match rustix::fs::openat(base_fd, above, flags, Mode::empty()) {
                Err(Errno::NOENT) if parents => change::make_all(base_fd, above),
                other => other,
            }
            .map_err(failed)?;
            let old = match object::entry(&directory, name) {
                Ok(old) => Some(old),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(failed(e)),
            };
            let stat = old.as_ref().map(rustix::fs::fstat).transpose().map_err(failed)?;
            if let Some(old) = &old
                && stat.is_some_and(|stat| object::kind(&stat) == EntryKind::Symlink)
            {
                rest = rustix::fs::readlinkat(old, c"", Vec::new()).map_err(failed)?.into_bytes();
                base = Some(directory);
                continue;
            }
            roots::judge(&directory, path, Access::Write)?;
            let name = CString::new(name).map_err(|_| failed(Errno::INVAL))?;
            return Ok(Self { directory, name, old });
        }
        Err(failed(Errno::LOOP))
    }
}

/// A file without a lasting name: removed unless it takes one.
struct Temp<'a> {
    directory: &'a OwnedFd,
    name: CString,
    file: File,
    named: bool,
}

impl<'a> Temp<'a> {
    fn new(directory: &'a OwnedFd) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..16 {
            let name = random_name()?;
            match rustix::fs::openat(directory, &*name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(Self { directory, name, file: file.into(), named: false }),
                Err(Errno::EXIST | Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::EXIST)
    }

    fn take_name(&mut self, place: &Place, overwrite: bool) -> Result<(), Errno> {
        let (directory, to) = (self.directory, &*place.name);
        if overwrite {
            rustix::fs::renameat(directory, &*self.name, directory, to)?;
        } else {
            match rustix::fs::renameat_with(directory, &*self.name, directory, to, RenameFlags::NOREPLACE) {
                // Some file systems cannot do that, but none replaces anything with a link.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    return rustix::fs::linkat(directory, &*self.name, directory, to, AtFlags::empty());
                }
                other => other?,
            }
        }
        self.named = true;
        Ok(())
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.named {
            let _ = rustix::fs::unlinkat(self.directory, &*self.name, AtFlags::empty());
        }
    }
}

fn random_name() -> Result<CString, Errno> {
    let mut random = [0u8; 16];
    // SAFETY: the buffer is as long as stated; 16 bytes are never given in part.
    let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    if got != random.len() as isize {
        return Err(Errno::IO);
    }
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    CString::new(format!(".moltis-{digits}")).map_err(|_| Errno::INVAL)
}

/// The mask for new files. Read and not set: that would change it for a moment.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap_or("0022");
    u32::from_str_radix(digits.trim(), 8).unwrap_or(0o022)
}
