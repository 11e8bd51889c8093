//! Forwarding of the sandbox's loopback ports.

use std::io;
use std::os::fd::OwnedFd;

use moltis_agent_protocol::message::FailureCode;

use crate::connection::Connection;

/// Connects to a port on loopback and carries the bytes.
///
/// # Errors
/// When the host is gone.
pub fn connect(mut conn: Connection, _port: u16) -> io::Result<()> {
    conn.fail(FailureCode::Invalid, "not built yet", None)
}

/// Listens on a port of loopback and hands connections to the host.
///
/// # Errors
/// When the host is gone.
pub fn listen(mut conn: Connection, _port: u16, _listener: u32, _control: OwnedFd) -> io::Result<()> {
    conn.fail(FailureCode::Invalid, "not built yet", None)
}
