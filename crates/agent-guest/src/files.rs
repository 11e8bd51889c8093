//! File operations, each in a process of its own, with blocking calls.
//!
//! Whatever a path names is opened first as a mere handle (`O_PATH`), judged by that handle, and then used through it:
//! what the path names a moment later does not matter, and a FIFO, socket or device is never opened. Where a tree is
//! walked no link is followed.

mod beneath;
mod body;
mod change;
mod download;
mod failure;
mod list;
mod object;
mod path;
mod read;
mod remove;
pub mod roots;
mod upload;
mod walk;
mod write;

use std::io;

use moltis_agent_protocol::message::{Failure, FileRequest, Reply};

use crate::connection::Connection;

/// Why an operation ends early.
#[derive(Debug)]
enum Trouble {
    /// The host is gone, or said what it may not say: there is nobody to tell.
    Host(io::Error),
    /// The host is told this.
    Failed(Failure),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

type Result<T, E = Trouble> = std::result::Result<T, E>;

/// Carries out one file operation and answers it.
///
/// # Errors
/// When the host is gone.
pub fn handle(mut conn: Connection, request: FileRequest) -> io::Result<()> {
    match carry_out(&mut conn, request) {
        Ok(()) => Ok(()),
        Err(Trouble::Host(error)) => Err(error),
        Err(Trouble::Failed(failure)) => conn.reply(&Reply::Failed(failure)),
    }
}

fn carry_out(conn: &mut Connection, request: FileRequest) -> Result<()> {
    match request {
        FileRequest::Stat { path, follow } => {
            let path = path::checked(&path)?;
            let found = object::find(path, follow)?;
            conn.reply(&Reply::Metadata(object::metadata(&found, path)?))?;
        }
        FileRequest::List { path } => list::list(conn, path::checked(&path)?)?,
        FileRequest::Read { path, offset, length } => {
            read::read(conn, path::checked(&path)?, offset, length)?;
        }
        FileRequest::Write { path, mode, overwrite, parents } => {
            let options = write::Options { mode, overwrite, parents };
            let metadata = write::write(conn, path::checked(&path)?, options)?;
            conn.reply(&Reply::Metadata(metadata))?;
        }
        FileRequest::Mkdir { path, parents } => {
            change::mkdir(path::checked(&path)?, parents)?;
            conn.reply(&Reply::Done)?;
        }
        FileRequest::Remove { path, recursive } => {
            remove::remove(conn, path::checked(&path)?, recursive)?;
            conn.reply(&Reply::Done)?;
        }
        FileRequest::Rename { from, to, replace } => {
            change::rename(path::checked(&from)?, path::checked(&to)?, replace)?;
            conn.reply(&Reply::Done)?;
        }
        FileRequest::Download { path } => download::download(conn, path::checked(&path)?)?,
        FileRequest::Upload { path } => {
            let unpacked = upload::upload(conn, path::checked(&path)?)?;
            conn.reply(&unpacked)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
