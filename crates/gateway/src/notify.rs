//! What a service manager is told: one datagram for each state.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// States that are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It takes requests.
    Ready,
    /// It reads its configuration anew.
    Reloading,
    /// It is about to end.
    Stopping,
}

/// Tells the service manager that the environment names, if it names one. That it cannot be told is nobody's harm.
pub fn tell(told: Told, status: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let state = match told {
        Told::Ready => format!("READY=1\nSTATUS={status}"),
        Told::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS={status}", monotonic_micros()),
        Told::Stopping => format!("STOPPING=1\nSTATUS={status}"),
    };
    if let Err(error) = send(&place, &state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

fn send(place: &std::ffi::OsStr, state: &str) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;

    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

fn monotonic_micros() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("notify");
        let manager = UnixDatagram::bind(&place).unwrap();
        send(place.as_os_str(), "READY=1").unwrap();
        let mut buffer = [0; 64];
        let count = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"READY=1");
    }
}
