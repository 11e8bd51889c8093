//! Files: of a session's sandbox and managed ones.

use base64::Engine;
use bytes::Bytes;
use hyper::Method;
use serde_json::json;

use crate::support::{Answer, World};

async fn put(world: &World, path: &str, headers: &[(&str, &str)], content: &str) -> Answer {
    world.request(world.admin(), Method::PUT, path, headers, Bytes::from(content.to_owned())).await
}

async fn all_of(world: &World, base: &str, top: &str) {
    let of = |route: &str, path: &str, rest: &str| format!("{base}{route}?path={top}{path}{rest}");
    // Written once, and not replaced without a word.
    let made = put(world, &of("/content", "/a.txt", ""), &[], "hello world").await.is(201);
    assert_eq!((&made["kind"], &made["size"]), (&json!("file"), &json!(11)));
    put(world, &of("/content", "/a.txt", ""), &[], "x").await.fails(409, "file-exists");
    let tag = made["etag"].as_str().unwrap().to_owned();
    // Read whole, in parts, and only when it has changed.
    let read = world.get(world.admin(), &of("/content", "/a.txt", "")).await;
    assert_eq!((read.status, &read.body[..]), (200, &b"hello world"[..]));
    assert_eq!(read.header("content-disposition"), "attachment; filename*=UTF-8''a.txt");
    assert_eq!(read.header("content-security-policy"), "sandbox; default-src 'none'");
    assert_eq!((read.header("etag"), read.header("content-type")), (&*tag, "application/octet-stream"));
    let ranged = |range: &'static str| {
        let path = of("/content", "/a.txt", "");
        async move { world.request(world.admin(), Method::GET, &path, &[("range", range)], Bytes::new()).await }
    };
    let part = ranged("bytes=6-").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"world"[..]));
    assert_eq!(part.header("content-range"), "bytes 6-10/11");
    ranged("bytes=11-").await.fails(416, "range-missing");
    let same = [("if-none-match", &*tag)];
    let path = of("/content", "/a.txt", "");
    assert_eq!(world.request(world.admin(), Method::GET, &path, &same, Bytes::new()).await.status, 304);
    // Replaced only as it was.
    put(world, &path, &[("if-match", "\"other\"")], "x").await.fails(412, "precondition-failed");
    let replaced = put(world, &path, &[("if-match", &*tag)], "new").await.is(200);
    assert_eq!(replaced["size"], 3);
    put(world, &path, &[("if-match", &*tag)], "x").await.fails(412, "precondition-failed");
    put(world, &path, &[("if-none-match", "*")], "x").await.fails(412, "precondition-failed");
    put(world, &of("/content", "/a.txt", "&overwrite=true"), &[], "newer").await.is(200);
    // Folders.
    put(world, &of("/content", "/d/e/b", ""), &[], "x").await.fails(404, "file-missing");
    put(world, &of("/content", "/d/e/b", "&parents=true&mode=600"), &[], "x").await.is(201);
    let folder = json!({ "path": format!("{top}/f") });
    world.post(world.admin(), &format!("{base}/mkdir"), folder.clone()).await.is(201);
    world.post(world.admin(), &format!("{base}/mkdir"), folder).await.fails(409, "file-exists");
    let listed = world.get(world.admin(), &of("/list", "/", "")).await.is(200);
    let names: Vec<_> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a.txt", "d", "f"]);
    // Counted, without what links lead to.
    let counted = world.get(world.admin(), &of("/count", "/d", "")).await.is(200);
    assert_eq!(counted, json!({ "files": 1, "folders": 1, "others": 0, "bytes": 1, "all": true }));
    let counted = world.get(world.admin(), &of("/count", "/a.txt", "")).await.is(200);
    assert_eq!(counted, json!({ "files": 1, "folders": 0, "others": 0, "bytes": 5, "all": true }));
    world.get(world.admin(), &of("/count", "/none", "")).await.fails(404, "file-missing");
    // A name need not be text.
    put(world, &of("/content", "/odd%FF", ""), &[], "x").await.is(201);
    let odd = base64::engine::general_purpose::STANDARD.encode([top.as_bytes(), b"/odd\xff"].concat());
    let moved = json!({ "from": odd, "fromEncoding": "base64", "to": format!("{top}/plain") });
    world.post(world.admin(), &format!("{base}/move"), moved.clone()).await.is(200);
    world.post(world.admin(), &format!("{base}/move"), moved).await.fails(404, "file-missing");
    let moved = json!({ "from": "!", "fromEncoding": "base64", "to": format!("{top}/plain") });
    world.post(world.admin(), &format!("{base}/move"), moved).await.fails(400, "body-invalid");
    assert_eq!(world.send(world.admin(), Method::DELETE, &of("", "/plain", "")).await.status, 204);
    // Whole trees.
    let tar = world.get(world.admin(), &of("/tree", "/d", "")).await;
    assert_eq!((tar.status, tar.header("content-type")), (200, "application/x-tar"));
    let upload = of("/tree", "/g", "");
    let unpacked = world.request(world.admin(), Method::PUT, &upload, &[], tar.body).await.is(200);
    assert_eq!(unpacked["bytes"], 1);
    let stat = world.get(world.admin(), &of("", "/g/e/b", "")).await;
    assert!(!stat.header("etag").is_empty());
    stat.is(200);
    // Moved and removed.
    let moved = json!({ "from": format!("{top}/a.txt"), "to": format!("{top}/g/e/b") });
    world.post(world.admin(), &format!("{base}/move"), moved).await.fails(409, "file-exists");
    let moved = json!({ "from": format!("{top}/a.txt"), "to": format!("{top}/g/e/b"), "overwrite": true });
    world.post(world.admin(), &format!("{base}/move"), moved).await.is(200);
    let folder = of("", "/g", "");
    assert_eq!(world.send(world.admin(), Method::DELETE, &folder).await.status, 400);
    let folder = of("", "/g", "&recursive=true");
    assert_eq!(world.send(world.admin(), Method::DELETE, &folder).await.status, 204);
    world.get(world.admin(), &of("", "/g", "")).await.fails(404, "file-missing");
    // Paths that are none.
    world.get(world.admin(), &format!("{base}/list?path=relative")).await.fails(400, "path-invalid");
    world.get(world.admin(), &format!("{base}/count")).await.fails(400, "param-missing");
    // Where nothing is named it is where commands run, or all managed files.
    let listed = world.get(world.admin(), &format!("{base}/list")).await.is(200);
    assert_eq!(listed["path"], if top.is_empty() { "/" } else { top });
    world.get(world.admin(), &format!("{base}/list?path=%2Fa%00b")).await.fails(400, "path-invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn managed_files_are_kept() {
    let world = World::new().await;
    all_of(&world, "/api/v1/files", "").await;
    assert!(world.data().join("files/d/e/b").exists());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_session_are_its_sandbox_s() {
    let world = World::new().await;
    let ran = world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "pwd" })).await.is(200);
    let top = ran["stdout"].as_str().unwrap().trim().to_owned();
    all_of(&world, "/api/v1/sessions/s/files", &top).await;
    // On the host nothing is reached but what is the session's.
    let path = "/api/v1/sessions/s/files/content?path=/etc/passwd";
    assert!((400..500).contains(&world.get(world.admin(), path).await.status));
    // Whoever may only look starts no sandbox.
    let read = world.key("read", "operator.read", None).await;
    world.with_json(world.admin(), Method::PATCH, "/api/v1/sessions/t", json!({})).await.is(201);
    let path = "/api/v1/sessions/t/files/list?path=/";
    world.get(read, path).await.fails(409, "sandbox-not-running");
    world.get(world.admin(), "/api/v1/sessions/none/files/list?path=/").await.fails(404, "session-missing");
    world.end().await;
}
