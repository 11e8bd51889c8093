//! The agent's Unix socket, reached through a handle of the socket itself.
//!
//! The path is used once, beneath a directory handle, without following a link. From then on the socket is named by
//! its own handle: what stands at the path later does not matter, and the kernel's limit of 108 bytes does not apply.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

use super::{Channel, Transport};
use crate::error::{Error, Result};

/// How long a full queue of connections is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reaches an agent that listens on a Unix socket in a directory of ours.
#[derive(Debug)]
pub struct UnixTransport {
    socket: OwnedFd,
    agent: u32,
}

impl UnixTransport {
    /// Takes the socket `name` in `directory`. `agent` is the process id of the sandbox's PID 1 as this process sees
    /// it, by our own or the engine's record; the agent itself must have called `listen`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when there is nothing of that name, [`Error::Impostor`] when it is no socket.
    pub fn open(directory: impl AsFd, name: impl AsRef<OsStr>, agent: u32) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(directory, name.as_ref(), flags, Mode::empty())
            .map_err(|e| Error::Unreachable(e.into()))?;
        let stat = rustix::fs::fstat(&socket).map_err(|e| Error::Unreachable(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Error::Impostor("it is not a socket".to_owned()));
        }
        Ok(Self { socket, agent })
    }

    /// One attempt; `None` when the agent's queue of connections is full.
    fn attempt(&self) -> Result<Option<UnixStream>> {
        let unreachable = |e: Errno| Error::Unreachable(e.into());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(unreachable)?;
        let address =
            SocketAddrUnix::new(format!("/proc/self/fd/{}", self.socket.as_raw_fd())).map_err(unreachable)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(None),
            // The socket has no listener any more: the agent, which alone held it, is dead.
            Err(Errno::CONNREFUSED) => return Err(Error::Gone),
            Err(e) => return Err(unreachable(e)),
        }
        UnixStream::from_std(socket.into()).map(Some).map_err(Error::Unreachable)
    }

    fn judge(&self, stream: &UnixStream) -> Result<()> {
        let peer = stream.peer_cred().map_err(Error::Unreachable)?.pid();
        if peer.is_some_and(|pid| u32::try_from(pid).is_ok_and(|pid| pid != 0 && pid == self.agent)) {
            return Ok(());
        }
        Err(Error::Impostor(match peer {
            Some(pid) => format!("process {pid} listens on it, and the agent is process {}", self.agent),
            None => "the kernel does not say who listens on it".to_owned(),
        }))
    }
}

#[async_trait]
impl Transport for UnixTransport {
    async fn connect(&self) -> Result<Channel> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(stream) = self.attempt()? {
                self.judge(&stream)?;
                return Ok(Channel::unix(stream));
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Busy(PATIENCE));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn directory() -> (tempfile::TempDir, File) {
        let temp = tempfile::tempdir().unwrap();
        let handle = File::open(temp.path()).unwrap();
        (temp, handle)
    }

    #[tokio::test]
    async fn only_the_agent_is_spoken_to() {
        let (temp, handle) = directory();
        let _listener = UnixListener::bind(temp.path().join("s")).unwrap();
        let ours = UnixTransport::open(&handle, "s", std::process::id()).unwrap();
        assert!(ours.connect().await.is_ok());
        let other = UnixTransport::open(&handle, "s", std::process::id() + 1).unwrap();
        assert!(matches!(other.connect().await, Err(Error::Impostor(_))));
        let nobody = UnixTransport::open(&handle, "s", 0).unwrap();
        assert!(matches!(nobody.connect().await, Err(Error::Impostor(_))));
    }

    #[tokio::test]
    async fn links_and_other_files_are_no_sockets() {
        let (temp, handle) = directory();
        let _listener = UnixListener::bind(temp.path().join("s")).unwrap();
        std::os::unix::fs::symlink("s", temp.path().join("link")).unwrap();
        std::fs::write(temp.path().join("file"), "").unwrap();
        for name in ["link", "file"] {
            assert!(matches!(UnixTransport::open(&handle, name, 1), Err(Error::Impostor(_))));
        }
        assert!(matches!(UnixTransport::open(&handle, "none", 1), Err(Error::Unreachable(_))));
    }

    #[tokio::test]
    async fn a_socket_put_in_its_place_is_not_reached() {
        let (temp, handle) = directory();
        let path = temp.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let transport = UnixTransport::open(&handle, "s", std::process::id()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _impostor = UnixListener::bind(&path).unwrap();
        assert!(transport.connect().await.is_ok(), "the handle still names the agent's socket");
        drop(listener);
        assert!(matches!(transport.connect().await, Err(Error::Gone)));
    }

    #[tokio::test]
    async fn a_long_path_is_no_obstacle() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let handle = File::open(&deep).unwrap();
        let bind = format!("/proc/self/fd/{}/s", handle.as_raw_fd());
        let _listener = UnixListener::bind(bind).unwrap();
        let transport = UnixTransport::open(&handle, "s", std::process::id()).unwrap();
        assert!(transport.connect().await.is_ok());
    }
}
