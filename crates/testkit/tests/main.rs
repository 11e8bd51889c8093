//! The contract and the attacks on every backend, and the suite itself against backends that break a promise.

// Standard output is the harness's own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;
mod subjects;

use std::sync::RwLock;

use libtest_mimic::{Arguments, Failed, Trial};
use moltis_testkit::runner::{self, Report};
use moltis_testkit::{Case, Verdict, need};

/// Held for writing by a case that needs the machine for itself.
static MACHINE: RwLock<()> = RwLock::new(());

/// Trials at once, unless it is said otherwise.
const JOBS: usize = 4;

/// Cases that are run on the host without any sandbox.
const SAMPLE: &[&str] = &[
    "exec.exit-code",
    "exec.cwd-default",
    "exec.environment",
    "exec.environment-is-that-alone",
    "streams.apart",
    "ends.time-out",
    "ends.lost-caller",
    "ends.close",
    "files.links",
    "workspace.refused-sources",
    "lifetime.found-again",
    "lifetime.agent-killed",
    "find.not-another-backends",
    "network.blocked",
    "limits.demands-are-kept-or-refused",
    "limits.defaults-are-kept-or-listed",
    "attack.host-home",
];

/// Whether a report is a pass where everything must run.
fn judge(report: Report) -> Result<(), Failed> {
    match report.result {
        Ok(Verdict::Uncontrolled(why)) if need::everything() && need::root() => {
            Err(format!("passed without a control: {why}").into())
        }
        Ok(_) => Ok(()),
        Err(fail) => Err(fail.0.into()),
    }
}

fn run(subject: &str, case: &Case) -> Result<(), Failed> {
    if case.alone {
        let _machine = MACHINE.write();
        judge(runner::run_apart(subject, case))
    } else {
        let _machine = MACHINE.read();
        judge(runner::run_apart(subject, case))
    }
}

fn main() {
    let cases = moltis_testkit::all();
    let everybody = subjects::all();
    runner::child(&everybody, &cases);
    let mut trials = Vec::new();
    for subject in [subjects::NAMESPACES, subjects::RESTRICTED_HOST] {
        for case in cases.clone() {
            trials.push(Trial::test(format!("{subject}::{}", case.id), move || run(subject, &case)));
        }
    }
    // What it does not share with the restricted host; the matrix has the rest.
    for case in cases.iter().filter(|case| SAMPLE.contains(&case.id)).cloned() {
        let subject = subjects::NONE;
        trials.push(Trial::test(format!("{subject}::{}", case.id), move || run(subject, &case)));
    }
    trials.extend(broken::trials(&cases));
    let mut arguments = Arguments::from_args();
    // Most cases wait more than they work.
    arguments.test_threads.get_or_insert(JOBS);
    libtest_mimic::run(&arguments, trials).exit();
}
