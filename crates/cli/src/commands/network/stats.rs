//! `moltis network stats`.

use std::ops::ControlFlow;

use moltis_egress::audit::{Counted, Stats, Tally};
use moltis_runtime::Runtime;
use moltis_sandbox::Error;
use serde_json::{Map, Value, json};

use super::entries;
use super::filters::filter;
use crate::args;
use crate::failure::Failure;
use crate::{output, render};

/// Runs it; gives the exit status.
pub fn run(runtime: &Runtime, args: &args::Stats) -> Result<i32, Failure> {
    let filter = filter(&args.filters)?;
    let (mut stats, mut tally) = (Stats::default(), Tally::default());
    if let Some(snapshot) = super::snapshot(runtime)? {
        let read = snapshot.read(&filter, |entry| {
            stats.add(&entry);
            ControlFlow::Continue(())
        });
        tally = read.map_err(Error::from)?;
    }
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let all = stats.domains();
    let shown = &all[..all.len().min(most)];
    let warnings = entries::warnings(tally);
    if args.json {
        let domains: Vec<_> = shown
            .iter()
            .map(|(domain, counted)| {
                let mut fields = told(counted);
                fields.insert("domain".to_owned(), json!(domain));
                fields
            })
            .collect();
        return output::print_json(&json!({
            "domains": domains, "domainsTotal": all.len(), "notCountedByDomain": told(&stats.others()),
            "total": told(&stats.total()), "droppedEntries": tally.dropped, "unreadableLines": tally.unreadable,
            "warnings": warnings,
        }));
    }
    warnings.iter().for_each(render::warning);
    if all.is_empty() {
        return output::print("No entries.\n");
    }
    let mut rows =
        vec![["DOMAIN", "ALLOWED", "DENIED", "SENT", "RECEIVED", "LAST"].map(str::to_owned).to_vec()];
    rows.extend(shown.iter().map(|(domain, counted)| row(entries::target(domain, 0), counted)));
    let rest = all.len() - shown.len();
    if rest > 0 || stats.others() != Counted::default() {
        let rest = all[shown.len()..].iter().fold(stats.others(), |sum, (_, counted)| sum.and(counted));
        rows.push(row("(others)".to_owned(), &rest));
    }
    rows.push(row("(all)".to_owned(), &stats.total()));
    output::print(&render::table(&rows))
}

fn told(counted: &Counted) -> Map<String, Value> {
    output::present(json!({
        "allowed": counted.allowed, "denied": counted.denied, "sentBytes": counted.sent,
        "receivedBytes": counted.received, "lastMillis": Some(counted.last).filter(|last| *last > 0),
    }))
}

fn row(name: String, counted: &Counted) -> Vec<String> {
    vec![
        name,
        counted.allowed.to_string(),
        counted.denied.to_string(),
        render::size(counted.sent),
        render::size(counted.received),
        render::age(counted.last),
    ]
}
