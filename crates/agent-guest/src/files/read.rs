//! The content of a file.

use moltis_agent_protocol::Kind;
use moltis_agent_protocol::frame::MAX_RAW;
use moltis_agent_protocol::message::{EntryKind, Reply};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::failure::{kernel, shown};
use super::{Result, object};
use crate::connection::Connection;

/// Sends metadata and content of the file at `path`, from `offset` on, `length` bytes at most.
pub fn read(conn: &mut Connection, path: &[u8], offset: u64, length: Option<u64>) -> Result<()> {
    let failed = |e: Errno| kernel(e, format!("`{}` cannot be read", shown(path)));
    let handle = object::find(path, true)?;
    let metadata = object::metadata(&handle, path)?;
    if metadata.kind != EntryKind::File {
        return Err(object::wrong_kind(path, metadata.kind).into());
    }
    let file = object::reopen(&handle, OFlags::RDONLY).map_err(failed)?;
    let size = metadata.size;
    conn.reply(&Reply::Metadata(metadata))?;

    // Sizes of files in /proc are 0; a file that is small needs no large buffer.
    let wanted = size.saturating_sub(offset).max(4096).min(length.unwrap_or(u64::MAX)).min(MAX_RAW as u64);
    let mut buffer = vec![0; wanted as usize];
    let mut at = offset;
    let mut left = length.unwrap_or(u64::MAX);
    // The kernel counts offsets with a sign.
    while left > 0 && at <= i64::MAX as u64 {
        let want = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = match rustix::io::pread(&file, &mut buffer[..want], at) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(failed(e).into()),
        };
        conn.send(Kind::Data, &buffer[..count])?;
        at += count as u64;
        left -= count as u64;
    }
    conn.send(Kind::Eof, &[])?;
    Ok(())
}
