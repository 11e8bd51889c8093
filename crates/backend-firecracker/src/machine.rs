//! One Firecracker process in a working directory of its own: started, spoken to, found again, ended.

mod console;
mod stray;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use moltis_host::process::Process;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::api::{self, Api};
use crate::error::{Error, Result};
pub use console::Console;
pub use stray::{strays, strays_below};

/// How long Firecracker may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);

/// How long the end of a process is waited for that was killed.
const KILLED: Duration = Duration::from_secs(20);

/// What a machine's process is started as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Firecracker itself, an absolute path.
    pub firecracker: PathBuf,
    /// The jailer and whom it makes of the process; absent: the process is this user's.
    pub jail: Option<Jail>,
}

/// How the process is locked up where Moltis runs as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jail {
    /// The jailer, an absolute path.
    pub jailer: PathBuf,
    /// The folder below which its root is made.
    pub base: PathBuf,
    /// User and group of this machine alone.
    pub uid: u32,
}

impl Jail {
    /// The root of the machine of this name: its working directory.
    pub fn root(&self, firecracker: &Path, name: &str) -> PathBuf {
        let program = firecracker.file_name().unwrap_or_default();
        self.base.join(program).join(name).join("root")
    }
}

/// A process of Firecracker's that listens to its API.
#[derive(Debug)]
pub struct Machine {
    /// The process.
    pub process: Process,
    /// Its API.
    pub api: Api,
    /// Its working directory.
    pub directory: OwnedFd,
    /// What it and the machine's serial port say, while somebody listens.
    pub console: Console,
}

/// A process that was just started. Dropping it kills it, unless it was taken further.
#[derive(Debug)]
pub struct Spawned {
    process: Option<Process>,
    directory: Option<OwnedFd>,
    output: Option<OwnedFd>,
}

impl Spawned {
    /// Starts the process in this directory, which is ours alone. `name` is letters, digits and dashes. Blocks.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Folder`].
    pub fn start(program: &Program, directory: &Path, name: &str) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(CWD, directory, flags, Mode::empty()).map_err(Error::folder(directory))?;
        let (output, theirs) = pipe().map_err(Error::folder(directory))?;
        let also = theirs.try_clone().map_err(Error::folder(directory))?;
        let mut command = match &program.jail {
            None => Command::new(&program.firecracker),
            Some(jail) => {
                let mut command = Command::new(&jail.jailer);
                command.arg("--exec-file").arg(&program.firecracker);
                command.args(["--uid", &jail.uid.to_string(), "--gid", &jail.uid.to_string()]);
                command.arg("--chroot-base-dir").arg(&jail.base);
                command.args(["--id", name, "--"]);
                command
            }
        };
        if program.jail.is_none() {
            command.args(["--id", name]);
        }
        // What it logs comes between what the serial port says: errors alone are worth that.
        command.args(["--api-sock", api::SOCKET, "--level", "Error"]);
        // Its own group: what the terminal sends to ours does not reach it.
        command.current_dir(directory).env_clear().process_group(0);
        command.stdin(Stdio::null()).stdout(theirs).stderr(also);
        let started = command.spawn();
        let child = started.map_err(|cause| {
            let path = program.jail.as_ref().map_or(&program.firecracker, |jail| &jail.jailer);
            Error::Spawn(path.clone(), cause)
        })?;
        // What it holds of our ends would keep the output open.
        drop(command);
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let pidfd = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let pidfd = match pidfd {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                let mut child = child;
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Error::Spawn(program.firecracker.clone(), errno.into()));
            }
        };
        Ok(Self { process: Some(Process::child(pid, pidfd)), directory: Some(handle), output: Some(output) })
    }

    /// Number and start of the process, to be written down.
    pub fn number(&self) -> Option<(u32, u64)> {
        let process = self.process.as_ref()?;
        Some((process.pid(), process.started()?))
    }

    /// Waits until it listens. From here on dropping ends nothing.
    ///
    /// # Errors
    /// [`Error::Died`], [`Error::Silent`]; it is dead then.
    pub async fn listens(mut self) -> Result<Machine> {
        let gone = || Error::Died { said: String::new() };
        let output = self.output.take().ok_or_else(gone)?;
        let console = Console::of(output).map_err(Error::folder("the machine's console"))?;
        let directory = self.directory.take().ok_or_else(gone)?;
        let process = self.process.as_ref().ok_or_else(gone)?;
        let api = match Api::of(&directory, process, LISTENS_WITHIN).await {
            Ok(api) => api,
            Err(Error::Died { .. }) => return Err(Error::Died { said: console.last_words().await }),
            Err(error) => return Err(error),
        };
        let process = self.process.take().ok_or_else(gone)?;
        Ok(Machine { process, api, directory, console })
    }
}

/// A pipe whose writer never waits and never learns that nobody reads: what does not fit is lost. A broken pipe would be a
/// signal to Firecracker, about which it writes a line to that pipe while it writes one.
fn pipe() -> std::io::Result<(OwnedFd, File)> {
    let (output, input) = std::io::pipe()?;
    // Open in both directions it has a reader for as long as it has a writer.
    let path = format!("/proc/self/fd/{}", input.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let input = openat(CWD, path, flags, Mode::empty())?;
    Ok((output.into(), input.into()))
}

/// Kills a process and waits for its end.
///
/// # Errors
/// [`DoesNotEnd`](moltis_host::Error::DoesNotEnd).
pub async fn end(process: &Process) -> Result<()> {
    process.kill();
    if process.ends_within(KILLED).await { Ok(()) } else { Err(moltis_host::Error::DoesNotEnd.into()) }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            process.kill();
            process.wait_briefly();
        }
    }
}

impl Machine {
    /// One that runs already, found by its record.
    ///
    /// # Errors
    /// [`Error::Silent`] when it does not listen, [`Error::Impostor`].
    pub fn found(process: Process, directory: OwnedFd) -> Result<Self> {
        let api = Api::find(&directory, process.pid())?.ok_or_else(|| Error::Silent {
            call: "connect".to_owned(),
            why: "nobody listens on its socket".to_owned(),
        })?;
        Ok(Self { process, api, directory, console: Console::nobody() })
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// [`DoesNotEnd`](moltis_host::Error::DoesNotEnd).
    pub async fn kill(&self) -> Result<()> {
        end(&self.process).await
    }

    /// The error that says most: where the process is over, what it said last.
    pub async fn why(&self, error: Error) -> Error {
        if self.process.ends_within(Duration::from_millis(200)).await {
            return Error::Died { said: self.console.last_words().await };
        }
        error
    }

    /// A handle of a file in its working directory.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn file(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::empty()).map_err(Error::folder(name))?.into())
    }
}
