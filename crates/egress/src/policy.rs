//! What a session may reach.

use std::time::Duration;

use moltis_sandbox::{DomainPattern, HostPattern};
use serde::{Deserialize, Serialize};

/// Whose a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration's.
    Config,
    /// The session's own.
    Session,
    /// A person's word for good.
    Rule,
}

/// A pattern and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which hosts and ports.
    pub pattern: DomainPattern,
    /// Whose.
    pub origin: Origin,
}

/// What happens to a host on neither list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is refused.
    #[default]
    Deny,
    /// A person is asked, and the connection waits this long at most for the answer.
    Ask(Duration),
}

/// What a session may reach, as it is now. An empty one allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What is let through.
    pub trusted: Vec<Rule>,
    /// What is never let through; wins over `trusted`.
    pub denied: Vec<Rule>,
    /// What happens to a host on neither list.
    pub on_unknown: OnUnknown,
}

impl Policy {
    /// One that forbids everything, also what a person has let through once.
    pub fn nothing() -> Self {
        let pattern = DomainPattern { host: HostPattern::Any, port: None };
        Self { denied: vec![Rule { pattern, origin: Origin::Session }], ..Self::default() }
    }
}
