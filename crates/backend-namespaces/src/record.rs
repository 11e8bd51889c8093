//! What a data directory knows of its sandboxes: `run/<id>/sandbox.json` beside the agent's socket, and one lock file
//! for each, so that two processes end with one sandbox.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_sandbox::SandboxId;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::process::{Process, pid_realm};

/// The agent's socket in a sandbox's folder.
pub const SOCKET: &str = "agent.sock";

const RECORD: &str = "sandbox.json";
const NEW_RECORD: &str = ".sandbox.json";

/// Longest record in bytes.
const MAX_RECORD: u64 = 64 * 1024;

/// How long a lock that another process holds is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is written down of a sandbox before it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Process id of its PID 1.
    pub pid: u32,
    /// When that process started, in the kernel's ticks since the boot.
    pub started: u64,
    /// The boot and the pid namespace in which the number means something.
    pub realm: String,
    /// Fingerprint of the spec it was made by.
    pub fingerprint: String,
    /// When it was made, in seconds since 1970.
    pub created_secs: u64,
}

impl Record {
    /// The sandbox's PID 1, if it lives.
    pub fn process(&self) -> Option<Process> {
        (self.realm == pid_realm()).then(|| Process::find(self.pid, self.started)).flatten()
    }
}

/// The `run` folder of a data directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Of this data directory; both are made, 0700, if they are missing.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn make(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join("run");
        if fs::metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Ok(Self { path });
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(Error::data_dir(&path))?;
        Ok(Self { path })
    }

    /// Of this data directory, if it is there.
    pub fn find(data_dir: &Path) -> Option<Self> {
        let path = data_dir.join("run");
        path.is_dir().then_some(Self { path })
    }

    /// Ids of everything that has a folder or a lock.
    pub fn ids(&self) -> Vec<SandboxId> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut ids: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let name = name.to_str()?;
                SandboxId::parse(name.strip_suffix(".lock").unwrap_or(name))
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn folder(&self, id: &SandboxId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The record of a sandbox; `None` if there is none that can be read.
    pub fn record(&self, id: &SandboxId) -> Option<Record> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.folder(id).join(RECORD)).ok()?;
        let mut text = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// A sandbox's folder, if it is there.
    pub fn open(&self, id: &SandboxId) -> Option<OwnedFd> {
        open_directory(&self.folder(id)).ok()
    }

    /// Takes a sandbox's lock, waiting for whoever has it. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::DataDir`].
    pub fn lock(&self, id: &SandboxId) -> Result<Lock> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            match self.attempt(id, true)? {
                Attempt::Taken(lock) => return Ok(lock),
                Attempt::Held | Attempt::Nowhere => {}
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Locked(PATIENCE.as_secs()));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Takes a sandbox's lock unless somebody has it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn try_lock(&self, id: &SandboxId) -> Result<Option<Lock>> {
        Ok(match self.attempt(id, true)? {
            Attempt::Taken(lock) => Some(lock),
            Attempt::Held | Attempt::Nowhere => None,
        })
    }

    /// Takes the lock of a sandbox of which there may be nothing left, without making anything: `None` if there is
    /// none, or, with `if_free`, if somebody has it. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::DataDir`].
    pub fn lock_what_is_left(&self, id: &SandboxId, if_free: bool) -> Result<Option<Lock>> {
        let start = Instant::now();
        loop {
            match self.attempt(id, false)? {
                Attempt::Taken(lock) => return Ok(Some(lock)),
                Attempt::Nowhere => return Ok(None),
                Attempt::Held if if_free => return Ok(None),
                Attempt::Held if start.elapsed() > PATIENCE => return Err(Error::Locked(PATIENCE.as_secs())),
                Attempt::Held => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn attempt(&self, id: &SandboxId, create: bool) -> Result<Attempt> {
        let path = self.path.join(format!("{id}.lock"));
        loop {
            let opened = OpenOptions::new()
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path);
            let file = match opened {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound && !create => return Ok(Attempt::Nowhere),
                opened => opened.map_err(Error::data_dir(&path))?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
                Err(TryLockError::Error(cause)) => return Err(Error::DataDir { path, cause }),
            }
            // Whoever held it before may have removed the file that we now have locked.
            let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(&path)) else { continue };
            if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
                return Ok(Attempt::Taken(Lock { path, _file: file }));
            }
        }
    }

    /// Removes a sandbox's folder and all that we put there. The caller holds its lock, and the sandbox is over.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn remove(&self, id: &SandboxId) -> Result<()> {
        let path = self.folder(id);
        match fs::remove_dir_all(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(Error::DataDir { path, cause }),
            _ => Ok(()),
        }
    }

    /// Makes a sandbox's folder anew. The caller holds its lock, and there is no sandbox.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn create(&self, id: &SandboxId) -> Result<Folder> {
        self.remove(id)?;
        let path = self.folder(id);
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::data_dir(&path))?;
        let handle = open_directory(&path).map_err(|errno| Error::DataDir { path: path.clone(), cause: errno.into() })?;
        Ok(Folder { path, handle, kept: false })
    }
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// What came of trying to take a lock.
enum Attempt {
    Taken(Lock),
    Held,
    Nowhere,
}

/// A sandbox's lock; dropping it lets go. The file stays: only who knows that nothing else is left removes it.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Removes the file, while it is held.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A sandbox's folder while the sandbox is being made. Dropping it removes it, unless it is kept.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    handle: OwnedFd,
    kept: bool,
}

impl Folder {
    /// A handle of the folder.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Makes the agent's socket: bound, and not yet listening. The path's length does not matter.
    ///
    /// # Errors
    /// [`Error::NoSockets`], [`Error::DataDir`].
    pub fn bind_socket(&self) -> Result<OwnedFd> {
        let path = || self.path.join(SOCKET);
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("no socket can be made"))?;
        let through_handle = format!("/proc/self/fd/{}/{SOCKET}", self.handle.as_raw_fd());
        let address = SocketAddrUnix::new(through_handle).map_err(Error::system("no socket can be made"))?;
        match bind(&socket, &address) {
            Ok(()) => Ok(socket),
            // What vfat, some FUSE and network file systems say.
            Err(errno @ (Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV)) => {
                Err(Error::NoSockets { path: path(), cause: errno.into() })
            }
            Err(errno) => Err(Error::DataDir { path: path(), cause: errno.into() }),
        }
    }

    /// Writes the record; whoever reads it sees all of it or nothing.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path.join(NEW_RECORD);
        let text = serde_json::to_vec(record).map_err(|e| Error::DataDir { path: path.clone(), cause: e.into() })?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.handle, NEW_RECORD, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| Error::DataDir { path: path.clone(), cause: errno.into() })?;
        File::from(file).write_all(&text).map_err(Error::data_dir(&path))?;
        rustix::fs::renameat(&self.handle, NEW_RECORD, &self.handle, RECORD)
            .map_err(|errno| Error::DataDir { path, cause: errno.into() })
    }

    /// Leaves the folder in place.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for name in [SOCKET, NEW_RECORD, RECORD] {
            let _ = unlinkat(&self.handle, name, AtFlags::empty());
        }
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moltis_sandbox::SessionKey;

    fn record() -> Record {
        let pid = std::process::id();
        let process = Process::child(pid as i32, rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap());
        Record {
            pid,
            started: process.started().unwrap(),
            realm: pid_realm().to_owned(),
            fingerprint: "f".into(),
            created_secs: 7,
        }
    }

    #[test]
    fn a_record_finds_its_process_and_no_other() {
        assert_eq!(record().process().unwrap().pid(), std::process::id());
        assert!(Record { started: record().started + 1, ..record() }.process().is_none());
        assert!(Record { realm: "elsewhere".into(), ..record() }.process().is_none());
    }

    #[test]
    fn a_folder_holds_record_and_socket_and_vanishes_unless_kept() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("d".repeat(150));
        let run = RunDir::make(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let folder = run.create(&id).unwrap();
        folder.bind_socket().unwrap();
        folder.write(&record()).unwrap();
        assert_eq!(run.record(&id), Some(record()));
        drop(folder);
        assert!(run.record(&id).is_none() && run.ids().is_empty());
        run.create(&id).unwrap().keep();
        assert_eq!(run.ids(), [id.clone()]);
        run.remove(&id).unwrap();
    }

    #[test]
    fn a_lock_is_held_by_one_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::make(temp.path()).unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let lock = run.lock(&id).unwrap();
        assert!(run.try_lock(&id).unwrap().is_none());
        lock.remove();
        let lock = run.try_lock(&id).unwrap().unwrap();
        drop(lock);
        assert!(run.try_lock(&id).unwrap().is_some());
    }
}
