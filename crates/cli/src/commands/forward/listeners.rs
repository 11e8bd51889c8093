//! Listeners on this machine's loopback.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use moltis_sandbox::{Diagnosis, Error};
use tokio::net::TcpListener;

use super::ports::Wanted;

/// A listener, and what it stands for.
pub struct Bound {
    pub listener: TcpListener,
    /// With the port that it really has.
    pub wanted: Wanted,
}

/// Listens at each of them, or at none.
///
/// # Errors
/// `host-port-taken`, `host-port-denied`, `host-port-unusable`.
pub async fn bind(all: &[Wanted]) -> Result<Vec<Bound>, Error> {
    let mut bound = Vec::with_capacity(all.len());
    for wanted in all {
        let listened = match TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.host_port)).await {
            Ok(listener) => listener.local_addr().map(|address| (listener, address.port())),
            Err(error) => Err(error),
        };
        let (listener, host_port) = listened.map_err(|error| unusable(wanted, &error))?;
        bound.push(Bound { listener, wanted: Wanted { host_port, ..*wanted } });
    }
    Ok(bound)
}

fn unusable(wanted: &Wanted, error: &std::io::Error) -> Error {
    let Wanted { port, host_port } = wanted;
    let (code, what) = match error.kind() {
        ErrorKind::AddrInUse => ("host-port-taken", format!("port {host_port} of this machine is taken")),
        ErrorKind::PermissionDenied => {
            ("host-port-denied", format!("port {host_port} of this machine is not for this user"))
        }
        _ => ("host-port-unusable", format!("port {host_port} of this machine cannot be listened at")),
    };
    let fix = format!("take another one, as in {port}:8080, or {port}:0 for any that is free");
    Error::Unavailable(Diagnosis::new(code, what).cause(error).fix(fix))
}
