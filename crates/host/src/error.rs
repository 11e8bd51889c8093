//! What can go wrong where a backend meets its machine, and which of the four kinds of failure each is.

use std::io;
use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Error as SandboxError};
use rustix::io::Errno;

use crate::sources::Role;

/// Result of this crate's own functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something of the machine cannot be used for a sandbox.
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
    /// A source changed between judging and mounting.
    #[error("{} changed while the sandbox was being made", path.display())]
    SourceChanged {
        /// The source.
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
            Error::SourceChanged { .. } => Self::Unavailable(
                Diagnosis::new("mount-source-changed", message)
                    .cause("it was replaced, or a part of its path became a link")
                    .fix("run the command again"),
            ),
            Error::TargetForbidden { .. } => Self::Refused(
                Diagnosis::new("mount-target-refused", message)
                    .fix("choose a target such as /mnt/<name> or /home/sandbox/<name>"),
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
        }
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
