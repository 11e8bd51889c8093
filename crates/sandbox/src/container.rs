//! What container backends need of a spec beyond what every backend does: what a sandbox starts from, and with which
//! devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Origin, Setting};

/// What a container starts from. References have been parsed by the rules of the OCI distribution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum ImageChoice {
    /// A base of the configuration, on which packages are baked. What comes of it is read-only.
    Base {
        /// The base.
        reference: Setting<String>,
        /// Packages and `@groups`, as they were written; empty: none.
        packages: Setting<Vec<String>>,
    },
    /// A finished image that a session, a flag or an API call named. It is used as it is, and its root is writable.
    Finished {
        /// The image.
        reference: Setting<String>,
    },
}

impl ImageChoice {
    /// The image that somebody named, or the default base, before anything is baked on it.
    pub fn reference(&self) -> &Setting<String> {
        match self {
            Self::Base { reference, .. } | Self::Finished { reference } => reference,
        }
    }

    /// Packages and `@groups` that are baked on it; none on a finished image.
    pub fn packages(&self) -> &[String] {
        match self {
            Self::Base { packages, .. } => &packages.value,
            Self::Finished { .. } => &[],
        }
    }

    /// Changes who set each part.
    pub fn map_origins(&mut self, mut change: impl FnMut(&mut Origin)) {
        match self {
            Self::Base { reference, packages } => {
                change(&mut reference.origin);
                change(&mut packages.origin);
            }
            Self::Finished { reference } => change(&mut reference.origin),
        }
    }
}

/// Which GPUs a container gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gpus {
    /// Every one.
    All,
    /// These, by index or UUID; never empty.
    Ids(Vec<String>),
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Ids(ids) => f.write_str(&ids.join(",")),
        }
    }
}
