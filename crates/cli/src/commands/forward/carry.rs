//! Connections from here into the sandbox.

use std::sync::Arc;
use std::time::Duration;

use moltis_sandbox::Error;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::listeners::Bound;
use super::target::Target;

/// Connections that are carried at the same time; more wait until one ends.
pub const AT_ONCE: usize = 256;

/// Bytes that a connection may have under way in each direction.
const UNDER_WAY: usize = 32 << 10;

/// Time for which nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// Code of the one failure that no later connection can mend.
pub const SESSION_MISSING: &str = "session-missing";

/// Carries what connects to a listener, for ever. Dropping it ends its connections, too.
pub async fn serve(bound: Bound, target: Arc<Target>, room: Arc<Semaphore>, ended: mpsc::Sender<Error>) {
    let port = bound.wanted.port;
    let mut carried = JoinSet::new();
    loop {
        let outside = match bound.listener.accept().await {
            Ok((outside, _)) => outside,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // It is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        while carried.try_join_next().is_some() {}
        let (target, ended) = (Arc::clone(&target), ended.clone());
        carried.spawn(async move {
            carry(outside, port, &target, &ended).await;
            drop(place);
        });
    }
}

async fn carry(mut outside: TcpStream, port: u16, target: &Target, ended: &mpsc::Sender<Error>) {
    // What goes through is for somebody who waits.
    let _ = outside.set_nodelay(true);
    match target.connect(port).await {
        Ok(mut inside) => {
            target.is_well(Some(port));
            let carried =
                copy_bidirectional_with_sizes(&mut outside, &mut inside, UNDER_WAY, UNDER_WAY).await;
            if carried.is_err() {
                reset(&outside);
            }
        }
        Err(error) => {
            reset(&outside);
            target.say(Some(port), &error);
            if error.code() == SESSION_MISSING {
                // The first one is enough.
                let _ = ended.try_send(error);
            }
        }
    }
}

/// Sees that its end does not look like the orderly end of an answer.
fn reset(outside: &TcpStream) {
    let _ = set_socket_linger(outside, Some(Duration::ZERO));
}
