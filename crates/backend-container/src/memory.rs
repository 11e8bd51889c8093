//! An engine that answered is believed to be there for a minute, by other processes too: `cache/detect-<engine>.json`.
//! Whatever is wrong with the file counts as not remembered.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::engine::{EngineInfo, EngineKind};

/// How long an answer is believed, in seconds.
const BELIEVED: u64 = 60;
/// Longest file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// What engines of one data directory answered.
#[derive(Clone, Debug)]
pub struct Memory {
    file: PathBuf,
}

/// For whom, and of what, something was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    uid: u32,
    path: String,
    boot: String,
    endpoint: String,
    /// Device and inode of the engine's socket, if it has one.
    socket: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Remembered {
    key: Key,
    /// Seconds since boot.
    at: u64,
    info: EngineInfo,
}

impl Memory {
    /// For this data directory and engine.
    pub fn new(data_dir: &Path, kind: EngineKind) -> Self {
        let word = match kind {
            EngineKind::Docker => "docker",
            EngineKind::Podman => "podman",
            EngineKind::Apple => "apple-container",
        };
        Self { file: data_dir.join(format!("cache/detect-{word}.json")) }
    }

    /// What the engine at `endpoint` said of itself within the last minute. Blocks on a small file.
    pub fn recall(&self, endpoint: &str) -> Option<EngineInfo> {
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.file).ok()?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let Remembered { key: then, at, info } = serde_json::from_str(&text).ok()?;
        let now = now();
        (then == key(endpoint) && now >= at && now - at < BELIEVED).then_some(info)
    }

    /// Writes down what it just said. Blocks on a small file. Without it the next process asks again, which is all that
    /// can be lost.
    pub fn remember(&self, endpoint: &str, info: &EngineInfo) {
        let remembered = Remembered { key: key(endpoint), at: now(), info: info.clone() };
        let _ = self.write(&remembered);
    }

    /// The right to ask the engine what it is, which ends when it is dropped; `None` while another process has it. Blocks
    /// on a look-up.
    ///
    /// # Errors
    /// When it cannot be had at all.
    pub fn try_alone(&self) -> std::io::Result<Option<fs::File>> {
        let folder = self.file.parent().ok_or(std::io::ErrorKind::NotFound)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(self.file.with_extension("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Forgets it: something failed. Blocks on a small file.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }

    fn write(&self, remembered: &Remembered) -> std::io::Result<()> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let folder = self.file.parent().ok_or(std::io::ErrorKind::NotFound)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let draft = folder.join(format!(".detect-{}-{serial}", std::process::id()));
        let text = serde_json::to_vec(remembered)?;
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&draft, &self.file));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

fn key(endpoint: &str) -> Key {
    let socket = endpoint.strip_prefix("unix://").and_then(|path| fs::metadata(path).ok());
    Key {
        uid: rustix::process::geteuid().as_raw(),
        path: std::env::var_os("PATH").unwrap_or_default().to_string_lossy().into_owned(),
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
        endpoint: endpoint.to_owned(),
        socket: socket.map(|found| (found.dev(), found.ino())),
    }
}

fn now() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(clock.tv_sec).unwrap_or(0)
}
