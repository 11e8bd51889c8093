//! Changes of the policy while something is open.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::connect::OPENED;
use crate::world::{Server, World, asking, expect, policy, rest, soon};

async fn tunnel(world: &World, host: &str, port: u16) -> UnixStream {
    let mut program = world.program();
    program.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    expect(&mut program, OPENED).await;
    ping(&mut program).await;
    program
}

async fn ping(program: &mut UnixStream) {
    program.write_all(b"ping").await.unwrap();
    expect(program, "ping").await;
}

#[tokio::test]
async fn what_is_no_longer_allowed_is_cut() {
    let server = Server::echo().await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "other.test", "127.0.0.1"], &[]));
    let mut cut = tunnel(&world, "site.test", port).await;
    let mut kept = tunnel(&world, "other.test", port).await;
    world.policy.send(policy(&["other.test", "127.0.0.1"], &[])).unwrap();
    assert_eq!(rest(&mut cut).await, "");
    ping(&mut kept).await;
    assert!(world.said(&format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n")).await.contains("host-unknown"));
    // A rule that forbids wins, and so does an address that is listed no more.
    world.policy.send(policy(&["other.test", "127.0.0.1"], &["*.nothing.test"])).unwrap();
    ping(&mut kept).await;
    world.policy.send(policy(&["other.test"], &[])).unwrap();
    assert_eq!(rest(&mut kept).await, "");
    let entries = world.entries().await;
    assert!(
        entries
            .contains(&format!("close denied connect site.test:{port} unknown (cut: no rule names it) 4/4")),
        "{entries:#?}"
    );
    assert!(
        entries.contains(&format!(
            "close denied connect other.test:{port} address (cut: loopback, and not listed) 12/12"
        )),
        "{entries:#?}"
    );
}

#[tokio::test]
async fn a_request_is_cut_in_its_midst() {
    let server = Server::new(|mut stream| async move {
        let _ = stream.read(&mut [0; 1000]).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
        let _ = stream.read(&mut [0; 1000]).await;
    })
    .await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    let mut program = world.program();
    let request = format!("GET http://site.test:{port}/ HTTP/1.1\r\nHost: site.test:{port}\r\n\r\n");
    program.write_all(request.as_bytes()).await.unwrap();
    expect(&mut program, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
    world.policy.send(policy(&["127.0.0.1"], &["site.test"])).unwrap();
    assert_eq!(rest(&mut program).await, "");
    let entries = world.entries().await;
    assert_eq!(entries.len(), 2);
    assert!(
        entries[1].starts_with(&format!("close denied http site.test:{port} config (cut: site.test)")),
        "{entries:#?}"
    );
}

#[tokio::test]
async fn what_is_still_sent_after_the_answer_is_counted_and_cut() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (sender, mut reached) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut all = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                all.push(byte);
                if all.ends_with(b"\r\n\r\n") {
                    let _ = stream.write_all(ANSWER.as_bytes()).await;
                }
                if all.ends_with(b"more\r\n") {
                    sender.send(all.len()).unwrap();
                }
            }
        }
    })
    .await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    let mut program = world.program();
    let head = format!(
        "POST http://site.test:{port}/ HTTP/1.1\r\nHost: site.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    program.write_all(head.as_bytes()).await.unwrap();
    expect(&mut program, ANSWER).await;
    program.write_all(b"4\r\nmore\r\n").await.unwrap();
    let sent = soon(reached.recv()).await.unwrap();
    assert_eq!(world.so_far().len(), 1, "{:#?}", world.so_far());
    world.policy.send(policy(&["127.0.0.1"], &[])).unwrap();
    assert_eq!(rest(&mut program).await, "");
    assert_eq!(
        world.entries().await[1..],
        [format!(
            "close denied http site.test:{port} unknown (cut: no rule names it) {sent}/{}",
            ANSWER.len()
        )]
    );
}

#[tokio::test]
async fn what_a_person_let_through_once_stays_until_it_is_forbidden() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(moltis_egress::Verdict::Once).unwrap();
    expect(&mut program, OPENED).await;
    ping(&mut program).await;
    world.policy.send(policy(&["127.0.0.1", "new.test"], &[])).unwrap();
    ping(&mut program).await;
    world.policy.send(policy(&["127.0.0.1"], &["*.test"])).unwrap();
    assert_eq!(rest(&mut program).await, "");
}

#[tokio::test]
async fn nothing_is_more_than_a_person_s_word() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let (_, answer) = soon(world.questions.recv()).await.unwrap();
    answer.send(moltis_egress::Verdict::Once).unwrap();
    expect(&mut program, OPENED).await;
    ping(&mut program).await;
    world.policy.send(moltis_egress::Policy::nothing()).unwrap();
    assert_eq!(rest(&mut program).await, "");
    let entries = world.entries().await;
    let cut = format!("close denied connect site.test:{port} session (cut: *) 4/4");
    assert_eq!(entries.last(), Some(&cut), "{entries:#?}");
}

#[tokio::test]
async fn what_a_person_let_through_for_the_session_follows_its_rule() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(moltis_egress::Verdict::Session).unwrap();
    expect(&mut program, OPENED).await;
    world.policy.send(policy(&["127.0.0.1", "site.test"], &[])).unwrap();
    ping(&mut program).await;
    world.policy.send(policy(&["127.0.0.1"], &[])).unwrap();
    assert_eq!(rest(&mut program).await, "");
}

#[tokio::test]
async fn the_next_request_of_a_connection_follows_the_rule_as_well() {
    let (server, _reached) = Server::recorder("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let authority = format!("site.test:{}", server.port());
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    let get = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    program.write_all(get.as_bytes()).await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(moltis_egress::Verdict::Session).unwrap();
    // The word is heard before the rule is seen.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    world.policy.send(policy(&["127.0.0.1", "site.test"], &[])).unwrap();
    expect(&mut program, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    world.policy.send(policy(&["127.0.0.1"], &[])).unwrap();
    program.write_all(get.as_bytes()).await.unwrap();
    expect(&mut program, "HTTP/1.1 403 Denied by Moltis (host-unknown)").await;
}

#[tokio::test]
async fn everything_ends_with_the_session() {
    let server = Server::echo().await;
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let forwarder = crate::limits::Inside::new();
    let mut program = forwarder.program();
    let session = world.proxy.session("t", world.policy.subscribe(), std::sync::Arc::new(crate::ask::Nobody));
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.run(Box::new(forwarder)).await }
    });
    program
        .write_all(format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", server.port()).as_bytes())
        .await
        .unwrap();
    expect(&mut program, OPENED).await;
    ping(&mut program).await;
    running.abort();
    let _ = running.await;
    // Without anybody who takes connections, those that were taken go on.
    ping(&mut program).await;
    drop(session);
    assert_eq!(rest(&mut program).await, "");
    assert_eq!(world.entries().await.len(), 2);
}
