//! What a restart keeps.

use hyper::Method;
use serde_json::json;

use crate::support::{As, World, until};

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_and_background_commands_go_on() {
    let mut world = World::new().await;
    let path = "/api/v1/sessions/s";
    let ran =
        world.post(world.admin(), &format!("{path}/exec"), json!({ "command": "echo kept > mark" })).await;
    let id = ran.is(200)["sandboxId"].clone();
    let line = "echo before; while [ ! -e go ]; do sleep 0.05; done; echo after";
    let started = world.post(world.admin(), &format!("{path}/processes"), json!({ "command": line })).await;
    let process = format!("{path}/processes/{}", started.is(201)["process"]);
    world.again().await;
    let status = world.get(world.admin(), "/api/v1/status").await.is(200);
    assert_eq!(status["adopted"], json!({ "running": 1, "silent": 0, "lost": 0, "removed": 0 }));
    let ran =
        world.post(world.admin(), &format!("{path}/exec"), json!({ "command": "cat mark; touch go" })).await;
    let ran = ran.is(200);
    assert_eq!((&ran["stdout"], &ran["sandboxId"], ran.get("restarted")), (&json!("kept\n"), &id, None));
    until(async || world.get(world.admin(), &process).await.is(200)["running"] == false).await;
    let output = world.get(world.admin(), &format!("{process}/output")).await.is(200);
    assert_eq!((&output["stdout"], &output["exitCode"]), (&json!("before\nafter\n"), &json!(0)));
    let history = world.get(world.admin(), &format!("{path}/history")).await.is(200);
    let states: Vec<_> =
        history["commands"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["ended", "ended", "ended"]);
    assert_eq!(history["commands"][0]["caller"], json!({ "kind": "apiKey", "name": "admin" }));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_end_with_the_gateway_after_their_time() {
    let mut world = World::new().await;
    world.options.deadline = Some(std::time::Duration::from_millis(300));
    world.again().await;
    let mark = world.folder.path().join("home/mark");
    let command = json!({ "command": format!("touch {}; exec sleep 1000", mark.display()) });
    let options = world.options.clone();
    {
        let asking = world.post(world.admin(), "/api/v1/sessions/s/exec", command);
        tokio::select! {
            answer = asking => panic!("{answer:?}"),
            () = until(async || mark.exists()) => {}
        }
    }
    world.options = options;
    world.again().await;
    // Its caller went, so it was ended; the sandbox stays.
    let history = world.get(world.admin(), "/api/v1/sessions/s/history").await.is(200);
    assert_ne!(history["commands"][0]["state"], "running");
    let ran =
        world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "true" })).await.is(200);
    assert_eq!(ran.get("restarted"), None);
    world.send(As::Owner, Method::DELETE, "/api/v1/sessions/s").await.is(200);
    world.end().await;
}
