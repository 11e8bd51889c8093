//! The contract, against the stand-in for Daytona.

use std::sync::Arc;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_remote::daytona;
use moltis_testkit::Subject;
use moltis_testkit::remote::daytona::Age;
use moltis_testkit::subject::Folders;

use crate::contract::{self, APART, ATTACKS};
use crate::daytona::{Rig, config};

/// Runs these cases, and fails with all that failed.
async fn holds(age: Age, wanted: &[&str]) {
    let rig = Rig::new(age).await;
    let url = rig.daytona.url();
    let beside = Subject::new("namespaces", |folders: &Folders| {
        let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
        Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config { data_dir, config_dir }))
    });
    let mut subject =
        Subject::new("daytona", move |folders| Arc::new(daytona::backend(config(&url, &folders.data))))
            .beside(&beside);
    subject.apart = APART;
    let mut failed = contract::run(&subject, wanted).await;
    failed.extend(rig.daytona.wrong());
    failed.extend(rig.daytona.machines().into_iter().map(|name| format!("{name} is left")));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run() {
    holds(Age::Newer, &["exec."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_on_an_older_server() {
    holds(Age::Older, &["exec.e", "files.r"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descents_end() {
    holds(Age::Newer, &["ends."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_whole() {
    holds(Age::Newer, &["streams.", "stdin.", "terminal.", "background."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_worked_on() {
    holds(Age::Newer, &["files."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_live_and_end() {
    holds(Age::Newer, &["lifetime.", "find.", "activity.", "adopt.", "concurrency."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_commands_get_nowhere() {
    holds(Age::Newer, ATTACKS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_is_kept_or_refused() {
    holds(Age::Newer, &["network.", "limits.", "homes.", "workspace.", "mounts.", "forward.", "pool."]).await;
}
