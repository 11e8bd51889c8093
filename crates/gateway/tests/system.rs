//! The gateway itself: health, metrics, the document, starting and not starting.

use bytes::Bytes;
use hyper::Method;
use serde_json::json;

use crate::support::{As, World};

#[tokio::test(flavor = "multi_thread")]
async fn it_says_what_it_is() {
    let world = World::new().await;
    let page = world.get(As::Nobody, "/").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(world.get(As::Nobody, "/healthz").await.body, "ok\n");
    let document = world.get(As::Nobody, "/api/v1/openapi.json").await.is(200);
    assert_eq!(document["openapi"], "3.1.0");
    world
        .post(world.admin(), "/api/v1/sessions/secret-name/exec", json!({ "command": "true" }))
        .await
        .is(200);
    let status = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!((&status["backend"], &status["ready"]), (&json!("restricted-host"), &json!(true)));
    assert!(status["warnings"].as_array().unwrap().iter().any(|warning| warning["code"] == "not-isolated"));
    let metrics = world.get(world.admin(), "/metrics").await;
    let text = std::str::from_utf8(&metrics.body).unwrap();
    assert!(text.contains("moltis_commands_total{backend=\"restricted-host\",end=\"done\"} 1\n"), "{text}");
    assert!(text.contains("moltis_sessions 1\n") && !text.contains("secret-name"));
    let me = world.get(As::Owner, "/api/v1/me").await.is(200);
    assert_eq!(me, json!({ "kind": "owner", "scope": "operator.admin" }));
    // What is not there.
    world.get(As::Nobody, "/api/v1/nothing").await.fails(404, "route-missing");
    let answer = world.send(As::Nobody, Method::POST, "/healthz").await;
    assert!(answer.header("allow").contains("GET"), "{answer:?}");
    answer.fails(405, "method-missing");
    // A request's name is taken over if it is a plain one.
    for (given, taken) in [("abc-1", true), ("a b", false)] {
        let headers = [("x-request-id", given)];
        let answer = world.request(As::Nobody, Method::GET, "/healthz", &headers, Bytes::new()).await;
        assert_eq!(answer.header("x-request-id") == given, taken);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gateway_has_the_data_directory() {
    let world = World::new().await;
    let error = moltis_gateway::start(world.options.clone(), true).await.err().unwrap();
    assert_eq!(error.code(), "gateway-running");
    assert!(error.diagnosis().cause.as_deref().unwrap().contains(&format!("process {}", std::process::id())));
    let mode = |name: &str| {
        let meta = std::fs::symlink_metadata(world.data().join(name)).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777
    };
    assert_eq!((mode("gateway.sock"), mode("gateway.lock")), (0o600, 0o600));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_reached_from_elsewhere_by_mistake() {
    let world = World::new().await;
    let mut options = world.options.clone();
    options.bind = Some("0.0.0.0".parse().unwrap());
    let error = moltis_gateway::start(options, true).await.err().unwrap();
    assert_eq!(error.code(), "gateway-exposed");
    world.end().await;
}
