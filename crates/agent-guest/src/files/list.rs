//! The entries of a directory, in parts of bounded size.

use std::mem::MaybeUninit;

use moltis_agent_protocol::message::{ByteString, Entry, EntryKind, Metadata, Reply};
use rustix::fs::{FileType, OFlags, RawDir};
use rustix::io::Errno;

use super::failure::{kernel, shown};
use super::{Result, object};
use crate::connection::Connection;

/// Most entries in one part.
const MAX_ENTRIES: usize = 256;

/// Most bytes of names and targets in one part, not counting the last entry.
const MAX_BYTES: usize = 48 * 1024;

/// Sends the entries of the directory at `path`, without `.` and `..`.
pub fn list(conn: &mut Connection, path: &[u8]) -> Result<()> {
    let failed = |e| kernel(e, format!("the directory `{}` cannot be read", shown(path)));
    let handle = object::find(path, true)?;
    let stat = rustix::fs::fstat(&handle).map_err(failed)?;
    match object::kind(&stat) {
        EntryKind::Directory => {}
        other => return Err(object::wrong_kind(path, other).into()),
    }
    let directory = object::reopen(&handle, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;

    let mut part = Vec::new();
    let mut bytes = 0;
    let mut space = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(&directory, &mut space);
    while let Some(found) = entries.next() {
        let found = found.map_err(failed)?;
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let metadata = match object::entry_metadata(&directory, name) {
            Ok(Some(metadata)) => metadata,
            Ok(None) => continue,
            // A directory that may be read but not entered: the names and kinds are all there is to tell.
            Err(Errno::ACCESS) => unknown(found.file_type()),
            Err(e) => return Err(failed(e).into()),
        };
        let name = name.to_bytes();
        bytes += name.len() + metadata.target.as_ref().map_or(0, |target| target.len()) + 64;
        part.push(Entry { name: ByteString::from(name), metadata });
        if part.len() == MAX_ENTRIES || bytes >= MAX_BYTES {
            conn.reply(&Reply::Entries(std::mem::take(&mut part)))?;
            bytes = 0;
        }
    }
    if !part.is_empty() {
        conn.reply(&Reply::Entries(part))?;
    }
    conn.reply(&Reply::Done)?;
    Ok(())
}

fn unknown(kind: FileType) -> Metadata {
    Metadata {
        kind: match kind {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        },
        size: 0,
        mode: 0,
        modified_nanos: 0,
        uid: 0,
        gid: 0,
        target: None,
    }
}
