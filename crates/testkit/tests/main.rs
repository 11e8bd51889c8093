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
    // What the restricted host may lack is most of it; its column belongs to the matrix, not yet to the tests.
    for subject in [subjects::NAMESPACES] {
        for case in cases.clone() {
            trials.push(Trial::test(format!("{subject}::{}", case.id), move || run(subject, &case)));
        }
    }
    trials.extend(broken::trials(&cases));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
