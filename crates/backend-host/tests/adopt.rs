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

#[tokio::test]
async fn a_silent_one_is_not_dead_and_can_be_ended() {
    let here = Here::new();
    let backend = here.restricted();
    let spec = lasting();
    let sandbox = open(&backend, &spec).await;
    let folder = here.run().join(spec.id().as_str());
    let record = std::fs::read(folder.join("host.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let pid = i32::try_from(record["process"]["pid"].as_u64().unwrap()).unwrap();
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    let other = here.restricted();
    for error in [
        other.find(&spec.id()).await.err().unwrap(),
        other.adopt(&spec).await.err().unwrap(),
        other.open(&spec).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-silent"));
        let said = error.diagnosis();
        assert!(said.cause.as_ref().unwrap().contains(&pid.to_string()) && said.fix.is_some(), "{said:?}");
    }
    assert!(other.list().await.unwrap()[0].running);
    signal(rustix::process::Signal::CONT);
    assert!(other.find(&spec.id()).await.unwrap().is_some());
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    // In another PID namespace it can be neither used nor ended.
    let mut elsewhere = record.clone();
    elsewhere["process"]["namespace"] = "pid:[1]".into();
    std::fs::write(folder.join("host.json"), elsewhere.to_string()).unwrap();
    for error in [
        other.find(&spec.id()).await.err().unwrap(),
        other.adopt(&spec).await.err().unwrap(),
        other.open(&spec).await.err().unwrap(),
        other.remove(&spec.id()).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-elsewhere"));
    }
    assert!(other.list().await.unwrap()[0].running);
    std::fs::write(folder.join("host.json"), record.to_string()).unwrap();
    signal(rustix::process::Signal::STOP);
    other.remove(&spec.id()).await.unwrap();
    assert!(here.run_folders().is_empty());
    assert!(other.find(&spec.id()).await.unwrap().is_none());
}

#[tokio::test]
async fn it_is_closed_only_if_idle() {
    let here = Here::new();
    let backend = here.restricted();
    let spec = lasting();
    let sandbox = open(&backend, &spec).await;
    let marker = Marker::new();
    let mut request = shell(marker.sleep());
    request.background = true;
    drop(sandbox.exec(request).await.unwrap());
    marker.becomes(1).await;
    let found = here.restricted().find(&spec.id()).await.unwrap().unwrap();
    assert!(!found.close_if_idle().await.unwrap());
    found.stop(found.processes().await.unwrap()[0].id).await.unwrap();
    assert!(found.close_if_idle().await.unwrap());
    assert!(here.run_folders().is_empty());
    assert!(sandbox.close_if_idle().await.unwrap(), "one that has ended is closed");
}
