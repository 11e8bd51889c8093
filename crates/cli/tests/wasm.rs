//! The in-process shell, as a user of the program has it: what one process leaves is there for the next.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Place, Ran};

fn exec(place: &Place, args: &[&str]) -> Ran {
    place.run(["exec", "--backend", "wasm"].iter().chain(args))
}

#[test]
fn a_command_runs_and_ends_as_elsewhere() {
    let place = Place::new();
    exec(&place, &["echo a | tr a-z A-Z; echo e >&2; exit 3"]).is(3, "A\n", "e\n");
    place.fed(["exec", "--backend", "wasm", "sort"], b"b\na\n").is(0, "a\nb\n", "");
    let ran = exec(&place, &["--timeout", "1s", "echo so far; sleep 60"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(124), "so far\n"));
    let ran = exec(&place, &["nosuch"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(127), "nosuch: command not found in WASM sandbox\n"));
    let ran = exec(&place, &["--json", "exit 7"]);
    assert_eq!((&ran.json()["backend"], &ran.json()["exitCode"]), (&json!("wasm"), &json!(7)));
    exec(&place, &["--network", "open", "true"]).fails(125, "demand-not-kept");
}

#[test]
fn a_session_outlives_its_processes_with_what_runs_in_its_background() {
    let place = Place::new();
    let session = ["--session", "s"];
    exec(&place, &[&session[..], &["echo kept >f"]].concat()).is(0, "", "");
    exec(&place, &[&session[..], &["cat f"]].concat()).is(0, "kept\n", "");
    let line = "echo on; read x; echo got $x; sleep 0.3; exit 4";
    let started = exec(&place, &[&session[..], &["--background", line]].concat());
    let process = started.stdout.trim().to_owned();
    assert_eq!(started.status, Some(0), "{started:?}");
    assert_eq!(place.processes().len(), 1, "it has a process to itself");
    place.fed(["process", "input", "s", &process], b"it\n").is(0, "", "");
    place.run(["process", "output", "s", &process, "--follow"]).is(4, "on\ngot it\n", "");
    let listed = place.run(["process", "list", "s", "--json"]).json()["processes"][0].clone();
    assert_eq!((&listed["running"], &listed["exitCode"]), (&json!(false), &json!(4)));
    // One that goes on is ended by name, or with its sandbox.
    let endless = "while :; do echo x; sleep 0.05; done";
    for end in [&["process", "stop", "s"][..], &["sandbox", "rm", "s"]] {
        let started = exec(&place, &[&session[..], &["--background", endless]].concat());
        assert_eq!(started.status, Some(0), "{started:?}");
        assert_eq!(place.processes().len(), 1);
        let number = Some(started.stdout.trim()).filter(|_| end[0] == "process");
        let ended = place.run(end.iter().copied().chain(number));
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let until = Instant::now() + Duration::from_secs(5);
        while !place.processes().is_empty() {
            assert!(Instant::now() < until, "{:?}", place.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn memory_is_the_sandboxs_and_not_each_processs() {
    let place = Place::new();
    let session = ["--session", "s", "--memory", "96M"];
    let holds =
        "for i in $(seq 20); do a[$i]=$(head -c 1M /dev/zero | tr '\\0' x); done; echo held; sleep 60";
    let mut holders = Vec::new();
    for _ in 0..3 {
        let started = exec(&place, &[&session[..], &["--background", holds]].concat());
        let process = started.stdout.trim().to_owned();
        let until = Instant::now() + Duration::from_secs(20);
        while place.run(["process", "output", "s", &process]).stdout != "held\n" {
            assert!(Instant::now() < until, "{:?}", place.run(["process", "output", "s", &process]));
            std::thread::sleep(Duration::from_millis(20));
        }
        holders.push(process);
    }
    // A command that fits in where nothing else is, and would if each process had as much as the sandbox.
    let fits = "x=$(head -c 12M /dev/zero | tr '\\0' x); echo ${#x}";
    let ran = exec(&place, &[&session[..2], &[fits]].concat());
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(137), ""), "{ran:?}");
    for process in holders {
        assert_eq!(place.run(["process", "stop", "s", &process]).status, Some(0));
    }
    exec(&place, &[&session[..2], &[fits]].concat()).is(0, "12582912\n", "");
    assert_eq!(place.run(["sandbox", "rm", "s"]).status, Some(0));
}

#[test]
fn modules_are_compiled_beforehand_and_called_by_their_name() {
    let place = Place::new();
    let module = place.path("hello.wasm");
    std::fs::write(&module, include_bytes!("../../backend-wasm/tests/wasm/hello.wasm")).unwrap();
    let text = format!("[tools.exec.sandbox.wasm_commands]\nhello = \"{}\"\n", module.display());
    std::fs::write(place.config().join("moltis.toml"), text).unwrap();
    let build = |new: bool| {
        let built = place.run(["sandbox", "build", "--backend", "wasm", "--json"]);
        assert_eq!(built.status, Some(0), "{built:?}");
        assert_eq!(built.json()["prepared"], json!([{ "name": "hello", "new": new }]));
    };
    build(true);
    build(false);
    exec(&place, &["hello | tr a-z A-Z"]).is(0, "HELLO\n", "");
}
