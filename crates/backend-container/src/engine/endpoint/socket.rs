//! Knocking at a Unix socket, and what it means when nobody opens.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use super::blocking;
use crate::engine::{EngineError, EngineKind, Result};

/// How long a knock may take: a socket whose queue is full is tried again for as long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects and lets go again.
pub(super) async fn knock(engine: EngineKind, path: &Path, named: bool) -> Result<()> {
    match open(path).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound && !named => {
            Err(EngineError::NotInstalled { engine, cause: format!("there is no socket {}", path.display()) })
        }
        Err(error) => Err(refused(engine, path, error).await),
    }
}

/// Connects. A full queue (`EAGAIN`) is waited for: somebody is there, and slow.
pub(in crate::engine) async fn open(path: &Path) -> std::io::Result<UnixStream> {
    let attempt = async {
        loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => return other,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, attempt).await {
        Ok(result) => result,
        Err(_) => Err(std::io::Error::new(ErrorKind::TimedOut, "its queue is full")),
    }
}

/// What it means that a socket could not be connected to.
pub(in crate::engine) async fn refused(
    engine: EngineKind,
    path: &Path,
    error: std::io::Error,
) -> EngineError {
    let socket = path.display().to_string();
    if error.kind() == ErrorKind::PermissionDenied {
        let path = path.to_owned();
        let group = blocking(engine, move || Ok(group_that_may(&path))).await.unwrap_or_default();
        return EngineError::NoPermission { engine, socket, group };
    }
    let cause = match error.kind() {
        ErrorKind::NotFound => "there is no such socket".to_owned(),
        ErrorKind::ConnectionRefused => "nobody listens at this socket".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => error.to_string(),
        ErrorKind::TimedOut => {
            let (what, seconds) = ("take a connection".to_owned(), PATIENCE.as_secs());
            return EngineError::TimedOut { engine, what, seconds };
        }
        // Want of descriptors or memory on this side is no news of the engine.
        _ => return EngineError::NotAsked { engine, cause: error.to_string() },
    };
    EngineError::Unreachable { engine, endpoint: format!("unix://{socket}"), cause }
}

/// The name of the group that may use a socket; none if that is root's, or if nobody but the owner may.
fn group_that_may(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.mode() & 0o020 == 0 || meta.gid() == 0 {
        return None;
    }
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    group_name(&groups, meta.gid())
}

fn group_name(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names() {
        let groups = "root:x:0:\nbad\ndocker:x:112:me,you\n";
        assert_eq!(group_name(groups, 112), Some("docker".to_owned()));
        assert_eq!(group_name(groups, 1), None);
    }

    #[tokio::test]
    async fn what_we_are_short_of_says_nothing_of_the_engine() {
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            let error = refused(EngineKind::Docker, Path::new("/s"), errno.into()).await;
            assert!(matches!(error, EngineError::NotAsked { .. }), "{error:?}");
            assert!(!moltis_sandbox::Error::from(error).is_engine_failure());
        }
        let error = refused(EngineKind::Docker, Path::new("/s"), rustix::io::Errno::CONNREFUSED.into()).await;
        assert!(moltis_sandbox::Error::from(error).is_engine_failure());
    }

    #[tokio::test]
    async fn a_socket_with_nobody_behind_it_is_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let want = EngineError::Unreachable {
            engine: EngineKind::Docker,
            endpoint: format!("unix://{}", path.display()),
            cause: "nobody listens at this socket".to_owned(),
        };
        assert_eq!(knock(EngineKind::Docker, &path, false).await, Err(want));
        let gone = dir.path().join("gone");
        assert!(matches!(
            knock(EngineKind::Docker, &gone, false).await,
            Err(EngineError::NotInstalled { .. })
        ));
        assert!(matches!(knock(EngineKind::Docker, &gone, true).await, Err(EngineError::Unreachable { .. })));
    }
}
