//! Background commands that this very process holds, as a program without keepers of its own has them.

use std::time::{Duration, Instant};

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Backend, Ending, Exec, ExecEvent, Outcome, Status};

use crate::common::{World, shell};

/// What is there from these offsets on.
async fn watched(mut exec: Exec) -> (String, String, Option<Outcome>) {
    let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => end = Some(outcome),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } => {}
        }
    }
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), end)
}

async fn started(exec: &mut Exec) -> ProcessId {
    match exec.events.next().await.unwrap().unwrap() {
        ExecEvent::Started(process) => process,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_is_found_watched_fed_and_remembered_by_another_handle() {
    let world = World::new();
    let spec = world.session("s", Duration::from_secs(60));
    let sandbox = world.backend().open(&spec).await.unwrap();
    let mut request = shell("echo on; echo e >&2; while read x; do echo \"<$x>\"; done; exit 4");
    (request.background, request.stdin, request.timeout) = (true, true, None);
    let mut exec = sandbox.exec(request).await.unwrap();
    let process = started(&mut exec).await;
    drop((exec, sandbox));
    let other = world.backend().adopt(&spec).await.unwrap().unwrap();
    let listed = other.processes().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id, listed[0].background, &listed[0].outcome), (process, true, &None));
    assert_eq!(other.activity().await.unwrap().operations, 1);
    let mut feeding = other.attach(process, 0, 0, true).await.unwrap();
    feeding.control.stdin("a\nb\n".into()).await.unwrap();
    feeding.control.close_stdin().await.unwrap();
    let (stdout, stderr, end) = watched(feeding).await;
    let end = end.unwrap();
    assert_eq!((stdout.as_str(), stderr.as_str()), ("on\n<a>\n<b>\n", "e\n"));
    assert_eq!(
        (end.status, end.ending, end.stdout_bytes, end.stderr_bytes),
        (Status::Code(4), Ending::Exited, 11, 2)
    );
    let (stdout, stderr, again) = watched(other.attach(process, 3, 9, false).await.unwrap()).await;
    assert_eq!((stdout.as_str(), stderr.as_str(), again), ("<a>\n<b>\n", "", Some(end.clone())));
    assert_eq!(other.processes().await.unwrap()[0].outcome, Some(end.clone()));
    assert_eq!(other.stop(process).await.unwrap(), end);
    let unknown = other.attach(ProcessId(99), 0, 0, true).await.map(drop).unwrap_err();
    assert_eq!((unknown.kind(), unknown.code()), ("invalid", "process-missing"));
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_ends_when_it_is_stopped_and_with_its_sandbox() {
    let world = World::new();
    let spec = world.session("s", Duration::from_secs(60));
    let sandbox = world.backend().open(&spec).await.unwrap();
    let mut request = shell("while :; do echo x >>f; sleep 0.02; done");
    (request.background, request.timeout) = (true, None);
    let process = started(&mut sandbox.exec(request.clone()).await.unwrap()).await;
    let began = Instant::now();
    let outcome = sandbox.stop(process).await.unwrap();
    assert_eq!((outcome.ending, outcome.status), (Ending::Cancelled, Status::Signal(15)));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let mut watcher = sandbox.exec(request).await.unwrap();
    let second = started(&mut watcher).await;
    assert!(second > process, "{second} after {process}");
    sandbox.close().await.unwrap();
    assert!(!world.data().join("sandbox/wasm").join(sandbox.id().as_str()).exists());
    // Whoever watches is told, one way or the other.
    while let Some(event) = watcher.events.next().await {
        match event {
            Ok(ExecEvent::Exit(outcome)) => assert_eq!(outcome.ending, Ending::Cancelled),
            Err(error) => assert_eq!(error.kind(), "lost"),
            Ok(_) => {}
        }
    }
}
