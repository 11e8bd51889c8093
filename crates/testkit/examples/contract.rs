//! Runs the contract or the attacks and prints the matrix; what `cargo xtask contract` and `cargo xtask attack` call.
//!
//! `contract [--backend NAME]… [--attacks|--contract] [--case PREFIX]… [--jobs N] [--label TEXT] [--json FILE]`,
//! `contract --promises|--table FILE…`

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code)]
#[path = "../tests/subjects.rs"]
mod subjects;
#[path = "../tests/wasm.rs"]
mod wasm;

use std::process::ExitCode;

use moltis_testkit::runner::{self, Found, Report};
use moltis_testkit::{Case, Verdict, matrix};

/// What the in-process shell allocates is counted, as in the program.
#[global_allocator]
static ALLOCATOR: moltis_backend_wasm::Metering<std::alloc::System> =
    moltis_backend_wasm::Metering(std::alloc::System);

fn main() -> ExitCode {
    if let Some(status) = moltis_backend_wasm::keeper() {
        return status;
    }
    let everybody = subjects::all();
    let cases = moltis_testkit::all();
    runner::child(&everybody, &cases);

    let mut backends: Vec<String> = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    let (mut chosen, mut jobs, mut label, mut json) = (None, 4, String::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--backend" => backends.push(value()),
            "--case" => prefixes.push(value()),
            "--jobs" => jobs = value().parse().unwrap_or(4),
            "--label" => label = value(),
            "--json" => json = Some(value()),
            "--attacks" => chosen = Some(true),
            "--contract" => chosen = Some(false),
            "--promises" => return table(arguments, |found| matrix::promises(&found.standings)),
            "--table" => {
                return table(arguments, |found| matrix::markdown(&shown(&cases, &found), &found.reports));
            }
            "--list" => {
                for case in &cases {
                    println!("{}", case.id);
                }
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("unknown argument {other:?}");
                return ExitCode::from(2);
            }
        }
    }
    let mut found = Found::default();
    for subject in subjects::backends() {
        if !backends.is_empty() && !backends.contains(&subject.name) {
            continue;
        }
        let standing = runner::standing(&subject);
        if let Err(why) = &standing.keeps {
            println!("{}: {}: {why}", subject.name, matrix::UNUSABLE);
        }
        found.standings.push(standing);
    }
    if backends.is_empty() {
        let usable = found.standings.iter().filter(|standing| standing.keeps.is_ok());
        backends = usable.map(|standing| standing.subject.clone()).collect();
    }
    for backend in &backends {
        if !everybody.iter().any(|s| s.name == *backend) {
            eprintln!("no backend {backend:?}");
            return ExitCode::from(2);
        }
    }
    let cases: Vec<Case> = cases
        .into_iter()
        .filter(|c| chosen.is_none_or(|attacks| c.control.is_some() == attacks))
        .filter(|c| prefixes.is_empty() || prefixes.iter().any(|p| c.id.starts_with(p.as_str())))
        .collect();
    for backend in &backends {
        let reports = runner::run_all(backend, &cases, jobs, |report| println!("{}", matrix::line(report)));
        found.reports.extend(reports);
    }
    let count = |is: fn(&Report) -> bool| found.reports.iter().filter(|report| is(report)).count();
    let failed = count(|report| report.result.is_err());
    let declared = count(|report| matches!(report.result, Ok(Verdict::Declared(_))));
    let passed = found.reports.len() - declared - failed;
    if let Some(file) = json {
        found.reports.iter_mut().for_each(|report| report.subject.push_str(&label));
        found.standings.iter_mut().for_each(|standing| standing.subject.push_str(&label));
        let text = serde_json::to_string(&found).unwrap_or_default();
        if let Err(e) = std::fs::write(&file, text) {
            eprintln!("{file}: {e}");
            return ExitCode::FAILURE;
        }
    }
    println!("{passed} passed, {declared} declared, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cases that were run.
fn shown(cases: &[Case], found: &Found) -> Vec<Case> {
    cases.iter().filter(|case| found.reports.iter().any(|report| report.id == case.id)).cloned().collect()
}

/// Prints a table of what is in these files, the columns of one backend beside each other.
fn table(files: impl Iterator<Item = String>, text: impl FnOnce(Found) -> String) -> ExitCode {
    let mut found = Found::default();
    for file in files {
        let read = std::fs::read_to_string(&file).map_err(|e| e.to_string());
        let read = read.and_then(|text| serde_json::from_str::<Found>(&text).map_err(|e| e.to_string()));
        match read {
            Ok(more) => {
                found.standings.extend(more.standings);
                found.reports.extend(more.reports);
            }
            Err(e) => {
                eprintln!("{file}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    let backends = subjects::backends();
    let column = |subject: &str| {
        let is = |name: &str| subject.strip_prefix(name).is_some_and(|label| !label.starts_with('-'));
        backends.iter().position(|backend| is(&backend.name))
    };
    found.standings.sort_by_key(|standing| column(&standing.subject));
    found.reports.sort_by_key(|report| column(&report.subject));
    print!("{}", text(found));
    ExitCode::SUCCESS
}
