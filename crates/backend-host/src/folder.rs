//! The run folder of one sandbox: lock, record and socket, all beneath one directory handle.
//!
//! Whoever opens, ends or cleans up a sandbox holds the lock on its folder, so two processes never start one session
//! twice. The lock is the kernel's and ends with its holder. The folders of the host's two backends lie apart from those
//! of the other backends, which take what they do not know in their own for something left behind.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_host::record::Whereabouts;
use moltis_sandbox::SandboxId;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{Error, Result, blocking, blocks};
use crate::record::{Place, Record};
use crate::scratch;

/// The agent's socket.
pub const SOCKET: &str = "host.sock";

const RECORD: &str = "host.json";
const NEW_RECORD: &str = "host.json.new";

/// Stands here from before the scratch folder is made until it is removed, if it goes with the sandbox.
const EPHEMERAL: &str = "ephemeral";

/// Longest record that is read, in bytes.
const MAX_RECORD: u64 = 64 * 1024;

/// How long another process's lock is waited for: longer than opening or ending a sandbox takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Age at which an empty folder counts as left behind.
const ABANDONED: Duration = Duration::from_secs(120);

/// Where the run folders of this data directory lie.
pub fn run_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("run-host")
}

/// The folder of one sandbox, locked until this is dropped, which removes it unless it is kept.
#[derive(Debug)]
pub struct RunFolder {
    kept: bool,
    parent: OwnedFd,
    handle: OwnedFd,
    id: SandboxId,
    path: PathBuf,
}

/// What came of trying to lock a folder.
enum Attempt {
    Locked(RunFolder),
    Busy,
    Missing,
}

impl RunFolder {
    /// Makes the folder if it is missing and locks it. It is kept if there is a sandbox in it.
    ///
    /// # Errors
    /// When it cannot be made or belongs to somebody else, or when its lock cannot be had.
    pub async fn make(data_dir: &Path, id: &SandboxId) -> Result<Self> {
        Self::wait(data_dir, id, true).await?.ok_or_else(|| Error::Locked(id.clone()))
    }

    /// Locks the folder; `None` when there is none.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub async fn find(data_dir: &Path, id: &SandboxId) -> Result<Option<Self>> {
        Self::wait(data_dir, id, false).await
    }

    async fn wait(data_dir: &Path, id: &SandboxId, make: bool) -> Result<Option<Self>> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let (data_dir, this) = (data_dir.to_owned(), id.clone());
            match blocking(move || Self::attempt(&data_dir, this, make)).await? {
                Attempt::Locked(folder) => return Ok(Some(folder)),
                Attempt::Missing => return Ok(None),
                Attempt::Busy if start.elapsed() > PATIENCE => return Err(Error::Locked(id.clone())),
                Attempt::Busy => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Locks the folder if it is there and nobody else has it. Blocks on the disk alone.
    pub fn try_find(data_dir: &Path, id: &SandboxId) -> Option<Self> {
        match Self::attempt(data_dir, id.clone(), false) {
            Ok(Attempt::Locked(folder)) => Some(folder),
            _ => None,
        }
    }

    /// Locks the folder if it is there, and waits for whoever has it as [`find`](Self::find) does. For a thread of its own,
    /// where no runtime may be left. Blocks.
    pub fn find_blocking(data_dir: &Path, id: &SandboxId) -> Option<Self> {
        let start = Instant::now();
        loop {
            match Self::attempt(data_dir, id.clone(), false) {
                Ok(Attempt::Locked(folder)) => return Some(folder),
                Ok(Attempt::Busy) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return None,
            }
        }
    }

    fn attempt(data_dir: &Path, id: SandboxId, make: bool) -> Result<Attempt> {
        blocks();
        let run = run_dir(data_dir);
        let broken = |path: &Path, errno: Errno| Error::Folder(path.to_owned(), errno.into());
        if make {
            let mut builder = std::fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create(data_dir)
                .map_err(|e| Error::Folder(data_dir.to_owned(), e))?;
        }
        let parent = match private(rustix::fs::CWD, &run, make) {
            Ok(parent) => parent,
            Err(Errno::NOENT) if !make => return Ok(Attempt::Missing),
            Err(Errno::PERM) => return Err(Error::Foreign(run)),
            Err(errno) => return Err(broken(&run, errno)),
        };
        let path = run.join(id.as_str());
        let handle = match private(&parent, Path::new(id.as_str()), make) {
            Ok(handle) => handle,
            Err(Errno::NOENT) if !make => return Ok(Attempt::Missing),
            // Made by us and removed by another process at the same moment.
            Err(Errno::NOENT) => return Ok(Attempt::Busy),
            Err(Errno::PERM) => return Err(Error::Foreign(path)),
            Err(errno) => return Err(broken(&path, errno)),
        };
        match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Attempt::Busy),
            Err(errno) => return Err(broken(&path, errno)),
        }
        // Who held the lock before may have removed the folder: then another one stands there, or none.
        let ours = rustix::fs::fstat(&handle).map_err(|errno| broken(&path, errno))?;
        match rustix::fs::statat(&parent, id.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) => {
                let mut folder = Self { kept: true, parent, handle, id, path };
                // Made by us, or left by one who died before there was a sandbox.
                folder.kept = !make || folder.record().is_some() || folder.listener().is_some();
                Ok(Attempt::Locked(folder))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(Attempt::Busy),
            Err(errno) => Err(broken(&path, errno)),
        }
    }

    /// Whether it stays when this is dropped.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Says whether it stays when this is dropped: it does as long as there is a sandbox in it.
    pub fn keep(&mut self, keep: bool) {
        self.kept = keep;
    }

    /// The directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// What is written down here, if it is whole.
    pub fn record(&self) -> Option<Record> {
        read_record(&self.handle)
    }

    /// The same, and what has become of its agent.
    pub fn look(&self) -> Option<(Record, Whereabouts)> {
        let record = self.record()?;
        let whereabouts = record.process.whereabouts(&self.handle);
        Some((record, whereabouts))
    }

    /// Writes the record down, whole or not at all.
    ///
    /// # Errors
    /// When the disk is full or the folder is gone.
    pub fn write(&self, record: &Record) -> Result<()> {
        blocks();
        let broken = |e: io::Error| Error::Folder(self.path.clone(), e);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = Place::of(&self.handle).map_err(broken)?;
        let file = rustix::fs::openat(&self.handle, NEW_RECORD, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| broken(errno.into()))?;
        File::from(file).write_all(&record.encode(place)).map_err(broken)?;
        rustix::fs::renameat(&self.handle, NEW_RECORD, &self.handle, RECORD).map_err(|e| broken(e.into()))
    }

    /// Says whether the scratch folder goes with the sandbox, before there is a record that says so.
    ///
    /// # Errors
    /// When the disk is full or the folder is gone.
    pub fn mark(&self, ephemeral: bool) -> Result<()> {
        let marked = if ephemeral {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&self.handle, EPHEMERAL, flags, Mode::RUSR | Mode::WUSR).map(drop)
        } else {
            self.unlink(EPHEMERAL)
        };
        marked.map_err(|errno| Error::Folder(self.path.clone(), errno.into()))
    }

    /// Whether nobody will ever use the scratch folder again: its opener is gone, since its lock could be had, and there
    /// is no agent. Blocks on the disk alone.
    pub fn is_remains(&self) -> bool {
        match self.record() {
            Some(record) => {
                record.ephemeral && matches!(record.process.whereabouts(&self.handle), Whereabouts::Over)
            }
            None => is_marked(&self.handle) && self.listener().is_none(),
        }
    }

    fn unlink(&self, name: &str) -> rustix::io::Result<()> {
        blocks();
        match rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// A new socket here, bound and not yet listening.
    ///
    /// # Errors
    /// When the file system has no sockets, or is full.
    pub fn bind(&self) -> Result<OwnedFd> {
        let bound = || {
            self.unlink(SOCKET)?;
            let socket = socket()?;
            // By the handle: the path may be longer than a socket's address.
            let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", self.handle.as_raw_fd()))?;
            rustix::net::bind(&socket, &address)?;
            Ok(socket)
        };
        bound().map_err(|errno: Errno| Error::Folder(self.path.clone(), errno.into()))
    }

    /// Process id of whoever listens on the socket here, if anybody does.
    pub fn listener(&self) -> Option<u32> {
        blocks();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::openat(&self.handle, SOCKET, flags, Mode::empty()).ok()?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", there.as_raw_fd())).ok()?;
        let socket = socket().ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
        (peer.uid == rustix::process::geteuid()).then(|| peer.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Removes what is ours here, and the folder unless something else is in it.
    pub fn clear(mut self) {
        self.kept = false;
    }

    fn remove(&self) {
        for name in [SOCKET, NEW_RECORD, RECORD, EPHEMERAL] {
            let _ = self.unlink(name);
        }
        let _ = rustix::fs::unlinkat(&self.parent, self.id.as_str(), AtFlags::REMOVEDIR);
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.kept {
            self.remove();
        }
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Opens a folder of ours, made if asked for, and makes sure that nobody else gets in. `PERM` when it is not ours.
pub fn private(parent: impl AsFd, name: &Path, make: bool) -> rustix::io::Result<OwnedFd> {
    if make {
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&handle)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    if stat.st_mode & 0o777 != 0o700 {
        rustix::fs::fchmod(&handle, Mode::RWXU)?;
    }
    Ok(handle)
}

/// What is written down of one sandbox, and the folder that its socket lies in, whoever's lock is held: to look at a
/// sandbox that runs nothing is waited for, and one that ends meanwhile is noticed by its not answering. `None` when
/// there is none, or its folder is not what we made. Blocks on the disk alone.
pub fn look(data_dir: &Path, id: &SandboxId) -> Option<(OwnedFd, Record)> {
    let parent = unchanged(rustix::fs::CWD, &run_dir(data_dir))?;
    let folder = unchanged(&parent, Path::new(id.as_str()))?;
    let record = read_record(&folder)?;
    Some((folder, record))
}

/// Opens a folder of ours that nobody else gets into.
fn unchanged(parent: impl AsFd, name: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(parent, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&handle).ok()?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o777 == 0o700;
    ours.then_some(handle)
}

/// The records of this data directory, whoever's lock is held. Blocks.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn records(data_dir: &Path) -> Result<Vec<(SandboxId, Record, Whereabouts)>> {
    let run = run_dir(data_dir);
    let entries = match std::fs::read_dir(&run) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::Folder(run, e)),
    };
    let ids = entries.flatten().filter_map(|entry| SandboxId::parse(entry.file_name().to_str()?));
    Ok(ids
        .filter_map(|id| {
            let handle = private(rustix::fs::CWD, &run.join(id.as_str()), false).ok()?;
            let record = read_record(&handle)?;
            let whereabouts = record.process.whereabouts(&handle);
            Some((id, record, whereabouts))
        })
        .collect())
}

/// Removes what is left of ephemeral sandboxes whose openers died: run folders with their scratch folders, and run
/// folders that were made and never used. `but` is left alone. Blocks on the disk.
///
/// Costs a look at each folder; a session's own sandbox is not looked at any closer.
pub fn sweep(data_dir: &Path, but: Option<&SandboxId>) {
    let run = run_dir(data_dir);
    let Ok(entries) = std::fs::read_dir(&run) else { return };
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(SandboxId::parse) else { continue };
        if Some(&id) == but {
            continue;
        }
        let Ok(handle) = private(rustix::fs::CWD, &run.join(id.as_str()), false) else { continue };
        if !is_marked(&handle) {
            remove_if_abandoned(&entry);
            continue;
        }
        // One that lives is not worth a lock, which its own opener may be about to want.
        if read_record(&handle)
            .is_some_and(|record| !matches!(record.process.whereabouts(&handle), Whereabouts::Over))
        {
            continue;
        }
        let Some(folder) = RunFolder::try_find(data_dir, &id).filter(RunFolder::is_remains) else { continue };
        match scratch::remove(data_dir, &id) {
            Ok(()) => folder.clear(),
            Err(error) => tracing::warn!(sandbox = %id, %error, "what a sandbox left cannot be removed"),
        }
    }
}

/// Removes a run folder that is empty and has been for a while: its maker died before putting anything there.
fn remove_if_abandoned(entry: &std::fs::DirEntry) {
    let age = entry.metadata().and_then(|folder| folder.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age > ABANDONED) {
        // Refused by the kernel for a folder that is not empty.
        let _ = std::fs::remove_dir(entry.path());
    }
}

fn is_marked(folder: &OwnedFd) -> bool {
    rustix::fs::statat(folder, EPHEMERAL, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn read_record(folder: &OwnedFd) -> Option<Record> {
    blocks();
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, RECORD, flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_RECORD).read_to_end(&mut bytes).ok()?;
    Record::parse(&bytes, Place::of(folder).ok()?)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use moltis_sandbox::{BackendName, SessionKey};

    use super::*;
    use crate::record::Identity;

    fn id(key: &str) -> SandboxId {
        SandboxId::of(&SessionKey::new(key).unwrap())
    }

    #[tokio::test]
    async fn the_lock_is_waited_for_and_the_folder_comes_and_goes() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("d".repeat(150));
        let id = id("s");
        assert!(RunFolder::find(&data, &id).await.unwrap().is_none());
        let first = RunFolder::make(&data, &id).await.unwrap();
        let waiting = {
            let (data, id) = (data.clone(), id.clone());
            tokio::spawn(async move { RunFolder::make(&data, &id).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        let _socket = first.bind().unwrap();
        assert_eq!(first.listener(), None, "bound is not listening");
        let record = Record::new(BackendName::None, Identity::of(std::process::id()).unwrap());
        first.write(&record).unwrap();
        assert_eq!(first.record(), Some(record.clone()));
        let [(known, told, Whereabouts::Here(_))] = &records(&data).unwrap()[..] else { panic!("not one") };
        assert_eq!((known, told), (&id, &record));
        // The waiting one finds that its folder is gone and makes another.
        first.clear();
        let second = waiting.await.unwrap().unwrap();
        assert_eq!(second.record(), None);
        drop(second);
        assert!(RunFolder::find(&data, &id).await.unwrap().is_none(), "there was no sandbox in it");
    }

    #[tokio::test]
    async fn other_files_keep_the_folder() {
        let temp = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(temp.path(), &id("s")).await.unwrap();
        let path = folder.path.clone();
        std::fs::write(path.join("other"), "somebody else's").unwrap();
        folder.clear();
        assert!(path.join("other").exists());
    }

    #[tokio::test]
    async fn remains_are_swept_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path();
        let own = Identity::of(std::process::id()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = Identity::of(child.id()).unwrap();
        child.wait().unwrap();
        let make = async |name: &str, ephemeral: bool, process: Option<&Identity>| {
            let mut folder = RunFolder::make(data, &id(name)).await.unwrap();
            folder.keep(true);
            folder.mark(ephemeral).unwrap();
            scratch::make(data, &id(name)).unwrap();
            if let Some(process) = process {
                let mut record = Record::new(BackendName::RestrictedHost, process.clone());
                record.ephemeral = ephemeral;
                folder.write(&record).unwrap();
            }
            folder
        };
        drop(make("dead", true, Some(&dead)).await);
        drop(make("no record", true, None).await);
        drop(make("live", true, Some(&own)).await);
        drop(make("a session's", false, Some(&dead)).await);
        drop(make("a session's without a record", false, None).await);
        drop(make("ours", true, None).await);
        // Marked for an ephemeral one, whose opener died before it had ended a session's.
        drop(make("a session's, marked", false, Some(&dead)).await);
        RunFolder::find(data, &id("a session's, marked")).await.unwrap().unwrap().mark(true).unwrap();
        let held = make("held", true, None).await;
        sweep(data, Some(&id("ours")));
        drop(held);
        let there = |folder: &Path| {
            let mut names: Vec<_> =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let kept =
            ["live", "a session's", "a session's without a record", "ours", "a session's, marked", "held"];
        let mut kept = kept.map(|name| OsString::from(id(name).as_str()));
        kept.sort();
        assert_eq!(there(&run_dir(data)), kept);
        assert_eq!(there(&data.join("sandbox/scratch")), kept);
    }

    #[tokio::test]
    async fn links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let elsewhere = temp.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let run = run_dir(temp.path());
        std::fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&elsewhere, run.join(id("s").as_str())).unwrap();
        let error = RunFolder::make(temp.path(), &id("s")).await.unwrap_err();
        assert!(matches!(error, Error::Folder(..)), "{error:?}");
    }
}
