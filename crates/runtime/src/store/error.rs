//! What can go wrong with the store, with a stable code for each.

use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Error};

/// Result of everything the store does.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why the store did not do what it was asked. No variant ever carries a stored value.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer Moltis has written it.
    #[error("the store {} has version {found}, and this Moltis knows {known}", place.display())]
    Newer {
        /// The database.
        place: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// A database of another program lies where ours belongs.
    #[error("{} is not a store of Moltis", .0.display())]
    NotOurs(PathBuf),
    /// A link, a directory or something else that is no regular file lies where the store belongs.
    #[error("{} is {found}, not a regular file", place.display())]
    NotAFile {
        /// What should be a regular file.
        place: PathBuf,
        /// What it is, with its article.
        found: &'static str,
    },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}, and this is user {user}", place.display())]
    Owner {
        /// The file or directory.
        place: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// Others may write to the data directory.
    #[error("others can write to {}", .0.display())]
    Exposed(PathBuf),
    /// It cannot be written to.
    #[error("cannot write to the store {}", place.display())]
    ReadOnly {
        /// The database.
        place: PathBuf,
        /// What SQLite or the kernel said.
        cause: String,
    },
    /// The file system is full.
    #[error("no space is left for the store {}", .0.display())]
    Full(PathBuf),
    /// Other processes held it for too long.
    #[error("the store {} is busy", .0.display())]
    Busy(PathBuf),
    /// It is damaged, and it could not be used or replaced.
    #[error("the store {} is damaged", place.display())]
    Corrupt {
        /// The database.
        place: PathBuf,
        /// Where the damaged file is kept now, if it could be moved.
        kept: Option<PathBuf>,
        /// What SQLite said, or what is in the way of moving it.
        cause: String,
    },
    /// The kernel would not.
    #[error("cannot use {}", place.display())]
    Io {
        /// The file or directory.
        place: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// SQLite would not, for a reason that has no variant of its own.
    #[error("the store {} failed", place.display())]
    Failed {
        /// The database.
        place: PathBuf,
        /// What SQLite said.
        cause: String,
    },
    /// The program ends, and the store with it.
    #[error("the store was closed while it worked")]
    Stopped,
    /// A session's override that cannot be right.
    #[error("{name}: {why}")]
    Override {
        /// Its name as the API writes it.
        name: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// As many sandboxes as `max_sandboxes` allows are there.
    #[error("{0} sandboxes are there, which is as many as `max_sandboxes` allows")]
    TooMany(u64),
    /// As many rules of the network are there as can be.
    #[error("{0} rules of the network are there, which is as many as there can be")]
    TooManyRules(usize),
    /// There is an API key of this name.
    #[error("there is an API key {0:?} already")]
    KeyExists(String),
    /// As many API keys as can be are there.
    #[error("{0} API keys are there, which is as many as there can be")]
    TooManyKeys(usize),
    /// A session has a sandbox still.
    #[error("the session has a sandbox")]
    HasSandbox,
    /// There is no such session any more.
    #[error("the session is gone")]
    NoSession,
    /// Somebody else has changed a session's sandbox meanwhile.
    #[error("the session's sandbox was changed by another process")]
    SandboxChanged,
    /// Another process starts or ends the session's sandbox and takes too long.
    #[error("another process has been starting or ending the session's sandbox for {0} s")]
    SessionBusy(u64),
}

impl StoreError {
    pub(super) fn io(place: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { place: place.to_owned(), source: source.into() }
    }

    /// Whether the database itself is damaged.
    pub(super) fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }

    /// Puts an answer of SQLite's into our words.
    pub(super) fn sqlite(place: &Path, error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;

        let code = error.sqlite_error_code();
        let extended = error.sqlite_error().map_or(0, |e| e.extended_code);
        let cause = describe(&error);
        let place = place.to_owned();
        match code {
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => Self::Corrupt { place, kept: None, cause },
            Some(Code::DiskFull) => Self::Full(place),
            Some(Code::SystemIoFailure) if is_full(&place) => Self::Full(place),
            Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::FileLockingProtocolFailed) => {
                Self::Busy(place)
            }
            Some(Code::CannotOpen) if extended == rusqlite::ffi::SQLITE_CANTOPEN_SYMLINK => {
                Self::NotAFile { place, found: "a link" }
            }
            Some(Code::ReadOnly | Code::CannotOpen | Code::PermissionDenied) => {
                Self::ReadOnly { place, cause }
            }
            _ => Self::Failed { place, cause },
        }
    }

    /// Stable code of the problem.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Newer { .. } => "store-newer",
            Self::NotOurs(_) => "store-not-ours",
            Self::NotAFile { .. } => "store-not-a-file",
            Self::Owner { .. } => "store-owner",
            Self::Exposed(_) => "store-exposed",
            Self::ReadOnly { .. } => "store-read-only",
            Self::Full(_) => "store-full",
            Self::Busy(_) => "store-busy",
            Self::Corrupt { .. } => "store-corrupt",
            Self::Io { .. } => "store-unusable",
            Self::Failed { .. } => "store-failed",
            Self::Stopped => "store-stopped",
            Self::Override { .. } => "override-invalid",
            Self::TooMany(_) => "max-sandboxes",
            Self::TooManyRules(_) => "network-rules-full",
            Self::KeyExists(_) => "key-exists",
            Self::TooManyKeys(_) => "keys-full",
            Self::HasSandbox => "session-has-sandbox",
            Self::NoSession => "session-gone",
            Self::SandboxChanged => "sandbox-changed",
            Self::SessionBusy(_) => "session-busy",
        }
    }

    fn diagnosis(&self) -> Diagnosis {
        let told = Diagnosis::new(self.code(), self.to_string());
        match self {
            Self::Newer { .. } => told.fix("use the newer Moltis, or another data directory by --data-dir"),
            Self::NotOurs(_) | Self::NotAFile { .. } => {
                told.fix("move it away, or name another data directory by --data-dir")
            }
            Self::Owner { .. } => told.fix("run as that user, or name another data directory by --data-dir"),
            Self::Exposed(place) => told.fix(format!("chmod go-w {}", place.display())),
            Self::ReadOnly { cause, .. } => told
                .cause(cause)
                .fix("name a directory that you can write to by --data-dir or MOLTIS_DATA_DIR"),
            Self::Full(_) => told.fix("free some space, or name another data directory by --data-dir"),
            Self::Busy(_) => told.fix("try again; `fuser` names the processes that have it open"),
            Self::Corrupt { kept: Some(kept), cause, .. } => told
                .cause(cause)
                .fix(format!(
                    "it is kept as {}; run again to begin a new one, in which sessions set nothing and nothing is allowed \
                     or denied for good",
                    kept.display()
                )),
            Self::Corrupt { kept: None, cause, .. } => {
                told.cause(cause).fix("end the other Moltis processes of this data directory and run again")
            }
            Self::Io { source, .. } => told
                .cause(source)
                .fix("name a directory that you can write to by --data-dir or MOLTIS_DATA_DIR"),
            Self::Failed { cause, .. } => told.cause(cause).fix(
                "try again; if it stays so, move the file away or name another data directory by --data-dir",
            ),
            Self::TooMany(_) => told
                .cause("all of them are in use")
                .fix("end one (`moltis sandbox ps` lists them), or raise `max_sandboxes`"),
            Self::TooManyRules(_) => told.fix("remove some (`moltis network rules` lists them)"),
            Self::KeyExists(_) => told.fix("name another one, or revoke it: `moltis gateway key revoke`"),
            Self::TooManyKeys(_) => told.fix("revoke some (`moltis gateway key list` lists them)"),
            Self::HasSandbox => told.fix("end the sandbox first: `moltis sandbox rm`"),
            Self::SandboxChanged | Self::SessionBusy(_) => told.fix("try again"),
            Self::NoSession => told.cause("it was removed meanwhile").fix("try again: a new one is made"),
            Self::Stopped | Self::Override { .. } => told,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let told = error.diagnosis();
        match error {
            StoreError::Newer { .. }
            | StoreError::NotOurs(_)
            | StoreError::NotAFile { .. }
            | StoreError::Owner { .. }
            | StoreError::Exposed(_)
            | StoreError::TooMany(_)
            | StoreError::TooManyRules(_)
            | StoreError::TooManyKeys(_)
            | StoreError::HasSandbox => Self::Refused(told),
            StoreError::Override { .. } | StoreError::KeyExists(_) => Self::Invalid(told),
            _ => Self::Unavailable(told),
        }
    }
}

/// SQLite's own words. Those of conversions are left out, because they may quote a stored value.
fn describe(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => match message {
            Some(message) => format!("{message} ({})", code.extended_code),
            None => code.to_string(),
        },
        rusqlite::Error::QueryReturnedNoRows => "a row is missing".to_owned(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        _ => "a row does not have its form".to_owned(),
    }
}

/// Whether the file system has no room: SQLite reports a file that it could not extend as a plain input/output error.
fn is_full(place: &Path) -> bool {
    let Some(folder) = place.parent() else { return false };
    rustix::fs::statvfs(folder).is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) < 1 << 20)
}
