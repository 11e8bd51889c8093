//! Commands without a caller: found again by whoever comes later, their changes fetched, and their machine kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Mount, MountMode, Origin, ProcessInfo, Sandbox,
    SandboxSpec, SessionKey, Setting, Status,
};
use moltis_testkit::remote::Fault;
use moltis_testkit::remote::daytona::Age;

use crate::{daytona, rig};

fn spec() -> SandboxSpec {
    SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Idle(Duration::from_secs(1800)))
}

fn background(line: &str) -> ExecRequest {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.background = true;
    request
}

async fn over(sandbox: &dyn Sandbox) -> ProcessInfo {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let known = sandbox.processes().await.unwrap();
        match &known[..] {
            [one] if one.outcome.is_some() => return one.clone(),
            _ if Instant::now() > end => panic!("it does not end: {known:?}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Starts one in a process whose word is forgotten, and finds it by another, with its output and its end.
async fn another_process_finds_it(backend: impl Fn() -> Arc<dyn Backend>) {
    let first = backend().open(&spec()).await.unwrap();
    let started =
        first.exec(background("echo one; while ! [ -e go ]; do sleep 0.1; done; echo two; exit 5")).await;
    std::mem::forget(started.unwrap());
    let second = backend().adopt(&spec()).await.unwrap().unwrap();
    let known = second.processes().await.unwrap();
    assert_eq!((known.len(), known[0].id.0, known[0].outcome.is_none()), (1, 1, true), "{known:?}");
    assert!(second.activity().await.unwrap().operations > 0 && !second.close_if_idle().await.unwrap());
    let mut go = second.exec(ExecRequest::new(Command::Shell(": >go".into()))).await.unwrap();
    while go.events.next().await.is_some() {}
    let mut watch = second.attach(known[0].id, 4, 0, true).await.unwrap();
    let (mut said, mut status) = (Vec::new(), None);
    while let Some(event) = watch.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => said.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => status = Some(outcome.status),
            _ => {}
        }
    }
    assert_eq!((String::from_utf8(said).unwrap().as_str(), status), ("two\n", Some(Status::Code(5))));
    second.close().await.unwrap();
}

/// A start whose answer was lost is `lost`, is not sent again, and nothing of it runs afterwards.
async fn a_lost_start_is_not_repeated(
    backend: Arc<dyn Backend>,
    fails: impl Fn(),
    starts: impl Fn() -> usize,
) {
    let sandbox = backend.open(&spec()).await.unwrap();
    fails();
    let had = starts();
    let error = sandbox.exec(background("echo x >>ran; sleep 1000")).await.err().unwrap();
    assert_eq!(error.kind(), "lost", "{error:?}");
    let began = starts() - had;
    let end = Instant::now() + Duration::from_secs(30);
    while sandbox.processes().await.unwrap().iter().any(|one| one.outcome.is_none()) {
        assert!(Instant::now() < end, "it runs on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut look =
        sandbox.exec(ExecRequest::new(Command::Shell("cat ran 2>/dev/null; :".into()))).await.unwrap();
    let mut said = Vec::new();
    while let Some(Ok(event)) = look.events.next().await {
        if let ExecEvent::Stdout(bytes) = event {
            said.extend_from_slice(&bytes);
        }
    }
    assert!(said.is_empty() || said == b"x\n", "it ran more than once: {said:?}");
    assert!(began >= 1);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_finds_a_background_command_and_its_end() {
    let at_daytona = daytona::Rig::new(Age::Newer).await;
    another_process_finds_it(|| at_daytona.backend()).await;
    assert_eq!((at_daytona.daytona.machines(), at_daytona.daytona.wrong()), (vec![], vec![]));
    let at_vercel = rig::Rig::new().await;
    another_process_finds_it(|| at_vercel.backend()).await;
    assert_eq!((at_vercel.vercel.machines(), at_vercel.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_answer_is_lost_is_not_sent_again() {
    let at = rig::Rig::new().await;
    let starts = || at.vercel.calls().iter().filter(|call| call.ends_with("/cmd")).count();
    a_lost_start_is_not_repeated(at.backend(), || at.vercel.fail("POST", "/cmd", Fault::CutAfter, 1), starts)
        .await;
    assert_eq!((at.vercel.machines(), at.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_background_command_changed_comes_back_with_its_end() {
    let at = rig::Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec();
    let source = folder.path().canonicalize().unwrap();
    let mount = Mount { source, target: "/workspace".into(), mode: MountMode::Rw };
    spec.workspace = Some(Setting::new(mount, Origin::Flag));
    let sandbox = at.backend().open(&spec).await.unwrap();
    drop(sandbox.exec(background("echo made >made")).await.unwrap());
    let id = over(&*sandbox).await.id;
    assert!(!folder.path().join("made").exists(), "nobody watches");
    let mut watch = sandbox.attach(id, 0, 0, true).await.unwrap();
    while watch.events.next().await.is_some() {}
    assert_eq!(std::fs::read_to_string(folder.path().join("made")).unwrap(), "made\n");
    sandbox.close().await.unwrap();
    assert_eq!((at.vercel.machines(), at.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_is_taken_once_and_goes_nowhere_once_the_command_has_closed_it() {
    let at = daytona::Rig::new(Age::Newer).await;
    let sandbox = at.backend().open(&spec()).await.unwrap();
    let mut request =
        background("head -c 4; exec </dev/null; echo; while ! [ -e go ]; do sleep 0.1; done; echo end");
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    exec.control.stdin("four".into()).await.unwrap();
    let mut said = Vec::new();
    let mut status = None;
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => {
                said.extend_from_slice(&bytes);
                if said == b"four\n" {
                    exec.control.stdin("for nobody".into()).await.unwrap();
                    let line = Command::Shell(": >go".into());
                    let mut go = sandbox.exec(ExecRequest::new(line)).await.unwrap();
                    while go.events.next().await.is_some() {}
                }
            }
            ExecEvent::Exit(outcome) => status = Some(outcome.status),
            _ => {}
        }
    }
    assert_eq!((String::from_utf8(said).unwrap().as_str(), status), ("four\nend\n", Some(Status::Code(0))));
    exec.control.stdin("for nobody".into()).await.unwrap();
    exec.control.signal(9).await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!((at.daytona.machines(), at.daytona.wrong()), (vec![], vec![]));
}
