//! What can go wrong with a microVM, and which of the four kinds of failure each is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use moltis_sandbox::{Diagnosis, Error as SandboxError};

/// Result of this crate's own functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a machine could not be made, found or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something is missing here, as detection says.
    #[error("{0}")]
    Missing(Diagnosis),
    /// Firecracker or its jailer cannot be started.
    #[error("{} cannot be started", .0.display())]
    Spawn(PathBuf, #[source] io::Error),
    /// Firecracker ended while it was needed.
    #[error("Firecracker ended before the machine served")]
    Died {
        /// The end of what it and the machine's console said.
        said: String,
    },
    /// Firecracker does not answer its socket.
    #[error("Firecracker does not answer at `{call}`")]
    Silent {
        /// The method and path.
        call: String,
        /// What was the matter.
        why: String,
    },
    /// Firecracker refuses a call.
    #[error("Firecracker refuses `{call}`")]
    Fault {
        /// The method and path.
        call: String,
        /// The status of its answer.
        status: u16,
        /// Its own words, shortened.
        message: String,
    },
    /// Something else listens on its socket.
    #[error("process {0} listens on the machine's socket, which is not Firecracker's")]
    Impostor(u32),
    /// The guest does not serve.
    #[error("the machine's guest did not serve within {} s", within.as_secs())]
    GuestSilent {
        /// How long it was waited for.
        within: Duration,
        /// The end of what the console said.
        said: String,
    },
    /// Nobody can be logged in as, or the agent does not begin there.
    #[error("{why}")]
    Ssh {
        /// What was the matter.
        why: String,
        /// What was said there.
        said: String,
    },
    /// A file or folder of ours cannot be made or used.
    #[error("{} cannot be used", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// There is no number left for something that each machine has one of.
    #[error("there is no {0} left for another machine")]
    Exhausted(&'static str),
    /// A program that makes file systems or rules failed.
    #[error("`{program}` failed")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// A network device cannot be made.
    #[error("the network device {name} cannot be {what}")]
    Tap {
        /// Its name.
        name: String,
        /// `made`, `removed` and so on.
        what: &'static str,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// The sandbox would have less than what was asked for.
    #[error("{0}")]
    Refused(Diagnosis),
    /// What the machine that Moltis runs on does not allow, or does not have.
    #[error(transparent)]
    Host(#[from] moltis_host::Error),
    /// What the agent's own crate found out.
    #[error(transparent)]
    Agent(#[from] moltis_agent::Error),
    /// A decision of another part.
    #[error(transparent)]
    Judged(#[from] SandboxError),
}

impl Error {
    /// For `map_err`: a file or folder of ours.
    pub fn folder<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        move |cause| Self::Folder(path.into(), cause.into())
    }

    /// Whether it is the machine that went wrong or says nothing, and not what there is for it on this host: another one,
    /// begun in another way, may serve.
    pub(crate) fn is_the_machine(&self) -> bool {
        matches!(
            self,
            Self::Fault { .. }
                | Self::Died { .. }
                | Self::Silent { .. }
                | Self::GuestSilent { .. }
                | Self::Agent(_)
        )
    }
}

const CONSOLE: &str = "see whether the kernel has virtio, ext4, overlayfs and vsock, built in or as modules beside it: \
                       docs/backends/firecracker.md says which";

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let say = |code| Diagnosis::new(code, message);
        let said = |diagnosis: Diagnosis, said: &str| match said.trim() {
            "" => diagnosis,
            said => diagnosis.cause(said),
        };
        match error {
            Error::Missing(diagnosis) => Self::Unavailable(diagnosis),
            Error::Refused(diagnosis) => Self::Refused(diagnosis),
            Error::Spawn(path, cause) => Self::Unavailable(
                say("firecracker-not-started").cause(cause).fix(format!("see `{} --version`", path.display())),
            ),
            Error::Died { said: words } => {
                Self::Unavailable(said(say("firecracker-died"), &words).fix(CONSOLE))
            }
            Error::Silent { why, .. } => Self::Unavailable(
                say("firecracker-silent").cause(why).fix("try again; the machine may be overloaded"),
            ),
            Error::Fault { status, message: words, .. } => Self::Unavailable(
                say("firecracker-fault")
                    .cause(format!("status {status}: {words}"))
                    .fix("see the `firecracker_*` keys of the configuration: `moltis config show`"),
            ),
            Error::Impostor(_) => {
                Self::Unavailable(say("firecracker-impostor").fix("see who else writes to the data directory"))
            }
            Error::GuestSilent { said: words, .. } => {
                Self::Unavailable(said(say("firecracker-guest-silent"), &words).fix(CONSOLE))
            }
            Error::Ssh { said: words, .. } => Self::Unavailable(said(say("firecracker-ssh"), &words).fix(
                "see what the root file system's SSH server, its user `sandbox` and the kernel (`ip=`, virtio-net, 5.13 or \
                 later) need: docs/backends/firecracker.md",
            )),
            Error::Folder(_, cause) => Self::Unavailable(say("data-dir").cause(cause).fix(
                "make sure that the data directory is writable, has room, and is on a file system with sockets and \
                 devices",
            )),
            Error::Exhausted(_) => {
                Self::Unavailable(say("firecracker-exhausted").fix("end some sandboxes (`moltis sandbox prune`)"))
            }
            Error::Program { said: words, .. } => Self::Unavailable(
                said(say("firecracker-program"), &words).fix("see what it says, and whether there is room on the disk"),
            ),
            Error::Tap { cause, .. } => Self::Unavailable(
                say("firecracker-tap")
                    .cause(cause)
                    .fix("run Moltis with CAP_NET_ADMIN, or use `network = \"trusted\"` with `trusted_domains = [\"*\"]`"),
            ),
            Error::Host(error) => error.into(),
            Error::Agent(error) => error.into(),
            Error::Judged(error) => error,
        }
    }
}

/// As [`moltis_host::blocking::long`].
///
/// # Errors
/// Its own; [`moltis_host::Error::System`] when it broke off.
pub async fn long<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_host::blocking::long(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_silent_is_the_machine_s_fault_and_a_full_disk_is_not() {
        let within = Duration::from_secs(10);
        assert!(Error::Agent(moltis_agent::Error::Silent(within)).is_the_machine());
        assert!(
            Error::Agent(moltis_agent::Error::Lost(io::ErrorKind::UnexpectedEof.into())).is_the_machine()
        );
        assert!(Error::GuestSilent { within, said: String::new() }.is_the_machine());
        assert!(!Error::Folder("disk".into(), io::ErrorKind::StorageFull.into()).is_the_machine());
        assert!(!Error::Host(moltis_host::Error::DoesNotEnd).is_the_machine());
        assert!(!Error::Exhausted("user").is_the_machine());
    }
}
