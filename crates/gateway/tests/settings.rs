//! Settings: read, written with comments kept, and what a change does while the gateway runs.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{As, World, until};

const CONFIG: &str = "# ours\n[tools.exec.sandbox]\nbackend = \"restricted-host\" # the least\n";

fn row<'a>(all: &'a Value, key: &str) -> &'a Value {
    all["settings"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_changed_in_the_file_and_hold_at_once() {
    let world = World::with(CONFIG).await;
    let change = |who: As, changes: Value| {
        world.with_json(who, Method::PATCH, "/api/v1/settings", json!({ "changes": changes }))
    };
    let changed = change(world.admin(), json!({ "tools.exec.default_timeout_secs": 7 })).await.is(200);
    assert_eq!(changed["changed"], json!(["tools.exec.default_timeout_secs"]));
    let text = std::fs::read_to_string(world.config_file()).unwrap();
    assert!(text.starts_with(CONFIG) && text.contains("[tools.exec]\ndefault_timeout_secs = 7\n"), "{text}");
    let all = world.get(world.admin(), "/api/v1/settings").await.is(200);
    let timeout = row(&all, "tools.exec.default_timeout_secs");
    assert_eq!(
        (&timeout["value"], &timeout["origin"], &timeout["live"]),
        (&json!("7"), &json!("file"), &json!(true))
    );
    assert_eq!(row(&all, "gateway.bind")["writable"], false);
    assert_eq!((&timeout["now"], &timeout["form"]), (&json!(7), &json!("number")));
    let network = row(&all, "tools.exec.sandbox.network");
    assert_eq!(
        (&network["now"], &network["words"]),
        (&json!("blocked"), &json!(["blocked", "trusted", "open"]))
    );
    // Where commands run is for whoever may do everything.
    let set = change(world.admin(), json!({ "tools.exec.sandbox.backend": "namespaces" })).await.is(200);
    assert_eq!(set["changed"], json!(["tools.exec.sandbox.backend"]));
    change(world.admin(), json!({ "tools.exec.sandbox.backend": "restricted-host" })).await.is(200);
    change(world.admin(), json!({ "tools.exec.default_timeout_secs": null })).await.is(200);
    for (changes, status, code) in [
        (json!({ "tools.exec.sandbox.netwrok": "open" }), 404, "setting-missing"),
        (json!({ "tools.exec.sandbox.network": "opne" }), 422, "config-unknown-word"),
        (json!({ "tools.exec.default_timeout_secs": 0 }), 422, "config-out-of-range"),
        (json!({ "tools.exec.sandbox.allow_unenforced": true }), 403, "setting-file-only"),
        (json!({ "data_dir": "/x" }), 403, "setting-file-only"),
        (json!({ "gateway.workspace_roots": ["/"] }), 403, "setting-owner-only"),
        (json!({ "tools.exec.sandbox.rootfs": "/" }), 403, "setting-owner-only"),
        (json!({ "tools.exec.sandbox.workspace": "/etc" }), 403, "workspace-not-allowed"),
        (
            json!({ "tools.exec.sandbox.mounts": [{ "source": "/etc", "target": "/x" }] }),
            403,
            "workspace-not-allowed",
        ),
        (json!({ "tools.exec.sandbox.daytona_api_key": "x" }), 403, "setting-secret"),
    ] {
        let before = std::fs::read_to_string(world.config_file()).unwrap();
        change(world.admin(), changes).await.fails(status, code);
        assert_eq!(std::fs::read_to_string(world.config_file()).unwrap(), before);
    }
    // Who runs it may, and is told what holds later.
    let later =
        change(As::Owner, json!({ "gateway.port": 1, "gateway.workspace_roots": ["/srv"] })).await.is(200);
    assert_eq!((&later["changed"], &later["atNextStart"]), (&json!(["gateway.workspace_roots"]), &json!([])));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_written_and_never_shown() {
    let world = World::with(CONFIG).await;
    let put = |secrets: Value| {
        world.with_json(
            world.admin(),
            Method::PATCH,
            "/api/v1/settings/secrets",
            json!({ "secrets": secrets }),
        )
    };
    let key = "tools.exec.sandbox.daytona_api_key";
    let put_first = put(json!({ key: "hunter2" })).await.is(200);
    assert_eq!((&put_first["changed"], &put_first["atNextStart"]), (&json!([key]), &json!([])));
    let place = world.data().join("secrets.toml");
    assert!(std::fs::read_to_string(&place).unwrap().contains("daytona_api_key = \"hunter2\""));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&place).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let all = world.get(world.admin(), "/api/v1/settings").await;
    assert!(!String::from_utf8_lossy(&all.body).contains("hunter2"));
    assert_eq!(row(&all.is(200), key)["value"], "set");
    let wrong = put(json!({ key: "two words" })).await;
    assert!(!String::from_utf8_lossy(&wrong.body).contains("two words"));
    wrong.fails(400, "config-malformed");
    put(json!({ "gateway.port": "1" })).await.fails(400, "setting-no-secret");
    put(json!({ key: null })).await.is(200);
    assert!(!std::fs::read_to_string(&place).unwrap().contains("hunter2"));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_file_is_seen_and_a_wrong_one_changes_nothing() {
    let world = World::with(CONFIG).await;
    let exec = json!({ "command": "echo x; echo y" });
    let kept = async || {
        let ran = world.post(world.admin(), "/api/v1/sessions/s/exec", exec.clone()).await.is(200);
        ran["stdoutCut"] == 0
    };
    assert!(kept().await);
    std::fs::write(world.config_file(), format!("{CONFIG}[tools.exec]\nmax_output_bytes = 2\n")).unwrap();
    until(async || !kept().await).await;
    std::fs::write(world.config_file(), "[tools.exec\n").unwrap();
    until(async || {
        let all = world.get(world.admin(), "/api/v1/settings").await.is(200);
        all["warnings"].as_array().unwrap().iter().any(|warning| warning["code"] == "config-not-reloaded")
    })
    .await;
    assert!(!kept().await);
    world.send(world.admin(), Method::POST, "/api/v1/settings/reload").await.fails(422, "config-syntax");
    std::fs::write(world.config_file(), CONFIG).unwrap();
    until(async || kept().await).await;
    world.end().await;
}
