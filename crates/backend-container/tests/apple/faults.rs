//! Every known failure at every stage, and answers that are none.

use std::time::{Duration, Instant};

use moltis_backend_container::apple::Apple;
use moltis_backend_container::engine::{BuildSpec, EngineError};
use moltis_sandbox::Error;
use moltis_testkit::apple::Version;

use super::{Tested, bare, code, program, tested};

const KNOWN: [(&str, &str); 5] = [
    ("config-missing", "apple-config-missing"),
    ("config-lost", "apple-config-missing"),
    ("vm-never-booted", "apple-vm-never-booted"),
    ("code-22", "apple-code-22"),
    ("service", "apple-service"),
];

#[tokio::test]
async fn every_failure_has_its_code_at_every_stage() {
    for version in Version::ALL {
        let tested = tested(version).await;
        let engine = &tested.engine;
        let id = engine.create(&tested.spec("there")).await.unwrap();
        for (kind, expected) in KNOWN {
            let at = |stage: &str| tested.standin.fail(stage, kind);
            at("create");
            assert_eq!(code(engine.create(&tested.spec("one")).await), expected);
            at("start");
            assert_eq!(code(engine.start(&id).await), expected);
            at("list");
            assert_eq!(code(engine.containers(&[]).await), expected);
            at("inspect");
            assert_eq!(code(engine.inspect(&id).await), expected);
            assert_eq!(code(engine.wait(&id).await), expected);
            at("delete");
            assert_eq!(code(engine.remove(&id).await), expected);
            at("logs");
            assert_eq!(code(engine.logs(&id, 10).await), expected);
            at("image list");
            assert_eq!(code(engine.create(&tested.spec("one")).await), expected);
            assert_eq!(code(engine.images(&[]).await), expected);
            at("image inspect");
            assert_eq!(code(engine.image("x").await), expected);
            at("image pull");
            assert_eq!(code(engine.pull("x", &()).await), expected);
            at("image delete");
            assert_eq!(code(engine.remove_image(super::IMAGE).await), expected);
            at("image save");
            assert_eq!(code(engine.save(super::IMAGE).await.map(drop)), expected);
        }
        tested.standin.heal();
        // It may fail over by these and by no others.
        let error = Error::from(EngineError::Broken {
            engine: engine.kind(),
            code: "apple-code-22",
            message: String::new(),
        });
        assert!(error.is_engine_failure());
        tested.standin.fail("start", "odd");
        assert!(matches!(engine.start(&id).await, Err(EngineError::CannotStart { .. })));
        tested.standin.fail("create", "odd");
        assert!(matches!(engine.create(&tested.spec("one")).await, Err(EngineError::Refused { .. })));
    }
}

#[tokio::test]
async fn a_machine_that_never_boots_is_noticed_though_the_tool_is_content() {
    let tested = tested(Version::V1_1).await;
    let id = tested.engine.create(&tested.spec("one")).await.unwrap();
    tested.standin.fail("start", "never-boots");
    assert_eq!(code(tested.engine.start(&id).await), "apple-vm-never-booted");
}

#[tokio::test]
async fn a_connection_that_breaks_off_is_believed_only_without_a_service() {
    let tested = tested(Version::V0_5).await;
    let id = tested.engine.create(&tested.spec("one")).await.unwrap();
    tested.standin.fail("start", "interrupted");
    let result = tested.engine.start(&id).await;
    assert!(matches!(result, Err(EngineError::CannotStart { .. })), "{result:?}");
    tested.standin.fail("*", "interrupted");
    assert_eq!(code(tested.engine.start(&id).await), "apple-service");
}

#[tokio::test]
async fn a_stopped_service_is_told_with_what_starts_it() {
    for version in Version::ALL {
        let (standin, engine) = bare(version);
        standin.down();
        match engine.info().await {
            Err(EngineError::Broken { code: "apple-service", message, .. }) => {
                assert!(
                    message.contains("not running") && message.contains("container system start"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
        // What a step of a build printed does not decide; the service does.
        let spec = BuildSpec { dockerfile: "FROM x".to_owned(), tag: "t".to_owned(), ..BuildSpec::default() };
        assert_eq!(code(engine.build(&spec, &()).await), "apple-service");
        standin.heal();
        engine.info().await.unwrap();
    }
}

#[tokio::test]
async fn answers_that_are_none_are_errors_and_take_no_memory() {
    let tested = tested(Version::V1_1).await;
    let engine = &tested.engine;
    for kind in ["garbage", "huge"] {
        tested.standin.fail("list", kind);
        let result = engine.containers(&[]).await;
        assert!(matches!(result, Err(EngineError::Answer { .. })), "{kind}: {result:?}");
        tested.standin.fail("inspect", kind);
        assert!(matches!(engine.inspect("one").await, Err(EngineError::Answer { .. })), "{kind}");
        tested.standin.fail("image list", kind);
        assert!(matches!(engine.images(&[]).await, Err(EngineError::Answer { .. })), "{kind}");
        tested.standin.fail("create", kind);
        assert!(
            matches!(engine.create(&tested.spec("one")).await, Err(EngineError::Answer { .. })),
            "{kind}"
        );
    }
    tested.standin.fail("list", "silent");
    assert!(matches!(engine.containers(&[]).await, Err(EngineError::Refused { .. })));
    tested.standin.fail("list", "killed");
    assert!(matches!(engine.containers(&[]).await, Err(EngineError::Answer { .. })));
    assert!(tested.standin.containers().is_empty());
}

#[tokio::test]
async fn a_tool_that_hangs_ends_with_whoever_waits_for_it() {
    let tested = tested(Version::V1_1).await;
    tested.standin.fail("*", "hang");
    for _ in 0..3 {
        let asked = tokio::time::timeout(Duration::from_millis(300), tested.engine.containers(&[])).await;
        assert!(asked.is_err());
    }
    ended(&tested).await;
}

/// Waits until no tool is left.
async fn ended(tested: &Tested) {
    let begun = Instant::now();
    while !tested.standin.processes().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_tool_has_a_time_limit_of_its_own() {
    let tested = tested(Version::V1_1).await;
    tested.standin.fail("list", "hang");
    match tested.engine.containers(&[]).await {
        Err(error @ EngineError::TimedOut { .. }) => {
            let error = Error::from(error);
            assert_eq!((error.code(), error.is_engine_failure()), ("engine-slow", false));
        }
        other => panic!("{other:?}"),
    }
    ended(&tested).await;
}

#[tokio::test]
async fn another_program_of_that_name_is_not_the_tool() {
    use moltis_backend_container::engine::Engine;

    let folder = tempfile::tempdir().unwrap();
    let variables = [("PATH".to_owned(), folder.path().display().to_string())].into();
    assert!(matches!(Apple::find(&variables), Err(EngineError::NotInstalled { .. })));
    let place = folder.path().join("container");
    for text in ["#!/bin/sh\necho container 5\n", "#!/bin/sh\necho container CLI version 0.4.1\n", "nonsense"]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&place, text).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
        let result = Apple::find(&variables).unwrap().info().await;
        assert!(matches!(result, Err(EngineError::NotInstalled { .. })), "{text}: {result:?}");
    }
    assert!(program().is_file());
}
