//! Where a sandbox lies on the host: `<data_dir>/sandbox/wasm/<id>/`, with its record, `tmp`, and `home` where no other
//! folder is its home. Nothing runs in between two commands: what is there *is* the sandbox.
//!
//! Two locks say who is at it. `lock` is held for the moment in which one is made, taken up or removed. `use` is shared
//! by whatever runs in it and by who holds a temporary one; the time of its last change is that of the last use.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use moltis_host::remove;
use moltis_sandbox::{Lifetime, SandboxId, SandboxSpec};
use rustix::fs::{FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::page;

const RECORD: &str = "record.json";
const LOCK: &str = "lock";
/// Name of the file that is locked while it is used.
const USE: &str = "use";
/// Name of the folder behind `/tmp`.
pub const TMP: &str = "tmp";
/// Name of the folder behind `/home/sandbox`, where no other one is the home.
pub const HOME: &str = "home";

/// Name of the folder with what is kept of background commands.
pub const BACKGROUND: &str = "background";

/// Longest record in bytes.
const MAX_RECORD: u64 = 256 * 1024;

/// How long a lock that another one holds is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder or file of the host that a sandbox shows, known again by its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Where it lies.
    pub path: PathBuf,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Where it shows.
    pub target: String,
    /// Whether it may be changed.
    pub writable: bool,
    /// Whether it is a directory.
    pub directory: bool,
    /// Paths in it that stay as they are, though it may be changed.
    #[serde(default)]
    pub protected: Vec<Vec<u8>>,
}

/// What is written down of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What it was opened with.
    pub spec: SandboxSpec,
    /// The fingerprint of that.
    pub fingerprint: String,
    /// When, in seconds since 1970.
    pub created_secs: u64,
    /// The same in nanoseconds: no other one of the same id has it.
    pub created_nanos: u64,
    /// What shows of the host besides its own folders, in the order in which it is laid over each other.
    pub shown: Vec<Shown>,
    /// Its own folders and the file that is locked while it is used, as they were made.
    #[serde(default)]
    pub own: Vec<Own>,
}

/// A folder or file of a sandbox's own, known again by its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Its name in the sandbox's folder.
    pub name: String,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// All places of a data directory.
#[derive(Clone, Debug)]
pub struct Places {
    base: PathBuf,
}

/// One sandbox's place, with its lock.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    _lock: File,
}

/// One use of a sandbox. While there is one nobody takes it away but by force.
#[derive(Debug)]
pub struct InUse {
    file: File,
}

impl Drop for InUse {
    fn drop(&mut self) {
        touch(&self.file);
    }
}

impl Places {
    /// Of this data directory. Nothing is made.
    pub fn new(data_dir: &Path) -> Self {
        Self { base: data_dir.join("sandbox/wasm") }
    }

    /// Where a sandbox's folder lies.
    pub fn path(&self, id: &SandboxId) -> PathBuf {
        self.base.join(id.as_str())
    }

    /// Ids of everything that has a folder.
    pub fn ids(&self) -> Vec<SandboxId> {
        let Ok(entries) = fs::read_dir(&self.base) else { return Vec::new() };
        let mut ids: Vec<_> =
            entries.flatten().filter_map(|entry| SandboxId::parse(entry.file_name().to_str()?)).collect();
        ids.sort_unstable();
        ids
    }

    /// What is written down of a sandbox, if it is there and its time is not over.
    pub fn running(&self, id: &SandboxId) -> Option<Record> {
        let record = self.record(id)?;
        let found = fs::symlink_metadata(self.path(id).join(USE)).ok()?;
        let same = |own: &Own| own.name == USE && (own.device, own.inode) == (found.dev(), found.ino());
        (record.own.iter().any(same) && !self.is_over(id, &record)).then_some(record)
    }

    /// What is written down of a sandbox, over or not.
    pub fn record(&self, id: &SandboxId) -> Option<Record> {
        record_in(&self.path(id))
    }

    /// Whether nobody uses it and its time is over.
    pub fn is_over(&self, id: &SandboxId, record: &Record) -> bool {
        let Some(file) = open(&self.path(id).join(USE)) else { return true };
        let spent = match record.spec.lifetime {
            Lifetime::Ephemeral => true,
            Lifetime::Idle(idle) => idle_since(&file) >= idle,
        };
        spent && is_free(&file)
    }

    /// Time since its last use, and whether it is used now.
    pub fn use_of(&self, id: &SandboxId) -> Option<(Duration, bool)> {
        let file = open(&self.path(id).join(USE))?;
        Some((idle_since(&file), !is_free(&file)))
    }

    /// Begins a use of it.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn begin(&self, id: &SandboxId) -> Result<InUse> {
        let path = self.path(id).join(USE);
        let file = open(&path).ok_or(Error::Gone)?;
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockShared) {
            // Whoever looks whether it is used holds it for a moment.
            if errno != Errno::WOULDBLOCK || Instant::now() > deadline {
                return Err(Error::Gone);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // It may have been taken away meanwhile.
        if Self::is_taken_away(&file) {
            return Err(Error::Gone);
        }
        touch(&file);
        Ok(InUse { file })
    }

    /// Whether the sandbox of which this is the `use` file was taken away. One that is only not in its place was not.
    pub fn is_taken_away(file: &File) -> bool {
        file.metadata().map_or(true, |found| found.nlink() == 0)
    }

    /// A handle on what says whether it was taken away; holding it is no use.
    pub fn look(&self, id: &SandboxId) -> Option<File> {
        open(&self.path(id).join(USE))
    }

    /// Begins its idle time anew.
    pub fn renew(&self, id: &SandboxId) {
        if let Some(file) = open(&self.path(id).join(USE)) {
            touch(&file);
        }
    }

    /// Takes a sandbox's place, which is made with all above it if it is missing, waiting for whoever has it.
    ///
    /// # Errors
    /// [`Error::Folder`], [`Error::Locked`].
    pub fn lock(&self, id: &SandboxId) -> Result<Held> {
        let path = self.path(id);
        let failed = |e| Error::Folder(path.clone(), e);
        let deadline = Instant::now() + PATIENCE;
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
            match self.take(&path, true) {
                Ok(Some(held)) => return Ok(held),
                Ok(None) if Instant::now() > deadline => return Err(Error::Locked(id.clone())),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                // Taken away since it was made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Takes a sandbox's place if there is one.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn lock_existing(&self, id: &SandboxId) -> Result<Option<Held>> {
        let path = self.path(id);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !is_directory(&path) {
                return Ok(None);
            }
            match self.take(&path, true) {
                Ok(Some(held)) => return Ok(Some(held)),
                Ok(None) if Instant::now() > deadline => return Err(Error::Locked(id.clone())),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(Error::Folder(path, error)),
            }
        }
    }

    fn take(&self, path: &Path, make: bool) -> io::Result<Option<Held>> {
        let name = path.join(LOCK);
        let file =
            OpenOptions::new().write(true).create(make).mode(0o600).custom_flags(NOFOLLOW).open(&name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let (ours, there) = (file.metadata()?, fs::symlink_metadata(&name)?);
        let same = (ours.dev(), ours.ino()) == (there.dev(), there.ino());
        Ok(same.then(|| Held { path: path.to_owned(), _lock: file }))
    }
}

/// Opens nothing but a file at the end of the path, and does not wait for it.
const NOFOLLOW: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn open(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(NOFOLLOW).open(path).ok()?;
    file.metadata().is_ok_and(|found| found.is_file()).then_some(file)
}

fn record_in(path: &Path) -> Option<Record> {
    let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW).open(path.join(RECORD)).ok()?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_RECORD + 1).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn is_free(file: &File) -> bool {
    let free = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if free {
        let _ = flock(file, FlockOperation::Unlock);
    }
    free
}

fn idle_since(file: &File) -> Duration {
    let last = file.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    // A clock that was set back makes it used just now.
    SystemTime::now().duration_since(last).unwrap_or_default()
}

fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = futimens(file, &Timestamps { last_access: now, last_modification: now });
}

impl Held {
    /// What is written down.
    pub fn record(&self) -> Option<Record> {
        record_in(&self.path)
    }

    /// Makes the folders of a new sandbox and writes down that it is there; it is used from then on. What an earlier one
    /// left there goes first, but for a home that lasts.
    ///
    /// # Errors
    /// [`Error::Folder`], [`Error::Changed`], [`Error::NotRemoved`].
    pub fn start(&self, own_home: bool, home_lasts: bool, record: &mut Record) -> Result<InUse> {
        for name in [USE, page::FILE, BACKGROUND, TMP] {
            remove_entry(&self.path, name)?;
        }
        if !home_lasts {
            remove_entry(&self.path, HOME)?;
        }
        record.own = vec![self.make(TMP, 0o1777)?];
        if own_home {
            record.own.insert(0, self.make(HOME, 0o700)?);
        }
        self.write(record)
    }

    fn make(&self, name: &str, mode: u32) -> Result<Own> {
        use std::os::unix::fs::PermissionsExt;

        let path = self.path.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_directory(&path) => {}
            Err(error) => return Err(Error::Folder(path, error)),
        }
        let permissions = fs::Permissions::from_mode(mode);
        let made = fs::set_permissions(&path, permissions).and_then(|()| fs::symlink_metadata(&path));
        match made {
            Ok(made) => Ok(Own { name: name.to_owned(), device: made.dev(), inode: made.ino() }),
            Err(error) => Err(Error::Folder(path, error)),
        }
    }

    /// Writes down that there is a sandbox, which is used from now on.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn write(&self, record: &mut Record) -> Result<InUse> {
        let failed = |e| Error::Folder(self.path.clone(), e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NOFOLLOW)
            .open(self.path.join(USE))
            .map_err(failed)?;
        flock(&file, FlockOperation::LockShared).map_err(|e| failed(e.into()))?;
        touch(&file);
        let found = file.metadata().map_err(failed)?;
        record.own.retain(|own| own.name != USE);
        record.own.push(Own { name: USE.to_owned(), device: found.dev(), inode: found.ino() });
        self.put(record).map_err(failed)?;
        Ok(InUse { file })
    }

    /// Replaces what is written down.
    fn put(&self, record: &Record) -> io::Result<()> {
        let (draft, name) = (self.path.join("record.new"), self.path.join(RECORD));
        let _ = fs::remove_file(&draft);
        let bytes = serde_json::to_vec(record)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(&bytes)?;
        fs::rename(draft, name)
    }

    /// Whether something uses it.
    pub fn is_used(&self) -> bool {
        open(&self.path.join(USE)).is_some_and(|file| !is_free(&file))
    }

    /// Removes the sandbox: its record first, so that nobody takes half of it for a whole one. A home of its own stays
    /// where it outlives the sandbox.
    ///
    /// # Errors
    /// [`Error::NotRemoved`].
    pub fn clear(self, keep_home: bool) -> Result<()> {
        crate::background::end_all(&self.path);
        for name in [RECORD, "record.new", USE, page::FILE, BACKGROUND, TMP] {
            remove_entry(&self.path, name)?;
        }
        if !keep_home {
            remove_entry(&self.path, HOME)?;
        }
        remove_entry(&self.path, LOCK)?;
        // It stays where a home is in it.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }
}

fn remove_entry(folder: &Path, name: &str) -> Result<()> {
    let path = folder.join(name);
    let Ok(found) = fs::symlink_metadata(&path) else { return Ok(()) };
    if !found.is_dir() {
        return fs::remove_file(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(Error::Folder(path, error)),
        });
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = rustix::fs::open(folder, flags, Mode::empty())
        .map_err(|errno| Error::Folder(folder.to_owned(), errno.into()))?;
    let name = std::ffi::CString::new(name).unwrap_or_default();
    remove::tree(parent, &name, remove::PATIENCE).map(drop).map_err(|why| Error::NotRemoved(path, why))
}
