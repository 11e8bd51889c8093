//! Snapshots that have packages installed, remembered on disk by what is in them, so that the next machine need not
//! install them again. They end by themselves at the provider.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::journal::now_millis;

/// How long another process that installs the same is waited for.
const PATIENCE: Duration = Duration::from_secs(1200);
/// What ends this soon is not begun with any more.
const SOON: u64 = 3_600_000;

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its id; absent: what a machine has of its own is all that is to be had.
    pub snapshot: Option<String>,
    /// When it ends, in milliseconds since 1970.
    pub expires_millis: u64,
}

/// All that are remembered.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
}

/// Held while somebody installs.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Shelf {
    /// Of this data directory.
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("remote/vercel") }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("snapshots.json")
    }

    fn all(&self) -> BTreeMap<String, Kept> {
        // What cannot be read is made again.
        fs::read(self.path()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// The one that has this, if it lasts for a while.
    pub fn find(&self, word: &str) -> Option<Kept> {
        self.all().remove(word).filter(|kept| kept.expires_millis > now_millis() + SOON)
    }

    /// Waits for whoever else installs, and keeps others from it. Blocks.
    ///
    /// # Errors
    /// When he does not end, or the disk cannot be used.
    pub fn lock(&self) -> Result<Lock> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| self.broken(&error))?;
        let path = self.folder.join("snapshots.lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|error| self.broken(&error))?;
        let end = Instant::now() + PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(errno) => return Err(self.broken(&errno.into())),
            }
        }
    }

    /// Remembers one, or forgets it. To be called with the lock.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, word: &str, kept: Option<Kept>) -> Result<()> {
        let mut all = self.all();
        all.retain(|_, kept| kept.expires_millis > now_millis());
        match kept {
            Some(kept) => all.insert(word.to_owned(), kept),
            None => all.remove(word),
        };
        let fresh = self.folder.join("snapshots.new");
        let written = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&serde_json::to_vec(&all)?)?;
            fs::rename(&fresh, self.path())
        };
        written().map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &io::Error) -> Error {
        Error::Unavailable(
            Diagnosis::new("journal-broken", format!("{} cannot be used", self.path().display()))
                .cause(error)
                .fix("make the data directory writable for this user, and room on its disk"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_ends_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(dir.path());
        assert_eq!(shelf.find("a"), None);
        let kept = |after: u64| Kept { snapshot: Some("s".into()), expires_millis: now_millis() + after };
        let (lasting, ending) = (kept(10 * SOON), kept(SOON / 2));
        let _lock = shelf.lock().unwrap();
        shelf.put("a", Some(lasting.clone())).unwrap();
        shelf.put("b", Some(ending)).unwrap();
        assert_eq!((Shelf::new(dir.path()).find("a"), shelf.find("b")), (Some(lasting), None));
        shelf.put("a", None).unwrap();
        assert_eq!(shelf.find("a"), None);
    }
}
