//! A value together with who set it. What somebody asked for is a *demand* and is kept or
//! refused; what nobody asked for is a built-in default and may be left off, if that is said.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who set a value, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Nobody: it is built in.
    Default,
    /// A plain environment variable that is an alias of a key, such as `VERCEL_TOKEN`.
    Alias,
    /// `secrets.toml` in the data directory.
    Secrets,
    /// `moltis.toml`.
    File,
    /// A `MOLTIS_…__…` environment variable.
    Env,
    /// An override stored with the session.
    Session,
    /// A command line flag.
    Flag,
    /// An API call.
    Api,
}

impl Origin {
    /// Whether a person or a program asked for the value.
    pub fn is_demand(self) -> bool {
        self != Self::Default
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Alias => "environment variable",
            Self::Secrets => "secrets.toml",
            Self::File => "configuration file",
            Self::Env => "environment override",
            Self::Session => "session",
            Self::Flag => "flag",
            Self::Api => "API call",
        })
    }
}

/// A value and who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Who set it.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// A value that `origin` set.
    pub fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// A value that nobody set.
    pub fn built_in(value: T) -> Self {
        Self::new(value, Origin::Default)
    }

    /// Whether the value must be kept or refused, never left off.
    pub fn is_demand(&self) -> bool {
        self.origin.is_demand()
    }

    /// The same origin with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Setting<U> {
        Setting { value: f(self.value), origin: self.origin }
    }
}
