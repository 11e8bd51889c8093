//! Forwarding of the sandbox's loopback ports.
//!
//! A connection to the inside is a process of its own; a listener is one process for itself and all its connections,
//! which cost next to nothing while they are idle.

pub mod listener;
pub mod tunnel;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::{Failure, FailureCode, Reply};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::connection::Connection;
use crate::poll::{PEER_CLOSED, PollSet, WRITE};
use tunnel::Tunnels;

/// Time for a connection to be made. On loopback only a server whose queue is full takes any.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a port on loopback and carries the bytes.
///
/// # Errors
/// When the host is gone.
pub fn connect(mut conn: Connection, port: u16) -> io::Result<()> {
    let inside = match reach(&conn, port) {
        Ok(Some(inside)) => inside,
        Ok(None) => return Ok(()),
        Err(failure) => return conn.reply(&Reply::Failed(failure)),
    };
    conn.reply(&Reply::Connected)?;
    let mut tunnels = Tunnels::new()?;
    tunnels.add(conn.into_socket(), inside)?;
    let mut events = Vec::with_capacity(8);
    while !tunnels.is_empty() {
        tunnels.wait(&mut events, None)?;
        for event in &events {
            tunnels.handle(event);
        }
    }
    Ok(())
}

/// A connection to the port; `None` when the host is gone meanwhile.
fn reach(conn: &Connection, port: u16) -> Result<Option<OwnedFd>, Failure> {
    if port == 0 {
        return Err(failure(FailureCode::Invalid, "0 is no port".to_owned(), None));
    }
    let mut first = None;
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        match attempt(conn, SocketAddr::new(address, port)) {
            Ok(made) => return Ok(made),
            Err(errno) => first = first.or(Some(errno)),
        }
    }
    let errno = first.unwrap_or(Errno::CONNREFUSED);
    let (code, message) = match errno {
        Errno::CONNREFUSED => {
            (FailureCode::ConnectionRefused, format!("nothing listens on port {port} inside the sandbox"))
        }
        e => (code(e), format!("port {port} inside the sandbox cannot be reached")),
    };
    Err(failure(code, message, Some(errno)))
}

fn attempt(conn: &Connection, address: SocketAddr) -> Result<Option<OwnedFd>, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let until = Instant::now() + PATIENCE;
            let mut set = PollSet::default();
            loop {
                set.clear();
                let ours = set.add(socket.as_fd(), WRITE);
                let host = set.add(conn.as_fd(), PEER_CLOSED);
                set.wait(Some(until)).map_err(|_| Errno::NOMEM)?;
                if set.happened(host) != 0 {
                    return Ok(None);
                }
                if set.happened(ours) != 0 {
                    break;
                }
                if Instant::now() >= until {
                    return Err(Errno::TIMEDOUT);
                }
            }
            rustix::net::sockopt::socket_error(&socket)??;
        }
        Err(e) => return Err(e),
    }
    tunnel::prompt(&socket);
    Ok(Some(socket))
}

/// Listens on a port of loopback and hands connections to the host.
///
/// # Errors
/// When the host is gone.
pub fn listen(mut conn: Connection, port: u16, listener: u32, control: OwnedFd) -> io::Result<()> {
    let (socket, given) = match listener::open(port) {
        Ok(opened) => opened,
        Err(errno) => {
            let code = if errno == Errno::ADDRINUSE { FailureCode::Exists } else { code(errno) };
            let message = format!("port {port} inside the sandbox cannot be listened on");
            return conn.reply(&Reply::Failed(failure(code, message, Some(errno))));
        }
    };
    conn.reply(&Reply::Listening { listener, port: given })?;
    listener::Listener::new(conn.into_socket(), socket, listener, control)?.run()
}

fn failure(code: FailureCode, message: String, errno: Option<Errno>) -> Failure {
    Failure { code, message, errno: errno.map(Errno::raw_os_error) }
}

fn code(errno: Errno) -> FailureCode {
    match errno {
        Errno::ACCESS | Errno::PERM => FailureCode::Denied,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => FailureCode::Exhausted,
        _ => FailureCode::Io,
    }
}

#[cfg(test)]
mod tests;
