//! File operations, each in a process of its own.

use std::io;

use moltis_agent_protocol::message::{FailureCode, FileRequest};

use crate::connection::Connection;

/// Carries out one file operation and answers it.
///
/// # Errors
/// When the host is gone.
pub fn handle(mut conn: Connection, _request: FileRequest) -> io::Result<()> {
    conn.fail(FailureCode::Invalid, "not built yet", None)
}
