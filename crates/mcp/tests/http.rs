//! The service for streamable HTTP, asked as a router asks it.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use moltis_mcp::{Access, HttpService, http_service};
use moltis_runtime::SessionRequest;
use moltis_runtime::store::Caller;
use moltis_sandbox::{BackendName, SessionKey};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Here, mark, processes_with, until};

fn access(key: &str) -> Access {
    Access {
        runtime: None,
        session: SessionRequest::new(SessionKey::new(key).unwrap()),
        who: "key-of-ci".to_owned(),
    }
}

/// Sends a message; gives status, headers and the answer, if there is one.
async fn post(
    service: &HttpService,
    access: Option<Access>,
    id: Option<&str>,
    message: &Value,
) -> (StatusCode, HeaderMap, Value) {
    let mut request = Request::post("/mcp")
        .header("host", "anywhere.example.com")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    if let Some(id) = id {
        request = request.header("mcp-session-id", id).header("mcp-protocol-version", "2025-06-18");
    }
    let mut request = request.body(Full::new(Bytes::from(message.to_string()))).unwrap();
    if let Some(access) = access {
        request.extensions_mut().insert(access);
    }
    let (parts, body) = service.handle(request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    // An answer is the last event of the stream.
    let data = body
        .lines()
        .rev()
        .filter_map(|line| line.strip_prefix("data:"))
        .find_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
    (parts.status, parts.headers, data.unwrap_or(Value::Null))
}

/// Begins as a client does; gives the id of its connection.
async fn begin(service: &HttpService, key: &str) -> String {
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "web", "version": "9" },
    });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let (status, headers, answer) = post(service, Some(access(key)), None, &message).await;
    assert_eq!(
        (status, &answer["result"]["serverInfo"]["name"]),
        (StatusCode::OK, &json!("moltis")),
        "{answer}"
    );
    let id = headers["mcp-session-id"].to_str().unwrap().to_owned();
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let (status, ..) = post(service, Some(access(key)), Some(&id), &message).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    id
}

fn exec(id: u64, command: &str) -> Value {
    let params = json!({ "name": "exec", "arguments": { "command": command, "timeout_secs": 600 } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[tokio::test]
async fn a_call_works_where_its_own_request_says() {
    let here = Here::new(BackendName::Namespaces);
    let service = http_service(here.runtime(), CancellationToken::new());
    let id = begin(&service, "a").await;
    let call = async |access: Option<Access>, command: &str| {
        let (status, _, answer) = post(&service, access, Some(&id), &exec(2, command)).await;
        assert_eq!(status, StatusCode::OK);
        answer["result"].clone()
    };
    let ran = call(Some(access("a")), "echo a > /tmp/f; cat /tmp/f").await;
    let data = &ran["structuredContent"];
    assert_eq!((&data["session"], &data["stdout"]), (&json!("a"), &json!("a\n")), "{ran}");
    // By the connection of somebody else nobody reaches somebody else's session.
    let other = call(Some(access("b")), "cat /tmp/f").await;
    let data = &other["structuredContent"];
    assert_eq!((&data["session"], &data["exitCode"]), (&json!("b"), &json!(1)), "{other}");
    let none = call(None, "true").await;
    assert_eq!(none["_meta"]["error"]["code"], "session-missing", "{none}");
    let history = here.runtime().history(&SessionKey::new("a").unwrap(), None, 10).await.unwrap();
    let callers: Vec<_> = history.entries.iter().map(|entry| entry.caller.clone()).collect();
    assert_eq!(callers, [Caller::Mcp { client: "key-of-ci/web 9".to_owned() }]);
    here.end().await;
}

#[tokio::test]
async fn a_call_is_taken_back_and_the_end_of_the_service_ends_all() {
    let here = Here::new(BackendName::Namespaces);
    let stop = CancellationToken::new();
    let service = http_service(here.runtime(), stop.clone());
    let id = begin(&service, "a").await;
    for by_client in [true, false] {
        let mark = mark();
        let (command, service_of, id_of) =
            (format!("setsid sleep {mark} & sleep {mark}"), service.clone(), id.clone());
        let call = tokio::spawn(async move {
            post(&service_of, Some(access("a")), Some(&id_of), &exec(7, &command)).await
        });
        until("it does not start", || processes_with(&format!("sleep {mark}")).len() >= 2).await;
        if by_client {
            let params = json!({ "requestId": 7 });
            let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            let (status, ..) = post(&service, Some(access("a")), Some(&id), &message).await;
            assert_eq!(status, StatusCode::ACCEPTED);
        } else {
            stop.cancel();
        }
        until("something is left", || processes_with(&mark).is_empty()).await;
        call.abort();
    }
    here.end().await;
}
