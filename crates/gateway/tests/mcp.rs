//! The tools of a model, behind the same door.

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Answer, As, World};

const HEADERS: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

async fn say(world: &World, who: As, path: &str, session: Option<&str>, message: Value) -> Answer {
    let mut headers = HEADERS.to_vec();
    headers.extend(session.map(|session| ("mcp-session-id", session)));
    world.request(who, Method::POST, path, &headers, Bytes::from(message.to_string())).await
}

/// What the last event of an answer says.
fn said(answer: &Answer) -> Value {
    let text = std::str::from_utf8(&answer.body).unwrap();
    let last = text.lines().rfind(|line| line.starts_with("data: {"));
    serde_json::from_str(last.map_or(text, |line| &line[6..])).unwrap_or_else(|_| panic!("{answer:?}"))
}

fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_works_in_the_session_of_its_path_or_key() {
    let world = World::new().await;
    let read = world.key("read", "operator.read", None).await;
    let one = world.key("one", "operator.write", Some(&["only"])).await;
    let many = world.key("many", "operator.write", Some(&["team/*"])).await;
    say(&world, As::Nobody, "/mcp", None, hello()).await.fails(401, "credential-missing");
    say(&world, read, "/mcp", None, hello()).await.fails(403, "scope-missing");
    say(&world, many.clone(), "/mcp", None, hello()).await.fails(400, "session-missing-in-path");
    say(&world, many.clone(), "/mcp/other", None, hello()).await.fails(404, "session-missing");
    let foreign = [HEADERS[0], HEADERS[1], ("origin", "https://evil.example")];
    let answer = world.request(one.clone(), Method::POST, "/mcp", &foreign, Bytes::new()).await;
    answer.fails(403, "origin-foreign");
    for (who, path, key) in [
        (one, "/mcp", "only"),
        (many, "/mcp/team%2Fa", "team/a"),
        (world.admin(), "/mcp", "mcp:admin"),
        (As::Owner, "/mcp", "mcp:owner"),
    ] {
        let hello = say(&world, who.clone(), path, None, hello()).await;
        assert_eq!(hello.status, 200, "{hello:?}");
        let id = hello.header("mcp-session-id").to_owned();
        assert!(said(&hello)["result"]["serverInfo"]["name"].is_string(), "{hello:?}");
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(say(&world, who.clone(), path, Some(&id), ready).await.status, 202);
        let call = json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": "exec", "arguments": { "command": "echo from a model" } },
        });
        let ran = say(&world, who, path, Some(&id), call).await;
        assert!(said(&ran).to_string().contains("from a model"), "{ran:?}");
        let path = format!("/api/v1/sessions/{}/history", key.replace('/', "%2F"));
        let history = world.get(world.admin(), &path).await.is(200);
        assert_eq!(history["commands"][0]["caller"]["kind"], "mcp", "{history}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_changes_holds_for_the_next_call_of_a_client() {
    let world = World::new().await;
    let hello = say(&world, world.admin(), "/mcp", None, hello()).await;
    let id = hello.header("mcp-session-id").to_owned();
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(say(&world, world.admin(), "/mcp", Some(&id), ready).await.status, 202);
    let call = async || {
        let call = json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": "exec", "arguments": { "command": "seq 100000" } },
        });
        said(&say(&world, world.admin(), "/mcp", Some(&id), call).await)["result"]["structuredContent"]
            .clone()
    };
    let before = call().await;
    let changes = json!({ "changes": { "tools.exec.max_output_bytes": 1024 } });
    world.with_json(world.admin(), Method::PATCH, "/api/v1/settings", changes).await.is(200);
    let after = call().await;
    let length = |answer: &Value| answer["stdout"].as_str().unwrap().len();
    assert!(length(&before) > 1200 && length(&after) <= 1200, "{} {}", length(&before), length(&after));
    world.end().await;
}
