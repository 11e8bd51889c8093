//! The four ways in which a request can fail. They are never mixed up, because only [`Error::Unavailable`] may
//! move a session to another backend and only [`Error::Lost`] means that a command may have run.

use crate::Diagnosis;

/// Result of everything a backend does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// We will not: a policy or a promise forbids it. Nothing ran.
    #[error("{0}")]
    Refused(Diagnosis),
    /// We cannot now: the backend, the machine or a resource is not there. Nothing ran.
    #[error("{0}")]
    Unavailable(Diagnosis),
    /// It may have run and the outcome is not known. It is never run again.
    #[error("{0}")]
    Lost(Diagnosis),
    /// The input cannot be right. Nothing ran.
    #[error("{0}")]
    Invalid(Diagnosis),
}

impl Error {
    /// What to show a person.
    pub fn diagnosis(&self) -> &Diagnosis {
        match self {
            Self::Refused(d) | Self::Unavailable(d) | Self::Lost(d) | Self::Invalid(d) => d,
        }
    }

    /// The stable code of the problem.
    pub fn code(&self) -> &str {
        &self.diagnosis().code
    }

    /// The kind in one word, as JSON answers carry it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unavailable(_) => "unavailable",
            Self::Lost(_) => "lost",
            Self::Invalid(_) => "invalid",
        }
    }
}
