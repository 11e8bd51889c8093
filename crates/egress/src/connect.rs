//! Connecting to addresses that have been judged, and to no others.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::refusal::Refusal;

/// How long one address is tried before the next one is tried as well.
const HEAD_START: Duration = Duration::from_millis(250);
/// How many addresses of a name are tried.
pub(crate) const TRIED: usize = 8;

/// Ends a task with what wants it.
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects to the first of these addresses that answers. They are tried in their order, the families taking turns.
pub(crate) async fn dial(
    addresses: &[IpAddr],
    port: u16,
    limit: Duration,
) -> Result<(TcpStream, IpAddr), Refusal> {
    let attempt = async {
        match addresses {
            [only] => one(*only, port).await,
            several => race(alternating(several), port).await,
        }
    };
    match timeout(limit, attempt).await {
        Ok(Ok((stream, address))) => {
            // Small messages go at once; that it cannot be said is no reason to fail.
            let _ = stream.set_nodelay(true);
            Ok((stream, address))
        }
        Ok(Err(io::ErrorKind::TimedOut)) | Err(_) => Err(Refusal::Late),
        Ok(Err(kind)) => Err(Refusal::Unreachable(kind)),
    }
}

async fn one(address: IpAddr, port: u16) -> Result<(TcpStream, IpAddr), io::ErrorKind> {
    let stream = TcpStream::connect(SocketAddr::new(address, port)).await.map_err(|e| e.kind())?;
    Ok((stream, address))
}

async fn race(addresses: Vec<IpAddr>, port: u16) -> Result<(TcpStream, IpAddr), io::ErrorKind> {
    let mut rest = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last = io::ErrorKind::AddrNotAvailable;
    loop {
        if let Some(address) = rest.next() {
            attempts.spawn(one(address, port));
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(found))) => return Ok(found),
                Some(Ok(Err(kind))) => last = kind,
                Some(Err(_)) => {}
                None => return Err(last),
            },
            () = sleep(HEAD_START), if rest.len() > 0 => {}
        }
    }
}

fn alternating(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let first_is_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let of = |v6: bool| addresses.iter().copied().filter(move |a| a.is_ipv6() == v6);
    let (mut first, mut second) = (of(first_is_v6), of(!first_is_v6));
    let mut ordered = Vec::with_capacity(addresses.len());
    while ordered.len() < addresses.len() {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered.truncate(TRIED);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let addresses = |text: &str| text.split(' ').map(|a| a.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(alternating(&addresses("::1 ::2 ::3 1.1.1.1")), addresses("::1 1.1.1.1 ::2 ::3"));
        assert_eq!(alternating(&addresses("1.1.1.1 2.2.2.2 ::1")), addresses("1.1.1.1 ::1 2.2.2.2"));
        assert_eq!(alternating(&[]), Vec::<IpAddr>::new());
    }
}
