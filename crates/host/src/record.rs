//! What a data directory knows of a backend's sandboxes: `<run>/<id>/`, with a record beside whatever else belongs to
//! the sandbox. Whoever makes, finds or ends a sandbox holds the lock of its folder, so that two processes end with one
//! sandbox.

mod folder;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::SandboxId;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::blocking::short;
use crate::error::{Error, Result};
pub use folder::Folder;
pub use whereabouts::{ProcessId, Whereabouts, is_deserted};

const WATCHED: &str = "watched";
const LOCK: &str = "lock";

/// Longest record in bytes.
const MAX_RECORD: u64 = 64 * 1024;

/// Longest account of the folders that a sandbox may write to, in bytes.
const MAX_WATCHED: u64 = 64 * 1024 * 1024;

/// How long a lock that another process holds is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a backend writes down of a sandbox before it serves.
pub trait Record: Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The sandbox's first process; `None` where no process that this machine's kernel knows stands for the sandbox:
    /// then what has become of it cannot be told from here, which is [`Whereabouts::Elsewhere`].
    fn process(&self) -> Option<ProcessId<'_>>;
}

/// Removes a subfolder, named by its parent, with all that is in it; what is not there is no error.
pub type Remove = fn(parent: BorrowedFd<'_>, name: &str) -> io::Result<()>;

/// Where a backend keeps what belongs to its sandboxes. All that it puts into a sandbox's folder is named here: the rest
/// is others', and stays.
#[derive(Debug)]
pub struct Layout {
    /// The folder of all its sandboxes, relative to the data directory: `run`, `run/docker`.
    pub run: &'static str,
    /// Name of the record in a sandbox's folder.
    pub record: &'static str,
    /// Name of the socket that the sandbox's first process alone listens on, where nothing in the sandbox can replace
    /// it: that nobody listens on it any more means the end of the sandbox, in whichever PID namespace it was.
    pub socket: Option<&'static str>,
    /// Names of further files.
    pub files: &'static [&'static str],
    /// Names of subfolders, and how each is removed.
    pub folders: &'static [(&'static str, Remove)],
}

impl Layout {
    /// Names of the files that go with a sandbox.
    fn files(&self) -> impl Iterator<Item = &'static str> {
        self.socket.into_iter().chain([self.record, WATCHED]).chain(self.files.iter().copied())
    }

    /// Name of a record that is being written over another.
    fn draft(&self) -> String {
        format!("{}.new", self.record)
    }

    fn has(&self, name: &OsStr) -> bool {
        let mut folders = self.folders.iter().map(|(folder, _)| *folder);
        self.files().any(|file| name == file)
            || name == LOCK
            || *name == *self.draft()
            || folders.any(|folder| name == folder)
    }
}

/// The folder of a data directory in which the sandboxes of one backend are written down.
#[derive(Clone, Debug)]
pub struct RunDir<R> {
    path: PathBuf,
    layout: &'static Layout,
    record: PhantomData<R>,
}

impl<R: Record> RunDir<R> {
    /// Of this data directory; it and what lies between are made, 0700, if they are missing.
    ///
    /// # Errors
    /// [`Error::DataDir`]; [`Error::DataDirOwner`] and [`Error::DataDirExposed`] when others could put files of theirs
    /// into one of them.
    pub fn make(data_dir: &Path, layout: &'static Layout) -> Result<Self> {
        let path = data_dir.join(layout.run);
        if !fs::metadata(&path).is_ok_and(|found| found.is_dir()) {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(Error::data_dir(&path))?;
        }
        // What leads to it first: who may write to the one may replace the other.
        let mut directory = data_dir.to_owned();
        is_ours_alone(&directory)?;
        for name in Path::new(layout.run) {
            directory.push(name);
            is_ours_alone(&directory)?;
        }
        Ok(Self { path, layout, record: PhantomData })
    }

    /// Of this data directory, if it is there.
    pub fn find(data_dir: &Path, layout: &'static Layout) -> Option<Self> {
        let path = data_dir.join(layout.run);
        path.is_dir().then_some(Self { path, layout, record: PhantomData })
    }

    /// Ids of everything that has a folder.
    pub fn ids(&self) -> Vec<SandboxId> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let id = |entry: fs::DirEntry| SandboxId::parse(entry.file_name().to_str()?);
        let mut ids: Vec<_> = entries.flatten().filter_map(id).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether a sandbox has a folder, or one cannot be ruled out.
    pub fn has(&self, id: &SandboxId) -> bool {
        !matches!(fs::symlink_metadata(self.path_of(id)), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// Where a sandbox's folder lies.
    pub fn path_of(&self, id: &SandboxId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The record of a sandbox; `None` if there is none that can be read.
    pub fn record(&self, id: &SandboxId) -> Option<R> {
        record_in(&self.path_of(id), self.layout)
    }

    /// The record of a sandbox, a handle of its folder, and what has become of its first process, without taking the folder.
    pub fn look(&self, id: &SandboxId) -> Option<(R, OwnedFd, Whereabouts)> {
        let (record, folder) = (self.record(id)?, self.open(id)?);
        let whereabouts = self.whereabouts(&record, &folder);
        Some((record, folder, whereabouts))
    }

    /// What has become of the first process of a sandbox with this record in this folder.
    pub fn whereabouts(&self, record: &R, folder: impl AsFd) -> Whereabouts {
        whereabouts(record, folder, self.layout)
    }

    /// What [`Folder::write_watched`] wrote, as it wrote it.
    pub fn watched(&self, id: &SandboxId) -> Option<Vec<u8>> {
        read(&self.path_of(id).join(WATCHED), MAX_WATCHED)
    }

    /// Whether the folder holds something that this backend never puts there: another backend's sandbox, say. One
    /// that cannot be read counts as such.
    pub fn is_foreign(&self, id: &SandboxId) -> bool {
        match fs::read_dir(self.path_of(id)) {
            Ok(mut entries) => {
                entries.any(|entry| !entry.is_ok_and(|entry| self.layout.has(&entry.file_name())))
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// A handle of a sandbox's folder, if it is there.
    pub fn open(&self, id: &SandboxId) -> Option<OwnedFd> {
        open_directory(&self.path_of(id)).ok()
    }

    /// Takes a sandbox's folder, which is made if it is missing, waiting for whoever has it. It is kept when it is
    /// dropped if there is a record in it.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::DataDir`].
    pub async fn lock(&self, id: &SandboxId) -> Result<Folder<R>> {
        self.wait_for(id, true).await?.ok_or(Error::Locked(0))
    }

    /// Takes a sandbox's folder if there is one, waiting for whoever has it. It is kept when it is dropped.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::DataDir`].
    pub async fn lock_existing(&self, id: &SandboxId) -> Result<Option<Folder<R>>> {
        self.wait_for(id, false).await
    }

    /// As [`lock`](Self::lock) if nobody has it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn try_lock(&self, id: &SandboxId) -> Result<Option<Folder<R>>> {
        Ok(self.attempt(id, true)?.taken())
    }

    /// As [`lock_existing`](Self::lock_existing) if nobody has it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn try_lock_existing(&self, id: &SandboxId) -> Result<Option<Folder<R>>> {
        Ok(self.attempt(id, false)?.taken())
    }

    /// Gives the folder of one sandbox to another one, whose own folder holds nothing. Its locks, files and what is
    /// mounted of it stay as they are.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn hand_over(&self, from: &mut Folder<R>, mut to: Folder<R>) -> Result<()> {
        from.keep(true);
        // What is at its path from now on is another's.
        to.keep(true);
        fs::rename(&from.path, &to.path).map_err(|cause| Error::DataDir { path: to.path.clone(), cause })?;
        from.path.clone_from(&to.path);
        Ok(())
    }

    async fn wait_for(&self, id: &SandboxId, make: bool) -> Result<Option<Folder<R>>> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            let (run, wanted) = (self.clone(), id.clone());
            match short(move || run.attempt(&wanted, make)).await? {
                Attempt::Taken(folder) => return Ok(Some(folder)),
                Attempt::Nowhere => return Ok(None),
                Attempt::Held if start.elapsed() > PATIENCE => return Err(Error::Locked(PATIENCE.as_secs())),
                Attempt::Held => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn attempt(&self, id: &SandboxId, make: bool) -> Result<Attempt<R>> {
        let path = self.path_of(id);
        let failed = |cause: io::Error| Error::DataDir { path: path.clone(), cause };
        loop {
            if make {
                match DirBuilder::new().mode(0o700).create(&path) {
                    Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(failed(cause)),
                    _ => {}
                }
            }
            let handle = match open_directory(&path) {
                Ok(handle) => File::from(handle),
                Err(Errno::NOENT) if make => continue,
                Err(Errno::NOENT) => return Ok(Attempt::Nowhere),
                Err(errno) => return Err(failed(errno.into())),
            };
            let file = match handle.try_lock() {
                Ok(()) => None,
                Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
                // NFS locks only what is open for writing.
                Err(TryLockError::Error(_)) => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let file = match openat(&handle, LOCK, flags, Mode::from_raw_mode(0o600)) {
                        Err(Errno::NOENT) => continue,
                        opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
                    };
                    match file.try_lock() {
                        Ok(()) => Some(file),
                        Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
                        Err(TryLockError::Error(cause)) => return Err(failed(cause)),
                    }
                }
            };
            // Whoever held it before may have removed the folder that we now have locked.
            let (Ok(ours), Ok(there)) = (handle.metadata(), fs::symlink_metadata(&path)) else { continue };
            if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
                let kept = !make || record_in::<R>(&path, self.layout).is_some();
                let (layout, record) = (self.layout, PhantomData);
                return Ok(Attempt::Taken(Folder { path, layout, record, handle, _lock: file, kept }));
            }
        }
    }
}

/// A record with the folder that it was written into: in a copy of the data directory it means nothing, since its
/// process belongs to the original.
#[derive(Serialize, Deserialize)]
struct Stored<R> {
    #[serde(flatten)]
    record: R,
    device: u64,
    inode: u64,
}

fn record_in<R: Record>(folder: &Path, layout: &Layout) -> Option<R> {
    let stored: Stored<R> = serde_json::from_slice(&read(&folder.join(layout.record), MAX_RECORD)?).ok()?;
    let here = fs::metadata(folder).ok()?;
    ((here.dev(), here.ino()) == (stored.device, stored.inode)).then_some(stored.record)
}

fn read(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    // Most are read at one stroke.
    let mut bytes = Vec::with_capacity(4096);
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Nobody but this user may own a directory of ours, or write to it.
fn is_ours_alone(directory: &Path) -> Result<()> {
    let found = fs::metadata(directory).map_err(Error::data_dir(directory))?;
    judge_owner(directory, found.uid(), rustix::process::geteuid().as_raw())?;
    if found.mode() & 0o022 != 0 {
        return Err(Error::DataDirExposed(directory.to_owned()));
    }
    Ok(())
}

fn judge_owner(directory: &Path, owner: u32, user: u32) -> Result<()> {
    if owner == user {
        return Ok(());
    }
    Err(Error::DataDirOwner { path: directory.to_owned(), owner, user })
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

fn whereabouts<R: Record>(record: &R, folder: impl AsFd, layout: &Layout) -> Whereabouts {
    record.process().map_or(Whereabouts::Elsewhere, |process| process.whereabouts(folder, layout.socket))
}

/// What came of trying to take a folder.
enum Attempt<R: Record> {
    Taken(Folder<R>),
    Held,
    Nowhere,
}

impl<R: Record> Attempt<R> {
    fn taken(self) -> Option<Folder<R>> {
        match self {
            Self::Taken(folder) => Some(folder),
            Self::Held | Self::Nowhere => None,
        }
    }
}
