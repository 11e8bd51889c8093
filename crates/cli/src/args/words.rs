//! Flags whose values are fixed words: help and shells know the words, and what is none is told by the configuration's
//! own reader, which guesses what was meant.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use moltis_egress::{Action, Protocol};
use moltis_sandbox::{BackendName, Network};

/// Takes any text and names the words that it should be.
#[derive(Clone, Copy)]
pub struct Words(fn() -> Vec<&'static str>);

/// Backends.
pub const BACKENDS: Words =
    Words(|| std::iter::once("auto").chain(BackendName::ALL.map(BackendName::as_str)).collect());
/// Backends, without `auto`.
pub const BACKEND_NAMES: Words = Words(|| BackendName::ALL.map(BackendName::as_str).to_vec());
/// Network policies.
pub const NETWORKS: Words = Words(|| Network::ALL.map(Network::as_str).to_vec());
/// On or off.
pub const SWITCH: Words = Words(|| vec!["on", "off"]);
/// What happens to a domain on neither list.
pub const ON_UNKNOWN: Words = Words(|| vec!["deny", "ask"]);

/// How a program asked the proxy.
pub const PROTOCOLS: Words = Words(|| Protocol::ALL.map(Protocol::as_str).to_vec());
/// What the proxy said.
pub const ACTIONS: Words = Words(|| Action::ALL.map(Action::as_str).to_vec());
/// How entries are exported.
pub const FORMATS: Words = Words(|| vec!["jsonl", "csv"]);

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        flag: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, flag, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}
