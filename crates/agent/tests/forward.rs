//! Ports.

use std::time::Duration;

use moltis_sandbox::Sandbox;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::agent::Agent;

#[tokio::test]
async fn a_port_inside_is_reached_and_each_direction_ends_by_itself() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut inside, _) = server.accept().await.unwrap();
        let mut got = Vec::new();
        inside.read_to_end(&mut got).await.unwrap();
        inside.write_all(b"after the end ").await.unwrap();
        inside.write_all(&got).await.unwrap();
    });
    let mut outside = sandbox.connect(port).await.unwrap();
    outside.write_all(&[9; 1_000_000]).await.unwrap();
    outside.shutdown().await.unwrap();
    let mut back = Vec::new();
    outside.read_to_end(&mut back).await.unwrap();
    assert!(back.starts_with(b"after the end ") && back.len() == 1_000_014);
    serving.await.unwrap();

    let error = sandbox.connect(port).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "port-closed"));
    assert_eq!(sandbox.connect(0).await.err().unwrap().code(), "request-invalid");
}

#[tokio::test]
async fn two_hundred_connections_come_out() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let mut forwarder = sandbox.listen(0).await.unwrap();
    let port = forwarder.port();
    let taken = sandbox.listen(port).await.err().unwrap();
    assert_eq!((taken.kind(), taken.code()), ("unavailable", "port-in-use"));
    let outside = tokio::spawn(async move {
        let mut echoes = Vec::new();
        for _ in 0..200 {
            let mut stream = forwarder.accept().await.unwrap();
            echoes.push(tokio::spawn(async move {
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await.unwrap();
                stream.write_all(&got).await.unwrap();
                stream.shutdown().await.unwrap();
            }));
        }
        for echo in echoes {
            echo.await.unwrap();
        }
        forwarder
    });
    let inside: Vec<_> = (0..200u32)
        .map(|number| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let sent = vec![number as u8; 10_000 + number as usize];
                stream.write_all(&sent).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).await.unwrap();
                assert_eq!(back, sent);
            })
        })
        .collect();
    for task in inside {
        task.await.unwrap();
    }
    let forwarder = outside.await.unwrap();
    drop(forwarder);
    for _ in 0..100 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the listener outlives its owner");
}

#[tokio::test]
async fn idle_connections_cost_little() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let mut forwarder = sandbox.listen(0).await.unwrap();
    let port = forwarder.port();
    let before = agent.resident();
    let mut held = Vec::new();
    for number in 0..400 {
        let mut inside = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut outside = forwarder.accept().await.unwrap();
        // Used once and idle from then on.
        inside.write_all(&[number as u8; 1000]).await.unwrap();
        outside.read_exact(&mut [0; 1000]).await.unwrap();
        held.push((inside, outside));
    }
    let cost = agent.resident().saturating_sub(before);
    println!("400 idle connections: {cost} kB in the agent");
    assert!(cost < 1024, "{cost} kB");
}

#[tokio::test]
async fn a_connection_that_nobody_waits_for_is_passed_over() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let mut forwarder = sandbox.listen(0).await.unwrap();
    let port = forwarder.port();
    drop(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    let mut inside = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    inside.write_all(b"here").await.unwrap();
    for _ in 0..2 {
        let mut got = Vec::new();
        let mut stream = forwarder.accept().await.unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(300), stream.read_to_end(&mut got)).await;
        if got == b"here" {
            return;
        }
        assert!(got.is_empty());
    }
    panic!("it never came");
}
