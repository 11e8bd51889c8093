//! Why a connection or request did not go through.

use std::sync::Arc;

use hyper::StatusCode;

use crate::address::Kind;
use crate::audit::{Action, Source};
use crate::policy::{Origin, Rule};

/// Why something did not go through. What is displayed is meant for the operator's log: programs inside are told less.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no request that the proxy understands.
    #[error("{0}")]
    Malformed(&'static str),
    /// The host is none.
    #[error("no host: {0}")]
    Host(&'static str),
    /// A rule forbids the host.
    #[error("{}", .0.pattern)]
    Denied(Arc<Rule>),
    /// No rule names the host.
    #[error("no rule names it")]
    Unknown,
    /// A person said no.
    #[error("a person said no")]
    Rejected,
    /// Nobody answered in time.
    #[error("nobody answered in time")]
    Unanswered,
    /// The program did not wait for the answer.
    #[error("the program gave up")]
    Gone,
    /// The session asks too much.
    #[error("too many questions wait for an answer")]
    TooManyQuestions,
    /// The question could not be put.
    #[error("nobody can be asked")]
    NobodyToAsk,
    /// The address, or every address of the name, is let through only if it is listed.
    #[error("{0}, and not listed")]
    Address(Kind),
    /// It leads back to Moltis itself.
    #[error("it leads back to Moltis")]
    Own,
    /// `Host` names another host than the request line.
    #[error("`Host` is another one")]
    HostHeader,
    /// The name in TLS is another one.
    #[error("the name in TLS is {0}")]
    Sni(String),
    /// What began as TLS cannot be read.
    #[error("no readable TLS: {0}")]
    Hello(&'static str),
    /// Too many connections.
    #[error("too many connections")]
    TooManyConnections,
    /// It took too long to say what it wants.
    #[error("the request took too long")]
    Slow,
    /// The name has no address.
    #[error("the name has no address")]
    Unresolved,
    /// The host cannot be reached.
    #[error("cannot connect: {0}")]
    Unreachable(std::io::ErrorKind),
    /// The host did not answer in time.
    #[error("no connection in time")]
    Late,
    /// What the host answered is no HTTP.
    #[error("the host's answer cannot be read")]
    Answer,
    /// The proxy in front of ours does not let it through.
    #[error("the upstream proxy answered {0}")]
    Upstream(u16),
    /// The proxy in front of ours cannot be used as it is named.
    #[error("{0}")]
    UpstreamSetting(String),
}

/// The answer codes of SOCKS version 5.
pub(crate) mod reply {
    pub(crate) const SUCCEEDED: u8 = 0;
    pub(crate) const FAILURE: u8 = 1;
    pub(crate) const NOT_ALLOWED: u8 = 2;
    pub(crate) const HOST_UNREACHABLE: u8 = 4;
    pub(crate) const REFUSED: u8 = 5;
    pub(crate) const EXPIRED: u8 = 6;
    pub(crate) const COMMAND: u8 = 7;
    pub(crate) const ADDRESS_TYPE: u8 = 8;
}

impl Refusal {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "request-malformed",
            Self::Host(_) => "host-malformed",
            Self::Denied(_) => "host-denied",
            Self::Unknown => "host-unknown",
            Self::Rejected => "approval-denied",
            Self::Unanswered => "approval-timeout",
            Self::Gone => "program-gone",
            Self::TooManyQuestions => "approval-limit",
            Self::NobodyToAsk => "approval-unavailable",
            Self::Address(_) | Self::Own => "address-refused",
            Self::HostHeader => "host-mismatch",
            Self::Sni(_) => "sni-mismatch",
            Self::Hello(_) => "tls-malformed",
            Self::TooManyConnections => "connection-limit",
            Self::Slow => "request-timeout",
            Self::Unresolved => "name-unresolved",
            Self::Unreachable(_) => "host-unreachable",
            Self::Late => "host-timeout",
            Self::Answer => "answer-malformed",
            Self::Upstream(_) => "upstream-refused",
            Self::UpstreamSetting(_) => "upstream-invalid",
        }
    }

    /// What decided, as the log names it.
    pub fn decided_by(&self) -> Source {
        match self {
            Self::Malformed(_) | Self::Host(_) | Self::Hello(_) => Source::Malformed,
            Self::Denied(rule) => source(rule.origin),
            Self::Unknown => Source::Unknown,
            Self::Rejected | Self::Unanswered | Self::Gone | Self::NobodyToAsk => Source::Approval,
            Self::TooManyQuestions | Self::TooManyConnections | Self::Slow => Source::Limit,
            Self::Address(_) | Self::Own => Source::Address,
            Self::HostHeader | Self::Sni(_) => Source::Mismatch,
            Self::Unresolved
            | Self::Unreachable(_)
            | Self::Late
            | Self::Answer
            | Self::Upstream(_)
            | Self::UpstreamSetting(_) => Source::Unreachable,
        }
    }

    /// What was said: what could not be reached was let through.
    pub(crate) fn action(&self) -> Action {
        match self.decided_by() {
            Source::Unreachable => Action::Allowed,
            _ => Action::Denied,
        }
    }

    /// The status of an HTTP answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) | Self::Host(_) | Self::HostHeader | Self::Hello(_) => StatusCode::BAD_REQUEST,
            Self::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooManyQuestions => StatusCode::TOO_MANY_REQUESTS,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Unresolved
            | Self::Unreachable(_)
            | Self::Answer
            | Self::Upstream(_)
            | Self::UpstreamSetting(_) => StatusCode::BAD_GATEWAY,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// The code of a SOCKS answer.
    pub(crate) fn socks(&self) -> u8 {
        match self {
            Self::Unresolved => reply::HOST_UNREACHABLE,
            Self::Unreachable(std::io::ErrorKind::ConnectionRefused) => reply::REFUSED,
            Self::Unreachable(_) => reply::HOST_UNREACHABLE,
            Self::Late => reply::EXPIRED,
            Self::Malformed(_)
            | Self::Host(_)
            | Self::TooManyConnections
            | Self::TooManyQuestions
            | Self::Slow
            | Self::Answer
            | Self::Upstream(_)
            | Self::UpstreamSetting(_) => reply::FAILURE,
            _ => reply::NOT_ALLOWED,
        }
    }

    /// Why, for the program inside: nothing about the network that Moltis is in, nor about whose rule it is.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Denied(_) => "a rule forbids it".into(),
            Self::Unknown => "no rule allows it".into(),
            Self::Address(_) | Self::Own => {
                "it is, or resolves to, an address that is not let through unless it is listed".into()
            }
            Self::Unreachable(std::io::ErrorKind::ConnectionRefused) => "it refuses the connection".into(),
            Self::Unreachable(_) => "it cannot be reached".into(),
            Self::UpstreamSetting(_) | Self::Upstream(_) => {
                "the proxy that Moltis goes through refused".into()
            }
            Self::Sni(_) => "the name in TLS is another one".into(),
            other => other.to_string(),
        }
    }

    /// What may be done about it, for the program inside.
    pub(crate) fn advice(&self, host: &str) -> Option<String> {
        match self {
            Self::Unknown | Self::Rejected | Self::Unanswered => Some(format!(
                "Whoever runs Moltis can let it through with `moltis network allow {host} --session SESSION`."
            )),
            Self::Address(_) => Some(
                "Whoever runs Moltis can list the address, besides the name, with `moltis network allow`."
                    .into(),
            ),
            Self::TooManyConnections | Self::TooManyQuestions => {
                Some("Close connections, or try again later.".into())
            }
            _ => None,
        }
    }
}

/// Whose rule decided, as the log names it.
pub(crate) fn source(origin: Origin) -> Source {
    match origin {
        Origin::Config => Source::Config,
        Origin::Session => Source::Session,
        Origin::Rule => Source::Rule,
    }
}
