//! The contract, against the stand-in.

use std::sync::Arc;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_remote::vercel;
use moltis_testkit::subject::Folders;
use moltis_testkit::{Subject, runner};

use crate::rig::{Rig, config};

/// What the contract asks for and machines at a provider do not have.
pub const APART: &[(&str, &str)] = &[
    ("exec.cwd-default", WORKSPACE),
    ("lifetime.same-key-same-sandbox", WORKSPACE),
    ("lifetime.idle", CLOCK),
    ("lifetime.idle-not-in-use", CLOCK),
    ("lifetime.taken-up-begins-anew", CLOCK),
    ("workspace.shows", WORKSPACE),
    ("workspace.refused-sources", WORKSPACE),
    ("workspace.missing", WORKSPACE),
    ("workspace.read-only", WORKSPACE),
    ("workspace.read-only-to-file-access", WORKSPACE),
    ("workspace.writable", WORKSPACE),
    ("workspace.protected", WORKSPACE),
    ("adopt.nothing-there", PROCESSES),
    ("find.nothing-there", PROCESSES),
    ("concurrency.one-after-the-other", PROCESSES),
    ("concurrency.descriptors", PROCESSES),
    ("concurrency.abandoned", PROCESSES),
    ("mounts.managed-files-by-variable", WORKSPACE),
    ("mounts.further", WORKSPACE),
    ("streams.held-back", KEPT),
];

/// Folders: tests of this crate's own hold what these cases are about.
const WORKSPACE: &str = "a workspace is carried to the directory that the provider names and back, not shown at /workspace; \
                         no other folder is carried";

/// Time without use.
const CLOCK: &str = "the clock is the provider's: a machine that is not used ends after `vercel_timeout_ms`";

/// Output.
const KEPT: &str = "the provider keeps what a command prints, so that it need not wait for whoever reads";

/// Processes of the machine.
const PROCESSES: &str =
    "the machines of the stand-in are processes of the one that runs it, which are counted too";

/// Runs these cases, and fails with all that failed.
async fn holds(wanted: &[&str]) {
    let rig = Rig::new().await;
    let url = rig.vercel.url();
    let beside = Subject::new("namespaces", |folders: &Folders| {
        let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
        Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config { data_dir, config_dir }))
    });
    let mut subject =
        Subject::new("vercel", move |folders| Arc::new(vercel::backend(config(&url, &folders.data))))
            .beside(&beside);
    subject.apart = APART;
    let mut failed = run(&subject, wanted).await;
    failed.extend(rig.vercel.wrong());
    failed.extend(rig.vercel.machines().into_iter().map(|name| format!("{name} is left")));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs these cases, and says what failed.
pub async fn run(subject: &Subject, wanted: &[&str]) -> Vec<String> {
    let mut failed = Vec::new();
    for case in moltis_testkit::contract().into_iter().chain(moltis_testkit::attacks()) {
        if wanted.iter().any(|wanted| case.id.starts_with(wanted)) {
            let report = runner::run_here(subject, &case).await;
            println!("{:40} {:6} ms {:?}", case.id, report.millis, report.result);
            failed.extend(report.result.err().map(|fail| format!("{}: {fail}", case.id)));
        }
    }
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run() {
    holds(&["exec."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descents_end() {
    holds(&["ends."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_whole() {
    holds(&["streams.", "stdin.", "terminal.", "background."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_worked_on() {
    holds(&["files."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_live_and_end() {
    holds(&["lifetime.", "find.", "activity.", "adopt.", "concurrency."]).await;
}

/// What a hostile command tries that is not a matter of the provider's own walls.
pub const ATTACKS: &[&str] = &["attack.leaked-descriptors", "attack.daemon-after-time-out"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_commands_get_nowhere() {
    holds(ATTACKS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_is_kept_or_refused() {
    holds(&["network.", "limits.", "homes.", "workspace.", "mounts.", "forward.", "pool."]).await;
}
