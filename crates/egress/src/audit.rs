//! What the proxy said, and to whom: entries, the file that keeps them, and who reads it.
//!
//! [`AuditLog`] takes entries without waiting and writes them down on a thread of its own. Any number of processes
//! write to one file at the same time. [`Snapshot`] reads it, [`Follow`] goes on reading.

mod file;
mod line;
mod lines;
mod log;
mod periods;
mod place;
mod read;
mod stats;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use line::{Dropped, Line};
pub use log::{AuditLog, AuditSettings};
pub use periods::{MAX_PERIODS, Period, Periods};
pub use read::{Filter, Follow, Snapshot, Tally};
pub use stats::{Counted, MAX_DOMAINS, Stats};

/// How a program asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// CONNECT, and what went through began as TLS.
    Https,
    /// A plain HTTP request.
    Http,
    /// CONNECT, and something other than TLS went through, or nothing yet.
    Connect,
    /// SOCKS version 5.
    Socks5,
}

impl Protocol {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Https, Self::Http, Self::Connect, Self::Socks5];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Connect => "connect",
            Self::Socks5 => "socks5",
        }
    }
}

/// What was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It went through.
    Allowed,
    /// It did not.
    Denied,
}

impl Action {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Allowed, Self::Denied];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }
}

/// Whether an entry is of a decision or of the end of what was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// The decision.
    Open,
    /// The end of the connection or request, with what went through.
    Close,
}

impl Event {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Open, Self::Close];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Close => "close",
        }
    }
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A pattern of the configuration.
    Config,
    /// A pattern of the session.
    Session,
    /// A pattern that a person allowed or denied for good.
    Rule,
    /// A person's word for this one time, or the lack of it.
    Approval,
    /// No rule names the host.
    Unknown,
    /// The host is, or resolves to, an address that is not let through unless it is listed.
    Address,
    /// What was sent is not what was allowed: the name in TLS or in `Host` is another one.
    Mismatch,
    /// It is no request that the proxy understands.
    Malformed,
    /// The session has too much open, or asks too much.
    Limit,
    /// It was let through, but could not be reached.
    Unreachable,
}

impl Source {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Config,
        Self::Session,
        Self::Rule,
        Self::Approval,
        Self::Unknown,
        Self::Address,
        Self::Mismatch,
        Self::Malformed,
        Self::Limit,
        Self::Unreachable,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Session => "session",
            Self::Rule => "rule",
            Self::Approval => "approval",
            Self::Unknown => "unknown",
            Self::Address => "address",
            Self::Mismatch => "mismatch",
            Self::Malformed => "malformed",
            Self::Limit => "limit",
            Self::Unreachable => "unreachable",
        }
    }
}

/// One decision, or the end of what was allowed. One line of JSON in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When, in milliseconds since 1970.
    pub timestamp: u64,
    /// The session's key.
    pub session: String,
    /// Number of the connection or request; its open and its close share it. Unique together with `session` and the
    /// process that wrote it.
    pub id: u64,
    /// Open or close.
    pub event: Event,
    /// The host as the proxy compared it: ASCII, lower-case, an IDN in punycode; at most 253 bytes, what is no host with
    /// its control characters escaped.
    pub domain: String,
    /// The port; 0 if none was understood.
    pub port: u16,
    /// How the program asked.
    pub protocol: Protocol,
    /// What was said.
    pub action: Action,
    /// What decided.
    pub source: Source,
    /// The pattern that decided, or why it was denied, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes from the sandbox to the host, at the close.
    #[serde(rename = "sentBytes", default)]
    pub bytes_sent: u64,
    /// Bytes from the host to the sandbox, at the close.
    #[serde(rename = "receivedBytes", default)]
    pub bytes_received: u64,
    /// Milliseconds from open to close.
    #[serde(rename = "durationMs", default)]
    pub duration_millis: u64,
}

impl Entry {
    /// Appends it as the line that stands for it in the log, with its end.
    pub fn write_line(&self, to: &mut Vec<u8>) {
        line::write(to, self);
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Where entries go. Never waits: what cannot be taken is dropped and counted by whoever takes them.
pub trait Audit: Send + Sync {
    /// Takes one.
    fn record(&self, entry: Entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_log() {
        let word = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        for one in Protocol::ALL {
            assert_eq!(word(serde_json::json!(one)), one.as_str());
        }
        for one in Action::ALL {
            assert_eq!(word(serde_json::json!(one)), one.as_str());
        }
        for one in Event::ALL {
            assert_eq!(word(serde_json::json!(one)), one.as_str());
        }
        for one in Source::ALL {
            assert_eq!(word(serde_json::json!(one)), one.as_str());
        }
    }
}
