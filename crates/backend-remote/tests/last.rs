//! What is fetched of a workspace before its sandbox ends, and what becomes of one that cannot be asked.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::{
    Command, ExecRequest, Lifetime, Mount, MountMode, Origin, Sandbox, SandboxSpec, SessionKey, Setting,
};
use moltis_testkit::remote::Fault;
use moltis_testkit::remote::daytona::Age;

use crate::{daytona, rig};

fn spec(folder: &Path) -> SandboxSpec {
    let lifetime = Lifetime::Idle(Duration::from_secs(1800));
    let mut spec = SandboxSpec::new(SessionKey::new("s").unwrap(), lifetime);
    let source = folder.canonicalize().unwrap();
    spec.workspace =
        Some(Setting::new(Mount { source, target: "/workspace".into(), mode: MountMode::Rw }, Origin::Flag));
    spec
}

/// Leaves something running that changes the workspace a second after its command's end, when nobody fetches.
async fn changes_late(sandbox: &Arc<dyn Sandbox>) {
    let line = "(sleep 1; echo late >late; sleep 1000) >/dev/null 2>&1 &";
    let mut exec = sandbox.exec(ExecRequest::new(Command::Shell(line.into()))).await.unwrap();
    while let Some(event) = exec.events.next().await {
        event.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stopped_is_started_again_for_what_changed_last() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let sandbox = rig.backend().open(&spec).await.unwrap();
    changes_late(&sandbox).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    rig.daytona.expire().await;
    assert!(!folder.path().join("late").exists());
    rig.backend().remove(&spec.id()).await.unwrap();
    assert_eq!(std::fs::read_to_string(folder.path().join("late")).unwrap(), "late\n");
    assert_eq!((rig.daytona.machines(), rig.daytona.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_asked_after_is_kept_with_what_changed_last() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let sandbox = rig.backend().open(&spec).await.unwrap();
    changes_late(&sandbox).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    // As often as a call is made, and that as often as it is tried.
    rig.daytona.fail("GET", "/api/sandbox/", Fault::Status(503, "Service Unavailable", None), 12);
    let other = rig.backend();
    let error = other.remove(&spec.id()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "workspace-not-carried"), "{error}");
    assert!(error.diagnosis().fix.is_some());
    assert_eq!((rig.daytona.machines().len(), folder.path().join("late").exists()), (1, false));
    assert_eq!(rig.daytona.calls().iter().filter(|call| call.starts_with("DELETE /api/sandbox/")).count(), 0);
    // The provider answers again.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = other.remove(&spec.id()).await {
        assert!(Instant::now() < end, "{error}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("late")).unwrap(), "late\n");
    assert_eq!((rig.daytona.machines(), rig.daytona.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_fetch_that_breaks_off_is_begun_again() {
    let rig = rig::Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let sandbox = rig.backend().open(&spec).await.unwrap();
    changes_late(&sandbox).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    rig.vercel.fail("POST", "/cmd", Fault::Status(503, "unavailable", None), 2);
    rig.backend().remove(&spec.id()).await.unwrap();
    assert_eq!(std::fs::read_to_string(folder.path().join("late")).unwrap(), "late\n");
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}
