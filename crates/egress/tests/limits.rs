//! Too much, too slow, too long.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_egress::ProxyLimits;
use moltis_sandbox::{Diagnosis, Duplex, Error, Forwarder, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::ask::Nobody;
use crate::connect::{OPENED, hello};
use crate::world::{Server, World, expect, policy, rest, soon};

/// A sandbox's proxy port.
pub struct Inside {
    connects: mpsc::UnboundedSender<UnixStream>,
    connections: mpsc::UnboundedReceiver<UnixStream>,
}

impl Inside {
    pub fn new() -> Self {
        let (connects, connections) = mpsc::unbounded_channel();
        Self { connects, connections }
    }

    pub fn program(&self) -> UnixStream {
        let (program, proxy) = UnixStream::pair().unwrap();
        self.connects.send(proxy).unwrap();
        program
    }
}

#[async_trait]
impl Forwarder for Inside {
    fn port(&self) -> u16 {
        3128
    }

    async fn accept(&mut self) -> Result<Box<dyn Duplex>> {
        match self.connections.recv().await {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(Error::Lost(Diagnosis::new("gone", "gone"))),
        }
    }
}

fn limits() -> ProxyLimits {
    ProxyLimits { connections: 60, session_connections: 20, ..ProxyLimits::default() }
}

#[tokio::test]
async fn a_session_has_so_many_connections() {
    let server = Server::echo().await;
    let world = World::with(policy(&["127.0.0.1"], &[]), limits(), None);
    let idle: Vec<_> = (0..20).map(|_| world.program()).collect();
    let said = world.said("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(
        said,
        "HTTP/1.1 503 Denied by Moltis (connection-limit)\r\nX-Moltis-Egress: denied; code=connection-limit\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Length: 98\r\nConnection: close\r\n\r\n\
         Moltis did not let this request through: too many connections.\nClose connections, or try again later.\n"
            .replace("98", &(63 + 39).to_string())
    );
    let mut program = world.program();
    program.write_all(&[5, 1, 0]).await.unwrap();
    expect(&mut program, "\x05\0\x05\x01\0\x01\0\0\0\0\0\0").await;
    // Another session has its own.
    let other = world.proxy.session("t", world.policy.subscribe(), Arc::new(Nobody));
    let (mut program, proxy) = UnixStream::pair().unwrap();
    tokio::spawn(other.serve(Box::new(proxy)));
    program
        .write_all(format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", server.port()).as_bytes())
        .await
        .unwrap();
    expect(&mut program, OPENED).await;
    drop(idle);
    // Both refusals within a second are one entry.
    drop(program);
    let entries = world.entries().await;
    assert_eq!(entries[0], "open denied connect :0 limit (too many connections) 0/0");
    assert_eq!(entries.iter().filter(|e| e.contains("limit")).count(), 1, "{entries:#?}");
}

#[tokio::test]
async fn ten_thousand_idle_connections_are_nobody_elses_trouble() {
    let server = Server::echo().await;
    let world = World::new(policy(&["127.0.0.1"], &[]));
    // Ends of pipes in memory: the machine's files are not what is tested.
    let mut idle = Vec::new();
    for _ in 0..10_000 {
        let (program, proxy) = tokio::io::duplex(64);
        tokio::spawn(world.session.serve(Box::new(proxy)));
        idle.push(program);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.session.connections() <= 512, "{}", world.session.connections());
    let other = world.proxy.session("t", world.policy.subscribe(), Arc::new(Nobody));
    let (mut program, proxy) = tokio::io::duplex(4096);
    tokio::spawn(other.serve(Box::new(proxy)));
    program
        .write_all(format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\nx", server.port()).as_bytes())
        .await
        .unwrap();
    expect(&mut program, &format!("{OPENED}x")).await;
    assert!(world.so_far().len() < 10);
}

#[tokio::test]
async fn long_heads_are_refused() {
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let long = format!("GET http://127.0.0.1/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert!(world.said(&long).await.starts_with("HTTP/1.1 431 "));
    let many = format!("GET http://127.0.0.1/ HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
    assert!(world.said(&many).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(world.entries().await, ["open denied http :0 malformed (its head is too long) 0/0"; 2]);
}

#[tokio::test(start_paused = true)]
async fn slow_heads_are_given_up() {
    let world = World::new(policy(&["127.0.0.1"], &[]));
    for begin in [&b"GET http://127"[..], b"\x05\x01", b""] {
        let (mut program, proxy) = tokio::io::duplex(4096);
        let served = tokio::spawn(world.session.serve(Box::new(proxy)));
        for byte in begin {
            program.write_all(&[*byte]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        tokio::time::timeout(Duration::from_secs(40), served).await.unwrap().unwrap();
    }
    assert_eq!(
        world.so_far(),
        [
            "open denied http :0 limit (the request took too long) 0/0",
            "open denied socks5 :0 limit (the request took too long) 0/0"
        ]
    );
}

#[tokio::test]
async fn what_stands_still_ends() {
    let server = Server::echo().await;
    let port = server.port();
    let short = Duration::from_millis(400);
    let limits =
        ProxyLimits { tunnel_idle: short, request_idle: short, hello_time: short, ..ProxyLimits::default() };
    let world = World::with(policy(&["127.0.0.1"], &[]), limits, None);
    let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n");
    let mut program = world.program();
    program.write_all(connect.as_bytes()).await.unwrap();
    expect(&mut program, OPENED).await;
    // It is not cut as long as something moves, however little.
    for _ in 0..10 {
        program.write_all(b"x").await.unwrap();
        expect(&mut program, "x").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(rest(&mut program).await, "");
    // A request to a server that says nothing, and a greeting that stops.
    let (silent, _) = Server::recorder("").await;
    let authority = format!("127.0.0.1:{}", silent.port());
    let mut program = world.program();
    program
        .write_all(format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(rest(&mut program).await, "");
    let mut program = world.program();
    program.write_all(connect.as_bytes()).await.unwrap();
    expect(&mut program, OPENED).await;
    program.write_all(&hello("x")[..9]).await.unwrap();
    assert_eq!(rest(&mut program).await, "");
    let entries = world.entries().await;
    assert_eq!(
        entries[1],
        format!("close allowed connect 127.0.0.1:{port} config (ended: it stood still) 10/10")
    );
    assert!(
        entries[3].contains("close allowed http") && entries[3].contains("(ended: it stood still)"),
        "{entries:#?}"
    );
    assert_eq!(
        entries[4],
        format!("open denied connect 127.0.0.1:{port} limit (the request took too long) 0/0")
    );
}

#[tokio::test]
async fn a_greeting_that_begins_late_has_no_more_time() {
    let server = Server::echo().await;
    let port = server.port();
    let limits = ProxyLimits { hello_time: Duration::from_millis(300), ..ProxyLimits::default() };
    let world = World::with(policy(&["127.0.0.1"], &[]), limits, None);
    let mut program = world.program();
    program.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    expect(&mut program, OPENED).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    program.write_all(&hello("x")[..9]).await.unwrap();
    assert_eq!(rest(&mut program).await, "");
    assert_eq!(
        world.entries().await,
        [
            format!("open allowed connect 127.0.0.1:{port} config (127.0.0.1) 0/0"),
            format!("close denied connect 127.0.0.1:{port} limit (cut: the request took too long) 0/0"),
        ]
    );
}

#[tokio::test]
async fn lookups_of_one_session_do_not_hold_up_another() {
    struct Slow;
    #[async_trait]
    impl moltis_egress::Resolve for Slow {
        async fn resolve(&self, name: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
            if name.starts_with("slow") {
                std::future::pending::<()>().await;
            }
            Ok(vec![[127, 0, 0, 1].into()])
        }
    }
    let server = Server::echo().await;
    let world = World::new(policy(&["*", "127.0.0.1"], &[]));
    let limits = ProxyLimits {
        lookups: 4,
        session_lookups: 3,
        resolve_time: Duration::from_millis(300),
        ..ProxyLimits::default()
    };
    let proxy = moltis_egress::Proxy::new(moltis_egress::ProxySettings {
        limits,
        upstream: None,
        resolver: Arc::new(Slow),
        own: Arc::new(|_| false),
        audit: world.log.clone(),
    });
    let session = |key: &str| proxy.session(key, world.policy.subscribe(), Arc::new(Nobody));
    let (one, two) = (session("one"), session("two"));
    let ask = |session: &moltis_egress::SessionProxy, host: &str, port: u16| {
        let (program, served) = UnixStream::pair().unwrap();
        tokio::spawn(session.serve(Box::new(served)));
        let request = format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n");
        async move {
            let mut program = program;
            program.write_all(request.as_bytes()).await.unwrap();
            let mut said = [0; 12];
            soon(program.read_exact(&mut said)).await.unwrap();
            String::from_utf8_lossy(&said).into_owned()
        }
    };
    let slow: Vec<_> = (0..10).map(|i| tokio::spawn(ask(&one, &format!("slow{i}.test"), 80))).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(ask(&two, "quick.test", server.port()).await, "HTTP/1.1 200");
    for slow in slow {
        assert_eq!(slow.await.unwrap(), "HTTP/1.1 504");
    }
    // A lookup that nobody waits for any more still counts.
    assert_eq!(ask(&one, "quick.test", server.port()).await, "HTTP/1.1 504");
}

#[tokio::test]
async fn a_flood_of_refusals_is_listed_in_part_and_counted_as_a_whole() {
    let world = World::new(policy(&[], &[]));
    for number in 0..150 {
        let said = world.said(&format!("CONNECT n{number}.test:443 HTTP/1.1\r\n\r\n")).await;
        assert!(said.contains("host-unknown"), "{said}");
    }
    let listed = world.entries().await.len();
    let World { session, log, .. } = world;
    drop(session);
    let told = log.reasons().pop().unwrap();
    // A slow machine takes more than a second, and lists more.
    match 150 - listed {
        0 => assert_eq!(told, "no rule names it"),
        left_out => assert_eq!(told, format!("{left_out} more were refused before and are not listed")),
    }
}
