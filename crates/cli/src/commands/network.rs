//! `moltis network`: the log of the proxy, questions that wait, and rules.

mod allow;
mod audit;
mod entries;
mod export;
mod filters;
mod pending;
mod rules;
mod stats;
mod test;
mod watch;

use moltis_config::InvalidValue;
use moltis_config::value::domain::Domain;
use moltis_config::value::{Context, Text};
use moltis_egress::audit::Snapshot;
use moltis_runtime::Runtime;
use moltis_sandbox::{DomainPattern, Error};

use crate::args::{self, Global};
use crate::failure::Failure;

/// Runs one of them; gives the exit status.
pub async fn run(global: &Global, command: args::Network) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    match command {
        args::Network::Audit(args) => audit::run(&runtime, &args).await,
        args::Network::Stats(args) => stats::run(&runtime, &args),
        args::Network::Export(args) => export::run(&runtime, &args),
        args::Network::Pending(args) => pending::run(&runtime, &args).await,
        args::Network::Allow(args) => allow::run(&runtime, &args.what, &args.scope, allow::Answer::Yes).await,
        args::Network::Deny(args) => allow::run(&runtime, &args.what, &args.scope, allow::Answer::No).await,
        args::Network::Test(args) => test::run(&runtime, &args).await,
        args::Network::Rules(args) => rules::run(&runtime, &args).await,
    }
}

/// The log as it is now; `None` where there is no data directory yet.
fn snapshot(runtime: &Runtime) -> Result<Option<Snapshot>, Failure> {
    let data_dir = &runtime.config().data_dir.value;
    if !data_dir.exists() {
        return Ok(None);
    }
    Ok(Some(Snapshot::take(data_dir).map_err(Error::from)?))
}

/// A pattern as the command line names it, in the form in which patterns are compared.
fn pattern(name: &str, text: &str) -> Result<DomainPattern, Failure> {
    let wrong = |error: InvalidValue| Failure::usage(error.diagnosis(name));
    let pattern = Domain::parse(text, &Context::default()).map_err(wrong)?;
    moltis_runtime::approvals::as_compared(&pattern).map_err(|why| {
        wrong(InvalidValue::Malformed {
            text: text.to_owned(),
            expected: "a domain pattern".to_owned(),
            why: why.to_string(),
        })
    })
}
