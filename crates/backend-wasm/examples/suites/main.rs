//! Runs the cases of other people's test suites, and of our own modules, on the in-process shell: what `cargo xtask suites`
//! calls.
//!
//! `suites bash|by-util|wasi|humaneval --source FOLDER [--known FILE] [--shed] [--every N] [--compiled FOLDER]
//! [--python MODULE] [--only PART] [--verbose]`. The last line is `row: …` with the counts; it leaves with 1 where something
//! is not as it has to be.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bash;
mod humaneval;
mod known;
mod oracle;
mod rust;
mod util;
mod wasi;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use known::Known;

/// What shells allocate is counted, as in the program.
#[global_allocator]
static ALLOCATOR: moltis_backend_wasm::Metering<std::alloc::System> =
    moltis_backend_wasm::Metering(std::alloc::System);

/// Cases that run at a time.
const AT_ONCE: usize = 4;

/// Most cases that are tried again. More of them are no accident.
const AGAIN: usize = 20;

/// What is asked for.
#[derive(Clone, Default)]
struct Asked {
    /// Where the cases are.
    source: PathBuf,
    /// The list of known failures.
    known: Option<PathBuf>,
    /// Take off the list what passes.
    shed: bool,
    /// Of so many cases one.
    every: usize,
    /// Where compiled modules are kept from run to run.
    compiled: Option<PathBuf>,
    /// CPython as a module.
    python: Option<PathBuf>,
    /// Part of the names of the only cases to run.
    only: Option<String>,
    /// Show of each failure what was expected and what came.
    verbose: bool,
}

/// One case, and how it went.
pub struct Case {
    /// Its name, which the list of known failures has too.
    pub name: String,
    /// How it went.
    pub went: Went,
}

/// How a case went.
pub enum Went {
    /// As expected.
    Passed,
    /// Otherwise; what was expected, and what came.
    Failed(String),
    /// It does not apply here, by this rule.
    Excluded(&'static str),
}

fn asked() -> (String, Asked) {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let mut asked = Asked { every: 1, ..Asked::default() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument}: of what?"));
        match argument.as_str() {
            "--source" => asked.source = value().into(),
            "--known" => asked.known = Some(value().into()),
            "--compiled" => asked.compiled = Some(value().into()),
            "--python" => asked.python = Some(value().into()),
            "--only" => asked.only = Some(value()),
            "--every" => asked.every = value().parse().expect("--every: a number"),
            "--shed" => asked.shed = true,
            "--verbose" => asked.verbose = true,
            other => panic!("unknown argument {other:?}"),
        }
    }
    (kind, asked)
}

/// Signals that whoever started this ignores, as a job in the background is started: no shell lets them be trapped then.
fn heed_signals() {
    // A broken pipe stays an error here; whoever is started has it reset.
    for signal in (1..=31).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: it names no handler, and no thread runs yet; what cannot be changed is refused.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn main() -> ExitCode {
    heed_signals();
    let (kind, asked) = asked();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let run = |asked: &Asked| match kind.as_str() {
        "bash" => runtime.block_on(bash::run(asked)),
        "by-util" => runtime.block_on(util::run(asked)),
        "wasi" => runtime.block_on(wasi::run(asked)),
        "humaneval" => runtime.block_on(humaneval::run(asked)),
        other => panic!("no suite {other:?}"),
    };
    let known = asked.known.as_deref().map(Known::read).unwrap_or_default();
    let mut cases = run(&asked);
    // What is not as it has to be beside others is tried once more, alone: a slow machine makes other results of cases
    // that wait for each other's processes.
    let others: Vec<usize> = (0..cases.len()).filter(|at| !known.expects(&cases[*at])).collect();
    if others.len() <= AGAIN && !asked.shed {
        for at in others {
            let alone =
                Asked { only: Some(cases[at].name.clone()), every: 1, verbose: false, ..asked.clone() };
            let again = run(&alone).into_iter().find(|case| case.name == cases[at].name);
            if let Some(again) = again.filter(|case| known.expects(case)) {
                println!("at a second try as it has to be: {}", again.name);
                cases[at] = again;
            }
        }
    }
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    // A shell that computes on although its time is up holds its thread.
    runtime.shutdown_background();
    if known::judge(&cases, known, &asked) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
