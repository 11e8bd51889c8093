//! Containers from their making to their end, on every version.

use std::time::{Duration, Instant};

use moltis_backend_container::engine::{
    Bind, ContainerState, EngineError, NetworkMode, Place, Relabel, Support, Tmpfs,
};
use moltis_testkit::apple::Version;

use super::{bare, runs, tested};

#[tokio::test]
async fn an_engine_tells_what_it_keeps() {
    for version in Version::ALL {
        let (_standin, engine) = bare(version);
        let info = engine.info().await.unwrap();
        assert_eq!(info.version, format!("{}.{}.0", version.0, version.1));
        assert_eq!((info.place, &info.memory, &info.cpus), (Place::Vm, &Support::Yes, &Support::Yes));
        assert_eq!(info.pids.is_yes(), version >= Version::V0_9, "{version:?}");
        // Whatever it leaves off is said.
        let lacks = |row: &str| info.warnings.iter().any(|warning| warning.starts_with(&format!("{row}: ")));
        for row in ["hostname", "tmpfs options", "no-new-privileges"] {
            assert!(lacks(row), "{row}");
        }
        assert_eq!(lacks("cap-drop"), version < Version::V1_1);
        assert_eq!(lacks("read-only"), version < Version::V0_8);
        assert_eq!(lacks("passwd and group"), version < Version::V0_9);
    }
}

#[tokio::test]
async fn containers_are_made_found_and_removed() {
    for version in Version::ALL {
        let tested = tested(version).await;
        let engine = &tested.engine;
        let mut spec = tested.spec("one");
        spec.labels = [("a", "1"), ("b", "2")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let id = engine.create(&spec).await.unwrap();
        assert_eq!(id, "one");
        let mut other = tested.spec("two");
        other.labels.insert("a".to_owned(), "3".to_owned());
        engine.create(&other).await.unwrap();
        let found = engine.inspect("one").await.unwrap().unwrap();
        assert_eq!((&*found.id, &*found.name, &*found.image), ("one", "one", &*tested.image));
        let created = if version < Version::V0_8 { ContainerState::Exited } else { ContainerState::Created };
        assert_eq!(found.state, created, "{version:?}");
        assert!(found.created_secs > 1_700_000_000);
        let names = async |labels: &[(&str, &str)]| {
            let mut found: Vec<_> =
                engine.containers(labels).await.unwrap().into_iter().map(|found| found.id).collect();
            found.sort();
            found
        };
        assert_eq!(names(&[]).await, ["one", "two"]);
        assert_eq!(names(&[("a", "")]).await, ["one", "two"]);
        assert_eq!(names(&[("a", "1"), ("b", "2")]).await, ["one"]);
        assert!(names(&[("a", "1"), ("b", "3")]).await.is_empty());
        assert!(matches!(engine.create(&spec).await, Err(EngineError::Conflict { .. })));
        engine.remove("one").await.unwrap();
        engine.remove("one").await.unwrap();
        engine.remove("two").await.unwrap();
        assert_eq!(engine.inspect("one").await.unwrap(), None);
        assert_eq!(engine.inspect("--all").await.unwrap(), None);
        assert!(engine.logs("one", 100).await.unwrap().is_empty());
        assert!(matches!(engine.start("one").await, Err(EngineError::NoSuchContainer { .. })));
        assert!(tested.standin.containers().is_empty());
    }
}

#[tokio::test]
async fn containers_run_and_end() {
    if !runs("apple::lifecycle::containers_run_and_end") {
        return;
    }
    for version in Version::ALL {
        let tested = tested(version).await;
        let engine = &tested.engine;
        let id = tested.running("one").await;
        let found = engine.inspect(&id).await.unwrap().unwrap();
        assert_eq!((found.state, found.lives(), found.pid), (ContainerState::Running, true, 0));
        let begun = Instant::now();
        let words = loop {
            let words = engine.logs(&id, 4).await.unwrap();
            if !words.is_empty() || begun.elapsed() > Duration::from_secs(5) {
                break words;
            }
        };
        // The last bytes.
        assert_eq!(words, b"gun\n");
        engine.remove(&id).await.unwrap();
        engine.wait(&id).await.unwrap();
        // One that ends by itself.
        let mut spec = tested.spec("two");
        spec.argv = ["/bin/sh", "-c", "exit 3"].map(str::to_owned).to_vec();
        let id = engine.create(&spec).await.unwrap();
        engine.start(&id).await.unwrap();
        engine.wait(&id).await.unwrap();
        assert_eq!(engine.inspect(&id).await.unwrap().unwrap().state, ContainerState::Exited);
        engine.remove(&id).await.unwrap();
        // One that goes by itself.
        spec.auto_remove = true;
        let id = engine.create(&spec).await.unwrap();
        engine.start(&id).await.unwrap();
        let begun = Instant::now();
        while engine.inspect(&id).await.unwrap().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
        let begun = Instant::now();
        while !tested.standin.processes().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", tested.standin.processes());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_is_told() {
    if !runs("apple::lifecycle::a_program_that_cannot_be_executed_is_told") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let mut spec = tested.spec("one");
    spec.argv[0] = "/no/such/program".to_owned();
    let id = tested.engine.create(&spec).await.unwrap();
    match tested.engine.start(&id).await {
        Err(EngineError::CannotStart { message }) => {
            assert!(message.contains("/no/such/program"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    tested.engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn what_is_asked_for_is_so_inside() {
    if !runs("apple::lifecycle::what_is_asked_for_is_so_inside") {
        return;
    }
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("file"), "outside\n").unwrap();
    for version in Version::ALL {
        let tested = tested(version).await;
        let mut spec = tested.spec("one");
        spec.user = (1234, 567);
        spec.directory = "/tmp".to_owned();
        spec.env = vec![("GIVEN".to_owned(), "a b=c".to_owned())];
        spec.tmpfs = vec![Tmpfs { target: "/tmp".to_owned(), options: "rw,size=1m,mode=1777".to_owned() }];
        spec.binds = vec![Bind {
            source: host.path().to_owned(),
            target: "/shown".to_owned(),
            read_only: true,
            relabel: Relabel::Not,
        }];
        (spec.memory, spec.cpus, spec.read_only_root) = (Some(100 << 20), Some(2.0), true);
        spec.drop_capabilities = true;
        spec.pids = (version >= Version::V0_9).then_some(7);
        if version >= Version::V0_8 {
            spec.network = NetworkMode::None;
        }
        let id = tested.engine.create(&spec).await.unwrap();
        tested.engine.start(&id).await.unwrap();
        let script = "id -u; id -g; pwd; echo \"$GIVEN|$IMAGE\"; cat /shown/file; touch /shown/x 2>/dev/null || echo kept; \
                      touch /tmp/x && echo made; touch /root-file 2>/dev/null || echo sealed; ls /sys/class/net";
        let (out, err, code) = tested.output(&id, &["/bin/sh", "-c", script]).await.unwrap();
        assert_eq!(
            (out.as_str(), code),
            ("1234\n567\n/tmp\na b=c|yes\noutside\nkept\nmade\nsealed\nlo\n", 0),
            "{version:?}: {err}"
        );
        if spec.pids.is_some() {
            let (_, err, code) = tested
                .output(&id, &["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done"])
                .await
                .unwrap();
            assert!(code != 0 && err.contains("fork"), "{version:?}: {code} {err}");
        }
        let found = tested.engine.inspect(&id).await.unwrap().unwrap();
        assert_eq!(found.mounts, [(host.path().to_owned(), "/shown".to_owned())]);
        tested.engine.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_taken_that_cannot_be_kept() {
    for version in Version::ALL {
        let tested = tested(version).await;
        let refused = async |change: &dyn Fn(&mut moltis_backend_container::engine::ContainerSpec)| {
            let mut spec = tested.spec("one");
            change(&mut spec);
            let result = tested.engine.create(&spec).await;
            match result {
                Err(EngineError::Refused { message, .. }) => Some(message),
                Ok(id) => {
                    tested.engine.remove(&id).await.unwrap();
                    None
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(&|_| {}).await, None);
        assert!(refused(&|spec| spec.cpus = Some(0.5)).await.unwrap().contains("whole"));
        assert!(refused(&|spec| spec.privileged = true).await.is_some());
        assert!(refused(&|spec| spec.name = "x".repeat(64)).await.unwrap().contains("64 characters"));
        assert_eq!(refused(&|spec| spec.name = "x".repeat(63)).await, None);
        let pids = refused(&|spec| spec.pids = Some(9)).await;
        assert_eq!(pids.is_some(), version < Version::V0_9, "{pids:?}");
        let network = refused(&|spec| spec.network = NetworkMode::None).await;
        assert_eq!(network.is_some(), version < Version::V0_8, "{network:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let bound = refused(&|spec| {
            spec.binds = vec![Bind {
                source: file.path().to_owned(),
                target: "/x".to_owned(),
                read_only: true,
                relabel: Relabel::Not,
            }];
        })
        .await;
        assert_eq!(bound.is_some(), version < Version::V0_9, "{bound:?}");
        assert!(tested.standin.containers().is_empty());
    }
}

#[tokio::test]
async fn an_image_is_never_fetched_by_the_way() {
    let tested = tested(Version::V1_1).await;
    tested.standin.image("localhost/far:1", None, &[("x", "y")]);
    tested.standin.publish("localhost/far:1");
    tested.engine.remove_image("localhost/far:1").await.unwrap();
    for image in ["localhost/far:1", "sha256:0000", "--privileged"] {
        let mut spec = tested.spec("one");
        spec.image = image.to_owned();
        let result = tested.engine.create(&spec).await;
        assert!(matches!(result, Err(EngineError::NoSuchImage { .. })), "{result:?}");
    }
    assert!(!tested.standin.fetched());
}
