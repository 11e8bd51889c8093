//! What is written down of a machine, in `<data_dir>/run/firecracker/<id>/`: its intent before its process starts, its
//! number right after, and all that has to go with it.

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_host::process::pid_realm;
use moltis_host::record::{self, Layout, ProcessId};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ssh::Reach;

/// The folder of all machines, in the data directory.
pub const RUN: &str = "run/firecracker";

/// The machine's working directory, in its folder: where it is not locked up.
pub const WORK: &str = "vm";

/// The folder below which the jailer makes it otherwise.
pub const JAIL: &str = "jail";

/// How long the removal of a machine's files may take.
const PATIENCE: Duration = Duration::from_secs(30);

static LAYOUT: Layout = Layout {
    run: RUN,
    record: "sandbox.json",
    socket: None,
    files: &[],
    folders: &[(WORK, remove), (JAIL, remove)],
};

/// The folder of all machines of a data directory.
pub type RunDir = record::RunDir<Record>;

/// A machine's folder, locked.
pub type Folder = record::Folder<Record>;

fn remove(parent: BorrowedFd<'_>, name: &str) -> std::io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    let removed = moltis_host::remove::tree(parent.as_fd(), &name, PATIENCE);
    removed.map(drop).map_err(|why| std::io::Error::other(why.to_string()))
}

/// What is written down of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Process id of Firecracker; 0 as long as it has not been started, or whoever started it died before it could write
    /// this.
    pub pid: u32,
    /// When that process started, in the kernel's ticks since the boot.
    pub started: u64,
    /// The boot and the pid namespace in which the number means something.
    pub realm: String,
    /// Fingerprint of the spec it was made by.
    pub fingerprint: String,
    /// When it was made, in seconds since 1970.
    pub created_secs: u64,
    /// Its working directory.
    pub work: PathBuf,
    /// The user that is its alone, where it is locked up.
    pub user: Option<u32>,
    /// Its piece of network and the device that leads there.
    pub tap: Option<(String, u32)>,
    /// Where its agent is, if SSH leads there.
    #[serde(default)]
    pub ssh: Option<Reach>,
    /// Whether it was begun from a snapshot.
    pub restored: bool,
    /// Whether it was handed out. One that was not, and that nobody holds the lock of, is left over, though it lives.
    pub served: bool,
}

impl Record {
    /// Of a machine whose process has not been started.
    pub fn intent(fingerprint: String, created_secs: u64, work: PathBuf) -> Self {
        Self {
            pid: 0,
            started: 0,
            realm: pid_realm().to_owned(),
            fingerprint,
            created_secs,
            work,
            user: None,
            tap: None,
            ssh: None,
            restored: false,
            served: false,
        }
    }
}

impl record::Record for Record {
    fn process(&self) -> Option<ProcessId<'_>> {
        Some(ProcessId { pid: self.pid, started: self.started, realm: Cow::Borrowed(&self.realm) })
    }
}

/// The run folder of this data directory, made if it is missing. Blocks.
///
/// # Errors
/// When it cannot be made, or others could put files of theirs into it.
pub fn make(data_dir: &Path) -> Result<RunDir> {
    Ok(RunDir::make(data_dir, &LAYOUT)?)
}

/// The run folder of this data directory, if it is there.
pub fn find(data_dir: &Path) -> Option<RunDir> {
    RunDir::find(data_dir, &LAYOUT)
}
