//! Through another proxy.

use moltis_egress::{ProxyLimits, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::connect::OPENED;
use crate::world::{Server, World, policy, soon};

/// A proxy that answers CONNECT and then sends back what comes, and answers other requests.
async fn proxy(refuses: bool) -> (Server, mpsc::UnboundedReceiver<String>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let connects = head.starts_with("CONNECT");
            sender.send(head).unwrap();
            let answer = match (refuses, connects) {
                (true, _) => "HTTP/1.1 407 Who are you?\r\nContent-Length: 0\r\n\r\n",
                (false, true) => "HTTP/1.1 200 OK\r\n\r\nfirst ",
                (false, false) => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    })
    .await;
    (server, receiver)
}

fn world(proxy: &Server) -> World {
    let upstream =
        Upstream::parse(&format!("http://user:pass@127.0.0.1:{}", proxy.port()), "direct.test").unwrap();
    World::with(policy(&["*", "127.0.0.7"], &["bad.test"]), ProxyLimits::default(), Some(upstream))
}

#[tokio::test]
async fn names_go_on_and_are_still_judged() {
    let (proxy, mut reached) = proxy(false).await;
    let world = world(&proxy);
    // Its name means nothing here.
    let said = world.said("CONNECT Far.test:443 HTTP/1.1\r\nUser-Agent: x\r\n\r\nsecond").await;
    assert_eq!(said, format!("{OPENED}first second"));
    assert_eq!(
        soon(reached.recv()).await.unwrap(),
        "CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
    );
    let said = world
        .said("GET http://far.test/x?y HTTP/1.1\r\nHost: far.test\r\nProxy-Authorization: z\r\n\r\n")
        .await;
    assert_eq!(said, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(
        soon(reached.recv()).await.unwrap(),
        "GET http://far.test:80/x?y HTTP/1.1\r\nHost: far.test\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
    );
    world.names.put("inner.test", &[&["10.0.0.1"]]);
    for host in ["bad.test", "site.test", "inner.test", "127.0.0.1", "10.0.0.1", "[::1]"] {
        let said = world.said(&format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n")).await;
        assert!(said.starts_with("HTTP/1.1 403"), "{host} {said}");
    }
    assert!(reached.try_recv().is_err());
    // A listed address goes there, too; a host that is named as one without does not.
    assert!(world.said("CONNECT 127.0.0.7:443 HTTP/1.1\r\n\r\n").await.starts_with(OPENED));
    assert!(soon(reached.recv()).await.unwrap().starts_with("CONNECT 127.0.0.7:443 "));
    world.names.put("direct.test", &[&["127.0.0.7"]]);
    let server = Server::echo().await;
    let said = world.said(&format!("CONNECT direct.test:{} HTTP/1.1\r\n\r\n", server.port())).await;
    assert!(said.starts_with("HTTP/1.1 502 Not reached by Moltis (host-unreachable)"), "{said}");
    assert!(reached.try_recv().is_err());
}

#[tokio::test]
async fn no_plain_request_becomes_a_tunnel_to_it() {
    let (proxy, mut reached) = proxy(false).await;
    let world = world(&proxy);
    let said = world
        .said("GET http://far.test/ HTTP/1.1\r\nHost: far.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await;
    assert_eq!(said, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(
        soon(reached.recv()).await.unwrap(),
        "GET http://far.test:80/ HTTP/1.1\r\nHost: far.test\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
    );
}

#[tokio::test]
async fn it_is_no_host_itself() {
    let (proxy, mut reached) = proxy(false).await;
    let port = proxy.port();
    let upstream = Upstream::parse(&format!("http://proxy.test:{port}"), "direct.test").unwrap();
    let trusted = policy(&["*", "127.0.0.1"], &[]);
    let world = World::with(trusted.clone(), ProxyLimits::default(), Some(upstream));
    for name in ["proxy.test", "alias.test", "direct.test"] {
        world.names.put(name, &[&["127.0.0.1"]]);
    }
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "alias.test", "direct.test", "Proxy.test."] {
        let said = world.said(&format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n")).await;
        assert!(said.starts_with("HTTP/1.1 403 Denied by Moltis (address-refused)"), "{host} {said}");
    }
    let tested = world.proxy.test(&trusted, "proxy.test", port).await.unwrap();
    assert_eq!(tested.code, Some("address-refused"));
    assert!(reached.try_recv().is_err());
    // Its other ports are hosts like others.
    assert!(world.said("CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n").await.starts_with(OPENED));
}

#[tokio::test]
async fn it_is_not_asked_to_repeat_what_it_was_told() {
    let (proxy, mut reached) = proxy(false).await;
    let world = world(&proxy);
    let said =
        world.said("TRACE http://far.test/ HTTP/1.1\r\nHost: far.test\r\nMax-Forwards: 0\r\n\r\n").await;
    assert!(said.starts_with("HTTP/1.1 400 Denied by Moltis (request-malformed)"), "{said}");
    assert!(reached.try_recv().is_err());
    assert_eq!(
        world.entries().await,
        ["open denied http far.test:80 malformed (TRACE is not sent to another proxy) 0/0"]
    );
}

#[tokio::test]
async fn its_refusals_are_told() {
    let (proxy, _reached) = proxy(true).await;
    let world = world(&proxy);
    let said = world.said("CONNECT far.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(said.starts_with("HTTP/1.1 502 Not reached by Moltis (upstream-refused)\r\n"), "{said}");
    assert_eq!(
        world.entries().await,
        ["open allowed connect far.test:443 unreachable (the upstream proxy answered 407) 0/0"]
    );
    drop(proxy);
}
