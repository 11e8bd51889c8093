//! What is known of both sides, kept on disk: an unchanged workspace is not read again, and whoever was interrupted goes on
//! from here. One file a sandbox, below the data directory.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::node::Tree;

/// Of another layout than this one nothing is read.
const VERSION: u32 = 1;
/// How long another process's work on the same workspace is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// Which workspace it is, and how it is dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Its real path on this machine.
    pub path: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// Whether changes come back.
    pub writable: bool,
    /// Globs of what never comes back.
    pub protect: Vec<String>,
    /// Globs of secrets that go there all the same.
    pub listed: Vec<String>,
    /// Whether its place there is the user's home, in which tools keep what is nobody's work.
    pub in_home: bool,
}

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The far side's own name, used once. Another one knows nothing of this.
    pub machine: String,
    /// Which workspace.
    pub terms: Terms,
    /// Whether both sides were brought together once.
    pub begun: bool,
    /// This machine's side as it was dealt with.
    pub host: Tree,
    /// The far side as it was dealt with.
    pub far: Tree,
    /// The word for the far side's last list; empty if it has to be looked at in any case.
    pub word: String,
    /// Names of directories that were not looked into for that list.
    pub passed_over: Vec<String>,
    /// What is on its way there.
    pub pushing: HashSet<Vec<u8>>,
    /// Secrets that have been named as left out.
    pub told: BTreeSet<Vec<u8>>,
}

/// Where it is kept.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    id: String,
}

/// Held by whoever carries.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl State {
    /// Of a machine that nothing is known of.
    pub fn new(machine: &str, terms: &Terms) -> Self {
        Self { version: VERSION, machine: machine.to_owned(), terms: terms.clone(), ..Self::default() }
    }
}

impl Store {
    /// For one sandbox of a backend.
    pub fn new(data_dir: &Path, backend: &str, id: &str) -> Self {
        Self { folder: data_dir.join("remote").join(backend).join("workspace"), id: id.to_owned() }
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("{}.{kind}", self.id))
    }

    /// Waits for whoever else carries this workspace. Blocks.
    ///
    /// # Errors
    /// `workspace-busy` when he does not end.
    pub fn lock(&self) -> Result<Lock> {
        let path = self.path("lock");
        let wrong = |error: io::Error| broken(&path, &error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(wrong)?;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(wrong)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(Error::Unavailable(
                        Diagnosis::new("workspace-busy", "another process carries this workspace")
                            .fix("try again once it is done"),
                    ));
                }
                Err(errno) => return Err(wrong(errno.into())),
            }
        }
    }

    /// What is known; of what cannot be read, nothing.
    pub fn read(&self) -> Option<State> {
        let state: State = postcard::from_bytes(&fs::read(self.path("state")).ok()?).ok()?;
        (state.version == VERSION).then_some(state)
    }

    /// Which state it is that [`read`](Self::read) would give.
    pub fn mark(&self) -> Option<(u64, i64, i64)> {
        use std::os::unix::fs::MetadataExt;
        let about = fs::metadata(self.path("state")).ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec()))
    }

    /// Writes it down, all of it or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, state: &State) -> Result<()> {
        let (path, fresh) = (self.path("state"), self.path("new"));
        let written = || -> io::Result<()> {
            let bytes = postcard::to_stdvec(state).map_err(io::Error::other)?;
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            fs::rename(&fresh, &path)
        };
        written().map_err(|error| broken(&path, &error))
    }

    /// Forgets all of it.
    pub fn forget(&self) {
        for kind in ["state", "new", "lock"] {
            let _ = fs::remove_file(self.path(kind));
        }
    }
}

fn broken(path: &Path, error: &io::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new("journal-broken", format!("{} cannot be used", path.display()))
            .cause(error)
            .fix("make the data directory writable for this user, and room on its disk"),
    )
}
