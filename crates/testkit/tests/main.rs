//! The contract and the attacks on every backend, and the suite itself against backends that break a promise.

// Standard output is the harness's own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;
mod subjects;
mod wasm;

use std::sync::RwLock;

use libtest_mimic::{Arguments, Failed, Trial};
use moltis_testkit::runner::{self, Report};
use moltis_testkit::{Case, Verdict, need};

/// What the in-process shell allocates is counted, as in the program.
#[global_allocator]
static ALLOCATOR: moltis_backend_wasm::Metering<std::alloc::System> =
    moltis_backend_wasm::Metering(std::alloc::System);

/// Held for writing by a case that needs the machine for itself.
static MACHINE: RwLock<()> = RwLock::new(());

/// Trials at once, unless it is said otherwise.
const JOBS: usize = 4;

/// Cases that are run on the host without any sandbox, and in the in-process shell by a second user.
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

/// Cases that are run in containers where the long form is not asked for: what an engine or its hardening could break.
/// The rest is the agent's, which is the same everywhere, and `cargo xtask contract` has all of it.
const CONTAINER_SAMPLE: &[&str] = &[
    "exec.exit-code",
    "exec.cwd-default",
    "exec.environment-is-that-alone",
    "exec.identity",
    "exec.sessions-processes-apart",
    "ends.time-out",
    "ends.lost-caller",
    "ends.close",
    "terminal.shell",
    "files.links",
    "homes.outlive-the-sandbox",
    "homes.none",
    "workspace.writable",
    "workspace.protected",
    "workspace.refused-sources",
    "mounts.managed-files",
    "lifetime.found-again",
    "lifetime.idle",
    "lifetime.agent-killed",
    "lifetime.purged",
    "find.not-another-backends",
    "forward.connect",
    "network.blocked",
    "network.open",
    "limits.demands-are-kept-or-refused",
    "limits.memory",
    "limits.pids",
    "concurrency.one-key",
    "concurrency.abandoned",
    "secrets.not-on-command-lines",
    "secrets.callers-environment-out-of-sight",
    "attack.host-home",
    "attack.host-by-handle",
    "attack.kernel-settings",
    "attack.devices",
    "attack.cgroups",
    "attack.mounts",
    "attack.user-namespaces",
    "attack.privileges",
    "attack.kernel-interfaces",
    "attack.vsock",
    "attack.planted-links",
    "attack.read-agent",
    "attack.agent-socket-inside",
    "attack.agent-impersonated",
    "attack.kill-everything",
    "attack.fork-bomb",
    "egress.raw-ip",
    "egress.interfaces",
];

/// Cases of an engine; one that says why there are none where it is not usable here.
fn containers(cases: &[Case]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for subject in subjects::containers() {
        let name = subject.name.clone();
        if let Err(why) = runner::standing(&subject).keeps {
            let test = format!("the contract on {name}");
            trials.push(Trial::test(format!("{name}::usable"), move || {
                need::skip(&test, &why.0);
                Ok(())
            }));
            continue;
        }
        for case in cases.iter().filter(|case| need::long() || CONTAINER_SAMPLE.contains(&case.id)) {
            let (name, case) = (name.clone(), case.clone());
            trials.push(Trial::test(format!("{name}::{}", case.id), move || run(&name, &case)));
        }
    }
    trials
}

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
    if moltis_backend_wasm::keeper().is_some() {
        return;
    }
    let cases = moltis_testkit::all();
    let everybody = subjects::all();
    runner::child(&everybody, &cases);
    let mut trials = Vec::new();
    for subject in [subjects::NAMESPACES, subjects::RESTRICTED_HOST, subjects::WASM] {
        // Who runs it makes little difference to what runs inside this process.
        let sample = subject == subjects::WASM && need::root_too() && !need::long();
        for case in cases.iter().filter(|case| !sample || SAMPLE.contains(&case.id)).cloned() {
            trials.push(Trial::test(format!("{subject}::{}", case.id), move || run(subject, &case)));
        }
    }
    // What it does not share with the restricted host; the matrix has the rest.
    for case in cases.iter().filter(|case| SAMPLE.contains(&case.id)).cloned() {
        let subject = subjects::NONE;
        trials.push(Trial::test(format!("{subject}::{}", case.id), move || run(subject, &case)));
    }
    let known = |id: &&&str| cases.iter().any(|case| case.id == **id);
    assert_eq!(
        CONTAINER_SAMPLE.iter().filter(known).count(),
        CONTAINER_SAMPLE.len(),
        "every name is a case's"
    );
    trials.extend(containers(&cases));
    trials.extend(broken::trials(&cases));
    let mut arguments = Arguments::from_args();
    // Most cases wait more than they work.
    arguments.test_threads.get_or_insert(JOBS);
    libtest_mimic::run(&arguments, trials).exit();
}
