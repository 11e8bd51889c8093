//! Sandboxes without an agent, as on an engine of another architecture: the contract, and what is hard, through the engine
//! alone.

use std::sync::Arc;

use moltis_backend_container::engine::{EngineKind, connect};
use moltis_backend_container::{Config, ContainerBackend, Guests};
use moltis_backend_namespaces::NamespacesBackend;
use moltis_sandbox::{ImageChoice, Setting};
use moltis_testkit::subject::Folders;
use moltis_testkit::{Subject, need, runner};

use crate::support::{IS_ROOTS, environment};

/// No agent at all.
const NONE: Guests = Guests { built_in: None, beside: None };

fn subject(kind: EngineKind, image: &'static str) -> Subject {
    let image = ImageChoice::Base {
        reference: Setting::built_in(image.to_owned()),
        packages: Setting::built_in(Vec::new()),
    };
    let subject = Subject::new(format!("{kind} without an agent"), move |folders: &Folders| {
        let config = Config {
            kind,
            data_dir: folders.data.clone(),
            config_dir: Some(folders.config.clone()),
            host_data_dir: None,
            prefix: "moltis-test-agentless".to_owned(),
            environment: environment(),
        };
        Arc::new(ContainerBackend::with_guests(config, NONE))
    });
    let beside = Subject::new("namespaces", |folders: &Folders| {
        let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
        Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config { data_dir, config_dir }))
    });
    subject.of_image(image).beside(&beside)
}

/// Runs these cases against Docker without an agent, and fails with all that failed.
async fn holds(test: &str, image: &'static str, wanted: &[&str]) {
    if !need::as_root(test, IS_ROOTS) {
        return;
    }
    match connect(EngineKind::Docker, &environment()).await {
        Ok(engine) if matches!(engine.image(image).await, Ok(Some(_))) => {}
        Ok(_) => return need::skip(test, &format!("there is no {image}")),
        Err(error) => return need::skip(test, &error.to_string()),
    }
    let subject = subject(EngineKind::Docker, image);
    let mut failed = Vec::new();
    for case in moltis_testkit::contract() {
        if wanted.iter().any(|wanted| case.id.starts_with(wanted)) {
            let report = runner::run_here(&subject, &case).await;
            println!("{:40} {:6} ms {:?}", case.id, report.millis, report.result);
            failed.extend(report.result.err().map(|fail| format!("{}: {fail}", case.id)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

const DEBIAN: &str = "localhost/sandbox-base:debian";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_commands_run_as_with_one() {
    holds("without_an_agent_commands_run_as_with_one", DEBIAN, &["exec."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_every_descent_ends() {
    holds("without_an_agent_every_descent_ends", DEBIAN, &["ends."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_streams_are_whole() {
    holds("without_an_agent_streams_are_whole", DEBIAN, &["streams.", "stdin.", "terminal."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_files_are_worked_on() {
    holds("without_an_agent_files_are_worked_on", DEBIAN, &["files."]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_sandboxes_live_and_end() {
    holds("without_an_agent_sandboxes_live_and_end", DEBIAN, &["lifetime.", "find.", "activity."]).await;
}
