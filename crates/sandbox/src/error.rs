//! The four ways in which a request can fail. They are never mixed up, because only [`Error::Unavailable`] may
//! move a session to another backend and only [`Error::Lost`] means that a command may have run.

use crate::Diagnosis;

/// Result of everything a backend does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Codes of an engine's own failure: it does not answer, or it is broken as a whole. Only these move a session to another
/// backend; what a command printed never does.
pub const ENGINE_FAILURES: &[&str] = &[
    "engine-unreachable",
    "apple-config-missing",
    "apple-vm-never-booted",
    "apple-code-22",
    "apple-service",
];

/// Codes with which one backend refuses, before anything is opened, what another one may well keep. Every other refusal
/// is the same everywhere.
pub const OWN_REFUSALS: &[&str] = &[
    "demand-not-kept",
    "hatch-needs-podman",
    "host-podman-closed",
    "mount-not-visible",
    "mount-owned-by-root",
    "path-not-utf8",
    "runtime-unknown",
    "selinux-label",
    "userns-remap",
    "workspace-owned-by-root",
];

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

    /// Whether the engine itself failed, before anything ran.
    pub fn is_engine_failure(&self) -> bool {
        matches!(self, Self::Unavailable(diagnosis) if diagnosis.is_engine_failure())
    }

    /// Whether the image is absent and cannot be had.
    pub fn is_image_failure(&self) -> bool {
        matches!(self, Self::Unavailable(diagnosis) if crate::image::IMAGE_FAILURES.contains(&&*diagnosis.code))
    }

    /// Whether another backend may well keep what this one refuses.
    pub fn is_own_refusal(&self) -> bool {
        matches!(self, Self::Refused(diagnosis) if OWN_REFUSALS.contains(&&*diagnosis.code))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unavailable_can_be_the_failure_of_an_engine() {
        let diagnosis = |code| Diagnosis::new(code, "it does not answer");
        for code in ENGINE_FAILURES {
            assert!(Error::Unavailable(diagnosis(code)).is_engine_failure(), "{code}");
            for other in [Error::Lost, Error::Refused, Error::Invalid] {
                assert!(!other(diagnosis(code)).is_engine_failure(), "{code}");
            }
        }
        let absent = Error::Unavailable(diagnosis("image-unavailable"));
        assert!(!absent.is_engine_failure() && absent.is_image_failure());
        assert!(!Error::Lost(diagnosis("image-unavailable")).is_image_failure());
    }
}
