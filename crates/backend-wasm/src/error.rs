//! What can go wrong here, and which of the four kinds of failure each is.

use std::io;
use std::path::PathBuf;

use moltis_sandbox::{Diagnosis, Error as SandboxError, SandboxId};

/// Result of what this crate does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something of this backend did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder of ours cannot be made or used.
    #[error("{} cannot be used", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// A tree of ours cannot be removed.
    #[error("{} cannot be removed", .0.display())]
    NotRemoved(PathBuf, moltis_host::remove::NotRemoved),
    /// Something stands in the place of a folder that the sandbox was opened with.
    #[error("{} is not what the sandbox was opened with", .0.display())]
    Changed(PathBuf),
    /// Another process has been opening or closing the same sandbox for too long.
    #[error("another process is busy with the sandbox {0}")]
    Locked(SandboxId),
    /// The sandbox is not there any more.
    #[error("the sandbox has ended")]
    Gone,
    /// A host path may not be shown, or cannot be.
    #[error(transparent)]
    Host(#[from] moltis_host::Error),
    /// What is to stay as it is cannot be kept so.
    #[error(transparent)]
    Agent(SandboxError),
    /// Text that the shell inside cannot take.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The request cannot be right.
    #[error("{0}")]
    Request(String),
    /// A directory to run in that is not there.
    #[error("the directory {0} does not exist inside the sandbox")]
    Directory(String),
    /// Something that the backend does not do.
    #[error("{what}: {why}")]
    Declared {
        /// What was asked for.
        what: &'static str,
        /// Why it is not done.
        why: &'static str,
        /// Stable code.
        code: &'static str,
    },
    /// Too much runs, or does not end.
    #[error("the sandbox cannot start another command: {0}")]
    Full(String),
    /// A thread could not be started.
    #[error("no thread can be started")]
    Thread(#[source] io::Error),
    /// Work that blocks could not be done, since the runtime is shutting down.
    #[error("the runtime is shutting down")]
    ShuttingDown,
    /// A module that is named in the configuration cannot be used.
    #[error("the module {} of `wasm_commands.{name}` cannot be used", path.display())]
    Module {
        /// Its name there.
        name: String,
        /// Its path.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The process that is to hold a background command does not.
    #[error("no process can be started to hold the background command")]
    Keeper(String),
    /// The engine for modules cannot be set up.
    #[error("the WebAssembly engine cannot be set up")]
    Engine(String),
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let say = |code| Diagnosis::new(code, message);
        match error {
            Error::Folder(_, cause) => Self::Unavailable(
                say("data-dir")
                    .cause(cause)
                    .fix("make sure that the data directory is writable and has room"),
            ),
            Error::NotRemoved(_, why) => {
                Self::Unavailable(say("sandbox-not-removable").cause(&why).fix(why.fix()))
            }
            Error::Changed(_) => Self::Unavailable(
                say("mount-changed").fix("end the sandbox, so that the next command starts a new one"),
            ),
            Error::Locked(_) => Self::Unavailable(say("sandbox-locked").fix("try again")),
            Error::Gone => {
                Self::Unavailable(say("sandbox-gone").fix("run the command again: it starts a new one"))
            }
            Error::Host(error) => error.into(),
            Error::Agent(error) => error,
            Error::NotUtf8(_) => Self::Invalid(
                say("request-not-utf8")
                    .fix("use UTF-8; bytes of any kind pass through standard input and files"),
            ),
            Error::Request(_) => Self::Invalid(say("request-invalid").fix("see `moltis exec --help`")),
            Error::Directory(_) => {
                Self::Invalid(say("cwd-missing").fix("make it first, or name one that is there"))
            }
            Error::Declared { code, .. } => Self::Refused(
                say(code).fix("use another backend: `moltis sandbox status` says what each keeps"),
            ),
            Error::Full(_) => Self::Unavailable(
                say("sandbox-exhausted").fix("wait until commands of the sandbox have ended, or end some"),
            ),
            Error::Thread(cause) => Self::Unavailable(
                say("thread-start").cause(cause).fix("see how many threads the user may start (`ulimit -u`)"),
            ),
            Error::ShuttingDown => Self::Unavailable(say("shutting-down").fix("try again")),
            Error::Module { cause, .. } => Self::Unavailable(
                say("wasm-module-unusable")
                    .cause(cause)
                    .fix("name a WASI preview1 module there, or take the line away"),
            ),
            Error::Keeper(cause) => Self::Unavailable(
                say("background-keeper")
                    .cause(cause)
                    .fix("see how many processes the user may start (`ulimit -u`)"),
            ),
            Error::Engine(cause) => Self::Unavailable(
                say("wasm-engine")
                    .cause(cause)
                    .fix("see how much address space the user may have (`ulimit -v`)"),
            ),
        }
    }
}

/// Runs what blocks for a moment off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    moltis_sandbox::blocking::short(work).await.map_err(|_| Error::ShuttingDown)?
}

/// As [`blocking`] for work that may take its time.
pub(crate) async fn long<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_sandbox::blocking::long(work).await.map_err(|_| Error::ShuttingDown)?
}
