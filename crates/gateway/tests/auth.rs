//! Who may use which route, for every route of the table.

use bytes::Bytes;
use hyper::Method;
use moltis_gateway::route::{Bound, Carries, Need, Route};
use moltis_gateway::routes;
use serde_json::json;

use crate::support::{Answer, As, PATIENCE, World};

/// A path of a route, whose parts name nothing that is there.
fn path(route: &Route, session: &str) -> String {
    let path = route.path.replace("{session}", session);
    let mut path = path.replace("{process}", "9").replace("{approval}", "9").replace("{name}", "nobody");
    path = path.replace("{file}", "nothing.js");
    path = path.replace("{sandbox}", &"0".repeat(40));
    let query: Vec<_> = route
        .params
        .iter()
        .filter(|param| param.required && param.place == moltis_gateway::route::Place::Query)
        .map(|param| format!("{}={}", param.name, if param.name == "path" { "/nothing" } else { "x" }))
        .collect();
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// A request that reaches the door and, past it, cannot be right: nothing is changed by it.
async fn knock(world: &World, route: &Route, who: As, session: &str, headers: &[(&str, &str)]) -> Answer {
    let mut headers = headers.to_vec();
    let body = match route.carries {
        Carries::Json(..) => {
            headers.push(("content-type", "application/json"));
            Bytes::from_static(b"[]")
        }
        _ => Bytes::new(),
    };
    world.request(who, route.method.clone(), &path(route, session), &headers, body).await
}

/// Whether the answer is the door's.
fn turned_away(answer: &Answer) -> Option<String> {
    const DOOR: [&str; 8] = [
        "credential-missing",
        "credential-invalid",
        "secret-missing",
        "scope-missing",
        "owner-only",
        "key-bound",
        "host-foreign",
        "origin-foreign",
    ];
    let code = serde_json::from_slice::<serde_json::Value>(&answer.body).ok()?["code"].as_str()?.to_owned();
    DOOR.contains(&&*code).then_some(code)
}

/// Routes whose answer goes on, or that a knock would change something by.
fn skipped(route: &Route, passes: bool) -> bool {
    let acts = [
        "logout",
        "makeToken",
        "reloadSettings",
        "pruneSandboxes",
        "cleanImages",
        "followNetwork",
        "followEvents",
    ];
    passes && acts.contains(&route.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_keeps_its_rule() {
    let world = World::new().await;
    let read = world.key("read", "operator.read", None).await;
    let write = world.key("write", "operator.write", None).await;
    let admin = world.key("an-admin", "operator.admin", None).await;
    let bound = world.key("bound", "operator.write", Some(&["mine/*"])).await;
    let wrong = As::Bearer("mk_wrong".to_owned());
    for route in routes::table() {
        let need = route.rule.need;
        let expect = |allowed: bool, code: &str| if allowed { None } else { Some(code.to_owned()) };
        let cases = [
            (As::Nobody, expect(need == Need::Nothing, "credential-missing")),
            (read.clone(), expect(need <= Need::Read, "scope-missing")),
            (write.clone(), expect(need <= Need::Write, "scope-missing")),
            (admin.clone(), expect(need <= Need::Admin, "owner-only")),
            (world.admin(), expect(need <= Need::Admin, "owner-only")),
            (As::Owner, None),
        ];
        for (who, expected) in cases {
            if skipped(route, expected.is_none()) {
                continue;
            }
            let answer = knock(&world, route, who.clone(), "somebody%2Felse", &[]).await;
            assert_eq!(turned_away(&answer), expected, "{} as {who:?}", route.id);
        }
        if need != Need::Nothing {
            let answer = knock(&world, route, wrong.clone(), "s", &[]).await;
            answer.fails(401, "credential-invalid");
            // One wrong credential too many from one address would shut the others out.
            world.running().state().failures.forget();
        }
        // A foreign host and a foreign page are turned away before anything else is looked at.
        for (headers, code) in [
            (&[("host", "evil.example")][..], "host-foreign"),
            (&[("origin", "https://evil.example")], "origin-foreign"),
            (&[("origin", "null")], "origin-foreign"),
        ] {
            let answer = knock(&world, route, world.admin(), "s", headers).await;
            assert_eq!(turned_away(&answer).as_deref(), Some(code), "{}", route.id);
        }
        // A key that is bound.
        let allowed = need <= Need::Write;
        let (other, own) = match route.rule.bound {
            _ if !allowed => (Some("scope-missing"), Some("scope-missing")),
            Bound::Never => (Some("key-bound"), Some("key-bound")),
            Bound::Session | Bound::Filtered => (None, None),
        };
        if !skipped(route, other.is_none()) {
            let answer = knock(&world, route, bound.clone(), "somebody%2Felse", &[]).await;
            assert_eq!(turned_away(&answer).as_deref(), other, "{} as a bound key", route.id);
            if route.rule.bound == Bound::Session && allowed {
                answer.fails(404, "session-missing");
            }
            let answer = knock(&world, route, bound.clone(), "mine%2Fone", &[]).await;
            assert_eq!(turned_away(&answer).as_deref(), own, "{} as a bound key of its own", route.id);
        }
    }
    world.end().await;
}

struct Login {
    cookie: String,
    secret: String,
}

async fn login(world: &World) -> Login {
    let answer = world.post(As::Nobody, "/api/v1/login", json!({ "token": world.token })).await;
    let cookie = answer.header("set-cookie").to_owned();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let secret = answer.is(200)["secret"].as_str().unwrap().to_owned();
    Login { cookie: cookie.split(';').next().unwrap().to_owned(), secret }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_alone_looks_and_no_more() {
    let world = World::new().await;
    let Login { cookie, secret } = login(&world).await;
    for route in routes::table()
        .iter()
        .filter(|route| route.rule.need == Need::Admin || route.rule.need <= Need::Write)
    {
        if route.rule.need == Need::Nothing {
            continue;
        }
        let looks = route.method == Method::GET && !route.streams;
        let alone = knock(&world, route, As::Nobody, "s", &[("cookie", &cookie)]).await;
        let expected = (!looks).then(|| "secret-missing".to_owned());
        assert_eq!(turned_away(&alone), expected, "{}", route.id);
        let wrong = [("cookie", &*cookie), ("x-moltis-secret", "ms_wrong")];
        let wrong = knock(&world, route, As::Nobody, "s", &wrong).await;
        assert_eq!(turned_away(&wrong), expected, "{}", route.id);
        if !skipped(route, true) {
            let both = [("cookie", &*cookie), ("x-moltis-secret", &*secret)];
            let both = knock(&world, route, As::Nobody, "s", &both).await;
            assert_eq!(turned_away(&both), None, "{}", route.id);
        }
    }
    // The cookie of another port is not ours, and a page of another port of this host is another's.
    let value = cookie.split_once('=').unwrap().1;
    let other = format!("moltis_1={value}");
    world
        .request(As::Nobody, Method::GET, "/api/v1/me", &[("cookie", &other)], Bytes::new())
        .await
        .fails(401, "credential-missing");
    let headers = [("cookie", &*cookie), ("x-moltis-secret", &*secret), ("origin", "http://127.0.0.1:1")];
    world
        .request(As::Nobody, Method::GET, "/api/v1/me", &headers, Bytes::new())
        .await
        .fails(403, "origin-foreign");
    let own = format!("http://{}", world.address);
    let headers = [("cookie", &*cookie), ("x-moltis-secret", &*secret), ("origin", &*own)];
    let me = world.request(As::Nobody, Method::GET, "/api/v1/me", &headers, Bytes::new()).await.is(200);
    assert_eq!(me, json!({ "kind": "admin", "scope": "operator.admin" }));
    let gone = world.request(As::Nobody, Method::POST, "/api/v1/logout", &headers, Bytes::new()).await;
    assert_eq!(gone.status, 204);
    world
        .request(As::Nobody, Method::GET, "/api/v1/me", &headers, Bytes::new())
        .await
        .fails(401, "credential-invalid");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_and_keys_outlive_a_restart_and_end_by_word() {
    let mut world = World::new().await;
    let key = world.key("ci", "operator.read", None).await;
    let login = login(&world).await;
    let port = world.address.port();
    world.again().await;
    // The cookie has the port in its name: it is told from another gateway's of the same host.
    let cookie = login.cookie.replace(&port.to_string(), &world.address.port().to_string());
    let headers = [("cookie", &*cookie), ("x-moltis-secret", &*login.secret)];
    world.request(As::Nobody, Method::GET, "/api/v1/me", &headers, Bytes::new()).await.is(200);
    let me = world.get(key.clone(), "/api/v1/me").await.is(200);
    assert_eq!(me, json!({ "kind": "key", "name": "ci", "scope": "operator.read" }));
    let gone = world.send(world.admin(), Method::DELETE, "/api/v1/keys/ci").await;
    assert_eq!(gone.status, 204);
    world.get(key, "/api/v1/me").await.fails(401, "credential-invalid");
    world.send(world.admin(), Method::DELETE, "/api/v1/keys/ci").await.fails(404, "key-missing");
    // Another token ends the one before, and every login.
    let token = world.send(As::Owner, Method::POST, "/api/v1/token").await.is(200);
    world.get(world.admin(), "/api/v1/me").await.fails(401, "credential-invalid");
    world
        .request(As::Nobody, Method::GET, "/api/v1/me", &headers, Bytes::new())
        .await
        .fails(401, "credential-invalid");
    let new = As::Bearer(token["token"].as_str().unwrap().to_owned());
    world.get(new, "/api/v1/me").await.is(200);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_by_a_key_may_what_the_key_may_as_long_as_it_holds() {
    let world = World::new().await;
    let As::Bearer(key) = world.key("desk", "operator.read", Some(&["mine/*"])).await else { unreachable!() };
    let answer = world.post(As::Nobody, "/api/v1/login", json!({ "token": key })).await;
    let cookie = answer.header("set-cookie").split(';').next().unwrap().to_owned();
    let secret = answer.is(200)["secret"].as_str().unwrap().to_owned();
    let headers = [("cookie", &*cookie), ("x-moltis-secret", &*secret)];
    let ask =
        |method: Method, path: &'static str| world.request(As::Nobody, method, path, &headers, Bytes::new());
    let me = ask(Method::GET, "/api/v1/me").await.is(200);
    let scope = "operator.read";
    assert_eq!(me, json!({ "kind": "key", "name": "desk", "scope": scope, "sessions": ["mine/*"] }));
    ask(Method::GET, "/api/v1/settings").await.fails(403, "scope-missing");
    ask(Method::POST, "/api/v1/sandboxes/prune").await.fails(403, "scope-missing");
    ask(Method::GET, "/api/v1/sessions/other").await.fails(404, "session-missing");
    let gone = world.send(world.admin(), Method::DELETE, "/api/v1/keys/desk").await;
    assert_eq!(gone.status, 204);
    ask(Method::GET, "/api/v1/me").await.fails(401, "credential-invalid");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_cannot_be_tried() {
    let world = World::new().await;
    let mut seen = Vec::new();
    for _ in 0..40 {
        seen.push(world.post(As::Nobody, "/api/v1/login", json!({ "token": "mt_guess" })).await);
    }
    assert_eq!(seen[0].status, 401);
    let last = seen.last().unwrap();
    assert_eq!((last.status, last.header("retry-after").is_empty()), (429, false));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_isolation_away_needs_an_admin() {
    let world = World::with(
        "[tools.exec.sandbox]\nbackend = \"restricted-host\"\nallowed_images = [\"docker.io/library/*\"]\n",
    )
    .await;
    let write = world.key("write", "operator.write", None).await;
    let inside = world.folder.path().join("home");
    for (patch, code) in [
        (json!({ "sandboxEnabled": false }), "admin-needed"),
        (json!({ "sandboxBackend": "none" }), "admin-needed"),
        (json!({ "sandboxBackend": "restricted-host" }), "admin-needed"),
        (json!({ "network": "open" }), "admin-needed"),
        (json!({ "sandboxImage": "ghcr.io/x/y" }), "image-not-allowed"),
        (json!({ "workspace": { "source": inside } }), "workspace-not-allowed"),
        (json!({ "workspace": { "source": "/" } }), "workspace-not-allowed"),
    ] {
        let answer = world.with_json(write.clone(), Method::PATCH, "/api/v1/sessions/s", patch.clone()).await;
        answer.fails(403, code);
    }
    // An admin may, but for folders that are not named for the API.
    let answer = world
        .with_json(
            world.admin(),
            Method::PATCH,
            "/api/v1/sessions/s",
            json!({ "workspace": { "source": inside } }),
        )
        .await;
    answer.fails(403, "workspace-not-allowed");
    for patch in [json!({ "network": "open" }), json!({ "sandboxBackend": "none" })] {
        let answer = world.with_json(world.admin(), Method::PATCH, "/api/v1/sessions/s", patch).await;
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    }
    let settings = json!({ "command": "true", "settings": { "network": "open" } });
    world.post(write, "/api/v1/exec", settings).await.fails(403, "admin-needed");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_ends_with_what_let_it_in() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;

    let world = World::new().await;
    let key = world.key("desk", "operator.write", None).await;
    let As::Bearer(secret) = &key else { panic!("a key is a bearer's") };
    let url = format!("ws://{}/api/v1/sessions/s/terminal?command=cat", world.address);
    let mut request = url.as_str().into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    let events = world.stream(key.clone(), "/api/v1/events").await;
    let feed = world.stream(key.clone(), "/api/v1/sessions/s/feed").await;
    let others = world.stream(world.admin(), "/api/v1/events").await;
    // It serves for longer than it is looked at again.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    socket.send(Message::Binary("here\n".into())).await.unwrap();
    let echoed = async {
        let mut printed = Vec::new();
        while !printed.windows(4).any(|window| window == b"here") {
            match socket.next().await {
                Some(Ok(Message::Binary(bytes))) => printed.extend_from_slice(&bytes),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, echoed).await.unwrap();
    let gone = world.send(world.admin(), Method::DELETE, "/api/v1/keys/desk").await;
    assert_eq!(gone.status, 204);
    let closed = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(PATIENCE, closed).await.expect("the terminal goes on");
    assert!(events.ended().await && feed.ended().await, "a stream goes on");
    crate::support::until(async || {
        let history = world.get(world.admin(), "/api/v1/sessions/s/history").await.is(200);
        let command = &history["commands"][0];
        command["state"] == "ended" && command["cancelled"] == true
    })
    .await;
    // Another token ends what the one before let in, too.
    world.send(As::Owner, Method::POST, "/api/v1/token").await.is(200);
    assert!(others.ended().await, "a stream goes on");
    world.end().await;
}
