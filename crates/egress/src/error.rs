//! What can go wrong here, with a stable code for each.

use std::io;
use std::path::PathBuf;

use moltis_sandbox::{Diagnosis, Error};

/// Why something here did not work.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The audit log cannot be read or written.
    #[error("cannot use the audit log {}", place.display())]
    Audit {
        /// The file or directory.
        place: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something that is no file of ours lies where the audit log belongs.
    #[error("{} is {found}", place.display())]
    AuditNotOurs {
        /// What should be our file.
        place: PathBuf,
        /// What it is, with its article.
        found: &'static str,
    },
}

impl EgressError {
    /// Stable code of the problem.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Audit { .. } => "audit-unusable",
            Self::AuditNotOurs { .. } => "audit-not-ours",
        }
    }
}

impl From<EgressError> for Error {
    fn from(error: EgressError) -> Self {
        let told = Diagnosis::new(error.code(), error.to_string());
        match error {
            EgressError::Audit { source, .. } => Self::Unavailable(
                told.cause(source).fix("see that the data directory can be read and written"),
            ),
            EgressError::AuditNotOurs { .. } => Self::Refused(
                told.cause("the audit log is a regular file of the user who runs Moltis").fix("move it away"),
            ),
        }
    }
}
