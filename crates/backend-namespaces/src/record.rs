//! What is written down of this backend's sandboxes: `run/<id>/sandbox.json` beside the agent's socket.

use std::path::{Path, PathBuf};

use moltis_agent::dangerous::{self, Watched};
use moltis_host::record::{self, Layout, ProcessId};
use moltis_sandbox::SandboxId;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The agent's socket in a sandbox's folder.
pub const SOCKET: &str = "agent.sock";

static LAYOUT: Layout =
    Layout { run: "run", record: "sandbox.json", socket: Some(SOCKET), files: &[], folders: &[] };

/// The folder of all sandboxes of a data directory.
pub type RunDir = record::RunDir<Record>;

/// A sandbox's folder, locked.
pub type Folder = record::Folder<Record>;

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

impl record::Record for Record {
    fn process(&self) -> Option<ProcessId<'_>> {
        let realm = self.realm.as_str().into();
        Some(ProcessId { pid: self.pid, started: self.started, realm })
    }
}

/// The run folder of this data directory, made if it is missing.
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

/// Writes down what the folders hold that the sandbox will be able to write to; before the record, which says that this
/// is there.
///
/// # Errors
/// [`moltis_host::Error::DataDir`].
pub fn write_watched(folder: &Folder, watched: &[Watched]) -> Result<()> {
    let bytes = dangerous::encode(watched).ok_or_else(|| moltis_host::Error::DataDir {
        path: folder.path().to_owned(),
        cause: Errno::OVERFLOW.into(),
    })?;
    Ok(folder.write_watched(&bytes)?)
}

/// What was written down of the folders that a sandbox may write to.
pub fn watched(run: &RunDir, id: &SandboxId) -> Option<Vec<Watched>> {
    dangerous::decode(&run.watched(id)?)
}
