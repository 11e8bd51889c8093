//! A session's place: what lasts, what is written down and by whom, and what `sandbox_info` tells of it.

use moltis_mcp::{Place, Server};
use moltis_runtime::store::Caller;
use moltis_runtime::{NamedWorkspace, Overrides, SessionRequest};
use moltis_sandbox::{BackendName, MountMode, Network, Origin, SessionKey, Setting};
use serde_json::json;

use crate::support::{BACKENDS, Client, Here};

#[tokio::test]
async fn a_session_outlives_its_client_and_remembers_who_ran_what() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client_of("work").await;
        assert_eq!(client.good("exec", json!({ "command": "echo 1" })).await["session"], "work");
        let started = client.good("process_start", json!({ "command": "echo up; cat" })).await;
        client.leave().await;
        assert_eq!(here.remains().len(), 1);
        let client = here.client_of("work").await;
        let process = started["process"].clone();
        let output = client.good("process_output", json!({ "process": process, "wait_secs": 30 })).await;
        assert_eq!((&output["stdout"], &output["running"]), (&json!("up\n"), &json!(true)));
        let key = SessionKey::new("work").unwrap();
        let history = here.runtime().history(&key, None, 10).await.unwrap();
        let told: Vec<_> = history.entries.iter().map(|e| (e.command.as_str(), e.caller.clone())).collect();
        let by = || Caller::Mcp { client: "tester 1.2".to_owned() };
        assert_eq!(told, [("echo up; cat", by()), ("echo 1", by())]);
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn a_model_is_told_where_it_is() {
    let here = Here::new(BackendName::Namespaces);
    std::fs::create_dir(here.path("project")).unwrap();
    let workspace = NamedWorkspace { source: here.path("project"), mode: Some(MountMode::Ro) };
    let mut request = SessionRequest::new(SessionKey::new("s").unwrap());
    request.settings = Overrides {
        network: Some(Setting::new(Network::Trusted, Origin::Flag)),
        workspace: Some(Setting::new(workspace, Origin::Flag)),
        ..Overrides::default()
    };
    let runtime = here.runtime_with(|config| {
        let sandbox = &mut config.tools.exec.sandbox;
        sandbox.trusted_domains.value = vec!["*.example.com".parse().unwrap()];
    });
    let client = Client::new(Server::new(runtime, Place::Session(request))).await;
    let info = client.good("sandbox_info", json!({})).await;
    let told = |name: &str| info[name].clone();
    assert_eq!(
        (told("backend"), told("isolated"), told("session")),
        (json!("namespaces"), json!(true), json!("s"))
    );
    assert_eq!(told("cwd"), "/workspace");
    let network = json!({ "policy": "trusted", "trustedDomains": ["*.example.com"], "deniedDomains": [], "onUnknown": "deny" });
    assert_eq!(told("network"), network);
    let modes: Vec<_> = info["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| (mount["path"].as_str().unwrap(), mount["mode"].as_str().unwrap()))
        .collect();
    assert_eq!(modes, [("/home/sandbox", "rw"), ("/workspace", "ro"), ("/home/sandbox/files", "ro")]);
    assert_eq!(
        (&info["limits"]["timeoutSecs"], &info["limits"]["maxTimeoutSecs"]),
        (&json!(30), &json!(1800))
    );
    // Where the folder is outside is not told.
    assert!(!info.to_string().contains(&here.path("project").display().to_string()), "{info}");
    assert_eq!(client.bad("write_file", json!({ "path": "x", "content": "" })).await, "file-read-only");
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn no_isolation_is_said_aloud() {
    let here = Here::new(BackendName::RestrictedHost);
    let client = here.client().await;
    let info = client.call("sandbox_info", json!({})).await;
    let data = info.structured_content.as_ref().unwrap();
    assert_eq!(data["isolated"], false);
    let keys: Vec<_> =
        data["notEnforced"].as_array().unwrap().iter().map(|left| left["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"network"), "{keys:?}");
    assert!(crate::support::text(&info).starts_with("NO isolation (restricted-host)"), "{info:?}");
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn what_a_session_does_not_agree_with_is_an_error_of_each_call() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client_of("s").await;
    client.sh("true").await;
    client.leave().await;
    let mut request = SessionRequest::new(SessionKey::new("s").unwrap());
    request.settings.network = Some(Setting::new(Network::Trusted, Origin::Flag));
    let client = Client::new(Server::new(here.runtime(), Place::Session(request))).await;
    assert_eq!(client.bad("exec", json!({ "command": "true" })).await, "session-differs");
    client.leave().await;
    here.end().await;
}
