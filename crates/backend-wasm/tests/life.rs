//! Sandboxes: found again, idle, removed, and what stays of a home.

use std::time::Duration;

use moltis_sandbox::{Backend, SandboxId};

use crate::common::{World, eventually, names, out, sh};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_again_and_a_temporary_one_is_not() {
    let world = World::new();
    let spec = world.session("s", LONG);
    let first = world.backend().open(&spec).await.unwrap();
    assert!(first.is_new());
    out(&first, "echo 1 >/tmp/f; echo 2 >~/f").await;
    drop(first);
    let again = world.backend().adopt(&spec).await.unwrap().unwrap();
    assert!(!again.is_new());
    assert_eq!(out(&again, "cat /tmp/f ~/f").await, "1\n2\n");
    let mut other = spec.clone();
    other.limits.pids = Some(moltis_sandbox::Setting::built_in(7));
    assert!(world.backend().adopt(&other).await.unwrap().is_none());
    let listed = world.backend().list().await.unwrap();
    assert_eq!(listed.iter().map(|r| (r.id.clone(), r.running)).collect::<Vec<_>>(), [(spec.id(), true)]);
    again.close().await.unwrap();
    assert!(world.backend().find(&spec.id()).await.unwrap().is_none());
    assert_eq!(names(&world.data().join("sandbox/wasm")), [] as [&str; 0]);

    let temporary = world.backend().open(&world.spec("t")).await.unwrap();
    out(&temporary, "echo 1 >/tmp/f").await;
    assert!(world.backend().adopt(&world.spec("t")).await.unwrap().is_none());
    drop(temporary);
    eventually("the end of a temporary one", || names(&world.data().join("sandbox/wasm")).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn homes_last_as_they_are_to() {
    let world = World::new();
    let own = |key: &str| {
        let mut spec = world.session(key, LONG);
        let folder = world.data().join("sandbox/wasm").join(spec.id().as_str()).join("home");
        std::fs::create_dir_all(&folder).unwrap();
        spec.home = Some(folder);
        spec
    };
    // Of the session's own: it stays, and its temporary files go.
    for round in 0..2 {
        let sandbox = world.backend().open(&own("a")).await.unwrap();
        let line = "echo x >>~/f; cat ~/f | wc -l; ls /tmp; echo t >/tmp/t";
        assert_eq!(out(&sandbox, line).await, format!("{}\n", round + 1));
        sandbox.close().await.unwrap();
    }
    assert_eq!(names(&world.data().join("sandbox/wasm")), [own("a").id().as_str()]);
    // Shared.
    let shared = world.data().join("sandbox/home/shared/wasm");
    std::fs::create_dir_all(&shared).unwrap();
    for key in ["b", "c"] {
        let mut spec = world.session(key, LONG);
        spec.home = Some(shared.clone());
        let sandbox = world.backend().open(&spec).await.unwrap();
        out(&sandbox, "echo x >>~/f").await;
        sandbox.close().await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(shared.join("f")).unwrap(), "x\nx\n");
    // None.
    for _ in 0..2 {
        let sandbox = world.backend().open(&world.session("d", LONG)).await.unwrap();
        assert_eq!(out(&sandbox, "ls -A ~; echo x >~/f").await, "");
        sandbox.close().await.unwrap();
    }
    // A home that somebody made a link of is not shown.
    std::fs::remove_dir_all(&shared).unwrap();
    std::os::unix::fs::symlink(world.temp.path(), &shared).unwrap();
    let mut spec = world.session("e", LONG);
    spec.home = Some(shared);
    let error = world.backend().open(&spec).await.map(drop).unwrap_err();
    assert!(["refused", "unavailable"].contains(&error.kind()), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_ones_go_and_used_ones_stay() {
    let world = World::new();
    let spec = world.session("s", Duration::from_millis(600));
    let sandbox = world.backend().open(&spec).await.unwrap();
    out(&sandbox, "sleep 1.5; echo 1 >/tmp/f").await;
    assert!(world.backend().find(&spec.id()).await.unwrap().is_some());
    eventually("the end of an idle one", || names(&world.data().join("sandbox/wasm")).is_empty()).await;
    assert_eq!(
        sandbox.exec(crate::common::shell("echo x")).await.map(drop).unwrap_err().code(),
        "sandbox-gone"
    );
    assert!(world.backend().open(&spec).await.unwrap().is_new());
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_one_ends_what_runs_in_it_and_no_other() {
    let world = World::new();
    let (one, two) = (world.session("one", LONG), world.session("two", LONG));
    let (first, second) =
        (world.backend().open(&one).await.unwrap(), world.backend().open(&two).await.unwrap());
    let running = tokio::spawn({
        let first = first.clone();
        async move { sh(&first, "sleep 30").await }
    });
    for _ in 0..100 {
        if first.activity().await.unwrap().operations == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!world.backend().find(&one.id()).await.unwrap().unwrap().close_if_idle().await.unwrap());
    world.backend().remove(&one.id()).await.unwrap();
    assert_ne!(running.await.unwrap().outcome.exit_code(), 0);
    assert_eq!(out(&second, "echo alive").await, "alive\n");
    assert!(second.close_if_idle().await.unwrap());
    world.backend().remove(&SandboxId::of(&moltis_sandbox::SessionKey::new("none").unwrap())).await.unwrap();
    assert_eq!(world.backend().list().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_open_one_key_at_once_and_have_one_sandbox() {
    let world = World::new();
    let (spec, backend) = (world.session("s", LONG), std::sync::Arc::new(world.backend()));
    let opened = futures_util::future::join_all((0..16).map(|_| {
        let (backend, spec) = (backend.clone(), spec.clone());
        tokio::spawn(async move { backend.open(&spec).await.unwrap().is_new() })
    }))
    .await;
    assert_eq!(opened.into_iter().filter(|new| *new.as_ref().unwrap()).count(), 1);
}
