//! What a client is told before it calls anything, and calls that cannot be right.

use moltis_sandbox::BackendName;
use serde_json::{Value, json};

use crate::support::{Client, Here, text};

#[tokio::test]
async fn every_tool_says_what_it_takes_gives_and_may_do() {
    let here = Here::new(BackendName::RestrictedHost);
    let client = here.client().await;
    let info = client.service.peer_info().unwrap();
    let server = info.server_info.as_ref().unwrap();
    assert_eq!((server.name.as_str(), server.version.as_str()), ("moltis", env!("CARGO_PKG_VERSION")));
    assert!(info.instructions.as_ref().unwrap().contains("sandbox_info"));
    let tools = client.service.list_all_tools().await.unwrap();
    let read_only = |name: &str| {
        let tool = tools.iter().find(|tool| tool.name == name).unwrap();
        tool.annotations.as_ref().unwrap().read_only_hint.unwrap()
    };
    let names: Vec<_> = tools.iter().map(|tool| (tool.name.to_string(), read_only(&tool.name))).collect();
    let want = [
        ("exec", false),
        ("read_file", true),
        ("write_file", false),
        ("edit_file", false),
        ("list_directory", true),
        ("glob", true),
        ("grep", true),
        ("process_start", false),
        ("process_output", true),
        ("process_input", false),
        ("process_stop", false),
        ("sandbox_info", true),
    ];
    assert_eq!(names, want.map(|(name, hint)| (name.to_owned(), hint)));
    for tool in &tools {
        let schema = Value::Object(tool.input_schema.as_ref().clone());
        assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
        for (name, property) in schema["properties"].as_object().unwrap() {
            // What decides where a call works is not for a model to say.
            let fixed = ["session", "backend", "network", "mount", "image", "workspace"];
            assert!(!fixed.contains(&name.as_str()), "{}: {name}", tool.name);
            assert!(property["description"].as_str().unwrap().len() > 10, "{}: {name}", tool.name);
            assert!(property["type"].is_string(), "{}: {name}", tool.name);
        }
        assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object");
        assert!(tool.description.as_ref().unwrap().len() > 80 && tool.title.is_some());
        let hints = tool.annotations.as_ref().unwrap();
        assert!(hints.destructive_hint.is_some() && hints.open_world_hint.is_some());
    }
    // Nothing was opened for that.
    assert_eq!(here.remains(), Vec::<String>::new());
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn what_is_not_understood_is_an_error_that_a_model_can_read() {
    let here = Here::new(BackendName::RestrictedHost);
    let client = here.client().await;
    let result = client.call("exec", json!({ "comand": "true" })).await;
    let told = text(&result);
    assert!(told.contains("\"comand\"") && told.contains("write `command`"), "{told}");
    for (tool, arguments) in [
        ("exec", json!({ "command": "true", "session": "other" })),
        ("exec", json!({ "command": "true", "network": "open" })),
        ("exec", json!({})),
        ("exec", json!({ "command": 1 })),
        ("exec", json!({ "command": " " })),
        ("exec", json!({ "command": "a\0b" })),
        ("exec", json!({ "command": "true", "timeout_secs": 0 })),
        ("exec", json!({ "command": "true", "timeout_secs": 1801 })),
        ("exec", json!({ "command": "true", "env": { "A=B": "x" } })),
        ("process_stop", json!({ "process": 1, "signal": "NONE" })),
        ("sandbox_info", json!({ "verbose": true })),
    ] {
        assert_eq!(client.bad(tool, arguments.clone()).await, "arguments-invalid", "{tool} {arguments}");
    }
    assert_eq!(client.bad("read_file", json!({ "path": "/a\0b" })).await, "path-invalid");
    assert_eq!(client.bad("glob", json!({ "pattern": "{a" })).await, "pattern-invalid");
    assert_eq!(client.bad("grep", json!({ "pattern": "(" })).await, "pattern-invalid");
    // A null is what was left out.
    client.good("exec", json!({ "command": "true", "cwd": null })).await;
    let unknown = client.service.call_tool(Client::params("run", json!({}))).await.unwrap_err();
    assert!(unknown.to_string().contains("there is no tool"), "{unknown}");
    client.leave().await;
    here.end().await;
}
