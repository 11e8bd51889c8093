//! Faults of the program and of what it was started with: one error with a code, and never a silent end.

use crate::support::{Place, Ran};

#[track_caller]
fn one_error(ran: &Ran, status: i32, code: &str) {
    ran.fails(status, code);
    let begins: Vec<_> = ran.stderr.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(begins, [&*format!("error[{code}]"), "  cause", "  fix"], "{ran:?}");
}

#[test]
fn too_few_descriptors_are_said() {
    let place = Place::new();
    for limit in [4, 6, 8, 12, 16, 24, 30] {
        let ran = place.shell(&format!("ulimit -n {limit}; $moltis exec id")).output().unwrap().into();
        one_error(&ran, 125, "too-few-descriptors");
    }
    let ran = place.shell("ulimit -n 6; $moltis session list").output().unwrap().into();
    one_error(&ran, 1, "too-few-descriptors");
    assert!(!place.data().exists());
}

#[test]
fn as_few_as_are_asked_for_are_enough() {
    let place = Place::new();
    let workspace = place.workspace();
    let line = format!(
        "ulimit -n 36; echo in | $moltis exec --backend namespaces --session s --json --workspace {} cat",
        workspace.display()
    );
    let ran: Ran = place.shell(&line).output().unwrap().into();
    assert_eq!((ran.status, ran.json()["stdout"].as_str()), (Some(0), Some("in\n")), "{ran:?}");
}

#[test]
fn a_panic_is_an_error_like_any_other() {
    let place = Place::new();
    // No thread can be started.
    for (line, status) in [(["exec", "id"], 125), (["sandbox", "disk"], 1)] {
        let ran = place.moltis(line).env("RUST_MIN_STACK", (1_u64 << 50).to_string()).output().unwrap();
        let ran = Ran::from(ran);
        one_error(&ran, status, "internal");
        assert!(ran.stderr.contains("spawn") && ran.stderr.contains("fix: report it"), "{ran:?}");
    }
}

#[test]
fn a_full_file_is_an_error() {
    let place = Place::new();
    for line in ["exec --backend namespaces true", "exec --backend restricted-host true"] {
        let ran: Ran = place.shell(&format!("ulimit -f 0; $moltis {line}")).output().unwrap().into();
        assert_eq!(ran.status, Some(125), "{ran:?}");
        assert!(ran.stderr.starts_with("error["), "{ran:?}");
    }
}

#[test]
fn commands_find_every_signal_at_its_default() {
    let place = Place::new();
    for backend in ["namespaces", "restricted-host"] {
        let ran = place.run(["exec", "--backend", backend, "--", "grep", "SigIgn", "/proc/self/status"]);
        assert_eq!(
            (ran.status, &*ran.stdout),
            (Some(0), "SigIgn:\t0000000000000000\n"),
            "{backend}: {ran:?}"
        );
    }
}
