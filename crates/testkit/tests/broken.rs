//! The suite against backends that break one promise: it must fail, in the right places and in no other.

use std::collections::BTreeSet;

use libtest_mimic::{Failed, Trial};
use moltis_testkit::broken::Fault;
use moltis_testkit::{Case, Verdict, need, runner};

use crate::subjects::double;

/// Chapters that a fault could show in, and the cases in them that must fail.
struct Expected {
    fault: Fault,
    /// Chapters to run.
    chapters: &'static [&'static str],
    /// What must fail, and nothing else.
    fails: &'static [&'static str],
}

const EXPECTED: &[Expected] = &[
    Expected {
        fault: Fault::LosesTimeOut,
        chapters: &["ends"],
        fails: &[
            "ends.time-out",
            "ends.time-out-short",
            "ends.asked-to-stop-first",
            "ends.ignores-term",
            "ends.setsid",
            "ends.double-fork",
            "ends.fork-storm",
            "ends.stopped-descent",
            "ends.deadline-is-the-agents",
            "ends.beside-others",
        ],
    },
    Expected {
        fault: Fault::MergesStreams,
        chapters: &["streams"],
        fails: &[
            "streams.apart",
            "streams.binary",
            "streams.large",
            "streams.closed-early",
            "streams.no-last-newline",
            "streams.output-of-the-killed",
        ],
    },
    Expected {
        fault: Fault::DropsBytes,
        chapters: &["streams"],
        fails: &["streams.large", "streams.held-back", "streams.output-of-the-killed"],
    },
    Expected { fault: Fault::IgnoresCancel, chapters: &["ends"], fails: &["ends.cancel"] },
    Expected {
        fault: Fault::HidesLeftovers,
        chapters: &["ends"],
        fails: &[
            "ends.at-once",
            "ends.leftovers-hold-output",
            "ends.leftovers-counted",
            "ends.time-out-with-leftovers",
        ],
    },
    Expected {
        fault: Fault::HoldsOutput,
        chapters: &["streams"],
        fails: &["streams.as-it-comes", "streams.held-back"],
    },
    Expected { fault: Fault::ReadsAhead, chapters: &["streams"], fails: &["streams.held-back"] },
    Expected {
        fault: Fault::IgnoresLoss,
        chapters: &["ends", "terminal"],
        fails: &[
            "ends.lost-caller",
            "ends.lost-caller-of-a-writer",
            "ends.lost-caller-ignoring-term",
            "terminal.hang-up",
        ],
    },
    Expected {
        fault: Fault::TellsSignalsAsCodes,
        chapters: &["exec"],
        fails: &["exec.signal", "exec.runs-once"],
    },
    Expected {
        fault: Fault::LosesInput,
        chapters: &["stdin"],
        fails: &["stdin.echo", "stdin.binary-and-large", "stdin.held-back", "stdin.interactive"],
    },
    Expected { fault: Fault::IgnoresCwd, chapters: &["exec"], fails: &["exec.cwd", "exec.cwd-missing"] },
    Expected {
        fault: Fault::LeaksEnvironment,
        chapters: &["exec", "secrets"],
        fails: &[
            "exec.environment-is-that-alone",
            "secrets.callers-environment-stays-out",
            "secrets.callers-environment-out-of-sight",
        ],
    },
    Expected { fault: Fault::RunsTwice, chapters: &["exec"], fails: &["exec.runs-once"] },
    Expected {
        fault: Fault::WritableWorkspace,
        chapters: &["workspace"],
        fails: &["workspace.read-only", "workspace.read-only-to-file-access"],
    },
    Expected {
        fault: Fault::IgnoresLimits,
        chapters: &["limits"],
        fails: &["limits.memory", "limits.memory-of-all-together", "limits.cpus", "limits.pids"],
    },
    Expected { fault: Fault::NeverCloses, chapters: &["ends"], fails: &["ends.close"] },
    Expected {
        fault: Fault::Overwrites,
        chapters: &["files"],
        fails: &["files.overwrite", "files.make-move-remove"],
    },
    Expected { fault: Fault::WritesHalves, chapters: &["files"], fails: &["files.atomic"] },
    Expected { fault: Fault::IgnoresResize, chapters: &["terminal"], fails: &["terminal.size"] },
    Expected {
        fault: Fault::ChecksNothing,
        chapters: &["workspace"],
        fails: &["workspace.refused-sources", "workspace.missing"],
    },
    Expected { fault: Fault::AdoptsOtherSpecs, chapters: &["adopt"], fails: &["adopt.other-spec"] },
    Expected {
        fault: Fault::AdoptStarts,
        chapters: &["adopt"],
        fails: &[
            "adopt.same-spec",
            "adopt.other-spec",
            "adopt.nothing-there",
            "adopt.temporary",
            "adopt.waits-for-nobody",
            "adopt.garbage",
        ],
    },
    Expected {
        fault: Fault::FindStarts,
        chapters: &["find"],
        fails: &["find.whatever-spec", "find.nothing-there"],
    },
    Expected { fault: Fault::NeverInUse, chapters: &["activity"], fails: &["activity.counts-what-runs"] },
    Expected { fault: Fault::AskingIsUse, chapters: &["activity"], fails: &["activity.idle-grows"] },
    Expected {
        fault: Fault::NeverIdle,
        chapters: &["lifetime"],
        fails: &["lifetime.idle", "lifetime.idle-not-in-use"],
    },
    Expected {
        fault: Fault::KeepsTheDead,
        chapters: &["lifetime"],
        fails: &[
            "lifetime.temporary-is-temporary",
            "lifetime.same-key-same-sandbox",
            "lifetime.idle",
            "lifetime.idle-not-in-use",
            "lifetime.purged",
            "lifetime.agent-killed",
            "lifetime.ends-with-its-handle",
        ],
    },
    Expected { fault: Fault::ForgetsSessions, chapters: &["concurrency"], fails: &["concurrency.one-key"] },
    Expected { fault: Fault::NeverPurges, chapters: &["lifetime"], fails: &["lifetime.purged"] },
];

/// One trial a fault.
pub fn trials(cases: &[Case]) -> Vec<Trial> {
    assert_eq!(EXPECTED.len(), Fault::ALL.len(), "every fault is expected somewhere");
    // Whose process it is makes no difference to a double: where both kinds of user run this, root's run is the whole one.
    let unaffected = if need::root() || need::long() { 1 } else { 4 };
    EXPECTED
        .iter()
        .map(|expected| {
            let chapters = cases.iter().filter(|c| expected.chapters.contains(&c.chapter()));
            let chosen: Vec<Case> = chapters
                .enumerate()
                .filter(|(at, c)| at % unaffected == 0 || expected.fails.contains(&c.id))
                .map(|(_, c)| c.clone())
                .collect();
            Trial::test(format!("broken::{}", expected.fault.name()), move || check(expected, &chosen))
        })
        .collect()
}

fn check(expected: &Expected, cases: &[Case]) -> Result<(), Failed> {
    let reports = runner::run_all(&double(expected.fault), cases, 4, |_| {});
    let failed: BTreeSet<&str> =
        reports.iter().filter(|r| r.result.is_err()).map(|r| r.id.as_str()).collect();
    // What the sound backend does not promise here is refused by the broken one too.
    let refused: BTreeSet<&str> = reports
        .iter()
        .filter(|r| matches!(r.result, Ok(Verdict::Declared(_))))
        .map(|r| r.id.as_str())
        .collect();
    let wanted: BTreeSet<&str> = expected.fails.iter().copied().filter(|id| !refused.contains(id)).collect();
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
