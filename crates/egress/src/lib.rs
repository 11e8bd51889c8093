//! The one road out of a sandbox whose network is `trusted`.
//!
//! A sandbox has no interface but loopback. What its programs send to their proxy arrives here, one stream a
//! connection, by the channel of the sandbox's agent; which session it is comes from the channel, not from what the
//! program says. Each connection or request is judged by the session's [`Policy`], an unknown host may be put before
//! a person ([`Approvals`]), and every decision becomes an audit [`Entry`].

pub mod address;
pub mod approval;
mod ask;
pub mod audit;
mod client;
mod connect;
mod dial;
pub mod error;
pub mod hello;
pub mod host;
mod http;
mod journal;
mod judge;
mod limits;
pub mod policy;
mod proxy;
mod refusal;
mod resolve;
mod session;
pub mod socks5;
mod test;
mod tunnel;
mod upstream;

pub use approval::{Approvals, Asked, Verdict};
pub use audit::{Action, Audit, AuditLog, Entry, Event, Protocol, Source};
pub use error::EgressError;
pub use host::{Host, Target};
pub use judge::Judgement;
pub use limits::ProxyLimits;
pub use policy::{OnUnknown, Origin, Policy, Rule};
pub use proxy::{Own, Proxy, ProxySettings, SessionProxy};
pub use refusal::Refusal;
pub use resolve::{Resolve, SystemResolver};
pub use test::{Tested, TestedAddress};
pub use upstream::Upstream;
