//! What a data directory knows of its sandboxes: `run/<id>/sandbox.json` beside the agent's socket. Whoever makes, finds
//! or ends a sandbox holds the lock of its folder, so that two processes end with one sandbox.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_agent::dangerous::{self, Watched};
use moltis_sandbox::SandboxId;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, short};
use crate::process::{Process, boot, pid_realm};

/// The agent's socket in a sandbox's folder.
pub const SOCKET: &str = "agent.sock";

const RECORD: &str = "sandbox.json";
const WATCHED: &str = "watched";
const LOCK: &str = "lock";

/// All that this backend puts into a sandbox's folder.
const OURS: [&str; 4] = [SOCKET, RECORD, WATCHED, LOCK];

/// Longest record in bytes.
const MAX_RECORD: u64 = 64 * 1024;

/// Longest account of the folders that a sandbox may write to, in bytes.
const MAX_WATCHED: u64 = 64 * 1024 * 1024;

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
    /// Directories of its control groups, wherever the one who made it was.
    #[serde(default)]
    pub groups: Vec<PathBuf>,
    /// Whether there are folders that it may write to and that are watched.
    #[serde(default)]
    pub watched: bool,
}

/// What has become of a sandbox's PID 1.
#[derive(Debug)]
pub enum Whereabouts {
    /// It lives.
    Here(Process),
    /// It does not live any more.
    Over,
    /// It belongs to another PID namespace of this boot, and may live.
    Elsewhere,
}

impl Record {
    /// What has become of the sandbox's PID 1; its socket lies in `folder`.
    pub fn whereabouts(&self, folder: impl AsFd) -> Whereabouts {
        if self.realm == pid_realm() {
            return Process::find(self.pid, self.started).map_or(Whereabouts::Over, Whereabouts::Here);
        }
        if !self.realm.starts_with(boot()) || is_deserted(folder) {
            return Whereabouts::Over;
        }
        Whereabouts::Elsewhere
    }
}

/// Whether a socket is there on which nobody listens. PID 1 alone holds it: once it has listened, that means its end,
/// in whichever PID namespace it was.
fn is_deserted(folder: impl AsFd) -> bool {
    let refused = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = openat(folder, SOCKET, flags, Mode::empty())?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", there.as_raw_fd()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Something else in its place refuses as well, and says nothing about the agent.
        let is_socket = FileType::from_raw_mode(fstat(&there)?.st_mode) == FileType::Socket;
        rustix::io::Result::Ok(is_socket && connect(&socket, &address) == Err(Errno::CONNREFUSED))
    };
    refused().unwrap_or(false)
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
    /// [`Error::DataDir`]; [`Error::DataDirOwner`] and [`Error::DataDirExposed`] when others could put files of theirs
    /// into one of them.
    pub fn make(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join("run");
        if !fs::metadata(&path).is_ok_and(|found| found.is_dir()) {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(Error::data_dir(&path))?;
        }
        // What leads to `run` first: who may write to the one may replace the other.
        for directory in [data_dir, &path] {
            is_ours_alone(directory)?;
        }
        Ok(Self { path })
    }

    /// Of this data directory, if it is there.
    pub fn find(data_dir: &Path) -> Option<Self> {
        let path = data_dir.join("run");
        path.is_dir().then_some(Self { path })
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

    fn path_of(&self, id: &SandboxId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The record of a sandbox; `None` if there is none that can be read.
    pub fn record(&self, id: &SandboxId) -> Option<Record> {
        record_in(&self.path_of(id))
    }

    /// The record of a sandbox, a handle of its folder, and what has become of its PID 1, without taking the folder.
    pub fn look(&self, id: &SandboxId) -> Option<(Record, OwnedFd, Whereabouts)> {
        let (record, folder) = (self.record(id)?, self.open(id)?);
        let whereabouts = record.whereabouts(&folder);
        Some((record, folder, whereabouts))
    }

    /// What was written down of the folders that a sandbox may write to.
    pub fn watched(&self, id: &SandboxId) -> Option<Vec<Watched>> {
        dangerous::decode(&read(&self.path_of(id).join(WATCHED), MAX_WATCHED)?)
    }

    /// Whether the folder holds something that this backend never puts there: another backend's sandbox, say. One
    /// that cannot be read counts as such.
    pub fn is_foreign(&self, id: &SandboxId) -> bool {
        match fs::read_dir(self.path_of(id)) {
            Ok(mut entries) => entries
                .any(|entry| !entry.is_ok_and(|entry| OURS.iter().any(|ours| entry.file_name() == *ours))),
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
    pub async fn lock(&self, id: &SandboxId) -> Result<Folder> {
        self.wait_for(id, true).await?.ok_or(Error::Locked(0))
    }

    /// Takes a sandbox's folder if there is one, waiting for whoever has it. It is kept when it is dropped.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::DataDir`].
    pub async fn lock_existing(&self, id: &SandboxId) -> Result<Option<Folder>> {
        self.wait_for(id, false).await
    }

    /// As [`lock`](Self::lock) if nobody has it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn try_lock(&self, id: &SandboxId) -> Result<Option<Folder>> {
        Ok(self.attempt(id, true)?.taken())
    }

    /// As [`lock_existing`](Self::lock_existing) if nobody has it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn try_lock_existing(&self, id: &SandboxId) -> Result<Option<Folder>> {
        Ok(self.attempt(id, false)?.taken())
    }

    async fn wait_for(&self, id: &SandboxId, make: bool) -> Result<Option<Folder>> {
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

    fn attempt(&self, id: &SandboxId, make: bool) -> Result<Attempt> {
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
                let kept = !make || record_in(&path).is_some();
                return Ok(Attempt::Taken(Folder { path, handle, _lock: file, kept }));
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

fn record_in(folder: &Path) -> Option<Record> {
    let stored: Stored<Record> = serde_json::from_slice(&read(&folder.join(RECORD), MAX_RECORD)?).ok()?;
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

/// What came of trying to take a folder.
enum Attempt {
    Taken(Folder),
    Held,
    Nowhere,
}

impl Attempt {
    fn taken(self) -> Option<Folder> {
        match self {
            Self::Taken(folder) => Some(folder),
            Self::Held | Self::Nowhere => None,
        }
    }
}

/// A sandbox's folder, locked. Dropping it removes it and lets go, unless it is kept.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    handle: File,
    _lock: Option<File>,
    kept: bool,
}

impl Folder {
    /// A handle of the folder.
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Says whether the folder stays when this is dropped: it does as long as there is a sandbox behind it.
    pub fn keep(&mut self, keep: bool) {
        self.kept = keep;
    }

    /// Removes what an earlier sandbox left in it, which is over: it is not kept any more.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn clear(&mut self) -> Result<()> {
        self.kept = false;
        self.remove_names(&[SOCKET, RECORD, WATCHED])
    }

    /// The record in it, if there is one that can be read.
    pub fn record(&self) -> Option<Record> {
        record_in(&self.path)
    }

    /// The same, and what has become of the sandbox's PID 1.
    pub fn look(&self) -> Option<(Record, Whereabouts)> {
        let record = self.record()?;
        let whereabouts = record.whereabouts(&self.handle);
        Some((record, whereabouts))
    }

    fn remove_names(&self, names: &[&str]) -> Result<()> {
        for &name in names {
            match unlinkat(&self.handle, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.failed(name, errno)),
            }
        }
        Ok(())
    }

    /// Removes it. The sandbox is over. What is not ours stays, and the folder with it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn remove(mut self) -> Result<()> {
        self.kept = true;
        self.remove_all()
    }

    fn remove_all(&self) -> Result<()> {
        self.remove_names(&OURS)?;
        match fs::remove_dir(&self.path) {
            // Something of others', or the lock of whoever came right after us.
            Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|cause| Error::DataDir { path: self.path.clone(), cause }),
        }
    }

    fn failed(&self, name: &str, errno: Errno) -> Error {
        Error::DataDir { path: self.path.join(name), cause: errno.into() }
    }

    /// Makes the agent's socket: bound, and not yet listening. The path's length does not matter.
    ///
    /// # Errors
    /// [`Error::NoSockets`], [`Error::DataDir`].
    pub fn bind_socket(&self) -> Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("no socket can be made"))?;
        let through_handle = format!("/proc/self/fd/{}/{SOCKET}", self.handle.as_raw_fd());
        let address = SocketAddrUnix::new(through_handle).map_err(Error::system("no socket can be made"))?;
        match bind(&socket, &address) {
            Ok(()) => Ok(socket),
            // What vfat, some FUSE and network file systems say.
            Err(errno @ (Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV)) => {
                Err(Error::NoSockets { path: self.path.join(SOCKET), cause: errno.into() })
            }
            Err(errno) => Err(self.failed(SOCKET, errno)),
        }
    }

    /// Writes the record. Whoever reads it without the lock may see a part of it, which counts as none.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn write(&self, record: &Record) -> Result<()> {
        let here =
            self.handle.metadata().map_err(|e| Error::DataDir { path: self.path.clone(), cause: e })?;
        let text = serde_json::to_vec(&Stored { record, device: here.dev(), inode: here.ino() })
            .map_err(|e| Error::DataDir { path: self.path.join(RECORD), cause: e.into() })?;
        self.create(RECORD, &text)
    }

    /// Writes down what the folders hold that the sandbox will be able to write to; before the record, which says that
    /// this is there.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn write_watched(&self, watched: &[Watched]) -> Result<()> {
        let bytes = dangerous::encode(watched).ok_or_else(|| self.failed(WATCHED, Errno::OVERFLOW))?;
        self.create(WATCHED, &bytes)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.handle, name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| self.failed(name, errno))?;
        File::from(file)
            .write_all(bytes)
            .map_err(|cause| Error::DataDir { path: self.path.join(name), cause })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.kept {
            // What does not go now is swept later.
            let _ = self.remove_all();
        }
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
            groups: vec!["/sys/fs/cgroup/x".into()],
            watched: false,
        }
    }

    #[test]
    fn a_record_finds_its_process_and_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let folder = File::open(temp.path()).unwrap();
        let found = |record: Record| match record.whereabouts(&folder) {
            Whereabouts::Here(process) => Some(process.pid()),
            Whereabouts::Over => None,
            Whereabouts::Elsewhere => panic!("{record:?}"),
        };
        assert_eq!(found(record()), Some(std::process::id()));
        assert_eq!(found(Record { started: record().started + 1, ..record() }), None);
        assert_eq!(found(Record { realm: "another boot".into(), ..record() }), None);
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_over_only_if_its_socket_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::make(temp.path()).unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let mut folder = run.try_lock(&id).unwrap().unwrap();
        let elsewhere = Record { realm: format!("{} pid:[1]", boot()), ..record() };
        let is_elsewhere = |folder: &Folder| match elsewhere.whereabouts(folder.handle()) {
            Whereabouts::Elsewhere => true,
            Whereabouts::Over => false,
            Whereabouts::Here(process) => panic!("{process:?}"),
        };
        assert!(is_elsewhere(&folder), "there is no socket to ask");
        fs::write(run.path_of(&id).join(SOCKET), "").unwrap();
        assert!(is_elsewhere(&folder), "nor is a file one");
        folder.clear().unwrap();
        let socket = folder.bind_socket().unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        for _ in 0..4 {
            assert!(is_elsewhere(&folder), "somebody listens, whether or not he accepts");
        }
        drop(socket);
        assert!(!is_elsewhere(&folder), "nobody listens any more");
    }

    #[tokio::test]
    async fn a_folder_holds_record_and_socket_and_vanishes_unless_kept() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("d".repeat(150));
        let run = RunDir::make(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        let mut folder = run.lock(&id).await.unwrap();
        folder.bind_socket().unwrap();
        folder.write(&record()).unwrap();
        folder.keep(true);
        drop(folder);
        assert_eq!(run.record(&id), Some(record()));
        let mut folder = run.lock(&id).await.unwrap();
        folder.clear().unwrap();
        folder.bind_socket().unwrap();
        drop(folder);
        assert!(run.record(&id).is_none() && run.ids().is_empty());
    }

    #[test]
    fn a_data_directory_of_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("data");
        let run = data.join("run");
        RunDir::make(&data).unwrap();
        for exposed in [&data, &run] {
            for (mode, allowed) in
                [(0o777, false), (0o770, false), (0o702, false), (0o755, true), (0o700, true)]
            {
                fs::set_permissions(exposed, fs::Permissions::from_mode(mode)).unwrap();
                match RunDir::make(&data) {
                    Ok(_) => assert!(allowed, "{mode:o}"),
                    Err(error) => {
                        assert!(!allowed, "{mode:o}");
                        let error = moltis_sandbox::Error::from(error);
                        assert_eq!(error.code(), "data-dir-exposed");
                        let fix = format!("chmod 700 {}", exposed.display());
                        assert_eq!(error.diagnosis().fix.as_deref(), Some(fix.as_str()));
                    }
                }
            }
        }
        assert!(judge_owner(&data, 1, 1).is_ok());
        assert!(matches!(judge_owner(&data, 1, 2), Err(Error::DataDirOwner { owner: 1, user: 2, .. })));
        if rustix::process::geteuid().is_root() {
            for theirs in [&run, &data] {
                std::os::unix::fs::chown(theirs, Some(12_345), None).unwrap();
                let error = moltis_sandbox::Error::from(RunDir::make(&data).unwrap_err());
                assert_eq!(error.code(), "data-dir-exposed");
                assert!(error.to_string().contains("12345"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_not_ours_stays() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::make(temp.path()).unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        assert!(!run.is_foreign(&id));
        let folder = run.lock(&id).await.unwrap();
        folder.bind_socket().unwrap();
        folder.write(&record()).unwrap();
        fs::write(run.path_of(&id).join(LOCK), "").unwrap();
        assert!(!run.is_foreign(&id));
        let foreign = run.path_of(&id).join("host.json");
        fs::write(&foreign, "theirs").unwrap();
        assert!(run.is_foreign(&id));
        folder.remove().unwrap();
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "theirs");
        assert_eq!(fs::read_dir(run.path_of(&id)).unwrap().count(), 1);
        fs::remove_file(foreign).unwrap();
        run.lock(&id).await.unwrap().remove().unwrap();
        assert_eq!(run.ids(), []);
    }

    #[tokio::test]
    async fn a_folder_is_held_by_one_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::make(temp.path()).unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        assert!(run.lock_existing(&id).await.unwrap().is_none());
        let folder = run.lock(&id).await.unwrap();
        assert!(run.try_lock_existing(&id).unwrap().is_none());
        let waiting = {
            let (run, id) = (run.clone(), id.clone());
            tokio::spawn(async move { run.lock(&id).await.map(|_| ()) })
        };
        // It gives the thread back while it waits.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        folder.remove().unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(run.ids(), []);
    }

    #[tokio::test]
    async fn whoever_takes_the_folder_of_a_sandbox_and_gives_up_leaves_it() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::make(temp.path()).unwrap();
        let id = SandboxId::of(&SessionKey::new("s").unwrap());
        drop(run.lock(&id).await.unwrap());
        assert_eq!(run.ids(), [], "there was none");
        let mut folder = run.lock(&id).await.unwrap();
        folder.write(&record()).unwrap();
        folder.keep(true);
        drop(folder);
        drop(run.lock(&id).await.unwrap());
        drop(run.lock_existing(&id).await.unwrap());
        assert_eq!(run.record(&id), Some(record()));
    }
}
