//! One build of a tag at a time among all processes that share a data directory: a lock on a file, which ends with the
//! process that holds it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_sandbox::blocking;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// A lock that is held. Its file goes with it.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever has opened it meanwhile finds that it is gone, and makes another one.
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes the lock of this path; `waiting` is called once if another holds it. Dropping the future gives up.
pub async fn take(path: &Path, waiting: impl FnOnce()) -> io::Result<Lock> {
    let mut waiting = Some(waiting);
    loop {
        let place = path.to_owned();
        let tried = blocking::short(move || try_take(place)).await.map_err(io::Error::other)?;
        if let Some(lock) = tried? {
            return Ok(lock);
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn try_take(path: PathBuf) -> io::Result<Option<Lock>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        // Its last holder may have removed it between its being opened and locked.
        let is_there = match fs::symlink_metadata(&path) {
            Ok(there) => {
                let ours = file.metadata()?;
                (there.dev(), there.ino()) == (ours.dev(), ours.ino())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_there {
            return Ok(Some(Lock { path, _file: file }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_at_a_time_and_nothing_stays() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let (inside, waited) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let holder = |_| {
            let (path, inside, waited) = (path.clone(), Arc::clone(&inside), Arc::clone(&waited));
            tokio::spawn(async move {
                let lock = take(&path, || {
                    waited.fetch_add(1, Ordering::SeqCst);
                })
                .await
                .unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(lock);
            })
        };
        let holders: Vec<_> = (0..4).map(holder).collect();
        for holder in holders {
            holder.await.unwrap();
        }
        assert!(waited.load(Ordering::SeqCst) > 0);
        assert!(!path.exists());
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(take(&path, || ()).await.is_err(), "a link is not followed");
    }
}
