//! Who may speak to the agent.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What an id without a mapping in this user namespace reads as.
const OVERFLOW_UID: u32 = 65534;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRule {
    /// The owner's user id as the agent sees it; root may connect too.
    pub owner: u32,
    /// Whether the peer must be outside the agent's own pid namespace. An owner whose id has no mapping inside then
    /// reads as the overflow uid, which is accepted.
    pub outside: bool,
    /// Whether peers inside are heard that show the relay's secret.
    pub relay: bool,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may speak.
    Admitted,
    /// It may speak once it has shown the relay's secret.
    WithSecret,
    /// It is closed.
    Refused,
}

/// The other end of a connection as the kernel saw it connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id; 0 when it has none in this pid namespace, which is to say, when it is outside.
    pub pid: i32,
    /// Its user id, or the overflow uid.
    pub uid: u32,
}

impl PeerRule {
    /// Whether this peer may speak to the agent.
    pub fn judge(&self, peer: Peer) -> Admission {
        let admitted = match self.outside {
            true if peer.pid > 0 && self.relay => return Admission::WithSecret,
            true => peer.pid == 0 && [self.owner, 0, OVERFLOW_UID].contains(&peer.uid),
            false => peer.uid == self.owner || peer.uid == 0,
        };
        if admitted { Admission::Admitted } else { Admission::Refused }
    }
}

/// Asks the kernel who connected.
///
/// # Errors
/// When the descriptor is no connected Unix socket.
pub fn peer_of(conn: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: -1, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `credentials`. (Not rustix: its type has no pid of 0.)
    let result = unsafe {
        libc::getsockopt(
            conn.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result < 0 || length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: credentials.pid, uid: credentials.uid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_the_owner_and_root_from_outside() {
        let admitted = |is: bool| if is { Admission::Admitted } else { Admission::Refused };
        let rule = PeerRule { owner: 1000, outside: true, relay: false };
        let cases = [
            ((0, 1000), true),
            ((0, 0), true),
            ((0, 65534), true),
            ((0, 1001), false),
            ((7, 1000), false),
            ((7, 0), false),
            ((-1, u32::MAX), false),
        ];
        for ((pid, uid), is) in cases {
            assert_eq!(rule.judge(Peer { pid, uid }), admitted(is), "{pid} {uid}");
        }
        let relay = PeerRule { relay: true, ..rule };
        for ((pid, uid), is) in cases {
            let expected = if pid > 0 { Admission::WithSecret } else { admitted(is) };
            assert_eq!(relay.judge(Peer { pid, uid }), expected, "{pid} {uid}");
        }
        let plain = PeerRule { owner: 1000, outside: false, relay: false };
        let cases = [((7, 1000), true), ((7, 0), true), ((7, 65534), false), ((7, 1001), false)];
        for ((pid, uid), is) in cases {
            assert_eq!(plain.judge(Peer { pid, uid }), admitted(is), "{pid} {uid}");
        }
    }

    #[test]
    fn the_kernel_tells_who_connected() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer_of(near.as_fd()).unwrap();
        assert_eq!(peer.pid as u32, std::process::id());
        assert!(peer_of(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
