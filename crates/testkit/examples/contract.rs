//! Runs the contract or the attacks and prints the matrix; what `cargo xtask contract` and `cargo xtask attack` call.
//!
//! `contract [--backend NAME]… [--attacks|--contract] [--case PREFIX]… [--jobs N] [--label TEXT] [--json FILE]`

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code)]
#[path = "../tests/subjects.rs"]
mod subjects;

use std::process::ExitCode;

use moltis_testkit::{Case, matrix, runner};

fn main() -> ExitCode {
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
            "--table" => return table(arguments, &cases),
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
    if backends.is_empty() {
        backends = subjects::backends().into_iter().map(|s| s.name).collect();
    }
    for backend in &backends {
        if !everybody.iter().any(|s| s.name == *backend) {
            eprintln!("no backend {backend:?}");
            return ExitCode::from(2);
        }
    }
    let cases: Vec<Case> = cases
        .into_iter()
        .filter(|c| chosen.is_none_or(|attacks| (c.chapter() == "attack") == attacks))
        .filter(|c| prefixes.is_empty() || prefixes.iter().any(|p| c.id.starts_with(p.as_str())))
        .collect();
    let mut reports = Vec::new();
    for backend in &backends {
        reports.extend(runner::run_all(backend, &cases, jobs, |report| println!("{}", matrix::line(report))));
    }
    let failed = reports.iter().filter(|r| r.result.is_err()).count();
    if let Some(file) = json {
        for report in &mut reports {
            report.subject.push_str(&label);
        }
        let text = serde_json::to_string(&reports).unwrap_or_default();
        if let Err(e) = std::fs::write(&file, text) {
            eprintln!("{file}: {e}");
            return ExitCode::FAILURE;
        }
    }
    println!("{} passed, {failed} failed", reports.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the table of the reports in these files.
fn table(files: impl Iterator<Item = String>, cases: &[Case]) -> ExitCode {
    let mut reports: Vec<runner::Report> = Vec::new();
    for file in files {
        let read = std::fs::read_to_string(&file).map_err(|e| e.to_string());
        let read = read.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
        match read {
            Ok(more) => reports.extend::<Vec<runner::Report>>(more),
            Err(e) => {
                eprintln!("{file}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    let shown: Vec<Case> = cases.iter().filter(|c| reports.iter().any(|r| r.id == c.id)).cloned().collect();
    print!("{}", matrix::markdown(&shown, &reports));
    ExitCode::SUCCESS
}
