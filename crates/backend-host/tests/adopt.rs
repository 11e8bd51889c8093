//! Sandboxes that outlive their opener, and several openers at once.

use std::time::Duration;

use moltis_sandbox::{Backend, Lifetime, Origin, SandboxSpec, SessionKey, Setting};

use crate::common::*;
use crate::helper::Helper;

#[tokio::test]
async fn another_process_finds_it_with_all_that_is_in_it() {
    let here = Here::new();
    let marker = Marker::new();
    let key = format!("adopted {}", std::process::id());
    let helper =
        Helper { task: "background", base: &here.path(), key: &key, mark: marker.length(), user: None };
    let mut child = helper.spawn();
    marker.becomes(1).await;
    let scratch = here.data().join("sandbox/scratch");
    until("the file is there", || {
        here.scratch_folders().iter().any(|id| scratch.join(id).join("file").exists())
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();

    let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(60)));
    let backend = here.restricted();
    let sandbox = open(&backend, &spec).await;
    assert!(!sandbox.is_new());
    assert_eq!(said(&*sandbox, "cat file").await, "kept\n");
    let [process] = &sandbox.processes().await.unwrap()[..] else { panic!("not one process") };
    assert!(process.background && process.outcome.is_none());
    let seen = sandbox.attach(process.id, 0, 0, false).await.unwrap();
    let mut seen = seen.events;
    let mut text = Vec::new();
    while let Some(event) = seen.next().await {
        if let moltis_sandbox::ExecEvent::Stdout(bytes) = event.unwrap() {
            text.extend_from_slice(&bytes);
        }
    }
    assert_eq!(text, b"before\n");
    // Another idle time is told to the agent that is there.
    spec.lifetime = Lifetime::Idle(Duration::from_secs(120));
    assert!(!open(&backend, &spec).await.is_new());
    sandbox.stop(process.id).await.unwrap();
    assert_eq!(marker.pids(), [0; 0]);
    close(&here, sandbox).await;
}

#[tokio::test]
async fn of_many_openers_one_starts_it() {
    let here = Here::new();
    let spec = lasting();
    let openers: Vec<_> = (0..12)
        .map(|_| {
            // As far apart as two processes: nothing is shared but the folder.
            let (backend, spec) = (here.restricted(), spec.clone());
            tokio::spawn(async move { backend.open(&spec).await.unwrap() })
        })
        .collect();
    let mut new = 0;
    let mut last = None;
    for opener in openers {
        let sandbox = opener.await.unwrap();
        new += u32::from(sandbox.is_new());
        last = Some(sandbox);
    }
    assert_eq!(new, 1);
    close(&here, last.unwrap()).await;
}

#[tokio::test]
async fn a_changed_spec_makes_a_new_one() {
    let here = Here::new();
    let backend = here.restricted();
    let spec = lasting();
    let sandbox = open(&backend, &spec).await;
    let marker = Marker::new();
    run(&*sandbox, shell(format!("{} & :", marker.sleep()))).await;
    let mut changed = spec.clone();
    changed.limits.pids = Some(Setting::new(77, Origin::Session));
    let [record] = &backend.list().await.unwrap()[..] else { panic!("not one record") };
    assert_eq!((record.fingerprint.clone(), record.running), (spec.fingerprint(), true));
    let again = open(&backend, &changed).await;
    assert!(again.is_new());
    assert_eq!(marker.pids(), [0; 0]);
    let [record] = &backend.list().await.unwrap()[..] else { panic!("not one record") };
    assert_eq!(record.fingerprint, changed.fingerprint());
    // The other backend is another thing too, and lists only its own.
    let none = here.none();
    assert_eq!(none.list().await.unwrap(), []);
    let bare = open(&none, &changed).await;
    assert!(bare.is_new());
    assert_eq!(backend.list().await.unwrap(), []);
    close(&here, bare).await;
}

#[tokio::test]
async fn nothing_is_left_when_it_cannot_start() {
    let here = Here::new();
    let backend = here.restricted();
    let missing = with_workspace(ephemeral(), &here.path().join("none"), moltis_sandbox::MountMode::Ro);
    assert_eq!(backend.open(&missing).await.err().unwrap().code(), "workspace-missing");
    let inside = with_workspace(ephemeral(), &here.folder("data/x"), moltis_sandbox::MountMode::Ro);
    assert_eq!(backend.open(&inside).await.err().unwrap().code(), "workspace-refused");
    let root = with_workspace(ephemeral(), "/".as_ref(), moltis_sandbox::MountMode::Ro);
    assert_eq!(backend.open(&root).await.err().unwrap().code(), "workspace-refused");
    assert!(here.run_folders().is_empty() && here.scratch_folders().is_empty());

    let blocked = Here::new();
    std::fs::write(blocked.data(), "no folder").unwrap();
    assert_eq!(blocked.restricted().open(&ephemeral()).await.err().unwrap().code(), "data-dir");
}
