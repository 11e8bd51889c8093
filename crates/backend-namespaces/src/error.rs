//! What can go wrong with a `namespaces` sandbox, and which of the four kinds of failure each is.

use std::io;
use std::path::PathBuf;

use moltis_agent_protocol::launch::{Fault, Stage};
use moltis_sandbox::{Diagnosis, Error as SandboxError};
use rustix::io::Errno;

use crate::diagnose::{Facts, diagnose};

/// Result of this crate's own functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a sandbox could not be made, found or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A writable source of another user on a file system without idmapped mounts.
    #[error("{} cannot be made writable in the sandbox", path.display())]
    NotMappable {
        /// The source.
        path: PathBuf,
    },
    /// A mount point cannot be made.
    #[error("nothing can be mounted at {}", path.display())]
    TargetUnusable {
        /// The guest path.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// The launch helper could not be started.
    #[error("the launch helper cannot be started")]
    Spawn(#[source] io::Error),
    /// A step of the launch failed.
    #[error("the launch failed at {:?}: {}", .0.stage, String::from_utf8_lossy(&.0.what))]
    Launch(Fault),
    /// The helper or its child ended without a word.
    #[error("the launch broke off without a report")]
    Died,
    /// The helper or its child said nothing for this many seconds.
    #[error("the launch took more than {0} s")]
    TimedOut(u64),
    /// A decision of another part of the backend.
    #[error(transparent)]
    Judged(#[from] SandboxError),
    /// What the machine does not allow, or does not have.
    #[error(transparent)]
    Host(#[from] moltis_host::Error),
    /// What the agent's own crate found out.
    #[error(transparent)]
    Agent(#[from] moltis_agent::Error),
}

impl Error {
    /// For `map_err`: something that the system does not usually refuse.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Host(moltis_host::Error::system(what)(cause))
    }
}

/// As [`moltis_host::blocking::short`].
///
/// # Errors
/// Its own; [`moltis_host::Error::System`] when it broke off.
pub async fn short<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_host::blocking::short(work).await
}

/// As [`moltis_host::blocking::long`].
///
/// # Errors
/// As [`short`].
pub async fn long<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_host::blocking::long(work).await
}

/// As [`moltis_host::blocking::whole`].
///
/// # Errors
/// As [`short`].
pub async fn whole<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    moltis_host::blocking::whole(work).await
}

/// The fault of a launch as the error that says most about it.
pub fn of_fault(fault: Fault) -> Error {
    let path = || PathBuf::from(std::ffi::OsStr::new(&*String::from_utf8_lossy(&fault.what)));
    let cause = || io::Error::from_raw_os_error(fault.errno);
    match (fault.stage, Errno::from_raw_os_error(fault.errno)) {
        (Stage::Idmap, Errno::INVAL | Errno::PERM | Errno::OPNOTSUPP) if fault.what.starts_with(b"/") => {
            Error::NotMappable { path: path() }
        }
        (Stage::Source, Errno::STALE | Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {
            moltis_host::Error::SourceChanged { path: path() }.into()
        }
        (Stage::Target, _) => Error::TargetUnusable { path: path(), cause: cause() },
        _ => Error::Launch(fault),
    }
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::NotMappable { path } => Self::Refused(
                Diagnosis::new("workspace-not-mappable", message)
                    .cause("its file system has no idmapped mounts, and its owner is not the sandbox's user")
                    .fix(format!(
                        "mount it read-only (`{}:ro`), run Moltis as the user who owns it, or set `sandbox_uid` to \
                         its owner",
                        path.display()
                    )),
            ),
            Error::TargetUnusable { path, cause } => Self::Unavailable(
                Diagnosis::new("mount-target-unusable", message)
                    .cause(cause)
                    .fix(format!("look at what stands at {} in the sandbox, or choose another target", path.display())),
            ),
            Error::Spawn(cause) => Self::Unavailable(spawn(message, &cause)),
            Error::Launch(fault) => Self::Unavailable(diagnose(&fault, &Facts::gather())),
            Error::Died => Self::Unavailable(
                Diagnosis::new("launch-died", message)
                    .cause("it was killed, perhaps for want of memory")
                    .fix("run the command again; see the kernel's log if it stays"),
            ),
            Error::TimedOut(_) => Self::Unavailable(
                Diagnosis::new("launch-timeout", message)
                    .cause("the machine is overloaded, or a file system that is mounted does not answer")
                    .fix("run the command again"),
            ),
            Error::Judged(error) => error,
            Error::Host(error) => error.into(),
            Error::Agent(error) => error.into(),
        }
    }
}

fn spawn(message: String, cause: &io::Error) -> Diagnosis {
    let diagnosis = Diagnosis::new("helper-not-started", message).cause(cause);
    match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM) => diagnosis.fix(
            "let programs be run from memory: `sudo sysctl vm.memfd_noexec=0`, or ask whoever confines this process",
        ),
        Some(Errno::AGAIN | Errno::NOMEM) => diagnosis.fix("end some processes, or raise the limits of this user"),
        Some(Errno::NOENT) => diagnosis.fix("mount /proc"),
        _ => diagnosis,
    }
}
