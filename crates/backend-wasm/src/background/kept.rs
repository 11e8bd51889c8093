//! What lies in the folder of a background command, `<place>/background/<number>/`: a record, the lock of whoever holds
//! it, its output, a socket, and its end once it is over.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Outcome, ProcessInfo};
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::place::BACKGROUND;

const RECORD: &str = "record.json";
const OUTCOME: &str = "outcome.json";
const LOCK: &str = "lock";
/// Name of the socket.
const SOCKET: &str = "control";

/// Longest file of ours in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// What is written down when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    command: String,
    started_millis: u64,
}

/// A background command that is known.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its number.
    pub number: u32,
    /// Its folder.
    pub path: PathBuf,
    record: Record,
}

/// One that this process holds, until this is dropped.
#[derive(Debug)]
pub struct Held {
    /// Which.
    pub kept: Kept,
    _lock: File,
}

/// All of a sandbox, oldest first.
pub fn all(place: &Path) -> Vec<Kept> {
    let Ok(entries) = fs::read_dir(place.join(BACKGROUND)) else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut all: Vec<Kept> = numbers.filter_map(|number| Kept::find(place, number)).collect();
    all.sort_unstable_by_key(|kept| kept.number);
    all
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write(folder: &Path, name: &str, what: &impl Serialize) -> io::Result<()> {
    let draft = folder.join("new");
    let bytes = serde_json::to_vec(what)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&bytes)?;
    fs::rename(draft, folder.join(name))
}

impl Kept {
    /// By its number.
    pub fn find(place: &Path, number: u32) -> Option<Self> {
        let path = place.join(BACKGROUND).join(number.to_string());
        let record = read(&path.join(RECORD))?;
        Some(Self { number, path, record })
    }

    /// Makes the folder of a new one.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn make(place: &Path, number: u32, command: String) -> Result<Held> {
        let path = place.join(BACKGROUND).join(number.to_string());
        let made = || {
            DirBuilder::new().recursive(true).mode(0o700).create(place.join(BACKGROUND))?;
            DirBuilder::new().mode(0o700).create(&path)?;
            let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(LOCK))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let record = Record { command, started_millis: u64::try_from(now).unwrap_or(u64::MAX) };
            write(&path, RECORD, &record)?;
            Ok((lock, record))
        };
        match made() {
            Ok((lock, record)) => Ok(Held { kept: Self { number, path, record }, _lock: lock }),
            Err(error) => Err(Error::Folder(path, error)),
        }
    }

    /// Whether a process holds it. One that is held by none and has no end was lost.
    pub fn is_held(&self) -> bool {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(self.path.join(LOCK));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        read(&self.path.join(OUTCOME))
    }

    /// Writes down how it ended.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end(&self, outcome: &Outcome) -> io::Result<()> {
        write(&self.path, OUTCOME, outcome)
    }

    /// As it is listed.
    pub fn info(&self) -> ProcessInfo {
        ProcessInfo {
            id: ProcessId(self.number),
            pid: self.number,
            command: self.record.command.clone(),
            background: true,
            started_millis: self.record.started_millis,
            outcome: self.outcome(),
        }
    }

    /// Opens its folder; and the path of its socket through that, which is short wherever it lies.
    ///
    /// # Errors
    /// When it is gone.
    pub fn socket(&self) -> io::Result<(File, PathBuf)> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
        Ok((folder, path.into()))
    }

    /// Forgets it.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(|error| Error::Folder(self.path.clone(), error))
    }
}
