//! A tree as a tar stream. No file is held in memory, and one that changes its size while it is read does not break
//! the archive: it is cut, or filled with zeros, to the size that its header states.

use std::os::fd::OwnedFd;

use moltis_agent_protocol::message::{EntryKind, FailureCode, Reply};
use moltis_agent_protocol::tar::{BLOCK, Entry, Kind, padding};
use moltis_agent_protocol::{Kind as FrameKind, frame};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};
use super::walk::{Found, Visit, walk};
use super::{Result, object, path};
use crate::connection::Connection;

/// Bytes that are collected before they are sent.
const FRAME: usize = frame::MAX_RAW;

/// Sends the tree at `path`: of a directory all that is in it, else the one file.
pub fn download(conn: &mut Connection, path: &[u8]) -> Result<()> {
    let failed = |e: Errno| kernel(e, format!("`{}` cannot be read", shown(path)));
    let handle = object::find(path, true)?;
    let stat = rustix::fs::fstat(&handle).map_err(failed)?;
    let mut archive = Archive { conn, top: path, buffer: Vec::new() };
    match object::kind(&stat) {
        EntryKind::Directory => {
            let top = object::reopen(&handle, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
            archive.conn.reply(&Reply::Done)?;
            walk(top, path, &mut archive)?;
        }
        EntryKind::File => {
            let Some((_, name)) = path::split(path) else {
                return Err(plain(FailureCode::Invalid, format!("`{}` has no name", shown(path))).into());
            };
            let file = object::reopen(&handle, OFlags::RDONLY).map_err(failed)?;
            archive.conn.reply(&Reply::Done)?;
            archive.file(&file, name)?;
        }
        other => return Err(object::wrong_kind(path, other).into()),
    }
    archive.end()
}

struct Archive<'a> {
    conn: &'a mut Connection,
    top: &'a [u8],
    buffer: Vec<u8>,
}

impl Archive<'_> {
    fn failed(&self, path: &[u8], errno: Errno) -> super::Trouble {
        kernel(errno, format!("`{}` cannot be read", shown(&[self.top, b"/", path].concat()))).into()
    }

    fn header(&mut self, kind: Kind, name: &[u8], target: &[u8], stat: &Stat) -> Result<()> {
        let size = if kind == Kind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        let entry = Entry {
            kind,
            name,
            target,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size,
            mtime: stat.st_mtime,
        };
        entry.write(&mut self.buffer);
        self.flush(FRAME)
    }

    fn file(&mut self, file: &OwnedFd, name: &[u8]) -> Result<()> {
        let stat = rustix::fs::fstat(file).map_err(|e| self.failed(name, e))?;
        self.header(Kind::File, name, b"", &stat)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut left = size;
        while left > 0 {
            let at = self.buffer.len();
            let room = FRAME.saturating_sub(at).max(BLOCK);
            let want = usize::try_from(left).map_or(room, |left| left.min(room));
            self.buffer.resize(at + want, 0);
            let count = match rustix::io::read(file, &mut self.buffer[at..]) {
                // It has become shorter: the zeros that are there already stand for the rest.
                Ok(0) => want,
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(e) => {
                    self.buffer.truncate(at);
                    return Err(self.failed(name, e));
                }
            };
            self.buffer.truncate(at + count);
            left -= count as u64;
            self.flush(FRAME)?;
        }
        self.buffer.resize(self.buffer.len() + padding(size), 0);
        self.flush(FRAME)
    }

    /// Sends what has been collected if it is `least` bytes or more.
    fn flush(&mut self, least: usize) -> Result<()> {
        if self.buffer.len() < least.max(1) {
            return Ok(());
        }
        for part in self.buffer.chunks(FRAME) {
            self.conn.send(FrameKind::Data, part)?;
        }
        self.buffer.clear();
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.buffer.resize(self.buffer.len() + 2 * BLOCK, 0);
        self.flush(0)?;
        self.conn.send(FrameKind::Eof, &[])?;
        Ok(())
    }
}

impl Visit for Archive<'_> {
    fn enter(&mut self, found: Found<'_>) -> Result<Option<OwnedFd>> {
        if !matches!(
            found.kind,
            FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown
        ) {
            return Ok(None);
        }
        let handle = match object::entry(found.directory, found.name) {
            Ok(handle) => handle,
            // Gone since it was listed.
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.failed(found.path, e)),
        };
        let stat = rustix::fs::fstat(&handle).map_err(|e| self.failed(found.path, e))?;
        match object::kind(&stat) {
            EntryKind::File => {
                let file = object::reopen(&handle, OFlags::RDONLY).map_err(|e| self.failed(found.path, e))?;
                self.file(&file, found.path)?;
                Ok(None)
            }
            EntryKind::Symlink => {
                let target = rustix::fs::readlinkat(&handle, c"", Vec::new())
                    .map_err(|e| self.failed(found.path, e))?;
                self.header(Kind::Symlink, found.path, target.as_bytes(), &stat)?;
                Ok(None)
            }
            EntryKind::Directory => {
                self.header(Kind::Directory, &[found.path, b"/"].concat(), b"", &stat)?;
                if is_of_the_kernel(&handle) {
                    return Ok(None);
                }
                object::reopen(&handle, OFlags::RDONLY | OFlags::DIRECTORY)
                    .map(Some)
                    .map_err(|e| self.failed(found.path, e))
            }
            EntryKind::Other => Ok(None),
        }
    }

    fn leave(&mut self, _: Found<'_>) -> Result<()> {
        Ok(())
    }
}

/// Whether a directory lies in a file system whose files are no data (`/proc`, `/sys`).
fn is_of_the_kernel(handle: &OwnedFd) -> bool {
    const PROC: i64 = 0x9fa0;
    const SYSFS: i64 = 0x6265_6572;
    const CGROUP: i64 = 0x0027_e0eb;
    const CGROUP2: i64 = 0x6367_7270;
    const DEVPTS: i64 = 0x1cd1;
    rustix::fs::fstatfs(handle)
        .is_ok_and(|stat| [PROC, SYSFS, CGROUP, CGROUP2, DEVPTS].contains(&stat.f_type))
}
