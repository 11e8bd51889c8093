//! `moltis process` and `moltis history`: background commands and what a session ran.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Place;

/// Waits until `found` finds something.
#[track_caller]
fn within<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    fn until_output(&self, process: &str, wanted: &str) {
        within(|| (self.run(["process", "output", "s", process]).stdout == wanted).then_some(()));
    }
}

#[test]
fn a_background_command_is_listed_watched_fed_and_its_status_is_known() {
    let place = Place::new();
    let line = "echo out; echo err >&2; cat; exit 3";
    let process = place.background("s", line);
    place.until_output(&process, "out\n");
    place.run(["process", "output", "s", &process]).is(0, "out\n", "err\n");
    let output = |from: u64| {
        place.run(["process", "output", "s", &process, "--json", "--stdout-from", &from.to_string()]).json()
    };
    let first = output(0);
    let want = json!({
        "session": "s", "process": 1,
        "stdout": "out\n", "stdoutFrom": 0, "stdoutNext": 4, "stdoutMissed": 0, "stdoutCut": 0,
        "stderr": "err\n", "stderrFrom": 0, "stderrNext": 4, "stderrMissed": 0, "stderrCut": 0,
    });
    assert_eq!(first, want);

    place.fed(["process", "input", "s", &process, "--keep-open"], b"one\n").is(0, "", "");
    place.until_output(&process, "out\none\n");
    let told = place.fed(["process", "input", "s", &process, "--json"], b"two\n");
    assert_eq!(told.json(), json!({"session": "s", "process": 1, "bytes": 4, "closed": true}));
    place.run(["process", "output", "s", &process, "--follow"]).is(3, "out\none\ntwo\n", "err\n");
    let rest = output(first["stdoutNext"].as_u64().unwrap());
    assert_eq!(
        (&rest["stdout"], &rest["exitCode"], &rest["stdoutNext"]),
        (&json!("one\ntwo\n"), &json!(3), &json!(12))
    );
    let followed = place.run(["process", "output", "s", &process, "--follow", "--json"]);
    assert_eq!((followed.status, &followed.json()["stdoutNext"]), (Some(3), &json!(12)));

    let list = place.run(["process", "list", "s", "--json"]).json()["processes"][0].clone();
    let told = (&list["session"], &list["process"], &list["running"], &list["exitCode"]);
    assert_eq!(told, (&json!("s"), &json!(1), &json!(false), &json!(3)));
    place.run(["process", "input", "s", &process]).fails(1, "process-ended");
    let stopped = place.run(["process", "stop", "s", &process]);
    assert!(stopped.stdout.ends_with("exit 3\n"), "{stopped:?}");
}

#[test]
fn input_arrives_although_its_sender_has_left_and_the_command_reads_late() {
    let place = Place::new();
    let process = place.background("s", "while ! [ -e /tmp/go ]; do sleep 0.05; done; cksum");
    // What is on the way has room for it, however small the command's pipe is.
    let input: Vec<u8> = (0..=255).cycle().take(170_000).collect();
    place.fed(["process", "input", "s", &process], &input).is(0, "", "");
    place.in_session("s", "touch /tmp/go");
    let want = {
        let ran = place.fed(["exec", "cksum"], &input);
        ran.stdout
    };
    place.run(["process", "output", "s", &process, "-f"]).is(0, &want, "");
    let closed = place.background("s", "cat; echo end");
    place.run(["process", "input", "s", &closed, "--eof"]).is(0, "", "");
    place.run(["process", "output", "s", &closed, "-f"]).is(0, "end\n", "");
    assert_eq!(place.run(["process", "input", "s", "1", "--eof", "--keep-open"]).status, Some(2));
}

#[test]
fn a_signal_is_only_sent_and_a_stop_ends_all() {
    let place = Place::new();
    let line = "trap 'echo caught' USR1; echo ready; while :; do sleep 0.05; done";
    let process = place.background("s", line);
    place.until_output(&process, "ready\n");
    place.run(["process", "stop", "s", &process, "--signal", "usr1"]).is(0, "sent USR1 to process 1\n", "");
    within(|| place.run(["process", "output", "s", &process]).stdout.contains("caught").then_some(()));
    let unknown = place.run(["process", "stop", "s", &process, "--signal", "URS1"]);
    unknown.fails(2, "signal-unknown");
    assert!(unknown.stderr.contains("did you mean USR1?"), "{unknown:?}");
    let told = place.run(["process", "stop", "s", &process, "--json"]).json();
    assert_eq!(
        (&told["cancelled"], &told["signal"], &told["process"]),
        (&json!(true), &json!(15), &json!(1))
    );

    let hiding = place.background("s", "trap '' TERM; setsid sleep 1000 & sleep 1000");
    assert_eq!(place.run(["process", "stop", "s", &hiding]).status, Some(0));
    assert_eq!(place.in_session("s", "grep -ls sleep /proc/[0-9]*/comm || true"), "");
    place.run(["process", "stop", "s", &hiding, "--signal", "9"]).fails(1, "process-ended");
}

#[test]
fn whoever_watches_may_leave() {
    let place = Place::new();
    let process = place.background("s", "echo begun; exec sleep 1000");
    place.until_output(&process, "begun\n");
    let mut watcher =
        place.moltis(["process", "output", "s", &process, "-f"]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    let list = place.run(["process", "list", "--json"]).json();
    assert_eq!(list["processes"][0]["running"], true);
}

#[test]
fn nothing_is_started_to_find_a_process() {
    let place = Place::new();
    place.run(["process", "list", "s"]).fails(1, "session-missing");
    place.run(["process", "output", "s", "1"]).fails(1, "session-missing");
    place.run(["session", "set", "s"]);
    let list = place.run(["process", "list", "--session", "s", "--json"]);
    assert_eq!(list.json(), json!({"processes": []}));
    for words in [&["output"][..], &["input"], &["stop"], &["stop", "--signal", "INT"]] {
        let words: Vec<_> =
            ["process", words[0], "s", "1"].into_iter().chain(words[1..].iter().copied()).collect();
        place.run(&words).fails(1, "sandbox-not-running");
        place.run(words.iter().copied().chain(["--json"])).fails_in_json(1, "sandbox-not-running");
    }
    assert_eq!(place.left_running(), Vec::<String>::new());
    place.in_session("s", "true");
    for words in [&["output"][..], &["input"], &["stop"], &["stop", "--signal", "INT"]] {
        let words: Vec<_> =
            ["process", words[0], "s", "9"].into_iter().chain(words[1..].iter().copied()).collect();
        place.run(&words).fails(1, "process-missing");
    }
    assert_eq!(place.run(["process", "output", "s", "one"]).status, Some(2));
}

#[test]
fn output_comes_whole_in_parts_and_what_is_gone_is_said() {
    let place = Place::new();
    let config = "[tools.exec]\nmax_output_bytes = 1000\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    // Three bytes a character, so that parts would end within one.
    let process = place.background("s", "i=0; while [ $i -lt 700 ]; do printf '€'; i=$((i+1)); done");
    let (mut all, mut from) = (String::new(), 0);
    loop {
        let part = place
            .run(["process", "output", "s", &process, "--json", "--stdout-from", &from.to_string()])
            .json();
        assert!(part.get("stdoutEncoding").is_none(), "{part}");
        let text = part["stdout"].as_str().unwrap();
        assert!(text.len() <= 1000);
        all.push_str(text);
        from = part["stdoutNext"].as_u64().unwrap();
        if part.get("exitCode").is_some() {
            break;
        }
    }
    assert_eq!(all, "€".repeat(700));

    let long = place.background("s", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end");
    let ran = place.run(["process", "output", "s", &long, "-f", "--stdout-from", "2999990"]);
    ran.is(0, "xxxxxxxxxx\nend\n", "");
    let ran = place.run(["process", "output", "s", &long]);
    assert_eq!(ran.stdout.len(), 1 << 20);
    let gone = 3_000_005 - (1 << 20);
    assert_eq!(ran.stderr, format!("moltis: {gone} bytes of standard output are not kept any more\n"));
    let told = place.run(["process", "output", "s", &long, "--json"]).json();
    assert_eq!((&told["stdoutMissed"], &told["stdoutNext"]), (&json!(gone), &json!(gone + 1000)));
    assert!(told.get("exitCode").is_none());
    let whole = place.run(["process", "output", "s", &long, "--json", "-f"]).json();
    assert_eq!((&whole["stdoutNext"], &whole["stdoutCut"]), (&json!(3_000_005), &json!((1 << 20) - 1000)));

    let binary = place.background("s", "printf '\\377\\0\\376'");
    let told = place.run(["process", "output", "s", &binary, "--json", "-f"]).json();
    assert_eq!((&told["stdout"], &told["stdoutEncoding"]), (&json!("/wD+"), &json!("base64")));
}

#[test]
fn history_is_newest_first_and_remembers_both_ends() {
    let place = Place::new();
    place.run(["history", "s"]).fails(1, "session-missing");
    place.in_session("s", "echo first");
    assert_eq!(place.run(["exec", "--session", "s", "kill -9 $$"]).status, Some(137));
    assert_eq!(place.run(["exec", "--session", "s", "--timeout", "1s", "sleep 10"]).status, Some(124));
    place.in_session("s", "head -c 20000 /dev/zero | tr '\\0' y # \u{1b}[2J\nexit 0");
    let process = place.background("s", "sleep 1000");
    let told = place.run(["history", "s", "--json", "--output"]).json();
    let entries = told["entries"].as_array().unwrap().clone();
    let seen: Vec<_> =
        entries.iter().map(|e| (e["number"].clone(), e["state"].clone(), e["exitCode"].clone())).collect();
    let want = [
        (5, "running", None),
        (4, "ended", Some(0)),
        (3, "ended", Some(124)),
        (2, "ended", Some(137)),
        (1, "ended", Some(0)),
    ]
    .map(|(number, state, code)| (json!(number), json!(state), code.map_or(Value::Null, |c| json!(c))));
    assert_eq!(seen, want);
    assert_eq!((&entries[2]["timedOut"], &entries[3]["signal"]), (&json!(true), &json!(9)));
    assert_eq!(entries[4]["stdout"], json!({"bytes": 6, "cut": 0, "head": "first\n", "tail": ""}));
    assert_eq!(
        (&entries[1]["stdout"]["bytes"], &entries[1]["stdout"]["cut"]),
        (&json!(20_000), &json!(20_000 - 8192))
    );
    assert_eq!(told["next"], Value::Null);

    let text = place.run(["history", "s"]).stdout;
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.contains("y # \\u{1b}[2J\\nexit 0\n") && text.contains("signal KILL"), "{text}");
    assert!(text.contains("time was up") && !text.contains('\u{1b}'), "{text}");
    let output = place.run(["history", "s", "--output", "--limit", "2"]).stdout;
    assert!(output.contains("    stdout… 11808 bytes are not remembered\n"), "{output}");
    assert!(output.ends_with("There are more: --before 4\n"), "{output}");
    let page = place.run(["history", "s", "--json", "--before", "4", "--limit", "2"]).json();
    let numbers: Vec<_> = page["entries"].as_array().unwrap().iter().map(|e| e["number"].clone()).collect();
    assert_eq!((numbers, &page["next"]), (vec![json!(3), json!(2)], &json!(2)));
    assert!(page["entries"][0].get("stdout").is_none());

    place.run(["process", "stop", "s", &process]);
    let last = place.run(["history", "s", "--json", "--limit", "1"]).json()["entries"][0].clone();
    assert_eq!((&last["state"], &last["cancelled"]), (&json!("ended"), &json!(true)));
}
