//! What the machine itself offers: a plain process, bubblewrap, a pipe.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use moltis_sandbox::{Diagnosis, Error, Result};

/// A program that is started and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// `sh -c true`.
    Sh,
    /// The same in a sandbox of bubblewrap, with every namespace of its own.
    Bwrap,
}

impl Plain {
    /// What to hold a new sandbox against: bubblewrap where it is installed and works.
    pub fn for_starts() -> Self {
        if Self::Bwrap.took().is_ok() { Self::Bwrap } else { Self::Sh }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sh => "sh -c true",
            Self::Bwrap => "bwrap",
        }
    }

    /// Runs it; gives the time from the start to the end.
    ///
    /// # Errors
    /// `baseline-failed`.
    pub fn took(self) -> Result<Duration> {
        let mut command = match self {
            Self::Sh => Command::new("sh"),
            Self::Bwrap => {
                let mut bwrap = Command::new("bwrap");
                bwrap.args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
                bwrap.args(["--tmpfs", "/tmp", "--die-with-parent", "sh"]);
                bwrap
            }
        };
        command.args(["-c", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        match command.status() {
            Ok(status) if status.success() => Ok(begun.elapsed()),
            Ok(status) => Err(failed(self.name(), status)),
            Err(error) => Err(failed(self.name(), error)),
        }
    }
}

/// Time until a line for the shell has printed so many bytes into a plain pipe.
///
/// # Errors
/// `baseline-failed`.
pub fn pipe(line: &str, bytes: u64) -> Result<Duration> {
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|error| failed(line, error))?;
    let read = child.stdout.take().map_or(Ok(0), read_to_end);
    let status = child.wait().map_err(|error| failed(line, error))?;
    match read {
        Ok(read) if read == bytes && status.success() => Ok(begun.elapsed()),
        Ok(read) => Err(failed(line, format!("it printed {read} bytes and ended with {status}"))),
        Err(error) => Err(failed(line, error)),
    }
}

fn read_to_end(mut out: impl Read) -> std::io::Result<u64> {
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    loop {
        match out.read(&mut buffer) {
            Ok(0) => return Ok(read),
            Ok(more) => read += more as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn failed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::Unavailable(
        Diagnosis::new("baseline-failed", format!("the baseline `{what}` does not run on this machine"))
            .cause(why)
            .fix("see that it runs by itself"),
    )
}
