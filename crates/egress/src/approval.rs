//! Asking a person about a host that no rule names.

use std::time::Duration;

use async_trait::async_trait;

use crate::audit::Protocol;

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The host: ASCII, lower-case, an IDN in punycode; or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How the program asked.
    pub protocol: Protocol,
    /// How long the connection waits.
    pub timeout: Duration,
}

/// What came of it. A word for the session or for good is made a rule of the policy by whoever takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This host and port, for the connections that were waiting for this word.
    Once,
    /// This host, for as long as the session is there.
    Session,
    /// This host, for good.
    Always,
    /// No.
    Denied,
    /// Nobody said anything in time.
    TimedOut,
    /// This session asks too much: nobody was asked.
    TooMany,
    /// Nobody can be asked: the question cannot be put.
    Unavailable,
}

/// Who puts unknown hosts of one session before a person. Connections to the same host and port that wait at the same
/// time are one question.
#[async_trait]
pub trait Approvals: Send + Sync {
    /// Asks, and waits for the word, at most for `asked.timeout`. When the future is dropped the question is withdrawn.
    async fn ask(&self, asked: &Asked) -> Verdict;
}
