//! The agent's program: from memory, or from the data directory where programs in memory may not be run.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_agent::binary;

use crate::error::{Error, Result, blocking};
use crate::process;

/// How long the agent's program may take to say that it was given no arguments.
const TRIAL: Duration = Duration::from_secs(10);

/// A path at which this process can execute the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(CString);

impl Program {
    /// Finds one by trying. Takes about a millisecond.
    ///
    /// # Errors
    /// When it can be executed in neither way.
    pub async fn find(data_dir: &Path) -> Result<Self> {
        let cache = data_dir.join("cache");
        blocking(move || {
            if let Ok(program) = Self::in_memory()
                && program.runs().is_ok()
            {
                return Ok(program);
            }
            let program = Self::on_disk(&cache).map_err(Error::Program)?;
            program.runs().map_err(Error::Program)?;
            Ok(program)
        })
        .await
    }

    /// What to execute.
    pub fn path(&self) -> &std::ffi::CStr {
        &self.0
    }

    fn in_memory() -> io::Result<Self> {
        // The file is open for as long as this process lives, and close-on-exec: the kernel has it before that.
        let file = binary::memfd()?;
        Self::at(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
    }

    fn on_disk(cache: &Path) -> io::Result<Self> {
        binary::extract(cache).and_then(Self::at)
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        Ok(Self(CString::new(path.as_os_str().as_bytes())?))
    }

    fn runs(&self) -> io::Result<()> {
        // Without arguments it says how it is used, and ends.
        let agent = process::spawn(&self.0, &[], &[])?;
        if !agent.wait(TRIAL) {
            agent.kill();
            agent.wait(TRIAL);
        }
        agent.reap();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Program {
        /// One that is not there.
        pub fn missing() -> Self {
            Self(c"/nonexistent".to_owned())
        }
    }

    #[tokio::test]
    async fn both_ways_run() {
        let temp = tempfile::tempdir().unwrap();
        Program::in_memory().unwrap().runs().unwrap();
        let on_disk = Program::on_disk(&temp.path().join("cache")).unwrap();
        on_disk.runs().unwrap();
        assert!(Program::find(temp.path()).await.unwrap().path().to_bytes().starts_with(b"/proc/self/fd/"));
    }
}
