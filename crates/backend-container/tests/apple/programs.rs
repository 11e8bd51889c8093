//! Programs that are run in a container.

use std::time::{Duration, Instant};

use moltis_backend_container::engine::{EngineError, ExecSpec, Stream};
use moltis_testkit::apple::Version;
use tokio::io::AsyncWriteExt;

use super::{code, runs, tested};

fn spec(argv: &[&str]) -> ExecSpec {
    ExecSpec {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        user: None,
        directory: None,
        env: Vec::new(),
        terminal: None,
    }
}

#[tokio::test]
async fn streams_and_exit_codes_are_the_programs_own() {
    if !runs("apple::programs::streams_and_exit_codes_are_the_programs_own") {
        return;
    }
    for version in Version::ALL {
        let tested = tested(version).await;
        let id = tested.running("one").await;
        let (out, err, code) =
            tested.output(&id, &["/bin/sh", "-c", "echo a; echo b >&2; exit 7"]).await.unwrap();
        assert_eq!((&*out, &*err, code), ("a\n", "b\n", 7));
        // It is the container's user.
        assert_eq!(tested.output(&id, &["id", "-u"]).await.unwrap().0, "1000\n");
        let other = ExecSpec {
            user: Some((7, 8)),
            directory: Some("/etc".to_owned()),
            env: vec![("V".to_owned(), "x y".to_owned())],
            ..spec(&["/bin/sh", "-c", "id -u; id -g; pwd; echo $V; cat"])
        };
        let mut running = tested.engine.exec(&id, &other).await.unwrap();
        assert_eq!(tested.engine.exec_result(&running.id).await.unwrap(), None);
        running.stdin.write_all(b"given\n").await.unwrap();
        running.stdin.shutdown().await.unwrap();
        let mut out = Vec::new();
        while let Some((stream, piece)) = running.output.next().await.unwrap() {
            assert_eq!(stream, Stream::Stdout, "{}", String::from_utf8_lossy(&piece));
            out.extend(piece);
        }
        assert_eq!(String::from_utf8(out).unwrap(), "7\n8\n/etc\nx y\ngiven\n");
        tested.engine.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn output_is_read_no_faster_than_it_is_taken() {
    if !runs("apple::programs::output_is_read_no_faster_than_it_is_taken") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let id = tested.running("one").await;
    let mut running = tested
        .engine
        .exec(&id, &spec(&["/bin/sh", "-c", "dd if=/dev/zero bs=1000000 count=20 2>/dev/null"]))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(tested.engine.exec_result(&running.id).await.unwrap(), None);
    let mut count = 0;
    while let Some((_, piece)) = running.output.next().await.unwrap() {
        assert!(piece.len() <= 1 << 18);
        count += piece.len();
    }
    assert_eq!(count, 20_000_000);
    tested.engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn letting_go_of_a_program_leaves_no_tool_behind() {
    if !runs("apple::programs::letting_go_of_a_program_leaves_no_tool_behind") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let id = tested.running("one").await;
    let before = tested.standin.processes().len();
    // One that ends with its input, as the relay does, and one that does not.
    for argv in [&["cat"][..], &["sleep", "1000"]] {
        drop(tested.engine.exec(&id, &spec(argv)).await.unwrap());
    }
    let begun = Instant::now();
    while tested.standin.processes().len() > before {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tested.engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn what_a_program_prints_says_nothing_of_the_engine() {
    if !runs("apple::programs::what_a_program_prints_says_nothing_of_the_engine") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let id = tested.running("one").await;
    for words in [
        "Error: VM never booted",
        "Error: config.json missing",
        "Error: Error Domain=NSPOSIXErrorDomain Code=22",
        "Error: XPC connection error: Connection invalid",
    ] {
        for code in [1, 64] {
            let script = format!("echo '{words}' >&2; exit {code}");
            let told = tested.output(&id, &["/bin/sh", "-c", &script]).await.unwrap();
            assert_eq!(told, (String::new(), format!("{words}\n"), code));
        }
    }
    // One that is missing is no trouble of the engine's either.
    let (_, err, code) = tested.output(&id, &["/no/such/program"]).await.unwrap();
    assert!(code == 1 && err.contains("failed to find target executable"), "{code} {err}");
    tested.engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn a_broken_engine_is_told_from_a_program_that_failed() {
    if !runs("apple::programs::a_broken_engine_is_told_from_a_program_that_failed") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let id = tested.running("one").await;
    for (kind, expected) in [
        ("config-missing", "apple-config-missing"),
        ("config-lost", "apple-config-missing"),
        ("vm-never-booted", "apple-vm-never-booted"),
        ("code-22", "apple-code-22"),
        ("service", "apple-service"),
    ] {
        tested.standin.fail("exec", kind);
        assert_eq!(code(tested.output(&id, &["true"]).await), expected, "{kind}");
        tested.standin.fail("*", kind);
        assert_eq!(code(tested.output(&id, &["true"]).await), expected, "{kind}");
    }
    tested.standin.fail("exec", "odd");
    assert_eq!(tested.output(&id, &["true"]).await.unwrap().2, 1);
    tested.standin.heal();
    assert_eq!(tested.output(&id, &["true"]).await.unwrap().2, 0);
    tested.engine.remove(&id).await.unwrap();
    let gone = tested.output(&id, &["true"]).await;
    assert!(matches!(gone, Err(EngineError::NoSuchContainer { .. })), "{gone:?}");
}

#[tokio::test]
async fn a_terminal_is_refused() {
    let tested = tested(Version::V1_1).await;
    let terminal = ExecSpec { terminal: Some((24, 80)), ..spec(&["true"]) };
    assert!(matches!(tested.engine.exec("one", &terminal).await, Err(EngineError::Refused { .. })));
    assert!(matches!(tested.engine.exec("one", &spec(&[])).await, Err(EngineError::Refused { .. })));
    assert!(matches!(tested.engine.exec_resize("x", 1, 1).await, Err(EngineError::Refused { .. })));
    assert!(tested.engine.exec_result("x").await.is_err());
}
