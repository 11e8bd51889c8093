//! What is rented, written down on disk before it is: a crash leaves nothing that nobody knows of.
//!
//! `<data_dir>/remote/<backend>/<id>.json` tells of one machine. Whoever opens or ends it holds `<id>.lock`; whoever keeps
//! one that is to end with him holds `<id>.alive` all the time. The kernel lets go of both when he dies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_sandbox::{Diagnosis, Error, Result, SandboxId};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::sandbox::Told;

/// How long somebody else's work on the same machine is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is known of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its sandbox.
    pub id: SandboxId,
    /// Our name for it at the provider, which is used once and never again.
    pub name: String,
    /// Where the provider's API is.
    pub api: String,
    /// The provider's account or project, in which the name is looked for.
    pub project: String,
    /// What it was opened with.
    pub fingerprint: String,
    /// Whether it ends with the process that opened it.
    pub ephemeral: bool,
    /// When it was opened, in milliseconds since 1970.
    pub created_millis: u64,
    /// What the provider calls it, once it is ready to be used.
    pub ready: Option<Ready>,
}

/// A machine that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// The provider's id.
    pub machine: String,
    /// Where programs start.
    pub directory: String,
    /// What it said of itself.
    pub told: Told,
}

/// All that is written down.
#[derive(Debug, Default)]
pub struct All {
    /// What can be read, by id.
    pub entries: Vec<Entry>,
    /// Why the rest cannot: whose machines those are, and under which names, is not known.
    pub unreadable: Vec<Error>,
}

impl All {
    /// Whether a machine of this name is written down.
    ///
    /// # Errors
    /// When it is not among what can be read, and something else cannot.
    pub fn knows(&self, name: &str) -> Result<bool> {
        if self.entries.iter().any(|entry| entry.name == name) {
            return Ok(true);
        }
        self.unreadable.first().map_or(Ok(false), |error| Err(error.clone()))
    }
}

/// The journal of one backend.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
}

/// Held by whoever works on a machine, or keeps it.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    /// Without this entry the lock's file is of no more use, and goes with the lock.
    entry: Option<PathBuf>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Nobody but the holder removes the file: whoever has it open meanwhile sees that it is another one, or none.
        if let Some(entry) = &self.entry
            && fs::symlink_metadata(entry).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            && is_at(&self.file, &self.path)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Journal {
    /// In this data directory.
    pub fn new(data_dir: &Path, backend: &str) -> Self {
        Self { folder: data_dir.join("remote").join(backend) }
    }

    fn make(&self) -> Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| broken(&self.folder, &error))
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{name}.{kind}"))
    }

    /// The word for this data directory, if there is one already.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn instance_if_any(&self) -> Result<Option<String>> {
        let path = self.folder.join("instance");
        match fs::read_to_string(&path) {
            Ok(word) => Ok(Some(word)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(broken(&path, &error)),
        }
    }

    /// A word for this data directory, by which the provider's list of machines is asked for ours.
    ///
    /// # Errors
    /// When it cannot be read or made.
    pub fn instance(&self) -> Result<String> {
        self.make()?;
        let path = self.folder.join("instance");
        for _ in 0..2 {
            match fs::read_to_string(&path) {
                Ok(word) if word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit()) => {
                    return Ok(word);
                }
                Ok(_) => {
                    let _ = fs::remove_file(&path);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(broken(&path, &error)),
            }
            let word = moltis_agentless::hex(&moltis_agentless::random_bytes::<16>()?);
            // Whoever comes first decides.
            let fresh = self.folder.join(format!("instance.{word}"));
            let made = write_new(&fresh, word.as_bytes()).and_then(|()| match fs::hard_link(&fresh, &path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            });
            let _ = fs::remove_file(&fresh);
            made.map_err(|error| broken(&path, &error))?;
        }
        fs::read_to_string(&path).map_err(|error| broken(&path, &error))
    }

    /// What is written down of a sandbox.
    ///
    /// # Errors
    /// When it cannot be read, or is no entry of this version.
    pub fn read(&self, id: &SandboxId) -> Result<Option<Entry>> {
        let path = self.path(id.as_str(), "json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| other(&path, &error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(broken(&path, &error)),
        }
    }

    /// Writes it down, so that it is there after a power cut.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, entry: &Entry) -> Result<()> {
        self.make()?;
        let path = self.path(entry.id.as_str(), "json");
        let bytes = serde_json::to_vec(entry).unwrap_or_default();
        let fresh = self.path(&format!("{}-{}", entry.id, entry.name), "new");
        let _ = fs::remove_file(&fresh);
        let written = write_new(&fresh, &bytes)
            .and_then(|()| fs::rename(&fresh, &path))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        written.map_err(|error| broken(&path, &error))
    }

    /// Forgets it. Whoever does this has its lock, and has it still: a new entry may follow at once.
    pub fn forget(&self, id: &SandboxId) {
        for kind in ["json", "alive"] {
            let _ = fs::remove_file(self.path(id.as_str(), kind));
        }
    }

    /// All that is written down.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all(&self) -> Result<All> {
        let found = match fs::read_dir(&self.folder) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(All::default()),
            Err(error) => return Err(broken(&self.folder, &error)),
        };
        let mut all = All::default();
        for file in found {
            let name = file.map_err(|error| broken(&self.folder, &error))?.file_name();
            let id = name.to_str().and_then(|name| SandboxId::parse(name.strip_suffix(".json")?));
            match id.map(|id| self.read(&id)) {
                Some(Ok(entry)) => all.entries.extend(entry),
                Some(Err(error)) => all.unreadable.push(error),
                None => {}
            }
        }
        all.entries.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(all)
    }

    /// Waits for whoever works on this machine, and keeps others from it. Blocks.
    ///
    /// # Errors
    /// `sandbox-busy` when he does not end.
    pub fn lock(&self, id: &SandboxId) -> Result<Lock> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(lock) = self.try_lock(id, "lock")? {
                return Ok(lock);
            }
            if Instant::now() > end {
                return Err(Error::Unavailable(
                    Diagnosis::new("sandbox-busy", "another process opens or ends this sandbox")
                        .fix("try again once it is done"),
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Says that this process keeps a machine that is to end with it; `None` if another one does.
    ///
    /// # Errors
    /// When it cannot be said.
    pub fn alive(&self, id: &SandboxId) -> Result<Option<Lock>> {
        self.try_lock(id, "alive")
    }

    /// The lock, if nobody else has it.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn try_lock(&self, id: &SandboxId, kind: &str) -> Result<Option<Lock>> {
        self.make()?;
        let path = self.path(id.as_str(), kind);
        let wrong = |error: &io::Error| broken(&path, error);
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path).map_err(|error| wrong(&error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(wrong(&errno.into())),
            }
            // Whoever had it before may have removed the file.
            if is_at(&file, &path) {
                let entry = (kind == "lock").then(|| self.path(id.as_str(), "json"));
                return Ok(Some(Lock { file, path, entry }));
            }
        }
    }
}

/// Whether the file is the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn broken(path: &Path, error: &io::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new("journal-broken", format!("{} cannot be used", path.display()))
            .cause(error)
            .fix("make the data directory writable for this user, and room on its disk"),
    )
}

fn other(path: &Path, error: &serde_json::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new("journal-unreadable", format!("{} is no entry of this version", path.display()))
            .cause(error)
            .fix("use the version that wrote it; or end its sandbox at the provider, and remove the file"),
    )
}

/// Now, in milliseconds since 1970.
pub fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::SessionKey;

    use super::*;

    fn entry() -> Entry {
        Entry {
            id: SandboxId::of(&SessionKey::new("s").unwrap()),
            name: "moltis-x".into(),
            api: "https://x".into(),
            project: "p".into(),
            fingerprint: "f".into(),
            ephemeral: true,
            created_millis: 7,
            ready: Some(Ready { machine: "sbx_1".into(), directory: "/d".into(), told: Told::default() }),
        }
    }

    #[test]
    fn what_is_written_down_is_found_again_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path(), "vercel");
        let entry = entry();
        assert_eq!(journal.all().unwrap().entries, []);
        journal.write(&entry).unwrap();
        assert_eq!(journal.read(&entry.id).unwrap(), Some(entry.clone()));
        assert_eq!(journal.all().unwrap().entries, std::slice::from_ref(&entry));
        assert_eq!(journal.instance().unwrap(), journal.instance().unwrap());
        journal.forget(&entry.id);
        assert_eq!(journal.read(&entry.id).unwrap(), None);
    }

    #[test]
    fn who_forgets_a_machine_and_writes_down_the_next_has_its_lock_all_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Journal::new(dir.path(), "vercel"), Journal::new(dir.path(), "vercel"));
        let mut entry = entry();
        one.write(&entry).unwrap();
        let held = one.lock(&entry.id).unwrap();
        one.forget(&entry.id);
        assert!(other.try_lock(&entry.id, "lock").unwrap().is_none());
        entry.ready = None;
        one.write(&entry).unwrap();
        assert!(
            other.try_lock(&entry.id, "lock").unwrap().is_none(),
            "another sweep would end what is being made"
        );
        drop(held);
        let held = other.try_lock(&entry.id, "lock").unwrap();
        assert!(held.is_some() && one.try_lock(&entry.id, "lock").unwrap().is_none());
        other.forget(&entry.id);
        drop(held);
        assert_eq!(fs::read_dir(dir.path().join("remote/vercel")).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path(), "vercel");
        let entry = entry();
        journal.write(&entry).unwrap();
        let other = SandboxId::of(&SessionKey::new("t").unwrap());
        let path = journal.path(other.as_str(), "json");
        let tell = || {
            let all = journal.all().unwrap();
            assert_eq!(all.entries, std::slice::from_ref(&entry));
            assert!(all.knows(&entry.name).unwrap());
            let error = all.knows("moltis-y").unwrap_err();
            assert_eq!(journal.read(&other).unwrap_err().code(), error.code());
            assert!(error.diagnosis().message.contains(path.to_str().unwrap()), "{error}");
            (all.unreadable.len(), error.code().to_owned())
        };
        // Of another version.
        fs::write(&path, "{\"of\":\"another version\"}").unwrap();
        assert_eq!(tell(), (1, "journal-unreadable".to_owned()));
        fs::remove_file(&path).unwrap();
        // It cannot be read at all, not even by root.
        fs::create_dir(&path).unwrap();
        assert_eq!(tell(), (1, "journal-broken".to_owned()));
        fs::remove_dir(&path).unwrap();
        assert!(!journal.all().unwrap().knows("moltis-y").unwrap());
    }

    #[test]
    fn a_lock_is_one_process_s_until_it_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path(), "vercel");
        let id = entry().id;
        let held = journal.alive(&id).unwrap();
        assert!(held.is_some() && journal.alive(&id).unwrap().is_none());
        drop(held);
        assert!(journal.alive(&id).unwrap().is_some());
    }
}
