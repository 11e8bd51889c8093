//! The rules that every `--json` keeps: docs/json.md.

use serde_json::{Value, json};

use crate::support::Place;

/// Sees that a value keeps the rules, wherever it stands.
fn keeps_the_rules(value: &Value, at: &str) {
    match value {
        Value::Null => panic!("{at} is null, not absent"),
        Value::Array(all) => all.iter().for_each(|one| keeps_the_rules(one, &format!("{at}[]"))),
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = format!("{at}.{name}");
                let is_setting = at.contains(".overrides.");
                let has = |end: &str| name.ends_with(end);
                assert!(is_setting || !(has("Secs") || has("Seconds")), "{at}");
                assert!(!(has("Millis") || has("Bytes")) || value.is_u64(), "{at}: {value}");
                assert!(!has("Ms") || value.is_number(), "{at}: {value}");
                match name.as_str() {
                    "sandbox" => assert!(value.is_object(), "{at}: {value}"),
                    "session" | "backend" | "command" => assert!(value.is_string(), "{at}: {value}"),
                    "sandboxId" => assert_eq!(value.as_str().map(str::len), Some(40), "{at}"),
                    "key" => assert!(!value.as_str().unwrap().contains("s1"), "{at}: a session is `session`"),
                    _ => {}
                }
                keeps_the_rules(value, &at);
            }
        }
        _ => {}
    }
}

#[test]
fn every_answer_keeps_the_rules() {
    let place = Place::new();
    let process = place.background("s1", "sleep 1000");
    place.run(["session", "set", "s2", "--idle-ttl", "1h"]);
    let file = place.path("file");
    std::fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    let exported = place.path("exported");
    let exported = exported.to_str().unwrap();
    crate::network::some(&place);
    crate::network::ask(&place, "s1", "c.example", 443);
    for (words, status) in [
        (&["exec", "true"][..], 0),
        (&["exec", "--session", "s1", "true"], 0),
        (&["exec", "--session", "s1", "--background", "true"], 0),
        (&["exec", "--session", "s1", "--", "/nowhere"], 127),
        (&["exec", "--session", "", "true"], 125),
        (&["process", "list"], 0),
        (&["process", "output", "s1", &process], 0),
        (&["process", "stop", "s1", &process, "--signal", "CONT"], 0),
        (&["process", "stop", "s1", &process], 0),
        (&["process", "stop", "s1", "99"], 1),
        (&["history", "s1"], 0),
        (&["history", "s1", "--output", "--limit", "1"], 0),
        (&["session", "list"], 0),
        (&["session", "show", "s1"], 0),
        (&["session", "show", "s2"], 0),
        (&["session", "set", "s1", "--pids", "50"], 0),
        (&["sandbox", "ps"], 0),
        (&["sandbox", "status"], 0),
        (&["sandbox", "disk"], 0),
        (&["sandbox", "build", "--backend", "namespaces"], 0),
        (&["sandbox", "list"], 0),
        (&["sandbox", "clean", "--backend", "namespaces"], 0),
        (&["sandbox", "remove", "--backend", "namespaces", "nothing"], 1),
        (&["sandbox", "explain"], 0),
        (&["sandbox", "explain", "--session", "s1"], 0),
        (&["sandbox", "explain", "--backend", "restricted-host", "--network", "trusted"], 1),
        (&["files", "put", file, "f"], 0),
        (&["files", "list"], 0),
        (&["files", "show", "f"], 0),
        (&["files", "move", "f", "g"], 0),
        (&["files", "remove", "g"], 0),
        (&["files", "mkdir", "d"], 0),
        (&["cp", file, "s1:/tmp/f"], 0),
        (&["config", "show"], 0),
        (&["config", "check"], 0),
        (&["config", "init"], 0),
        (&["network", "audit"], 0),
        (&["network", "stats"], 0),
        (&["network", "export", "--output", exported], 0),
        (&["network", "pending"], 0),
        (&["network", "allow", "a.example"], 0),
        (&["network", "allow", "a.example", "--session", "s1"], 0),
        (&["network", "allow", "1"], 0),
        (&["network", "allow", "1"], 1),
        (&["network", "deny", "b.example"], 0),
        (&["network", "test", "a.b.example"], 1),
        (&["network", "rules"], 0),
        (&["network", "rules", "--session", "s1"], 0),
        (&["network", "rules", "remove", "a.example"], 0),
        (&["session", "snapshot", "s1", "--name", "first"], 0),
        (&["session", "snapshot", "s1", "--name", "first"], 1),
        (&["session", "snapshots"], 0),
        (&["session", "snapshots", "s1"], 0),
        (&["session", "restore", "s1", "first"], 0),
        (&["session", "show", "s1"], 0),
        (&["session", "fork", "s1", "s3"], 0),
        (&["session", "restore", "s1", "--none"], 0),
        (&["session", "rm-snapshot", "s1", "first"], 0),
        (&["sandbox", "stop", "s1"], 0),
        (&["sandbox", "rm", "s1"], 0),
        (&["sandbox", "prune", "--idle"], 0),
        (&["session", "rm", "s1", "s2", "s3", "--purge"], 0),
        (&["forward", "--session", "s1", "3000:0"], 1),
        (&["bench", "--backend", "namespaces"], 0),
    ] {
        // What follows `--` or a line is the command's own.
        let at = if words[0] == "exec" { 1 } else { words.len() };
        let ran = place.run([&words[..at], &["--json"], &words[at..]].concat());
        assert_eq!((ran.status, ran.stdout.lines().count()), (Some(status), 1), "{words:?}: {ran:?}");
        keeps_the_rules(&ran.json(), &words.join(" "));
    }
}

#[test]
fn a_command_is_called_the_same_everywhere() {
    let place = Place::new();
    for (words, text) in [
        (&["sleep 1000; echo 'a  b'"][..], "sleep 1000; echo 'a  b'"),
        (&["--", "sleep", "1000"], "sleep 1000"),
        (&["+x; sleep 1000"], "+x; sleep 1000"),
    ] {
        let run =
            ["exec", "--session", "s", "--background", "--json"].into_iter().chain(words.iter().copied());
        let process = place.run(run).json()["process"].clone();
        let listed = place.run(["process", "list", "s", "--json"]).json()["processes"].clone();
        let listed = listed.as_array().unwrap().iter().find(|one| one["process"] == process).unwrap();
        let remembered = place.run(["history", "s", "--limit", "1", "--json"]).json()["entries"][0].clone();
        assert_eq!((&listed["command"], &remembered["command"]), (&json!(text), &json!(text)));
    }
}

#[test]
fn a_failure_tells_the_news_that_is_told_once() {
    let place = Place::new();
    place.in_session("s", "true");
    for json in [false, true] {
        place.run(["sandbox", "stop", "s"]);
        let flags: &[&str] = if json { &["--json"] } else { &[] };
        let words = [&["exec", "--session", "s"][..], flags, &["--", "/nowhere"]].concat();
        let ran = place.run(words);
        assert_eq!(ran.status, Some(127), "{ran:?}");
        if json {
            let told = ran.json();
            assert_eq!(told["error"]["code"], "program-missing");
            assert_eq!((&told["restarted"], &told["session"]), (&json!("stopped"), &json!("s")), "{told}");
            assert_eq!(told["sandboxId"].as_str().map(str::len), Some(40));
        } else {
            let news = "moltis: this is a new sandbox: the session's last one was stopped\n";
            assert!(ran.stderr.contains(news) && ran.stderr.contains("error[program-missing]"), "{ran:?}");
        }
    }
}
