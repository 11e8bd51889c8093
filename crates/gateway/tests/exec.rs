//! Commands: answers, events, input, and requests that run once.

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{World, events, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_answered_whole() {
    let world = World::new().await;
    let ran = world
        .post(world.admin(), "/api/v1/exec", json!({ "command": "printf out; printf err >&2; exit 3" }))
        .await;
    let ran = ran.is(200);
    assert_eq!(
        (&ran["exitCode"], &ran["stdout"], &ran["stderr"], &ran["backend"]),
        (&json!(3), &json!("out"), &json!("err"), &json!("restricted-host"))
    );
    let keys: Vec<_> =
        ran["notEnforced"].as_array().unwrap().iter().map(|left| left["key"].clone()).collect();
    assert!(ran.get("session").is_none() && keys.contains(&json!("network")), "{keys:?}");
    let asked = json!({
        "argv": ["sh", "-c", "cat; echo $NAME"], "stdin": "aW4AcHV0", "stdinEncoding": "base64",
        "env": { "NAME": "v" },
    });
    let ran = world.post(world.admin(), "/api/v1/sessions/s%2F1/exec", asked).await.is(200);
    assert_eq!((&ran["stdout"], &ran["session"]), (&json!("in\u{0}putv\n"), &json!("s/1")));
    let asked = json!({ "command": "head -c 100000 /dev/zero | tr '\\0' x", "maxOutputBytes": 100 });
    let ran = world.post(world.admin(), "/api/v1/sessions/s%2F1/exec", asked).await.is(200);
    assert_eq!((&ran["stdoutBytes"], &ran["stdoutCut"]), (&json!(100_000), &json!(99_900)));
    let ran = world
        .post(world.admin(), "/api/v1/exec", json!({ "command": "sleep 1000", "timeoutSecs": 0.2 }))
        .await;
    let ran = ran.is(200);
    assert_eq!((&ran["timedOut"], &ran["exitCode"]), (&json!(true), &json!(124)));
    let binary =
        world.post(world.admin(), "/api/v1/exec", json!({ "command": "printf '\\377'" })).await.is(200);
    assert_eq!((&binary["stdout"], &binary["stdoutEncoding"]), (&json!("/w=="), &json!("base64")));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_right_runs_nothing() {
    let world = World::new().await;
    for (body, code) in [
        (json!({}), "command-missing"),
        (json!({ "command": "a", "argv": ["b"] }), "command-missing"),
        (json!({ "argv": [] }), "command-missing"),
        (json!({ "command": "a\u{0}b" }), "command-nul"),
        (json!({ "command": "a", "comand": 1 }), "body-invalid"),
        (json!({ "command": "a", "timeoutSecs": 0 }), "value-out-of-range"),
        (json!({ "command": "a", "timeoutSecs": 1801 }), "value-out-of-range"),
        (json!({ "command": "a", "cwd": "relative" }), "path-invalid"),
        (json!({ "command": "a", "env": { "A B": "x" } }), "env-name-invalid"),
        (json!({ "command": "a", "stdin": "!", "stdinEncoding": "base64" }), "stdin-invalid"),
        (json!({ "command": "a", "settings": { "backend": "dokcer" } }), "config-unknown-word"),
        (json!({ "command": "a", "settings": { "limits": { "memory": 1 } } }), "value-out-of-range"),
        (json!({ "command": "a", "recreate": true }), "session-missing-in-path"),
    ] {
        world.post(world.admin(), "/api/v1/exec", body).await.fails(400, code);
    }
    let path = "/api/v1/exec";
    let as_text = [("content-type", "text/plain")];
    let answer = world.request(world.admin(), Method::POST, path, &as_text, Bytes::from_static(b"{}")).await;
    answer.fails(415, "body-not-json");
    let as_json = [("content-type", "application/json")];
    let large = Bytes::from(vec![b' '; 9 << 20]);
    world.request(world.admin(), Method::POST, path, &as_json, large).await.fails(413, "body-too-large");
    let wants = [("content-type", "application/json"), ("accept", "image/png")];
    let answer = world.request(world.admin(), Method::POST, path, &wants, Bytes::from_static(b"{}")).await;
    answer.fails(406, "form-unknown");
    let missing = json!({ "command": "true", "mustExist": true });
    world.post(world.admin(), "/api/v1/sessions/none/exec", missing).await.fails(404, "session-missing");
    assert_eq!(world.get(world.admin(), "/api/v1/sessions").await.is(200), json!({ "sessions": [] }));
    world.end().await;
}

async fn lines(world: &World, path: &str, body: Value) -> Vec<Value> {
    let headers = [("content-type", "application/json"), ("accept", "application/x-ndjson")];
    let answer = world.request(world.admin(), Method::POST, path, &headers, body.to_string().into()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    events(&answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_what_happens() {
    let world = World::new().await;
    let told =
        lines(&world, "/api/v1/sessions/s/exec", json!({ "command": "cat; printf x >&2", "stdin": "in" }))
            .await;
    assert_eq!(told[0]["event"], "started");
    let text = |name: &str| -> String {
        told.iter()
            .filter(|event| event["event"] == name)
            .map(|event| event["data"].as_str().unwrap())
            .collect()
    };
    assert_eq!((text("stdout").as_str(), text("stderr").as_str()), ("in", "x"));
    let exit = told.last().unwrap();
    assert_eq!(
        (&exit["event"], &exit["exitCode"], &exit["stdoutBytes"]),
        (&json!("exit"), &json!(0), &json!(2))
    );
    // What does not start has a status of its own.
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
    let body = json!({ "command": "true", "cwd": "/nowhere/at/all" }).to_string();
    let answer = world.request(world.admin(), Method::POST, "/api/v1/exec", &headers, body.into()).await;
    assert!((400..500).contains(&answer.status), "{answer:?}");
    let body = json!({ "command": "echo hi" }).to_string();
    let answer = world.request(world.admin(), Method::POST, "/api/v1/exec", &headers, body.into()).await;
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert!(text.starts_with("event: started\ndata: {"), "{text}");
    assert!(text.contains("event: stdout\ndata: {\"data\":\"hi\\n\"}\n\n"), "{text}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_key_runs_once() {
    let mut world = World::new().await;
    let count = world.folder.path().join("home/count");
    let command = format!("echo x >> {}; echo done", count.display());
    let body = json!({ "command": command });
    let once = |key: &'static str, body: &Value| {
        (vec![("content-type", "application/json"), ("idempotency-key", key)], Bytes::from(body.to_string()))
    };
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (headers, body) = once("k1", &body);
        answers.push(
            world.request(world.admin(), Method::POST, "/api/v1/sessions/s/exec", &headers, body).await,
        );
    }
    let replayed: Vec<_> =
        answers.iter().map(|answer| answer.header("idempotency-replayed").to_owned()).collect();
    assert_eq!(replayed, ["", "true", "true"]);
    world.again().await;
    let (headers, sent) = once("k1", &body);
    answers.push(world.request(world.admin(), Method::POST, "/api/v1/sessions/s/exec", &headers, sent).await);
    let bodies: Vec<_> = answers.into_iter().map(|answer| answer.is(200)).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:#?}");
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
    // The same name for something else, or somewhere else, is a mistake; for another caller it is another request.
    let (headers, other) = once("k1", &json!({ "command": "true" }));
    let path = "/api/v1/sessions/s/exec";
    world.request(world.admin(), Method::POST, path, &headers, other).await.fails(422, "idempotency-reused");
    let (headers, sent) = once("k1", &body);
    let path = "/api/v1/sessions/t/exec";
    world
        .request(world.admin(), Method::POST, path, &headers, sent.clone())
        .await
        .fails(422, "idempotency-reused");
    let ci = world.key("ci", "operator.write", None).await;
    world.request(ci, Method::POST, "/api/v1/sessions/s/exec", &headers, sent).await.is(200);
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\nx\n");
    // What did not run may be tried again.
    let wrong = json!({ "command": "true", "mustExist": true });
    for _ in 0..2 {
        let (headers, sent) = once("k2", &wrong);
        let path = "/api/v1/sessions/none/exec";
        world.request(world.admin(), Method::POST, path, &headers, sent).await.fails(404, "session-missing");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_takes_its_command_with_it() {
    let world = World::new().await;
    let mark = world.folder.path().join("home/mark");
    for (accept, key) in
        [("application/json", None), ("application/x-ndjson", None), ("application/json", Some("k"))]
    {
        let _ = std::fs::remove_file(&mark);
        let body = json!({ "command": format!("touch {}; exec sleep 1000", mark.display()) }).to_string();
        let mut headers = vec![("content-type", "application/json"), ("accept", accept)];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let asking =
            world.request(world.admin(), Method::POST, "/api/v1/sessions/gone/exec", &headers, body.into());
        tokio::select! {
            answer = asking => panic!("{answer:?}"),
            () = until(async || mark.exists()) => {}
        }
        // Whoever asked is gone: the command ends.
        until(async || {
            let all = world.get(world.admin(), "/api/v1/sandboxes").await.is(200);
            all["sandboxes"][0]["activity"]["operations"] == 0
        })
        .await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn background_commands_are_started_watched_fed_and_ended() {
    let world = World::new().await;
    let path = "/api/v1/sessions/s/processes";
    let started = world.post(world.admin(), path, json!({ "command": "cat; echo end >&2" })).await.is(201);
    let process = started["process"].as_u64().unwrap();
    let one = format!("{path}/{process}");
    let headers = [("content-type", "application/octet-stream")];
    let sent =
        world.request(world.admin(), Method::POST, &format!("{one}/input"), &headers, "abc".into()).await;
    assert_eq!(sent.is(200), json!({ "bytes": 3, "closed": false }));
    until(async || {
        let part = world.get(world.admin(), &format!("{one}/output")).await.is(200);
        part["stdout"] == "abc"
    })
    .await;
    let part = world.get(world.admin(), &format!("{one}/output?stdoutFrom=1")).await.is(200);
    assert_eq!(
        (&part["stdout"], &part["stdoutFrom"], &part["stdoutNext"]),
        (&json!("bc"), &json!(1), &json!(3))
    );
    assert_eq!(part["running"], true);
    let close = format!("{one}/input?close=true");
    world.request(world.admin(), Method::POST, &close, &headers, Bytes::new()).await.is(200);
    let accept = [("accept", "application/x-ndjson")];
    let followed = format!("{one}/output?follow=true");
    let told = world.request(world.admin(), Method::GET, &followed, &accept, Bytes::new()).await;
    let told = events(&told.body);
    assert_eq!(told.last().unwrap()["exitCode"], 0, "{told:?}");
    world
        .post(world.admin(), &format!("{one}/signal"), json!({ "signal": 15 }))
        .await
        .fails(409, "process-ended");
    let second = world.post(world.admin(), path, json!({ "command": "exec sleep 1000" })).await.is(201);
    let second = format!("{path}/{}", second["process"]);
    world
        .post(world.admin(), &format!("{second}/signal"), json!({ "signal": 99 }))
        .await
        .fails(400, "value-out-of-range");
    let ended = world.send(world.admin(), Method::DELETE, &second).await.is(200);
    assert_eq!(ended["cancelled"], true);
    let all = world.get(world.admin(), path).await.is(200);
    assert_eq!(all["processes"].as_array().unwrap().len(), 2);
    world.get(world.admin(), &format!("{path}/99")).await.fails(404, "process-missing");
    let history = world.get(world.admin(), "/api/v1/sessions/s/history?output=true").await.is(200);
    assert_eq!(history["commands"].as_array().unwrap().len(), 2);
    assert_eq!(history["commands"][1]["stdout"]["head"], "abc");
    world.end().await;
}
