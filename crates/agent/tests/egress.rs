//! The proxy port.

use std::time::{Duration, Instant};

use moltis_sandbox::{Duplex, Forwarder, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::agent::{Agent, until};

fn agent() -> Agent {
    Agent::with(&["--egress"])
}

async fn inside(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

async fn all(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut got = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut got)).await.unwrap().unwrap();
    got
}

async fn accept(forwarder: &mut Box<dyn Forwarder>) -> Box<dyn Duplex> {
    tokio::time::timeout(Duration::from_secs(20), forwarder.accept()).await.unwrap().unwrap()
}

/// Answers each connection with what it says, in the background.
fn echo(mut forwarder: Box<dyn Forwarder>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok(mut stream) = forwarder.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(&mut stream);
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    })
}

/// Whether a request on the port is answered 503.
async fn is_refused(port: u16) -> bool {
    let mut stream = inside(port).await;
    stream.write_all(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n").await.unwrap();
    all(&mut stream).await.starts_with(b"HTTP/1.1 503 ")
}

/// Bytes that repeat nowhere soon.
fn data(length: u32) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[tokio::test]
async fn connections_come_out_and_each_direction_ends_by_itself() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let mut forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    for early in [true, false] {
        let mut program = inside(port).await;
        if early {
            program.write_all(b"early ").await.unwrap();
        }
        let mut outside = accept(&mut forwarder).await;
        program.write_all(b"late").await.unwrap();
        program.shutdown().await.unwrap();
        let expected: &[u8] = if early { b"early late" } else { b"late" };
        assert_eq!(all(&mut outside).await, expected);
        outside.write_all(b"answer").await.unwrap();
        outside.shutdown().await.unwrap();
        assert_eq!(all(&mut program).await, b"answer");
        // And the other way round.
        let mut program = inside(port).await;
        let mut outside = accept(&mut forwarder).await;
        outside.write_all(b"first").await.unwrap();
        outside.shutdown().await.unwrap();
        assert_eq!(all(&mut program).await, b"first");
        program.write_all(b"then").await.unwrap();
        program.shutdown().await.unwrap();
        assert_eq!(all(&mut outside).await, b"then");
    }
}

#[tokio::test]
async fn large_streams_arrive_whole_both_ways_at_once() {
    let agent = agent();
    let mut forwarder = agent.sandbox().egress().await.unwrap();
    let program = inside(forwarder.port()).await;
    let outside = accept(&mut forwarder).await;
    let (mut program_reads, mut program_writes) = program.into_split();
    let (mut outside_reads, mut outside_writes) = tokio::io::split(outside);
    let (up, down) = (data(20_000_000), data(30_000_001));
    let sending = async {
        tokio::try_join!(
            async {
                program_writes.write_all(&up).await?;
                program_writes.shutdown().await
            },
            async {
                outside_writes.write_all(&down).await?;
                outside_writes.shutdown().await
            },
        )
    };
    let (sent, got_down, got_up) = tokio::join!(sending, all(&mut program_reads), all(&mut outside_reads));
    sent.unwrap();
    assert!(got_up == up && got_down == down);
}

#[tokio::test]
async fn the_port_stays_and_while_nobody_stands_there_that_is_said() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    drop(forwarder);
    let mut refused = false;
    for _ in 0..100 {
        // One that was made at the last moment may still be let go without an answer.
        refused = refused || is_refused(port).await;
    }
    assert!(refused && is_refused(port).await);
    let mut program = inside(port).await;
    program.write_all(&[5, 1, 0]).await.unwrap();
    let mut answer = [0; 2];
    program.read_exact(&mut answer).await.unwrap();
    program.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80]).await.unwrap();
    assert_eq!((answer, all(&mut program).await), ([5, 0], vec![5, 1, 0, 1, 0, 0, 0, 0, 0, 0]));

    let again = sandbox.egress().await.unwrap();
    assert_eq!(again.port(), port);
    let echoing = echo(again);
    let mut program = inside(port).await;
    program.write_all(b"there").await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(all(&mut program).await, b"there");
    echoing.abort();
}

#[tokio::test]
async fn before_anybody_has_ever_stood_there_it_is_said_too() {
    let taken = TcpListener::bind("127.0.0.1:3128").await;
    let agent = agent();
    // Only asked for: from here on the number is known.
    let port = agent.sandbox().egress().await.unwrap().port();
    if taken.is_ok() {
        assert_ne!(port, 3128, "somebody else has that one");
    }
    let second = self::agent();
    let other = second.sandbox().egress().await.unwrap().port();
    assert_ne!(other, port);
    assert!(is_refused(port).await && is_refused(other).await);
    drop(second);
    until("the port goes with its agent", || std::net::TcpStream::connect(("127.0.0.1", other)).is_err())
        .await;
}

#[tokio::test]
async fn a_sandbox_without_the_port_says_so() {
    let agent = Agent::start();
    let error = agent.sandbox().egress().await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("refused", "egress-unsupported"));
}

#[tokio::test]
async fn two_stand_there_and_one_goes() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let first = sandbox.egress().await.unwrap();
    let port = first.port();
    let first = echo(first);
    let mut second = agent.sandbox().egress().await.unwrap();
    assert_ne!(second.port(), port);
    let mut program = inside(port).await;
    program.write_all(b"one").await.unwrap();
    program.read_exact(&mut [0; 3]).await.unwrap();
    // The first one has it, and goes on with it though it stands there no more.
    first.abort();
    let mut programs = Vec::new();
    let mut outsides = Vec::new();
    for number in 0..50 {
        let mut program = inside(port).await;
        program.write_all(&[number; 100]).await.unwrap();
        programs.push(program);
        outsides.push(accept(&mut second).await);
    }
    let mut seen: Vec<u8> = Vec::new();
    for outside in &mut outsides {
        let mut got = [0; 100];
        outside.read_exact(&mut got).await.unwrap();
        assert!(got.iter().all(|byte| *byte == got[0]));
        seen.push(got[0]);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<u8>>(), "every one of them, and each once");
    program.write_all(b"two").await.unwrap();
    program.read_exact(&mut [0; 3]).await.unwrap();
}

#[tokio::test]
async fn what_is_not_taken_goes_to_another_host() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let mut first = sandbox.egress().await.unwrap();
    let port = first.port();
    // One round, so that it waits with connections of its own; after it nobody asks it any more.
    let _program = inside(port).await;
    let _outside = accept(&mut first).await;
    let mut second = sandbox.egress().await.unwrap();
    let mut late = inside(port).await;
    late.write_all(b"whoever").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let waiting = tokio::spawn(async move { accept(&mut second).await });
    drop(first);
    let mut outside = waiting.await.unwrap();
    late.shutdown().await.unwrap();
    assert_eq!(all(&mut outside).await, b"whoever");
}

#[tokio::test]
async fn what_nobody_takes_is_refused_when_the_last_one_goes() {
    let agent = agent();
    let mut forwarder = agent.sandbox().egress().await.unwrap();
    let port = forwarder.port();
    let _program = inside(port).await;
    let _outside = accept(&mut forwarder).await;
    let mut programs = Vec::new();
    for _ in 0..100 {
        let mut program = inside(port).await;
        program.write_all(b"GET http://example.org/ HTTP/1.1\r\n\r\n").await.unwrap();
        programs.push(program);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(forwarder);
    for program in &mut programs {
        let answer = all(program).await;
        assert!(answer.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn standing_there_is_no_use_and_an_open_connection_is() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let mut forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    let waiting = tokio::time::timeout(Duration::from_millis(200), forwarder.accept()).await;
    assert!(waiting.is_err());
    assert_eq!(sandbox.activity().await.unwrap().operations, 0);
    let program = inside(port).await;
    let outside = accept(&mut forwarder).await;
    let busy = async |count: u32| {
        for _ in 0..100 {
            if sandbox.activity().await.unwrap().operations == count {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    };
    assert!(busy(1).await);
    assert!(!sandbox.close_if_idle().await.unwrap());
    drop((program, outside));
    assert!(busy(0).await);
    assert!(sandbox.close_if_idle().await.unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(20), forwarder.accept()).await.unwrap();
    assert_eq!(ended.err().unwrap().code(), "sandbox-gone");
}

#[tokio::test]
async fn an_idle_sandbox_ends_though_somebody_stands_there() {
    let agent = Agent::with(&["--egress", "--idle", "700"]);
    let mut forwarder = agent.sandbox().egress().await.unwrap();
    let began = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(20), forwarder.accept()).await.unwrap();
    assert_eq!(ended.err().unwrap().code(), "sandbox-gone");
    assert!(began.elapsed() >= Duration::from_millis(600));
}

#[tokio::test]
async fn one_who_kills_the_forwarder_does_not_keep_it_away() {
    let agent = agent();
    let mut forwarder = agent.sandbox().egress().await.unwrap();
    let port = forwarder.port();
    for _ in 0..3 {
        let mut program = inside(port).await;
        program.write_all(b"x").await.unwrap();
        let mut outside = accept(&mut forwarder).await;
        outside.read_exact(&mut [0]).await.unwrap();
        let children = format!("/proc/{0}/task/{0}/children", agent.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(children.len(), 1, "the forwarder alone");
        let killed = rustix::process::Pid::from_raw(children[0]).unwrap();
        rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
        // What it carried is gone with it, and it is there again.
        let mut rest = Vec::new();
        let _ = outside.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
        let _ = tokio::time::timeout(Duration::from_millis(300), forwarder.accept()).await;
    }
}

#[tokio::test]
async fn a_flood_of_silence_leaves_the_agent_alone() {
    let agent = agent();
    let sandbox = agent.sandbox();
    let forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    let before = agent.resident();
    let echoing = echo(forwarder);
    let (mut held, mut nodes) = (Vec::new(), 0);
    for _ in 0..1500 {
        match tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(("127.0.0.1", port))).await {
            Ok(Ok(stream)) => held.push(stream),
            _ => break,
        }
        nodes += 1;
    }
    let asked = Instant::now();
    sandbox.activity().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let cost = agent.resident().saturating_sub(before);
    println!("{nodes} silent connections: {cost} kB in the agent");
    assert!(cost < 4096, "{cost} kB");
    echoing.abort();
    // With nobody there they are told, and let go.
    drop(held);
    assert!(is_refused(port).await);
}
