//! `moltis sandbox`: what there is, what would happen, and how it ends.

use std::process::Stdio;

use serde_json::json;

use crate::support::{Place, Ran};

#[test]
fn sandboxes_are_listed_stopped_and_removed_by_session_or_id() {
    let place = Place::new();
    place.run(["sandbox", "ps"]).is(0, "There are no sandboxes.\n", "");
    place.in_session("a b", "true");
    place.background("c", "sleep 1000");
    place.in_session("d", "true");
    let all = place.run(["sandbox", "ps", "--json"]).json()["sandboxes"].clone();
    let seen: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["session"].clone(), one["running"].clone(), one["background"].clone()))
        .collect();
    assert_eq!(seen, ["a b", "c", "d"].map(|key| (json!(key), json!(true), json!(i32::from(key == "c")))));
    let text = place.run(["sandbox", "ps"]).stdout;
    assert_eq!(text.lines().count(), 4);
    assert!(text.lines().nth(1).unwrap().starts_with("\"a b\"  "), "{text}");

    let id = |at: usize| all[at]["id"].as_str().unwrap().to_owned();
    place.run(["sandbox", "stop", "a b", "nothing"]).fails(1, "sandbox-missing");
    place.run(["sandbox", "stop", "a b", "nothing", "--json"]).fails_in_json(1, "sandbox-missing");
    place.run(["sandbox", "stop", &id(0)[..3]]).fails(1, "sandbox-missing");
    place.run(["sandbox", "stop", "a b", &id(1)[..12]]).is(0, "stopped \"a b\"\nstopped c\n", "");
    place.run(["sandbox", "stop", "c"]).is(0, "did not run: c\n", "");
    let left = place.run(["sandbox", "ps", "--json"]).json()["sandboxes"].clone();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["session"]), (1, &json!("d")));
    let removed = place.run(["sandbox", "rm", "d", "c", "--json"]).json()["removed"].clone();
    assert_eq!((&removed[0]["session"], &removed[1]["session"]), (&json!("d"), &json!("c")));
    assert_eq!(place.left_running(), Vec::<String>::new());
    // What there is of a whole id is removed, also if that is nothing.
    place.run(["sandbox", "rm", &id(2)]).is(0, &format!("removed {}\n", &id(2)[..12]), "");
    place.run(["sandbox", "rm", &id(2)[..12]]).fails(1, "sandbox-missing");
    assert_eq!(place.run(["session", "list", "--json"]).json()["sessions"].as_array().unwrap().len(), 3);
    for words in [&["sandbox", "stop"][..], &["sandbox", "rm"], &["sandbox"]] {
        assert_eq!(place.run(words).status, Some(2));
    }
}

#[test]
fn prune_takes_what_is_of_no_use() {
    let place = Place::new();
    place.in_session("idle", "true");
    place.background("busy", "sleep 1000");
    place.run(["sandbox", "prune"]).is(0, "0 removed, 2 kept\n", "");
    let pruned = place.run(["sandbox", "prune", "--idle", "--json"]).json();
    assert_eq!((pruned["removed"].as_array().unwrap().len(), &pruned["kept"]), (1, &json!(1)));
    let left = place.run(["sandbox", "ps", "--json"]).json()["sandboxes"].clone();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["session"]), (1, &json!("busy")));
}

#[test]
fn a_sandbox_of_a_single_command_is_seen_and_left_alone_by_prune() {
    let place = Place::new();
    let mut child = place.exec_command(["sleep 1000"]).stdout(Stdio::null()).spawn().unwrap();
    let begun = std::time::Instant::now();
    let seen = loop {
        let seen = place.run(["sandbox", "ps", "--json"]).json()["sandboxes"].clone();
        if seen[0]["activity"]["operations"] == 1 {
            break seen[0].clone();
        }
        assert!(begun.elapsed().as_secs() < 20, "{seen}");
    };
    assert_eq!((&seen["session"], &seen["running"]), (&json!(null), &json!(true)));
    place.run(["sandbox", "prune", "--idle"]).is(0, "0 removed, 1 kept\n", "");
    place.run(["sandbox", "stop", seen["id"].as_str().unwrap()]);
    assert_eq!(child.wait().unwrap().code(), Some(125));
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn disk_measures_the_parts() {
    let place = Place::new();
    assert_eq!(place.run(["sandbox", "disk"]).status, Some(0));
    place.in_session("s", "head -c 300000 /dev/urandom > file");
    let disk = place.run(["sandbox", "disk", "--json"]).json();
    let parts = disk["parts"].as_array().unwrap();
    let home = parts.iter().find(|part| part["name"] == "shared home").unwrap();
    assert!(home["bytes"].as_u64().unwrap() >= 300_000, "{disk}");
    assert!(disk["freeBytes"].as_u64().unwrap() > 0);
    let text = place.run(["sandbox", "disk"]).stdout;
    assert!(text.starts_with("shared home ") && text.contains("no new command below 1.0 GiB"), "{text}");
}

#[test]
fn explain_says_what_exec_would_and_makes_nothing() {
    let place = Place::new();
    let workspace = place.workspace();
    let workspace = workspace.to_str().unwrap();
    let given = format!("{workspace}:rw");
    let missing = format!("{workspace}/no");
    let config = place.config();
    let cases: &[&[&str]] = &[
        &["--backend", "restricted-host", "--network", "trusted"],
        &["--backend", "docker"],
        &["--backend", "none", "--pids", "5"],
        &["--backend", "restricted-host", "--network", "blocked"],
        &["--image", "debian:12"],
        &["--workspace", &missing],
        &["--workspace", "/"],
        &["--workspace", config.to_str().unwrap()],
        &["--session", "s", "--backend", "restricted-host", "--network", "trusted"],
        &["--session", "s", "--backend", "docker"],
    ];
    for flags in cases {
        let explained = place.run(["sandbox", "explain"].into_iter().chain(flags.iter().copied()));
        let told = place.run(["sandbox", "explain", "--json"].into_iter().chain(flags.iter().copied()));
        let ran = place.run(["exec"].into_iter().chain(flags.iter().copied()).chain(["true"]));
        assert_eq!(
            (explained.status, told.status, ran.status),
            (Some(1), Some(1), Some(125)),
            "{flags:?} {ran:?}"
        );
        assert_eq!(explained.stderr, ran.stderr, "{flags:?}");
        assert!(explained.stdout.starts_with("backend: "), "{explained:?}");
        let code = told.json()["refusal"]["error"]["code"].as_str().unwrap().to_owned();
        assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "{code} {ran:?}");
        place.run(["session", "rm", "s"]);
    }

    let fresh = Place::new();
    let explain = |flags: &[&str]| fresh.run(["sandbox", "explain"].into_iter().chain(flags.iter().copied()));
    let told = explain(&["--workspace", &given, "--backend", "namespaces", "--json"]);
    assert_eq!(told.status, Some(0), "{told:?}");
    let told = told.json();
    let decided = (&told["backend"], &told["because"], &told["fate"], &told["passedOver"]);
    let because = "the flag says `backend = \"namespaces\"`";
    assert_eq!(decided, (&json!("namespaces"), &json!(because), &json!("new"), &json!([])));
    let setting = |key: &str| {
        let all = told["settings"].as_array().unwrap();
        let one = all.iter().find(|setting| setting["key"] == key).unwrap_or_else(|| panic!("no {key}"));
        (one["value"].clone(), one["origin"].clone())
    };
    assert_eq!(setting("workspace"), (json!(workspace), json!("flag")));
    assert_eq!(setting("workspace_mount"), (json!("rw"), json!("flag")));
    assert_eq!(setting("network"), (json!("blocked"), json!("default")));
    assert_eq!(setting("resource_limits.cpu_quota"), (json!(null), json!("default")));
    assert!(
        told["mounts"]
            .as_array()
            .unwrap()
            .contains(&json!({"source": workspace, "target": "/workspace", "mode": "rw"}))
    );
    assert_eq!(explain(&["--session", "s"]).status, Some(0));
    for absent in ["moltis.db", "files", "sandbox"] {
        assert!(!fresh.data().join(absent).exists(), "{absent}");
    }
    assert_eq!(fresh.left_running(), Vec::<String>::new());
    assert_eq!(explain(&["--memroy", "1G"]).status, Some(2));
    explain(&["--memory", "1"]).fails(2, "config-out-of-range");
}

#[test]
fn explain_knows_that_all_places_are_taken() {
    let place = Place::new();
    let config = "[tools.exec.sandbox]\nmax_sandboxes = 1\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    let process = place.background("first", "sleep 1000");
    let explained = place.run(["sandbox", "explain", "--session", "second"]);
    let ran = place.run(["exec", "--session", "second", "true"]);
    ran.fails(125, "max-sandboxes");
    assert_eq!((explained.status, &explained.stderr), (Some(1), &ran.stderr));
    assert_eq!(place.run(["sandbox", "explain", "--session", "first"]).status, Some(0));
    place.run(["process", "stop", "first", &process]);
    assert_eq!(place.run(["sandbox", "explain", "--session", "second"]).status, Some(0));
}

#[test]
fn explain_knows_the_session() {
    let place = Place::new();
    let config = "[tools.exec.sandbox]\nnetwork = \"blocked\"\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    place.run(["session", "set", "s", "--idle-ttl", "10m"]);
    let explain = |flags: &[&str]| {
        place.run(["sandbox", "explain", "--session", "s", "--json"].into_iter().chain(flags.iter().copied()))
    };
    let told = explain(&[]).json();
    let setting = |key: &str| {
        let all = told["settings"].as_array().unwrap();
        all.iter().find(|setting| setting["key"] == key).unwrap().clone()
    };
    assert_eq!(setting("idle_ttl"), json!({"key": "idle_ttl", "value": "10m", "origin": "session"}));
    assert_eq!(setting("network"), json!({"key": "network", "value": "blocked", "origin": "file"}));
    assert_eq!(told["fate"], "new");
    place.in_session("s", "true");
    let told = explain(&[]).json();
    assert_eq!(
        (&told["fate"], &told["because"]),
        (&json!("used"), &json!("the session's sandbox runs there"))
    );
    let differs = explain(&["--network", "open"]);
    assert_eq!(
        (differs.status, &differs.json()["refusal"]["error"]["code"]),
        (Some(1), &json!("session-differs"))
    );
    let workspace = place.workspace();
    place.run(["session", "set", "s", "--workspace", workspace.to_str().unwrap()]);
    assert_eq!(explain(&[]).json()["fate"], "madeAnew");
    place.in_session("s", "true");
    assert_eq!(explain(&[]).json()["fate"], "used");
    place.run(["session", "set", "off", "--sandbox", "off"]);
    let told = place.run(["sandbox", "explain", "--session", "off"]).stdout;
    assert!(told.starts_with("backend: none (the session says `sandboxEnabled = false`)\n"), "{told}");
    assert!(told.contains("not enforced:\n  sandbox: "), "{told}");
}

#[test]
fn status_warns_of_a_home_that_differing_sessions_share() {
    let place = Place::new();
    let status = || place.run(["sandbox", "status", "--json"]);
    assert_eq!(status().json()["warnings"], json!([]));
    assert!(!place.data().join("moltis.db").exists());
    place.run(["session", "set", "a", "--network", "open"]);
    place.run(["session", "set", "b", "--network", "open"]);
    assert_eq!(status().json()["warnings"], json!([]));
    place.run(["session", "set", "c"]);
    assert_eq!(status().json()["warnings"][0]["code"], "shared-home-mixed");
    let told: Ran = place.run(["sandbox", "status"]);
    let warning = "moltis: one home is shared by sessions of different network policy (1 blocked, 2 open): ";
    assert!(told.stderr.starts_with(warning), "{told:?}");
    let config = "[tools.exec.sandbox]\nhome_persistence = \"session\"\n";
    std::fs::write(place.config().join("moltis.toml"), config).unwrap();
    assert_eq!(status().json()["warnings"], json!([]));
}

#[test]
fn a_backend_without_images_has_nothing_to_build() {
    let place = Place::new();
    for backend in ["namespaces", "restricted-host", "none"] {
        let told = format!("There is nothing to build: {backend} has no images.\n");
        place.run(["sandbox", "build", "--backend", backend]).is(0, &told, "");
        place.run(["sandbox", "list", "--backend", backend]).is(0, "There are no images of ours.\n", "");
        place.run(["sandbox", "remove", "--backend", backend, "x"]).fails(1, "image-missing");
    }
    let told = place.run(["sandbox", "build", "--backend", "namespaces", "--json"]).json();
    assert_eq!(told, json!({ "backend": "namespaces" }));
    place.run(["sandbox", "clean", "--backend", "none"]).is(0, "0 removed, 0 kept, 0 B freed\n", "");
    // Also where the configuration asks for an image, which a command would be refused for.
    std::fs::create_dir_all(place.config()).unwrap();
    std::fs::write(
        place.config().join("moltis.toml"),
        "[tools.exec.sandbox]\nbackend = \"namespaces\"\npackages = [\"jq\"]\n",
    )
    .unwrap();
    place.run(["sandbox", "build", "--json"]).json();
    place.run(["sandbox", "build", "--image", "A B"]).fails(2, "config-malformed");
    for words in [
        &["sandbox", "build", "--image", "--x"][..],
        &["sandbox", "build", "--backend", "wasn"],
        &["sandbox", "remove"],
    ] {
        assert_eq!(place.run(words).status, Some(2));
    }
}
