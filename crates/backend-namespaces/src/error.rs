//! What can go wrong with a `namespaces` sandbox, and which of the four kinds of failure each is.

use std::io;
use std::path::{Path, PathBuf};

use moltis_agent_protocol::launch::{Fault, Stage};
use moltis_sandbox::{Diagnosis, Error as SandboxError};
use rustix::io::Errno;

use crate::diagnose::{Facts, diagnose};
use crate::sources::Role;

/// Result of this crate's own functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a sandbox could not be made, found or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A source is not an absolute path, or holds a NUL byte.
    #[error("the {role} {} is not an absolute path", path.display())]
    SourceRelative {
        /// What it was for.
        role: Role,
        /// As it was named.
        path: PathBuf,
    },
    /// A source does not exist.
    #[error("the {role} {} does not exist", path.display())]
    SourceMissing {
        /// What it was for.
        role: Role,
        /// As it was named.
        path: PathBuf,
    },
    /// A source cannot be opened.
    #[error("the {role} {} cannot be opened", path.display())]
    SourceUnreadable {
        /// What it was for.
        role: Role,
        /// As it was named.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// A file where a directory is needed, or a device, socket or FIFO.
    #[error("the {role} {} is not {}", path.display(), role.shape())]
    SourceWrongKind {
        /// What it was for.
        role: Role,
        /// As it was named.
        path: PathBuf,
    },
    /// A source that would show Moltis's own files or the host's nerves.
    #[error("the {role} {} is refused: it {relation} {what}", path.display())]
    SourceForbidden {
        /// What it was for.
        role: Role,
        /// The real path.
        path: PathBuf,
        /// `is`, `contains` or `lies in`.
        relation: &'static str,
        /// What is protected, in words and by name.
        what: String,
    },
    /// Something is mounted beneath a source that would be shown with it, and may not be.
    #[error("the {role} {} is refused: {what} is mounted beneath it, at {}", path.display(), mount_point.display())]
    MountBeneath {
        /// What it was for.
        role: Role,
        /// The real path.
        path: PathBuf,
        /// Where it is mounted.
        mount_point: PathBuf,
        /// What is mounted there, in words.
        what: String,
    },
    /// A link of a writable workspace that `workspace_protect` names: nothing can be mounted over a link.
    #[error("{} cannot be protected: it is a link", path.display())]
    LinkNotProtectable {
        /// The link.
        path: PathBuf,
    },
    /// A mount target that is not the user's to choose.
    #[error("the mount target {} is refused: {reason}", path.display())]
    TargetForbidden {
        /// As it was named.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// A writable source of another user on a file system without idmapped mounts.
    #[error("{} cannot be made writable in the sandbox", path.display())]
    NotMappable {
        /// The source.
        path: PathBuf,
    },
    /// A source changed between judging and mounting.
    #[error("{} changed while the sandbox was being made", path.display())]
    SourceChanged {
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
    /// `sandbox_uid` is 0, or no id of this user namespace.
    #[error("the sandbox's user cannot be uid {uid} of the host")]
    SandboxUid {
        /// The id.
        uid: u32,
    },
    /// The data directory cannot be used.
    #[error("the data directory cannot be used: {}", path.display())]
    DataDir {
        /// What could not be made or written there.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// The data directory, or its run folder, belongs to another user.
    #[error("{} belongs to user {owner}, and this is user {user}", path.display())]
    DataDirOwner {
        /// The directory.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// Others may write to the data directory or its run folder.
    #[error("others can write to {}", .0.display())]
    DataDirExposed(PathBuf),
    /// The data directory's file system has no sockets.
    #[error("the data directory's file system cannot hold a socket: {}", path.display())]
    NoSockets {
        /// Where the socket was to be.
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
    /// Another process is opening or ending the same sandbox and does not get done.
    #[error("another process holds the sandbox's lock for more than {0} s")]
    Locked(u64),
    /// A sandbox of this boot whose first process has its number in another PID namespace, and may live.
    #[error("the sandbox belongs to another container or PID namespace of this machine")]
    Elsewhere(u32),
    /// The sandbox's end cannot be waited for.
    #[error("the sandbox does not end")]
    DoesNotEnd,
    /// Something else that the system said.
    #[error("{what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// A decision of another part of the backend.
    #[error(transparent)]
    Judged(#[from] SandboxError),
}

impl Error {
    /// For `map_err`: something in the data directory could not be done.
    pub fn data_dir(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |cause| Self::DataDir { path: path.to_owned(), cause }
    }

    /// For `map_err`: something that the system does not usually refuse.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}

/// Does work that blocks for a moment off the threads that others share. If the caller goes away it is carried on to its
/// end, and what it made is dropped, which cleans up.
///
/// # Errors
/// Its own; [`Error::System`] when it broke off.
pub async fn short<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_sandbox::blocking::short(work).await.map_err(broke_off)?
}

/// As [`short`] for work that may wait: it never takes the thread that hears signals.
///
/// # Errors
/// As [`short`].
pub async fn long<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    moltis_sandbox::blocking::long(work).await.map_err(broke_off)?
}

/// Waits for something that is carried on to its end even if nobody waits for it any more.
///
/// # Errors
/// As [`short`].
pub async fn whole<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.map_err(broke_off)?
}

fn broke_off(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::System { what: "a thread broke off", cause: io::Error::other(cause) }
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
            Error::SourceChanged { path: path() }
        }
        (Stage::Target, _) => Error::TargetUnusable { path: path(), cause: cause() },
        _ => Error::Launch(fault),
    }
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::SourceRelative { role, .. } => Self::Invalid(
                Diagnosis::new(role.code(Problem::Relative), message).fix("name it by its absolute path"),
            ),
            Error::SourceMissing { role, path } => Self::Invalid(
                Diagnosis::new(role.code(Problem::Missing), message)
                    .fix(format!("make it (`mkdir -p {}`) or name another", path.display())),
            ),
            Error::SourceUnreadable { role, cause, .. } => Self::Invalid(
                Diagnosis::new(role.code(Problem::Unreadable), message)
                    .cause(cause)
                    .fix("name one that this user may open, or change its permissions"),
            ),
            Error::SourceWrongKind { role, .. } => Self::Invalid(
                Diagnosis::new(role.code(Problem::WrongKind), message)
                    .fix(format!("name {}", role.shape())),
            ),
            Error::SourceForbidden { role, relation, .. } => Self::Refused(
                Diagnosis::new(role.code(Problem::Forbidden), message)
                    .cause("a sandbox that sees it could read secrets or reach around its walls")
                    .fix(match relation {
                        "contains" | "is" => "name a folder below it that holds only what the commands need",
                        _ => "copy what the commands need to a folder elsewhere and name that",
                    }),
            ),
            Error::MountBeneath { role, mount_point, .. } => Self::Refused(
                Diagnosis::new(role.code(Problem::Forbidden), message)
                    .cause("a sandbox that sees it could read secrets or reach around its walls")
                    .fix(format!(
                        "unmount it (`umount {}`), or name a folder below that does not hold it",
                        mount_point.display()
                    )),
            ),
            Error::LinkNotProtectable { path } => Self::Refused(
                Diagnosis::new("workspace-link-not-protectable", message)
                    .cause("`workspace_protect` names it, and commands could replace the link or write through it")
                    .fix(format!(
                        "replace {} by what it leads to, show the workspace read-only (`:ro`), or take it out of \
                         `workspace_protect`",
                        path.display()
                    )),
            ),
            Error::TargetForbidden { .. } => Self::Refused(
                Diagnosis::new("mount-target-refused", message)
                    .fix("choose a target such as /mnt/<name> or /home/sandbox/<name>"),
            ),
            Error::NotMappable { path } => Self::Refused(
                Diagnosis::new("workspace-not-mappable", message)
                    .cause("its file system has no idmapped mounts, and its owner is not the sandbox's user")
                    .fix(format!(
                        "mount it read-only (`{}:ro`), run Moltis as the user who owns it, or set `sandbox_uid` to \
                         its owner",
                        path.display()
                    )),
            ),
            Error::SourceChanged { .. } => Self::Unavailable(
                Diagnosis::new("mount-source-changed", message)
                    .cause("it was replaced, or a part of its path became a link")
                    .fix("run the command again"),
            ),
            Error::TargetUnusable { path, cause } => Self::Unavailable(
                Diagnosis::new("mount-target-unusable", message)
                    .cause(cause)
                    .fix(format!("look at what stands at {} in the sandbox, or choose another target", path.display())),
            ),
            Error::SandboxUid { uid } => Self::Invalid(
                Diagnosis::new("sandbox-uid", message)
                    .cause(if uid == 0 {
                        "the host's root never enters a sandbox"
                    } else {
                        "the id does not exist in this user namespace"
                    })
                    .fix("set `sandbox_uid` to an unused id, such as the start of a range in /etc/subuid"),
            ),
            Error::DataDir { path, cause } => Self::Unavailable(data_dir(message, &path, &cause)),
            Error::DataDirOwner { .. } => Self::Refused(
                Diagnosis::new("data-dir-exposed", message)
                    .cause("its owner could put files of theirs in the place of the sandboxes' own")
                    .fix("run as that user, or name another data directory by --data-dir or MOLTIS_DATA_DIR"),
            ),
            Error::DataDirExposed(path) => Self::Refused(
                Diagnosis::new("data-dir-exposed", message)
                    .cause("they could put files of theirs in the place of the sandboxes' own")
                    .fix(format!("chmod 700 {}", path.display())),
            ),
            Error::NoSockets { cause, .. } => Self::Unavailable(
                Diagnosis::new("data-dir-no-sockets", message)
                    .cause(cause)
                    .fix("set MOLTIS_DATA_DIR to a folder on a local file system"),
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
            Error::Locked(_) => Self::Unavailable(
                Diagnosis::new("sandbox-locked", message).fix("end that process, then run the command again"),
            ),
            Error::Elsewhere(pid) => Self::Unavailable(
                Diagnosis::new("sandbox-elsewhere", message)
                    .cause(format!("it may run there, where its first process has the number {pid}"))
                    .fix("run this where it was started, or end it there (`moltis sandbox stop`, or the container)"),
            ),
            Error::DoesNotEnd => Self::Unavailable(
                Diagnosis::new("sandbox-does-not-end", message)
                    .cause("a process in it hangs in the kernel, perhaps on a file system that does not answer"),
            ),
            Error::System { cause, .. } => {
                Self::Unavailable(Diagnosis::new("system-error", message).cause(cause))
            }
            Error::Judged(error) => error,
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

fn data_dir(message: String, path: &Path, cause: &io::Error) -> Diagnosis {
    let elsewhere = "set MOLTIS_DATA_DIR to a folder that this user may write to";
    match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Diagnosis::new("data-dir-full", message)
            .cause(cause)
            .fix("free some space, or set MOLTIS_DATA_DIR"),
        Some(Errno::ROFS) => Diagnosis::new("data-dir-read-only", message).cause(cause).fix(elsewhere),
        Some(Errno::ACCESS | Errno::PERM) => Diagnosis::new("data-dir-unwritable", message)
            .cause(cause)
            .fix(format!("{elsewhere}, or change the owner of {}", path.display())),
        _ => Diagnosis::new("data-dir-unwritable", message).cause(cause).fix(elsewhere),
    }
}

/// What is wrong with a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Not absolute.
    Relative,
    /// Not there.
    Missing,
    /// Not to be opened.
    Unreadable,
    /// Not what is needed.
    WrongKind,
    /// Not allowed.
    Forbidden,
}
