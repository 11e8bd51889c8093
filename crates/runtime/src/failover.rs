//! Failover: what becomes of sessions when an engine fails under a runtime that lives long.
//!
//! A backend that was usable when the runtime started and whose engine then fails, by the engine's own word, is given up
//! for the life of the runtime, and what would have run on it runs on the next of its chain that is usable. Every session
//! still gets what it demands, or a refusal. Nothing that a command printed counts, and no command is run twice.

mod notes;
mod switch;

use std::sync::{Mutex, PoisonError};

use moltis_config::BackendChoice;
use moltis_config::words::Failover as Policy;
use moltis_sandbox::{BackendName, Diagnosis, Origin};
use serde::Serialize;

use crate::router::{Barred, Ways};

pub(crate) use switch::Asks;

/// A backend that was given up, and what took over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedOver {
    /// Whose engine failed.
    pub from: BackendName,
    /// The next of its chain that was usable then. A session that demands what this one does not keep goes on to a later
    /// one or is refused.
    pub to: BackendName,
    /// What the engine said.
    pub why: Diagnosis,
    /// When, in milliseconds since 1970.
    pub since_millis: u64,
}

/// What a runtime that lives long knows of its backends' engines.
pub(crate) struct Failover {
    policy: Policy,
    /// Held while a switch is decided, so that many failures at once make one switch.
    deciding: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    /// Those that were usable at the start, and those that have taken over since.
    proven: Vec<BackendName>,
    failed: Vec<FailedOver>,
}

/// Where what ran on a backend may go, in this order.
fn chain(from: BackendName) -> &'static [BackendName] {
    use BackendName::{AppleContainer, Docker, Namespaces, Podman, RestrictedHost};
    match from {
        AppleContainer => &[Docker, Namespaces, RestrictedHost],
        Docker | Podman => &[Namespaces, RestrictedHost],
        _ => &[],
    }
}

/// Whether a session, a flag or an API call named the backend: such a session is taken to no other.
pub(crate) fn by_the_session(origin: Origin) -> bool {
    matches!(origin, Origin::Session | Origin::Flag | Origin::Api)
}

/// What separates the choice from the backends that a route went without, in the word that is stored.
const WITHOUT: &str = " without ";

/// The word that is stored for how a backend was chosen: the choice, and the failed backends that it went without.
pub(crate) fn chosen(choice: BackendChoice, without: &[BackendName]) -> String {
    let mut word = choice.to_string();
    for (nth, name) in without.iter().enumerate() {
        word.push_str(if nth == 0 { WITHOUT } else { " " });
        word.push_str(name.as_str());
    }
    word
}

impl Failover {
    pub(crate) fn new(policy: Policy, proven: Vec<BackendName>) -> Self {
        let state = Mutex::new(State { proven, failed: Vec::new() });
        Self { policy, deciding: tokio::sync::Mutex::default(), state }
    }

    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Backends that were given up, in that order.
    pub(crate) fn failed(&self) -> Vec<FailedOver> {
        self.state().failed
    }

    fn failed_from(&self, name: BackendName) -> Option<FailedOver> {
        self.failed().into_iter().find(|failed| failed.from == name)
    }

    /// What routing has to go by.
    fn ways(&self) -> Ways {
        let State { proven, failed } = self.state();
        let barred = failed.into_iter().map(|failed| Barred {
            backend: failed.from,
            why: failed.why,
            host_may_follow: self.policy == Policy::Any,
            instead: chain(failed.from),
        });
        Ways { barred: barred.collect(), proven }
    }
}

/// Whether a sandbox whose backend was chosen in this way may stay where it is, as far as the choice goes: a stored word
/// that names a backend which has not failed, or failed under an earlier runtime, is of another choice.
pub(crate) fn still_chosen(stored: &str, choice: BackendChoice, failed: &[FailedOver]) -> bool {
    let Some(rest) = stored.strip_prefix(choice.to_string().as_str()) else { return false };
    if rest.is_empty() {
        return true;
    }
    let Some(without) = rest.strip_prefix(WITHOUT) else { return false };
    without.split(' ').all(|word| failed.iter().any(|failed| failed.from.as_str() == word))
}

/// The failed backends that a stored word names.
pub(crate) fn without(stored: &str) -> Vec<BackendName> {
    let names = stored.split_once(WITHOUT).map_or("", |(_, names)| names);
    names.split(' ').filter_map(|word| word.parse().ok()).collect()
}

/// Whether a stored word says that the backend was chosen because others had failed.
pub(crate) fn stood_in(stored: &str) -> bool {
    stored.contains(WITHOUT)
}

#[cfg(test)]
mod tests;
