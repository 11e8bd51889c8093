//! The network's log, questions and rules.

use hyper::Method;
use moltis_egress::{Action, Audit as _, AuditLog, Entry, Event, Protocol, Source};
use moltis_runtime::store::{Store, now_millis};
use serde_json::{Value, json};

use crate::support::{World, events};

fn entry(number: u64, session: &str, domain: &str) -> Entry {
    Entry {
        timestamp: now_millis() - 1000 + number,
        session: session.into(),
        id: number,
        event: Event::Open,
        domain: domain.into(),
        port: 443,
        protocol: Protocol::Https,
        action: if number.is_multiple_of(2) { Action::Allowed } else { Action::Denied },
        source: Source::Config,
        reason: Some("=cmd".into()),
        bytes_sent: 1,
        bytes_received: 2,
        duration_millis: 3,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_listed_counted_and_exported() {
    let world = World::new().await;
    let empty = world.get(world.admin(), "/api/v1/network/audit").await.is(200);
    assert_eq!(empty["entries"], json!([]));
    let log = AuditLog::new(world.data());
    for number in 0..10 {
        log.record(entry(
            number,
            if number < 5 { "mine/a" } else { "other" },
            &format!("h{}.example", number % 3),
        ));
    }
    assert!(log.flush(std::time::Duration::from_secs(30)));
    let ids = |page: &Value| -> Vec<u64> {
        page["entries"].as_array().unwrap().iter().map(|entry| entry["id"].as_u64().unwrap()).collect()
    };
    // Newest first, in pages.
    let first = world.get(world.admin(), "/api/v1/network/audit?limit=4").await.is(200);
    assert_eq!(ids(&first), [9, 8, 7, 6]);
    let next = first["next"].as_str().unwrap();
    let second =
        world.get(world.admin(), &format!("/api/v1/network/audit?limit=4&cursor={next}")).await.is(200);
    assert_eq!(ids(&second), [5, 4, 3, 2]);
    for (query, expected) in [
        ("session=other", vec![9, 8, 7, 6, 5]),
        ("action=denied", vec![9, 7, 5, 3, 1]),
        ("domain=h1.example", vec![7, 4, 1]),
        ("domain=example&protocol=https&limit=2", vec![9, 8]),
        ("protocol=http", vec![]),
    ] {
        let page = world.get(world.admin(), &format!("/api/v1/network/audit?{query}")).await.is(200);
        assert_eq!(ids(&page), expected, "{query}");
    }
    // A bound key sees what its sessions did, and nothing else.
    let bound = world.key("bound", "operator.read", Some(&["mine/*"])).await;
    let page = world.get(bound.clone(), "/api/v1/network/audit?limit=3").await.is(200);
    assert_eq!(ids(&page), [4, 3, 2]);
    world.get(bound.clone(), "/api/v1/network/audit?session=other").await.fails(404, "session-missing");
    let stats = world.get(bound.clone(), "/api/v1/network/stats").await.is(200);
    assert_eq!((&stats["total"]["allowed"], &stats["total"]["denied"]), (&json!(3), &json!(2)));
    let periods = stats["overTime"]["periods"].as_array().unwrap();
    let sum = |of: &str| periods.iter().map(|period| period[of].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("allowed"), sum("denied"), &stats["overTime"]["periodMs"]), (3, 2, &json!(1000)));
    let lines = world.get(bound, "/api/v1/network/export").await;
    assert_eq!(events(&lines.body).len(), 5);
    let csv = world.get(world.admin(), "/api/v1/network/export?format=csv&session=other").await;
    let text = std::str::from_utf8(&csv.body).unwrap();
    assert_eq!((text.lines().count(), text.contains("\"'=cmd\"")), (6, true), "{text}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_questions_are_answered() {
    let world = World::with(
        "[tools.exec.sandbox]\nbackend = \"restricted-host\"\ntrusted_domains = [\"conf.example\"]\n",
    )
    .await;
    let admin = || world.admin();
    world.with_json(admin(), Method::PUT, "/api/v1/sessions/mine%2Fa", json!({})).await.is(201);
    let made = json!({ "pattern": "BÜCHER.example", "action": "allow" });
    let made = world.post(admin(), "/api/v1/network/rules", made).await.is(200);
    assert_eq!(made["pattern"], "xn--bcher-kva.example");
    let denied = json!({ "pattern": "xn--bcher-kva.example", "action": "deny" });
    assert_eq!(world.post(admin(), "/api/v1/network/rules", denied).await.is(200)["replaced"], "allow");
    let own = json!({ "pattern": "*.own.example", "action": "allow", "session": "mine/a" });
    world.post(admin(), "/api/v1/network/rules", own).await.is(200);
    let rules = world.get(admin(), "/api/v1/network/rules?session=mine%2Fa").await.is(200);
    let origins: Vec<_> =
        rules["rules"].as_array().unwrap().iter().map(|rule| rule["origin"].clone()).collect();
    assert_eq!(origins, ["config", "rule", "session"]);
    let tested = json!({ "host": "x.own.example", "session": "mine/a", "port": 80 });
    world.post(admin(), "/api/v1/network/test", tested).await.is(200);
    let forget = "/api/v1/network/rules?pattern=xn--bcher-kva.example";
    world.send(admin(), Method::DELETE, forget).await.is(200);
    world.send(admin(), Method::DELETE, forget).await.fails(404, "rule-missing");
    for (body, code) in [
        (json!({ "pattern": "a b", "action": "allow" }), "config-malformed"),
        (json!({ "pattern": "a.example", "action": "maybe" }), "body-invalid"),
    ] {
        world.post(admin(), "/api/v1/network/rules", body).await.fails(400, code);
    }
    // Questions: put by whoever runs the proxy, here by hand.
    let store = Store::new(world.data());
    let ask = async |session: &str, host: &str| -> u64 {
        let key = moltis_sandbox::SessionKey::new(session).unwrap();
        let asked = moltis_egress::Asked {
            host: host.into(),
            port: 443,
            protocol: Protocol::Https,
            timeout: std::time::Duration::from_secs(600),
        };
        let asked = store.run(move |db| db.ask_approval(&key, &asked, now_millis())).await.unwrap();
        match asked {
            moltis_runtime::store::Asking::Waiting { approval, .. } => approval.id.0,
            other => panic!("{other:?}"),
        }
    };
    let bound = world.key("bound", "operator.write", Some(&["mine/*"])).await;
    let mut feed = world.stream(bound.clone(), "/api/v1/network/feed").await;
    let mine = ask("mine/a", "one.example").await;
    let other = ask("other", "two.example").await;
    let told = feed.next().await;
    assert_eq!((&told["event"], &told["host"]), (&json!("asked"), &json!("one.example")));
    let waiting = world.get(bound.clone(), "/api/v1/network/approvals").await.is(200);
    assert_eq!(waiting["approvals"].as_array().unwrap().len(), 1);
    let decide = |id: u64, decision: &str| {
        (format!("/api/v1/network/approvals/{id}"), json!({ "decision": decision }))
    };
    let (path, body) = decide(other, "once");
    world.post(bound.clone(), &path, body).await.fails(404, "approval-missing");
    let (path, body) = decide(mine, "always");
    world.post(bound.clone(), &path, body).await.fails(403, "key-bound");
    let (path, body) = decide(mine, "session");
    let answered = world.post(bound.clone(), &path, body.clone()).await.is(200);
    assert_eq!(answered["answered"][0]["decision"], "session");
    world.post(bound, &path, body).await.fails(409, "approval-over");
    let told = feed.next().await;
    assert_eq!((&told["event"], &told["host"]), (&json!("answered"), &json!("one.example")));
    // The feed ends with the gateway, which is not kept waiting by it.
    let (ended, ()) = tokio::join!(feed.end(), world.end());
    assert!(ended);
}
