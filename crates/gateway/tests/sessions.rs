//! Sessions: made, listed, changed, removed; and the sandboxes behind them.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_made_changed_and_forgotten() {
    let world = World::new().await;
    // A key may hold anything; it is percent-encoded.
    let path = "/api/v1/sessions/a%2Fb%20%C3%BC";
    let settings = json!({ "limits": { "pids": 50 } });
    let made = world.with_json(world.admin(), Method::PUT, path, settings.clone()).await.is(201);
    assert_eq!(
        (&made["session"], &made["overrides"]),
        (&json!("a/b ü"), &json!({ "limits": { "pids": 50 } }))
    );
    world.with_json(world.admin(), Method::PUT, path, settings).await.is(200);
    let other = json!({ "limits": { "pids": 51 } });
    world.with_json(world.admin(), Method::PUT, path, other).await.fails(409, "session-differs");
    let patch = |patch: Value| world.with_json(world.admin(), Method::PATCH, path, patch);
    patch(json!({ "network": "trusted", "trustedDomains": ["a.example"], "env": { "A": "secret" } }))
        .await
        .is(200);
    let changed = patch(json!({ "network": null, "idleTtlSecs": 60 })).await;
    assert!(!String::from_utf8_lossy(&changed.body).contains("secret"));
    let changed = changed.is(200);
    assert_eq!(
        (&changed["overrides"], &changed["env"]),
        (
            &json!({ "limits": { "pids": 50 }, "trustedDomains": ["a.example"], "idleTtlSecs": 60 }),
            &json!(["A"])
        )
    );
    patch(json!({ "limits": null, "trustedDomains": null, "idleTtlSecs": null, "env": null })).await.is(200);
    for (wrong, status, code) in [
        (json!({ "sandboxBackend": "dokcer" }), 400, "body-invalid"),
        (json!({ "nothing": 1 }), 400, "body-invalid"),
        (json!({ "idleTtlSecs": 0 }), 400, "override-invalid"),
        (json!({ "limits": { "memory": 1 } }), 400, "override-invalid"),
        (json!([]), 400, "body-invalid"),
    ] {
        patch(wrong).await.fails(status, code);
    }
    let shown = world.get(world.admin(), path).await.is(200);
    assert_eq!(
        (&shown["overrides"], &shown["state"], &shown["fate"]),
        (&json!({}), &json!("none"), &json!("new"))
    );
    let ran = world.post(world.admin(), &format!("{path}/exec"), json!({ "command": "true" })).await.is(200);
    let shown = world.get(world.admin(), path).await.is(200);
    assert_eq!(
        (&shown["state"], &shown["sandboxId"], &shown["fate"]),
        (&json!("running"), &ran["sandboxId"], &json!("used"))
    );
    assert_eq!(
        world.send(world.admin(), Method::POST, &format!("{path}/stop")).await.is(200),
        json!({ "ended": true })
    );
    let gone = world.send(world.admin(), Method::DELETE, &format!("{path}?purge=true")).await.is(200);
    assert_eq!(gone, json!({ "homeRemoved": false, "snapshotsRemoved": 0 }));
    world.get(world.admin(), path).await.fails(404, "session-missing");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages_of_what_is_seen() {
    let world = World::new().await;
    for name in ["a1", "a2", "a3", "b1", "b2"] {
        world
            .with_json(world.admin(), Method::PUT, &format!("/api/v1/sessions/{name}"), json!({}))
            .await
            .is(201);
    }
    let bound = world.key("bound", "operator.read", Some(&["a*", "b2"])).await;
    let names = |page: &Value| -> Vec<String> {
        let all = page["sessions"].as_array().unwrap().iter();
        all.map(|session| session["session"].as_str().unwrap().to_owned()).collect()
    };
    let (mut seen, mut next) = (Vec::new(), None::<String>);
    loop {
        let cursor = next.map_or(String::new(), |next| format!("&cursor={next}"));
        let page = world.get(bound.clone(), &format!("/api/v1/sessions?limit=2{cursor}")).await.is(200);
        seen.extend(names(&page));
        match page["next"].as_str() {
            Some(cursor) => next = Some(cursor.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, ["a1", "a2", "a3", "b2"]);
    let all = world.get(world.admin(), "/api/v1/sessions").await.is(200);
    assert_eq!(names(&all), ["a1", "a2", "a3", "b1", "b2"]);
    for (query, code) in [
        ("limit=0", "param-invalid"),
        ("limit=1001", "param-invalid"),
        ("limit=x", "param-invalid"),
        ("limt=1", "param-unknown"),
        ("limit=1&limit=2", "param-invalid"),
    ] {
        world.get(world.admin(), &format!("/api/v1/sessions?{query}")).await.fails(400, code);
    }
    // What a bound key sees of sandboxes is its own.
    for name in ["a1", "b1"] {
        let path = format!("/api/v1/sessions/{name}/exec");
        world.post(world.admin(), &path, json!({ "command": "true" })).await.is(200);
    }
    let sandboxes = world.get(bound.clone(), "/api/v1/sandboxes").await.is(200);
    assert_eq!(sandboxes["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(sandboxes["sandboxes"][0]["session"], "a1");
    world.get(bound, "/api/v1/sessions/b1").await.fails(404, "session-missing");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_browsers_fold_away_have_a_path_of_their_own() {
    let world = World::new().await;
    for (part, key) in [("~.", "."), ("~..", ".."), ("~~.", "~."), ("~", "~"), ("%7E%2E%2E", "..")] {
        let path = format!("/api/v1/sessions/{part}");
        world.with_json(world.admin(), Method::PUT, &path, json!({})).await;
        assert_eq!(world.get(world.admin(), &path).await.is(200)["session"], key);
    }
    // Who may see the key is judged by the key, and not by how it is written.
    let bound = world.key("bound", "operator.read", Some(&["~."])).await;
    world.get(bound.clone(), "/api/v1/sessions/~.").await.fails(404, "session-missing");
    assert_eq!(world.get(bound, "/api/v1/sessions/~~.").await.is(200)["session"], "~.");
    let all = world.get(world.admin(), "/api/v1/sessions").await.is(200);
    let mut keys: Vec<_> =
        all["sessions"].as_array().unwrap().iter().map(|one| one["session"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, [".", "..", "~", "~."]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_running_sandboxes_take_and_lack_is_told_to_whoever_sees_them() {
    let world = World::new().await;
    let lacking = |told: &Value| {
        let all = told["runningNotEnforced"].as_array().unwrap();
        let mut keys: Vec<_> = all.iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect();
        keys.sort_unstable();
        let sessions: Vec<_> = all.iter().map(|one| one["sessions"].as_u64().unwrap()).collect();
        (keys, sessions)
    };
    let told = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!(lacking(&told), (Vec::new(), Vec::new()));
    let mut listed = Vec::new();
    for key in ["a1", "b1"] {
        let path = format!("/api/v1/sessions/{key}/exec");
        let ran = world.post(world.admin(), &path, json!({ "command": "true" })).await.is(200);
        listed = ran["notEnforced"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["key"].as_str().unwrap().to_owned())
            .collect();
    }
    listed.sort_unstable();
    assert!(!listed.is_empty());
    let told = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!(lacking(&told), (listed.clone(), vec![2; listed.len()]));
    let bound = world.key("bound", "operator.read", Some(&["b*"])).await;
    let told = world.get(bound, "/api/v1/status").await.is(200);
    assert_eq!(lacking(&told), (listed.clone(), vec![1; listed.len()]));
    assert!(told["runningNotEnforced"].as_array().unwrap().iter().all(|one| one["session"] == "b1"));
    let sandboxes = world.get(world.admin(), "/api/v1/sandboxes").await.is(200);
    for sandbox in sandboxes["sandboxes"].as_array().unwrap() {
        let held = sandbox["usage"]["memoryBytes"].as_u64().unwrap();
        assert!((1..1 << 30).contains(&held), "{sandbox}");
        assert!(sandbox["usage"]["cpuMs"].is_u64(), "{sandbox}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_backends_images_and_room_are_told() {
    let world = World::new().await;
    let ran =
        world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "true" })).await.is(200);
    let id = ran["sandboxId"].as_str().unwrap();
    let backends = world.get(world.admin(), "/api/v1/backends").await.is(200);
    let host =
        backends["backends"].as_array().unwrap().iter().find(|one| one["backend"] == "restricted-host");
    assert_eq!(host.unwrap()["usable"], true);
    world.get(world.admin(), "/api/v1/disk").await.is(200);
    world.get(world.admin(), "/api/v1/images").await.is(200);
    let built = world.post(world.admin(), "/api/v1/images/build", json!({})).await.is(200);
    assert_eq!(built, json!({ "backend": "restricted-host", "prepared": [] }));
    world.send(world.admin(), Method::DELETE, "/api/v1/images?tag=none").await;
    let pruned = world.post(world.admin(), "/api/v1/sandboxes/prune", json!({})).await.is(200);
    assert_eq!((&pruned["removed"], &pruned["kept"]), (&json!([]), &json!(1)));
    let path = format!("/api/v1/sandboxes/{id}");
    let stopped = world.send(world.admin(), Method::POST, &format!("{path}/stop")).await.is(200);
    assert_eq!(stopped, json!({ "ended": true }));
    assert_eq!(world.send(world.admin(), Method::DELETE, &path).await.status, 204);
    let none = format!("/api/v1/sandboxes/{}/stop", "0".repeat(40));
    world.send(world.admin(), Method::POST, &none).await.fails(404, "sandbox-missing");
    let ran =
        world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "true" })).await.is(200);
    assert_eq!(ran["restarted"], "stopped");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_says_what_it_would_get_and_from_whom() {
    let world = World::with(
        "[tools.exec.sandbox]\nbackend = \"restricted-host\"\nallow_unenforced = true\n[tools.exec.sandbox.resource_limits]\npids_max = 70\n",
    )
    .await;
    let path = "/api/v1/sessions/s";
    let own = json!({ "limits": { "pids": 50 } });
    world.with_json(world.admin(), Method::PATCH, path, own).await.is(201);
    let setting = |shown: &Value, key: &str| {
        let all = shown["settings"].as_array().unwrap();
        all.iter().find(|setting| setting["key"] == key).cloned().unwrap_or_default()
    };
    let shown = world.get(world.admin(), path).await.is(200);
    assert_eq!(
        setting(&shown, "resource_limits.pids_max"),
        json!({ "key": "resource_limits.pids_max", "value": "50", "origin": "session", "configured": "70" })
    );
    assert_eq!(
        setting(&shown, "backend"),
        json!({ "key": "backend", "value": "restricted-host", "origin": "file", "configured": "restricted-host" })
    );
    assert_eq!(setting(&shown, "workspace"), json!({ "key": "workspace", "origin": "default" }));
    assert_eq!(setting(&shown, "wasm_fuel_limit")["origin"], "default");
    let configured = setting(&shown, "wasm_fuel_limit")["value"].clone();
    world.with_json(world.admin(), Method::PATCH, path, json!({ "wasmFuelLimit": 9 })).await.is(200);
    let changed = world.get(world.admin(), path).await.is(200);
    assert_eq!(
        setting(&changed, "wasm_fuel_limit"),
        json!({ "key": "wasm_fuel_limit", "value": "9", "origin": "session", "configured": configured })
    );
    // What names folders of the host is not for everybody.
    let read = world.key("read", "operator.read", None).await;
    let shown = world.get(read, path).await.is(200);
    assert_eq!(setting(&shown, "workspace"), Value::Null);
    assert_eq!(setting(&shown, "network")["value"], "blocked");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_found_by_a_part_of_their_keys() {
    let world = World::new().await;
    for name in ["Team%2FA", "team%2Fb", "other"] {
        world
            .with_json(world.admin(), Method::PUT, &format!("/api/v1/sessions/{name}"), json!({}))
            .await
            .is(201);
    }
    let bound = world.key("bound", "operator.read", Some(&["team/*", "other"])).await;
    for (who, query, expected) in [
        (world.admin(), "contains=TEAM", vec!["Team/A", "team/b"]),
        (world.admin(), "contains=%2Fb", vec!["team/b"]),
        (bound, "contains=team", vec!["team/b"]),
        (world.admin(), "contains=none", vec![]),
    ] {
        let page = world.get(who, &format!("/api/v1/sessions?{query}")).await.is(200);
        let all = page["sessions"].as_array().unwrap().iter();
        let names: Vec<_> = all.map(|session| session["session"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, expected, "{query}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_in_a_session_is_told_as_it_happens() {
    let world = World::new().await;
    world.get(world.admin(), "/api/v1/sessions/s/feed").await.fails(404, "session-missing");
    let exec = |command: &str| {
        let body = json!({ "command": command });
        world.post(world.admin(), "/api/v1/sessions/s/exec", body)
    };
    exec("echo one").await.is(200);
    let mut feed = world.stream(world.admin(), "/api/v1/sessions/s/feed").await;
    let told = feed.next().await;
    assert_eq!((&told["event"], &told["session"]), (&json!("session"), &json!("s")));
    let told = feed.next().await;
    assert_eq!(
        (&told["event"], &told["number"], &told["command"], &told["state"], &told["exitCode"]),
        (&json!("command"), &json!(1), &json!("echo one"), &json!("ended"), &json!(0))
    );
    // A background command is known by the number that it has in its sandbox.
    let body = json!({ "command": "read line" });
    let started = world.post(world.admin(), "/api/v1/sessions/s/processes", body).await.is(201);
    let command = async |feed: &mut crate::support::Events, number: u64, state: &str| loop {
        let told = feed.next().await;
        if told["number"] == number
            && told["state"] == state
            && !(state == "running" && told["process"].is_null())
        {
            return told;
        }
    };
    let told = command(&mut feed, 2, "running").await;
    assert_eq!((&told["process"], &told["background"]), (&started["process"], &json!(true)));
    let process = format!("/api/v1/sessions/s/processes/{}", started["process"]);
    world.send(world.admin(), Method::DELETE, &process).await.is(200);
    let told = command(&mut feed, 2, "ended").await;
    assert_eq!((&told["process"], &told["cancelled"]), (&started["process"], &json!(true)));
    // What the session sets is told, too; and that it is gone ends the feed.
    let patch = json!({ "idleTtlSecs": 77 });
    world.with_json(world.admin(), Method::PATCH, "/api/v1/sessions/s", patch).await.is(200);
    loop {
        let told = feed.next().await;
        if told["event"] == "session" && told["overrides"]["idleTtlSecs"] == 77 {
            break;
        }
    }
    world.send(world.admin(), Method::DELETE, "/api/v1/sessions/s").await.is(200);
    loop {
        let told = feed.next().await;
        if told["event"] == "error" {
            assert_eq!(told["code"], "session-missing");
            break;
        }
    }
    assert!(feed.end().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_back_to_a_snapshot_and_another_begins_from_it() {
    let world = World::new().await;
    let path = "/api/v1/sessions/s";
    let post = |part: &str, body: Value| {
        let to = format!("{path}/{part}");
        let world = &world;
        async move { world.post(world.admin(), &to, body).await }
    };
    let line = |text: &str| json!({ "command": text });
    post("snapshots", json!({})).await.fails(404, "session-missing");
    let there = json!({ "backend": "namespaces" });
    world.with_json(world.admin(), Method::PUT, path, there).await.is(201);
    post("exec", line("echo one >/tmp/x")).await.is(200);
    for wrong in ["", "a/b", "-x", "snap-0123456789abcdef"] {
        post("snapshots", json!({ "name": wrong })).await.fails(400, "snapshot-name-invalid");
    }
    let taken = post("snapshots", json!({ "name": "first" })).await.is(201);
    post("snapshots", json!({ "name": "first" })).await.fails(409, "snapshot-name-taken");
    let id = taken["id"].as_str().unwrap().to_owned();
    let listed = world.get(world.admin(), &format!("{path}/snapshots")).await.is(200);
    let mut expected = taken.clone();
    expected.as_object_mut().unwrap().remove("notes");
    assert_eq!(listed, json!({ "snapshots": [expected] }));
    post("exec", line("echo two >/tmp/x")).await.is(200);
    post("restore", json!({ "snapshot": "other" })).await.fails(404, "snapshot-missing");
    let restored = post("restore", json!({ "snapshot": "first" })).await.is(200);
    assert_eq!((&restored["begins"]["snapshot"], &restored["state"]), (&json!(id), &json!("none")));
    assert_eq!(post("exec", line("cat /tmp/x")).await.is(200)["stdout"], json!("one\n"));
    let forked = post("fork", json!({ "session": "t", "snapshot": id })).await.is(201);
    assert_eq!((&forked["session"], &forked["begins"]["snapshot"]), (&json!("t"), &json!(id)));
    post("fork", json!({ "session": "t" })).await.fails(409, "session-exists");
    let ran = world.post(world.admin(), "/api/v1/sessions/t/exec", line("cat /tmp/x")).await.is(200);
    assert_eq!(ran["stdout"], json!("one\n"));
    let one = format!("{path}/snapshots/first");
    world.send(world.admin(), Method::DELETE, &one).await.fails(409, "snapshot-in-use");
    post("restore", json!({})).await.fails(400, "body-invalid");
    post("restore", json!({ "snapshot": null })).await.is(200);
    world.send(world.admin(), Method::DELETE, "/api/v1/sessions/t?purge=true").await.is(200);
    assert_eq!(world.send(world.admin(), Method::DELETE, &one).await.is(200), json!({ "removed": id }));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_snapshots_under_a_key_is_done_once() {
    let mut world = World::new().await;
    let path = "/api/v1/sessions/s";
    let there = json!({ "backend": "namespaces" });
    world.with_json(world.admin(), Method::PUT, path, there).await.is(201);
    world
        .post(world.admin(), &format!("{path}/exec"), json!({ "command": "echo one >/tmp/x" }))
        .await
        .is(200);
    let asked = [
        ("snapshots", "k1", json!({ "name": "first" }), 201),
        ("restore", "k2", json!({ "snapshot": "first" }), 200),
        ("fork", "k3", json!({ "session": "t", "snapshot": "first" }), 201),
    ];
    let mut first = Vec::new();
    for again in [false, true, true] {
        for (number, (part, key, body, status)) in asked.iter().enumerate() {
            let headers = [("content-type", "application/json"), ("idempotency-key", *key)];
            let to = format!("{path}/{part}");
            let answer =
                world.request(world.admin(), Method::POST, &to, &headers, body.to_string().into()).await;
            assert_eq!(answer.header("idempotency-replayed"), if again { "true" } else { "" }, "{part}");
            let told = answer.is(*status);
            match again {
                false => first.push(told),
                true => assert_eq!(told, first[number], "{part}"),
            }
        }
        if again {
            // Also by another process.
            world.again().await;
        } else {
            // What came after it is not taken back by asking again.
            let line = json!({ "command": "echo two >/tmp/x" });
            world.post(world.admin(), &format!("{path}/exec"), line).await.is(200);
        }
    }
    let ran = world.post(world.admin(), &format!("{path}/exec"), json!({ "command": "cat /tmp/x" })).await;
    assert_eq!(ran.is(200)["stdout"], json!("two\n"));
    let listed = world.get(world.admin(), &format!("{path}/snapshots")).await.is(200);
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 1);
    // The same key for something else is a mistake, also when the body is the same.
    for (to, body) in [
        ("sessions/s/snapshots", json!({ "name": "other" })),
        ("sessions/t/snapshots", json!({ "name": "first" })),
        ("sessions/s/fork", json!({ "session": "u" })),
        ("sessions/s/exec", json!({ "command": "true" })),
    ] {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
        let to = format!("/api/v1/{to}");
        let answer = world.request(world.admin(), Method::POST, &to, &headers, body.to_string().into()).await;
        answer.fails(422, "idempotency-reused");
    }
    // What was not done may be tried again.
    for _ in 0..2 {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k4")];
        let body = json!({ "name": "first" }).to_string();
        let to = format!("{path}/snapshots");
        world
            .request(world.admin(), Method::POST, &to, &headers, body.into())
            .await
            .fails(409, "snapshot-name-taken");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_takes_uses_and_sees_the_snapshots_of_its_own_sessions_alone() {
    let world = World::new().await;
    let there = json!({ "backend": "namespaces" });
    for key in ["mine%2Fa", "other"] {
        let path = format!("/api/v1/sessions/{key}");
        world.with_json(world.admin(), Method::PUT, &path, there.clone()).await.is(201);
    }
    let bound = world.key("bound", "operator.write", Some(&["mine/*"])).await;
    let reader = world.key("reader", "operator.read", Some(&["mine/*"])).await;
    let theirs = "/api/v1/sessions/other";
    let id = world.post(world.admin(), &format!("{theirs}/snapshots"), json!({})).await.is(201)["id"].clone();
    // Of another's sessions it is told nothing, not even that they are there.
    world.get(bound.clone(), &format!("{theirs}/snapshots")).await.fails(404, "session-missing");
    for (part, body) in [
        ("snapshots", json!({})),
        ("restore", json!({ "snapshot": id })),
        ("fork", json!({ "session": "mine/b", "snapshot": id })),
    ] {
        world.post(bound.clone(), &format!("{theirs}/{part}"), body).await.fails(404, "session-missing");
    }
    let one = format!("{theirs}/snapshots/{}", id.as_str().unwrap());
    world.send(bound.clone(), Method::DELETE, &one).await.fails(404, "session-missing");

    let own = "/api/v1/sessions/mine%2Fa";
    let taken =
        world.post(bound.clone(), &format!("{own}/snapshots"), json!({ "name": "first" })).await.is(201);
    assert_eq!(taken["createdBy"], json!({ "kind": "apiKey", "name": "bound" }));
    let listed = world.get(reader.clone(), &format!("{own}/snapshots")).await.is(200);
    assert_eq!((&listed["snapshots"][0]["id"], &listed["snapshots"][1]), (&taken["id"], &Value::Null));
    // Nor does its own session begin from another's.
    world
        .post(bound.clone(), &format!("{own}/restore"), json!({ "snapshot": id }))
        .await
        .fails(404, "snapshot-missing");
    let fork = format!("{own}/fork");
    let elsewhere = json!({ "session": "other2", "snapshot": "first" });
    world.post(bound.clone(), &fork, elsewhere).await.fails(404, "session-missing");
    world.post(reader.clone(), &fork, json!({ "session": "mine/b" })).await.fails(403, "scope-missing");
    let made =
        world.post(bound.clone(), &fork, json!({ "session": "mine/b", "snapshot": "first" })).await.is(201);
    assert_eq!((&made["session"], &made["begins"]["snapshot"]), (&json!("mine/b"), &taken["id"]));
    // One that sets what the key may not set is not copied by it.
    let set = json!({ "sandboxBackend": "restricted-host" });
    world.with_json(world.admin(), Method::PATCH, own, set).await.is(200);
    let refused = world.post(bound, &fork, json!({ "session": "mine/c", "snapshot": "first" })).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let all = world.get(world.admin(), "/api/v1/sessions").await.is(200);
    assert_eq!(all["sessions"].as_array().unwrap().len(), 3);
    world.end().await;
}
