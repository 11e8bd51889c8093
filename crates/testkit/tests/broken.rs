//! The suite against backends that break one promise: it must fail, in the right places and in no other.

use std::collections::BTreeSet;

use libtest_mimic::{Failed, Trial};
use moltis_testkit::broken::Fault;
use moltis_testkit::{Case, runner};

use crate::subjects::double;

/// Chapters that a fault could show in, and the cases in them that must fail.
struct Expected {
    fault: Fault,
    /// Chapters to run. Every other chapter is run only in the long form.
    chapters: &'static [&'static str],
    /// What must fail, and nothing else.
    fails: &'static [&'static str],
}

const EXPECTED: &[Expected] = &[];

/// Variable that makes every chapter run.
const LONG: &str = "MOLTIS_TEST_LONG";

/// One trial a fault.
pub fn trials(cases: &[Case]) -> Vec<Trial> {
    EXPECTED
        .iter()
        .map(|expected| {
            let long = std::env::var_os(LONG).is_some_and(|v| v == "1");
            let chosen: Vec<Case> = cases
                .iter()
                .filter(|c| c.chapter() != "attack")
                .filter(|c| long || expected.chapters.contains(&c.chapter()))
                .cloned()
                .collect();
            Trial::test(format!("broken::{}", expected.fault.name()), move || check(expected, &chosen))
        })
        .collect()
}

fn check(expected: &Expected, cases: &[Case]) -> Result<(), Failed> {
    let reports = runner::run_all(&double(expected.fault), cases, 4, |_| {});
    let failed: BTreeSet<&str> =
        reports.iter().filter(|r| r.result.is_err()).map(|r| r.id.as_str()).collect();
    let wanted: BTreeSet<&str> = expected.fails.iter().copied().collect();
    if failed == wanted {
        return Ok(());
    }
    let mut text = String::new();
    for id in wanted.difference(&failed) {
        text.push_str(&format!("{id} passes though the promise is broken\n"));
    }
    for report in reports.iter().filter(|r| r.result.is_err() && !wanted.contains(r.id.as_str())) {
        text.push_str(&format!(
            "{} fails though it has nothing to do with it: {:?}\n",
            report.id, report.result
        ));
    }
    Err(text.into())
}
