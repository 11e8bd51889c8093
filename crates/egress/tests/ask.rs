//! Hosts that a person is asked about.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_egress::{Approvals, Asked, OnUnknown, Policy, Protocol, ProxyLimits, Verdict};
use tokio::io::AsyncWriteExt;

use crate::connect::OPENED;
use crate::world::{Server, World, asking, expect, policy, rest, soon};

pub struct Nobody;

#[async_trait]
impl Approvals for Nobody {
    async fn ask(&self, _: &Asked) -> Verdict {
        Verdict::TimedOut
    }
}

#[tokio::test]
async fn those_who_wait_for_the_same_are_one_question() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut programs = Vec::new();
    for _ in 0..3 {
        let mut program = world.program();
        program.write_all(format!("CONNECT SITE.test:{port} HTTP/1.1\r\n\r\nx").as_bytes()).await.unwrap();
        programs.push(program);
    }
    let (asked, answer) = soon(world.questions.recv()).await.unwrap();
    let protocol = Protocol::Connect;
    assert_eq!(asked, Asked { host: "site.test".into(), port, protocol, timeout: Duration::from_secs(10) });
    // All three have come by now, or soon; and nothing was looked up.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.questions.try_recv().is_err());
    assert_eq!(*world.names.asked.lock().unwrap(), Vec::<String>::new());
    answer.send(Verdict::Once).unwrap();
    for program in &mut programs {
        expect(program, &format!("{OPENED}x")).await;
    }
    // Once is once.
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\nx").as_bytes()).await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(Verdict::Denied).unwrap();
    assert!(rest(&mut program).await.starts_with("HTTP/1.1 403 Denied by Moltis (approval-denied)"));
    drop(programs);
    let entries = world.entries().await;
    assert_eq!(
        entries
            .iter()
            .filter(|e| e.starts_with("open allowed connect site.test") && e.contains("approval"))
            .count(),
        3
    );
    assert!(
        entries.contains(&format!("open denied connect site.test:{port} approval (a person said no) 0/0")),
        "{entries:#?}"
    );
}

#[tokio::test]
async fn verdicts() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &["bad.test"]));
    for (verdict, answer) in [
        (Verdict::Session, "HTTP/1.1 200 OK"),
        (Verdict::Always, "HTTP/1.1 200 OK"),
        (Verdict::TimedOut, "HTTP/1.1 403 Denied by Moltis (approval-timeout)"),
        (Verdict::TooMany, "HTTP/1.1 429 Denied by Moltis (approval-limit)"),
    ] {
        let mut program = world.program();
        program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        soon(world.questions.recv()).await.unwrap().1.send(verdict).unwrap();
        expect(&mut program, answer).await;
    }
    // Nobody is asked about these.
    for host in ["bad.test:1", "127.0.0.2:80", "10.0.0.1:80", "[::1]:80", "8.8.8.8:9"] {
        let said = world.said(&format!("CONNECT {host} HTTP/1.1\r\n\r\n")).await;
        assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    }
    assert!(world.questions.try_recv().is_err());
}

#[tokio::test]
async fn an_approved_name_may_still_lead_nowhere() {
    let mut world = World::new(asking(&[], &[]));
    let mut program = world.program();
    program.write_all(b"CONNECT site.test:80 HTTP/1.1\r\n\r\n").await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(Verdict::Always).unwrap();
    expect(&mut program, "HTTP/1.1 403 Denied by Moltis (address-refused)").await;
}

#[tokio::test]
async fn the_policy_may_answer_first() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let (_, mut answer) = soon(world.questions.recv()).await.unwrap();
    // A change about something else leaves the question as it is.
    world.policy.send(asking(&["127.0.0.1", "else.test"], &[])).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!answer.is_closed());
    world.policy.send(asking(&["127.0.0.1", "site.test"], &[])).unwrap();
    expect(&mut program, OPENED).await;
    soon(answer.closed()).await;
    let mut program = world.program();
    program.write_all(format!("CONNECT other.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let (_, mut answer) = soon(world.questions.recv()).await.unwrap();
    world.policy.send(policy(&[], &["other.test"])).unwrap();
    assert!(rest(&mut program).await.contains("host-denied"));
    soon(answer.closed()).await;
}

#[tokio::test]
async fn only_so_many_wait() {
    let limits = ProxyLimits { waiting: 2, ..ProxyLimits::default() };
    let mut world = World::with(asking(&[], &[]), limits, None);
    let mut programs = Vec::new();
    for host in ["a.test", "b.test"] {
        let mut program = world.program();
        program.write_all(format!("CONNECT {host}:80 HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        programs.push((program, soon(world.questions.recv()).await.unwrap()));
    }
    assert!(world.said("CONNECT c.test:80 HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 429"));
    assert!(world.questions.try_recv().is_err());
}

#[tokio::test]
async fn once_holds_for_a_connection() {
    let (server, _) =
        Server::recorder("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    let authority = format!("site.test:{}", server.port());
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    let request = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    program.write_all(request.as_bytes()).await.unwrap();
    soon(world.questions.recv()).await.unwrap().1.send(Verdict::Once).unwrap();
    expect(&mut program, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    program.write_all(request.as_bytes()).await.unwrap();
    expect(&mut program, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
}

#[tokio::test]
async fn time_that_nobody_keeps_is_kept() {
    struct Forgetful;
    #[async_trait]
    impl Approvals for Forgetful {
        async fn ask(&self, _: &Asked) -> Verdict {
            std::future::pending().await
        }
    }
    tokio::time::pause();
    let on_unknown = OnUnknown::Ask(Duration::from_secs(1));
    let world = World::new(Policy { on_unknown, ..policy(&[], &[]) });
    let session = world.proxy.session("t", world.policy.subscribe(), Arc::new(Forgetful));
    let (mut program, proxy) = tokio::io::duplex(4096);
    tokio::spawn(session.serve(Box::new(proxy)));
    program.write_all(b"CONNECT site.test:80 HTTP/1.1\r\n\r\n").await.unwrap();
    expect(&mut program, "HTTP/1.1 403 Denied by Moltis (approval-timeout)").await;
}

#[tokio::test]
async fn who_gives_up_withdraws_the_question() {
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let requests = [
        &b"CONNECT site.test:80 HTTP/1.1\r\n\r\nearly"[..],
        b"GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n",
        b"\x05\x01\0\x05\x01\0\x03\x09site.test\0\x50early",
    ];
    for request in requests {
        let mut program = world.program();
        program.write_all(request).await.unwrap();
        let (_, mut answer) = soon(world.questions.recv()).await.unwrap();
        drop(program);
        soon(answer.closed()).await;
    }
    assert_eq!(
        world.entries().await,
        ["connect", "http", "socks5"].map(|protocol| {
            format!("open denied {protocol} site.test:80 approval (the program gave up) 0/0")
        })
    );
}

#[tokio::test]
async fn what_comes_while_a_person_thinks_is_kept() {
    let server = Server::echo().await;
    let port = server.port();
    let mut world = World::new(asking(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT site.test:{port} HTTP/1.1\r\n\r\none ").as_bytes()).await.unwrap();
    let (_, answer) = soon(world.questions.recv()).await.unwrap();
    program.write_all(b"two ").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    answer.send(Verdict::Once).unwrap();
    program.write_all(b"three").await.unwrap();
    expect(&mut program, &format!("{OPENED}one two three")).await;
}
