//! Measuring backends.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::Place;

/// The fields of a figure, sorted, and that each is a number of something.
fn fields(figure: &Value) -> Vec<&str> {
    let figure = figure.as_object().unwrap();
    for (name, value) in figure {
        assert!(name == "baseline" || value.as_f64().unwrap() > 0.0, "{name}: {value}");
    }
    let mut names: Vec<_> = figure.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn each_figure_stands_beside_its_baseline() {
    let place = Place::new();
    let ran = place.run(["bench", "--backend", "namespaces", "--backend", "namespaces", "--json"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let told = ran.json();
    assert_eq!(told["leftOut"], serde_json::json!([]));
    let [backend] = &told["backends"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(backend["backend"], "namespaces");
    let time = ["baseline", "baselineMs", "medianMs", "ratio", "rounds"];
    assert_eq!(fields(&backend["start"]), time);
    assert_eq!(fields(&backend["exec"]), time);
    let rate = ["baseline", "baselineBytesPerSecond", "bytesPerSecond", "ratio", "rounds"];
    assert_eq!(fields(&backend["output"]), rate);
    assert_eq!(place.left_running(), Vec::<String>::new());
    assert_eq!(place.processes(), Vec::<String>::new());
    assert_eq!(place.run(["session", "list", "--json"]).json()["sessions"], serde_json::json!([]));
}

#[test]
fn a_table_names_what_was_measured() {
    let place = Place::new();
    let ran = place.run(["bench", "--backend", "restricted-host"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    let starts = ["BACKEND", "restricted-host  start of a sandbox", "restricted-host  warm exec of true"];
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{ran:?}");
    }
    assert!(lines.len() == 4 && lines[3].contains("output") && lines[3].contains("MiB/s"), "{ran:?}");
}

#[test]
fn a_backend_that_was_named_must_be_there() {
    let place = Place::new();
    place.run(["bench", "--backend", "docker"]).fails(1, "engine-unreachable");
    place.run(["bench", "--backend", "namespace"]).fails(2, "config-unknown-word");
    place.run(["bench", "--backend", "auto"]).fails(2, "backend-auto");
}

#[test]
fn a_signal_leaves_nothing() {
    let place = Place::new();
    let mut command = place.moltis(["bench", "--backend", "namespaces"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = std::time::Instant::now();
    while place.left_running().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was opened");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(130), Vec::new()));
    assert_eq!(place.left_running(), Vec::<String>::new());
}
