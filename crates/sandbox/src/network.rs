//! What a sandbox may reach.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Network policy of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing but its own loopback.
    #[default]
    Blocked,
    /// Only the domains on the list, through the egress proxy.
    Trusted,
    /// Everything, but never in the host's network namespace.
    Open,
}

impl Network {
    /// Every policy, in the order in which help texts name them.
    pub const ALL: [Self; 3] = [Self::Blocked, Self::Trusted, Self::Open];

    /// The word used in configuration and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Trusted => "trusted",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Network {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|n| n.as_str() == word).ok_or(())
    }
}
