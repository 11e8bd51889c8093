//! The page as a browser gets it, and what it hears of.

use bytes::Bytes;
use hyper::Method;
use moltis_gateway::assets;
use serde_json::{Value, json};

use crate::support::{As, Events, World};

#[tokio::test(flavor = "multi_thread")]
async fn every_place_is_the_page_and_nothing_of_it_comes_from_elsewhere() {
    let world = World::new().await;
    let root = world.get(As::Nobody, "/").await;
    assert_eq!((root.status, root.header("cache-control")), (200, "no-store"));
    let policy = root.header("content-security-policy").to_owned();
    for part in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(root.header("referrer-policy"), "no-referrer");
    // A place is found by the page itself; what is no place is not.
    for path in ["/sandboxes", "/sessions/team%2Fa"] {
        let answer = world.plain(As::Nobody, Method::GET, path, &[]).await;
        assert_eq!((answer.status, &answer.body), (200, &root.body), "{path}");
        assert_eq!(answer.header("content-security-policy"), policy);
        let head = world.plain(As::Nobody, Method::HEAD, path, &[]).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
    }
    for (path, headers) in [
        ("/api/v2", &[][..]),
        ("/api/v1/places", &[("accept", "text/html")]),
        ("/metrics/x", &[]),
        ("/sandboxes", &[("accept", "application/json")]),
    ] {
        world.plain(As::Nobody, Method::GET, path, headers).await.fails(404, "route-missing");
    }
    world.plain(As::Nobody, Method::POST, "/sandboxes", &[]).await.fails(404, "route-missing");
    world
        .plain(As::Nobody, Method::GET, "/sandboxes", &[("host", "evil.example")])
        .await
        .fails(403, "host-foreign");
    world.get(As::Nobody, "/assets/index-0.js").await.fails(404, "page-file-missing");
    let text = std::str::from_utf8(&root.body).unwrap();
    if assets::is_there() {
        let start = text.find("/assets/index-").unwrap();
        let script = text[start..].split('"').next().unwrap().to_owned();
        let plain = world.get(As::Nobody, &script).await;
        assert_eq!(plain.header("cache-control"), "public, max-age=31536000, immutable");
        assert_eq!(plain.header("content-type"), "text/javascript; charset=utf-8");
        let packed = world.plain(As::Nobody, Method::GET, &script, &[("accept-encoding", "gzip, br")]).await;
        assert_eq!(packed.header("content-encoding"), "br");
        assert!(packed.body.len() < plain.body.len());
        assert!(
            !text.contains("<style") && !text.contains("http://") && !text.contains("https://"),
            "{text}"
        );
    } else {
        assert!(text.contains("/api/v1/openapi.json") && text.contains("npm"), "{text}");
    }
    world.end().await;
}

/// The next event that tells of one of these topics.
async fn told(events: &mut Events, topic: &str) -> Value {
    loop {
        let event = events.next().await;
        if event["topics"].as_array().is_some_and(|topics| topics.iter().any(|one| one == topic)) {
            return event;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_is_told_by_topic() {
    let world = World::new().await;
    let bound = world.key("bound", "operator.write", Some(&["mine/*"])).await;
    let mut all = world.stream(world.admin(), "/api/v1/events").await;
    let mut own = world.stream(bound.clone(), "/api/v1/events").await;
    let hello = all.next().await;
    assert_eq!((&hello["event"], hello["startedMillis"].is_u64()), (&json!("hello"), true));
    assert_eq!(own.next().await["event"], "hello");
    let make = |path: &'static str| world.with_json(world.admin(), Method::PUT, path, json!({}));
    make("/api/v1/sessions/other").await.is(201);
    told(&mut all, "sessions").await;
    world.post(world.admin(), "/api/v1/sessions/other/exec", json!({ "command": "true" })).await.is(200);
    told(&mut all, "sandboxes").await;
    let change = json!({ "changes": { "tools.exec.default_timeout_secs": 9 } });
    world.with_json(world.admin(), Method::PATCH, "/api/v1/settings", change).await.is(200);
    told(&mut all, "settings").await;
    let rule = json!({ "pattern": "a.example", "action": "allow" });
    world.post(world.admin(), "/api/v1/network/rules", rule).await.is(200);
    told(&mut all, "network").await;
    // Whoever sees some sessions has heard of none of the others' until one of his own comes.
    make("/api/v1/sessions/mine%2Fone").await.is(201);
    loop {
        let event = own.next().await;
        let topics: Vec<_> = event["topics"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(!topics.contains(&"sandboxes"), "{event}");
        if topics.contains(&"sessions") {
            break;
        }
    }
    let seen = world.get(bound, "/api/v1/sessions").await.is(200);
    assert_eq!(seen["sessions"].as_array().unwrap().len(), 1);
    // The stream ends with the gateway, which is not kept waiting by it.
    drop(own);
    let (ended, ()) = tokio::join!(all.ended(), world.end());
    assert!(ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_names_what_runs_and_what_is_not_kept() {
    let world = World::with("[tools.exec.sandbox]\nbackend = \"none\"\n").await;
    let status = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!(status["sandboxesRunning"], 0);
    let unkept = status["notEnforced"].as_array().unwrap();
    assert!(!unkept.is_empty() && unkept.iter().all(|one| one["key"].is_string()), "{status:#}");
    world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "true" })).await.is(200);
    let bound = world.key("bound", "operator.read", Some(&["mine/*"])).await;
    for (who, running) in [(world.admin(), 1), (bound, 0)] {
        let status = world.get(who, "/api/v1/status").await.is(200);
        assert_eq!(status["sandboxesRunning"], running);
    }
    let body = Bytes::new();
    world.request(As::Owner, Method::POST, "/api/v1/sessions/s/stop", &[], body).await.is(200);
    let status = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!(status["sandboxesRunning"], 0);
    world.end().await;
}
