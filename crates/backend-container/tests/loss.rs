//! Engines that go away: not started, killed during a call, and sockets that belong to others.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use moltis_backend_container::engine::{BuildSpec, EngineError, EngineKind, connect};

use super::daemon::Daemon;
use super::support::{IMAGE, exec, with};

fn is_gone<T>(result: &Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::Unreachable { engine: EngineKind::Docker, .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_is_unreachable_and_comes_back() {
    let Some(mut daemon) = Daemon::start("a_killed_daemon_is_unreachable_and_comes_back").await else {
        return;
    };
    let tested = daemon.tested().await;
    let engine = Arc::clone(&tested.engine);

    // While a program runs and is read from, while it is waited for, and while containers are made.
    let id = engine.create(&tested.spec()).await.unwrap();
    engine.start(&id).await.unwrap();
    let mut run = engine.exec(&id, &exec(&["/bin/sh", "-c", "echo on; sleep 50"])).await.unwrap();
    assert!(run.output.next().await.unwrap().is_some());
    let waiting = tokio::spawn({
        let (engine, id) = (Arc::clone(&engine), id.clone());
        async move { engine.wait(&id).await }
    });
    let making = tokio::spawn({
        let tested = daemon.tested().await;
        async move {
            loop {
                if let Err(error) = tested.engine.create(&tested.spec()).await {
                    return error;
                }
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    daemon.kill();
    let limit = Duration::from_secs(20);
    let made = tokio::time::timeout(limit, making).await.unwrap().unwrap();
    assert!(matches!(made, EngineError::Unreachable { .. }), "{made:?}");
    let waited = tokio::time::timeout(limit, waiting).await.unwrap().unwrap();
    assert!(is_gone(&waited), "{waited:?}");
    // A socket that is closed in order cannot be told from an end; what it was is asked for then.
    let read = tokio::time::timeout(limit, run.output.next()).await.unwrap();
    assert!(matches!(read, Ok(None)) || is_gone(&read), "{read:?}");
    let result = engine.exec_result(&run.id).await;
    assert!(is_gone(&result), "{result:?}");
    let answers = [
        engine.inspect(&id).await.map(drop),
        engine.start(&id).await,
        engine.remove(&id).await,
        engine.info().await.map(drop),
        engine.images(&[]).await.map(drop),
    ];
    for answer in answers {
        assert!(is_gone(&answer), "{answer:?}");
    }
    let again = connect(EngineKind::Docker, &daemon.environment()).await.map(drop);
    assert!(is_gone(&again), "{again:?}");

    // The same driver goes on when it is back.
    daemon.restart().await;
    engine.remove(&id).await.unwrap();
    assert_eq!(engine.inspect(&id).await.unwrap(), None);

    // While it builds.
    let spec = BuildSpec {
        dockerfile: format!("FROM {IMAGE}\nRUN echo started; sleep 40\n"),
        tag: "localhost/moltis-loss:1".to_owned(),
        labels: Default::default(),
    };
    let building = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.build(&spec, &()).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    daemon.kill();
    let built = tokio::time::timeout(limit, building).await.unwrap().unwrap();
    assert!(is_gone(&built), "{built:?}");
}

#[tokio::test]
async fn a_socket_of_others_names_the_group_that_may() {
    let test = "a_socket_of_others_names_the_group_that_may";
    if !moltis_testkit::need::as_root(test, "another user is tried") {
        return;
    }
    let Ok(groups) = std::fs::read_to_string("/etc/group") else { return };
    let Some((name, gid)) = groups.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let gid = fields.get(2)?.parse::<u32>().ok()?;
        (gid > 0 && fields[0] != "nogroup").then(|| (fields[0].to_owned(), gid))
    }) else {
        return moltis_testkit::need::skip(test, "there is no group");
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("s.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(0), Some(gid)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    let environment = with(&[("DOCKER_HOST", &format!("unix://{}", path.display()))]);
    // A thread of its own takes another identity, which the process as a whole keeps.
    let error = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // SAFETY: the raw call changes this thread alone, which is about to end.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        assert_eq!(changed, 0);
        runtime.block_on(connect(EngineKind::Docker, &environment)).err()
    })
    .join()
    .unwrap();
    let socket = path.display().to_string();
    assert_eq!(
        error,
        Some(EngineError::NoPermission { engine: EngineKind::Docker, socket, group: Some(name) })
    );
}
