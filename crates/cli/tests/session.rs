//! `moltis session`: what is stored, shown, changed and forgotten.

use moltis_runtime::store::{Caller, SessionPatch, Store};
use moltis_sandbox::SessionKey;
use serde_json::json;

use crate::support::Place;

const SECRET: &str = "hush-5f1d";

#[test]
fn what_is_set_is_shown_changed_and_unset_and_no_secret_is_told() {
    let place = Place::new();
    let workspace = place.workspace();
    let given = format!("{}:rw", workspace.display());
    let secret = format!("TOKEN={SECRET}");
    let made = place.run([
        "session",
        "set",
        "s",
        "--backend",
        "namespaces",
        "--network",
        "blocked",
        "--image",
        "debian:12",
        "--workspace",
        &given,
        "--memory",
        "64M",
        "--cpus",
        "1.5",
        "--pids",
        "50",
        "--env",
        &secret,
        "--env",
        "B=2",
        "--sandbox",
        "on",
        "--idle-ttl",
        "90s",
        "--trusted-domain",
        "example.com",
        "--trusted-domain",
        "*.org",
        "--denied-domain",
        "evil.example.com",
        "--on-unknown",
        "ask",
    ]);
    assert_eq!(made.status, Some(0), "{made:?}");
    assert!(made.stdout.starts_with("made the session s; "), "{made:?}");
    let told = place.run(["session", "list", "--json"]).json()["sessions"][0].clone();
    let overrides = json!({
        "sandboxEnabled": true, "sandboxImage": "debian:12", "sandboxBackend": "namespaces", "network": "blocked",
        "limits": {"memory": 64 << 20, "cpus": 1.5, "pids": 50},
        "workspace": {"source": workspace, "mode": "rw"}, "idleTtlSecs": 90,
        "trustedDomains": ["example.com", "*.org"], "deniedDomains": ["evil.example.com"], "onUnknown": "ask",
    });
    assert_eq!(told["overrides"], overrides);
    assert_eq!(
        (&told["env"], &told["running"], &told["sandbox"]),
        (&json!(["B", "TOKEN"]), &json!(false), &json!(null))
    );

    let mut unset = vec!["session".to_owned(), "set".to_owned(), "s".to_owned()];
    for name in [
        "backend",
        "image",
        "workspace",
        "memory",
        "cpus",
        "pids",
        "env.B",
        "sandbox",
        "idle-ttl",
        "trusted-domains",
        "denied-domains",
        "on-unknown",
        "wasm-fuel-limit",
    ] {
        unset.extend(["--unset".to_owned(), name.to_owned()]);
    }
    let changed = place.run(&unset);
    assert_eq!(changed.stdout, "changed the session s; it holds from the next command on\n", "{changed:?}");
    let again = place.run(&unset);
    assert_eq!(again.stdout, "the session s is as it was; it holds from the next command on\n");
    let told = place.run(["session", "show", "s", "--json"]).json().clone();
    assert_eq!((&told["overrides"], &told["env"]), (&json!({"network": "blocked"}), &json!(["TOKEN"])));

    assert_eq!(place.in_session("s", "printf %s \"$TOKEN\""), SECRET);
    place.in_session("s", "true");
    for words in [
        &["session", "list"][..],
        &["session", "list", "--json"],
        &["session", "show", "s"],
        &["session", "show", "s", "--json"],
        &["sandbox", "explain", "--session", "s"],
        &["history", "s", "--json"],
        &["sandbox", "ps", "--json"],
        &["session", "set", "s", "--env", "TOKEN=other"],
    ] {
        let ran = place.run(words);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert!(!ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET), "{ran:?}");
    }
    assert_eq!(place.in_session("s", "printf %s \"$TOKEN\""), "other");
    place.run(["session", "set", "s", "--unset", "env"]);
    assert_eq!(place.in_session("s", "printf %s \"$TOKEN\""), "");
}

#[test]
fn what_cannot_be_right_changes_nothing() {
    let place = Place::new();
    place.run(["session", "set", "s", "--pids", "7"]);
    let wrong: &[(&[&str], &str, &str)] = &[
        (&["--backend", "dokcer"], "config-unknown-word", "did you mean `docker`?"),
        (&["--network", "opne"], "config-unknown-word", "did you mean `open`?"),
        (&["--memory", "1K"], "config-out-of-range", "--memory"),
        (&["--cpus", "0"], "config-out-of-range", "--cpus"),
        (&["--sandbox", "yes"], "config-unknown-word", "`on` or `off`"),
        (&["--idle-ttl", "0s"], "override-invalid", "idleTtlSecs"),
        (&["--idle-ttl", "1500ms"], "config-out-of-range", "whole seconds"),
        (&["--trusted-domain", "exa mple"], "config-malformed", "--trusted-domain"),
        (&["--on-unknown", "aks"], "config-unknown-word", "did you mean `ask`?"),
        (&["--unset", "netwrok"], "unset-unknown", "did you mean `network`?"),
        (&["--unset", "nonsense"], "unset-unknown", "env.NAME"),
        (&["--unset", "pids", "--pids", "9"], "set-and-unset", "`pids`"),
        (&["--unset", "env", "--env", "A=1"], "set-and-unset", "`env`"),
        (&["--unset", "env.A", "--env", "A=1"], "set-and-unset", "`env.A`"),
        (&["--env", "=1"], "env-name-invalid", "is no name of a variable"),
        (&["--env-file", "/no/such/file"], "env-file-unreadable", "/no/such/file"),
    ];
    for (flags, code, part) in wrong {
        for key in ["s", "new"] {
            let words = ["session", "set", key].into_iter().chain(flags.iter().copied());
            let ran = place.run(words.clone());
            // What may be right elsewhere or later is none of the command line.
            let status = if ["backend-not-built", "env-file-unreadable"].contains(code) { 1 } else { 2 };
            ran.fails(status, code);
            assert!(ran.stderr.contains(part), "wanted {part}: {ran:?}");
            place.run(words.chain(["--json"])).fails_in_json(status, code);
        }
    }
    let sessions = place.run(["session", "list", "--json"]).json()["sessions"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1);
    assert_eq!(sessions[0]["overrides"], json!({"limits": {"pids": 7}}));
    for words in
        [&["session", "set"][..], &["session", "set", "s", "--colour"], &["session", "rm"], &["session"]]
    {
        assert_eq!(place.run(words).status, Some(2));
    }
    for key in ["", &"x".repeat(513)] {
        place.run(["session", "set", key]).fails(2, "session-key-invalid");
    }
}

#[test]
fn a_key_may_be_anything_and_cannot_pose_as_something_else() {
    let place = Place::new();
    let hostile = "a\u{1b}[2J\nsession\u{202e}\"b";
    let longest = "ж".repeat(256);
    for key in [hostile, &longest, " ", "-"] {
        assert_eq!(place.run(["session", "set", key]).status, Some(0));
    }
    let list = place.run(["session", "list"]);
    assert_eq!(list.stdout.lines().count(), 5, "{list:?}");
    assert!(list.stdout.contains(r#""a\u{1b}[2J\nsession\u{202e}\"b" "#), "{list:?}");
    assert!(!list.stdout.contains(['\u{1b}', '\u{202e}']));
    let told = place.run(["session", "show", hostile, "--json"]);
    assert_eq!(told.json()["session"], hostile);
    assert_eq!(place.run(["session", "rm", hostile, &longest, " ", "-"]).status, Some(0));
    assert_eq!(place.run(["session", "list", "--json"]).json(), json!({"sessions": []}));
}

#[test]
fn every_page_is_listed() {
    let place = Place::new();
    let store = Store::new(place.data());
    for number in 0..1203 {
        let key = SessionKey::new(format!("{number:04}")).unwrap();
        store
            .run_blocking(|db| db.create_session(&key, &SessionPatch::default(), &Caller::this_user(), 1))
            .unwrap();
    }
    let sessions = place.run(["session", "list", "--json"]).json()["sessions"].clone();
    assert_eq!((sessions.as_array().unwrap().len(), &sessions[1202]["session"]), (1203, &json!("1202")));
    assert_eq!(place.run(["session", "list"]).stdout.lines().count(), 1204);
}

#[test]
fn set_says_what_becomes_of_a_sandbox_that_runs() {
    let place = Place::new();
    let set = |flags: &[&str]| {
        let ran = place.run(["session", "set", "s"].into_iter().chain(flags.iter().copied()));
        assert_eq!(ran.status, Some(0), "{ran:?}");
        ran.stdout
    };
    place.in_session("s", "true");
    assert!(set(&["--env", "A=1"]).ends_with("its sandbox stays, and it holds from the next command on\n"));
    let workspace = place.workspace();
    let workspace = workspace.to_str().unwrap();
    assert!(set(&["--workspace", workspace]).ends_with("until the next command, which makes it anew\n"));
    place.in_session("s", "touch /tmp/mark; cd /workspace");
    let process = place.background("s", "sleep 1000");
    assert!(set(&["--unset", "workspace"]).contains("is in use and stays as it was: commands are refused"));
    place.run(["exec", "--session", "s", "true"]).fails(125, "sandbox-busy");
    let told = place.run(["session", "set", "s", "--json"]).json();
    assert_eq!((&told["made"], &told["refusal"]["error"]["code"]), (&json!(false), &json!("sandbox-busy")));
    assert_eq!(place.run(["process", "stop", "s", &process]).status, Some(0));
    assert_eq!(place.in_session("s", "ls /tmp"), "");
}

#[test]
fn show_tells_all_there_is() {
    let place = Place::new();
    place.run(["session", "show", "s"]).fails(1, "session-missing");
    place.run(["session", "show", "s", "--json"]).fails_in_json(1, "session-missing");
    place.in_session("s", "true");
    place.background("s", "sleep 1000 # \u{1b}[2J");
    let shown = place.run(["session", "show", "s"]).stdout;
    for part in [
        "sandbox  running (1 busy) on namespaces, up ",
        "history  2 commands",
        "sandbox/home/shared",
        "sets     nothing: all is as configured",
        "sleep 1000 # \\u{1b}[2J (started ",
    ] {
        assert!(shown.contains(part), "wanted {part}: {shown}");
    }
    let told = place.run(["session", "show", "s", "--json"]).json();
    assert_eq!((&told["commandsRemembered"], &told["sandbox"]["running"]), (&json!(2), &json!(true)));
    assert_eq!(told["processes"][0]["running"], true);
    assert!(told["sandbox"]["activity"]["uptimeMs"].is_u64(), "{told}");
    place.run(["sandbox", "stop", "s"]);
    assert!(place.run(["session", "show", "s"]).stdout.contains("sandbox  ended (stopped)\n"));
}

#[test]
fn removing_ends_the_sandbox_and_keeps_the_home_unless_it_is_purged() {
    let place = Place::new();
    let config = "[tools.exec.sandbox]\nhome_persistence = \"session\"\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    for key in ["a", "b"] {
        place.in_session(key, "echo kept > file");
        place.background(key, "sleep 1000");
    }
    place.run(["session", "rm", "a", "none"]).fails(1, "session-missing");
    assert_eq!(place.in_session("a", "cat file"), "kept\n");
    let removed = place.run(["session", "rm", "a", "b"]);
    assert_eq!(
        (removed.status, removed.stdout.matches("its home stays: ").count()),
        (Some(0), 2),
        "{removed:?}"
    );
    assert_eq!(place.left_running(), Vec::<String>::new());
    assert_eq!(place.run(["history", "a"]).status, Some(1));
    assert_eq!(place.in_session("a", "cat file"), "kept\n");
    let purged = place.run(["session", "rm", "a", "--purge", "--json"]).json();
    assert_eq!(
        purged,
        json!({"removed": [{"session": "a", "homeRemoved": true, "snapshotsRemoved": 0, "snapshotsKept": 0}]})
    );
    assert_eq!(place.in_session("a", "ls"), "files\n");
}

#[test]
fn removing_and_using_a_session_at_once_leaves_nothing_half_done() {
    let place = Place::new();
    let config = "[tools.exec.sandbox]\nhome_persistence = \"session\"\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..12 {
                    let ran = place.run(["exec", "--session", "s", "--json", "echo x > $$; cat $$"]);
                    // A command may be ended with its sandbox; it is never said to have done what it has not.
                    match ran.status {
                        Some(0) => assert_eq!(ran.json()["stdout"], "x\n"),
                        Some(125) => {
                            let code = ran.json()["error"]["code"].as_str().unwrap().to_owned();
                            let expected = [
                                "agent-lost",
                                "sandbox-ended",
                                "session-missing",
                                "session-gone",
                                "sandbox-gone",
                            ];
                            assert!(expected.contains(&code.as_str()), "{ran:?}");
                        }
                        _ => assert!(ran.json()["signal"].is_i64(), "{ran:?}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..24 {
                let words: &[&str] =
                    if round % 3 == 0 { &["sandbox", "rm", "s"] } else { &["session", "rm", "s", "--purge"] };
                let ran = place.run(words);
                let missing = ran.stderr.starts_with("error[session-missing]")
                    || ran.stderr.starts_with("error[sandbox-missing]");
                assert!(ran.status == Some(0) || missing, "{ran:?}");
            }
        });
    });
    place.run(["session", "rm", "s", "--purge"]);
    assert_eq!(place.run(["sandbox", "ps", "--json"]).json(), json!({"sandboxes": []}));
    assert_eq!(place.left_running(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(place.data().join("sandbox/home/session")).unwrap().count(), 0);
}
