//! Another backend on the same data directory, whose sandboxes and these leave each other alone.

use std::sync::Arc;

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{Backend, Detection, Sandbox};

use crate::common::*;

fn namespaces(here: &Here) -> NamespacesBackend {
    let config = config(&here.path());
    NamespacesBackend::new(Config { data_dir: config.data_dir, config_dir: config.config_dir })
}

/// Whether the sandbox of this spec is still the same one, found by another opener.
async fn survives(backend: &dyn Backend, spec: &moltis_sandbox::SandboxSpec) -> Arc<dyn Sandbox> {
    let sandbox = open(backend, spec).await;
    assert!(!sandbox.is_new(), "{} lost its sandbox", backend.name());
    assert_eq!(said(&*sandbox, "echo here").await, "here\n");
    sandbox
}

#[tokio::test]
async fn two_backends_on_one_data_directory_leave_each_other_alone() {
    let here = Here::new();
    let Detection::Usable(_) = namespaces(&here).detect().await else {
        eprintln!("skipped: no namespaces here");
        return;
    };
    let (ours, theirs) = (lasting(), lasting());
    open(&here.restricted(), &ours).await;
    // The first opening of a backend sweeps, and so does listing.
    let other = namespaces(&here);
    open(&other, &theirs).await;
    other.list().await.unwrap();
    survives(&here.restricted(), &ours).await;

    let backend = here.restricted();
    let short = open(&backend, &ephemeral()).await;
    backend.list().await.unwrap();
    short.close().await.unwrap();
    survives(&namespaces(&here), &theirs).await.close().await.unwrap();
    // Of one session too.
    let both = open(&namespaces(&here), &ours).await;
    survives(&here.restricted(), &ours).await;
    both.close().await.unwrap();
    let last = survives(&here.restricted(), &ours).await;
    close(&here, last).await;
}
