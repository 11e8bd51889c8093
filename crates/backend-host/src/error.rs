//! What can go wrong on the host, and which of the four kinds of failure each is.

use std::io;
use std::path::PathBuf;

use moltis_sandbox::{Diagnosis, Error as SandboxError, SandboxId};

/// Result of what this crate does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a sandbox on the host could not be opened or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent's program cannot be executed, neither from memory nor from the data directory.
    #[error("the agent's program cannot be run")]
    Program(#[source] io::Error),
    /// There is no shell.
    #[error("there is no POSIX shell here")]
    NoShell,
    /// The agent could not be started, or did not say that it listens.
    #[error("the agent did not start: {0}")]
    Start(String),
    /// A folder of ours cannot be made or used.
    #[error("{} cannot be used", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// A folder of ours belongs to somebody else.
    #[error("{} belongs to another user", .0.display())]
    Foreign(PathBuf),
    /// A session's own folder cannot be removed.
    #[error("the folder {} cannot be removed", .0.display())]
    NotRemoved(PathBuf, moltis_host::remove::NotRemoved),
    /// Another process has been opening or closing the same sandbox for too long.
    #[error("another process is busy with the sandbox {0}")]
    Locked(SandboxId),
    /// The agent belongs to another PID namespace of this boot, and may live there.
    #[error("the sandbox belongs to another container or PID namespace of this machine")]
    Elsewhere(u32),
    /// The agent lives, and does not answer, or does not speak as we do.
    #[error(transparent)]
    Present(SandboxError),
    /// The sandbox could not be ended.
    #[error("processes of the sandbox {0} are still there")]
    NotEnded(SandboxId),
    /// The workspace may not be shown, or cannot be.
    #[error(transparent)]
    Host(#[from] moltis_host::Error),
    /// What is mounted where cannot be read.
    #[error("the mounts cannot be read")]
    Mounts(#[source] io::Error),
    /// Work that blocks could not be done, since the runtime is shutting down.
    #[error("the runtime is shutting down")]
    ShuttingDown,
    /// The agent's own answer.
    #[error(transparent)]
    Agent(#[from] moltis_agent::Error),
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let say = |code| Diagnosis::new(code, message);
        match error {
            Error::Program(cause) => Self::Unavailable(say("agent-not-runnable").cause(cause).fix(
                "let programs be run from the data directory (no `noexec`), or set `vm.memfd_noexec` below 2",
            )),
            Error::NoShell => {
                Self::Unavailable(say("shell-missing").fix("install a shell at /bin/sh, or use backend `none`"))
            }
            Error::Start(_) => Self::Unavailable(
                say("agent-start").fix("see whether the user may start more processes (`ulimit -u`)"),
            ),
            Error::Folder(_, cause) => Self::Unavailable(say("data-dir").cause(cause).fix(
                "make sure that the data directory is writable, has room, and is on a file system with sockets",
            )),
            Error::Foreign(path) => Self::Refused(
                say("data-dir-foreign").fix(format!("remove {}, or use another data directory", path.display())),
            ),
            Error::NotRemoved(_, why) => {
                Self::Unavailable(say("scratch-not-removable").cause(&why).fix(why.fix()))
            }
            Error::Locked(_) => Self::Unavailable(say("sandbox-locked").fix("try again")),
            Error::Elsewhere(pid) => Self::Unavailable(
                say("sandbox-elsewhere")
                    .cause(format!("it may run there, where its agent has the number {pid}"))
                    .fix("run this where it was started, or end it there (`moltis sandbox stop`, or the container)"),
            ),
            Error::Present(error) => error,
            Error::NotEnded(_) => Self::Unavailable(
                say("sandbox-not-ended").fix("look for processes that the kernel holds (state D in `ps`)"),
            ),
            Error::Host(error) => error.into(),
            Error::Mounts(cause) => Self::Unavailable(say("mounts-unreadable").cause(cause).fix("mount /proc")),
            Error::ShuttingDown => Self::Unavailable(say("shutting-down")),
            Error::Agent(error) => error.into(),
        }
    }
}

/// Said by what blocks. In unit tests, a thread that must not block fails here.
pub(crate) fn blocks() {
    #[cfg(test)]
    assert!(!tests::MUST_NOT_BLOCK.get(), "this blocks an async thread");
}

/// Runs what blocks off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    moltis_sandbox::blocking::short(work).await.map_err(|_| Error::ShuttingDown)?
}

/// As [`blocking`] for work that may wait: it never takes the thread that hears signals.
pub(crate) async fn long<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_sandbox::blocking::long(work).await.map_err(|_| Error::ShuttingDown)?
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// Whether this thread runs async tasks that must go on.
        pub static MUST_NOT_BLOCK: Cell<bool> = const { Cell::new(false) };
    }
}
