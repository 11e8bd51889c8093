//! A terminal over a WebSocket.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{PATIENCE, World};

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_both_ways_and_sizes_are_told() {
    let world = World::new().await;
    let url = format!("ws://{}/api/v1/sessions/s/terminal?rows=20&columns=50&command=cat", world.address);
    let connect = async |url: &str, protocols: &str| {
        let mut request = url.into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {}", world.token).parse().unwrap());
        headers.insert("sec-websocket-protocol", protocols.parse().unwrap());
        let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await.unwrap()
    };
    let (mut socket, response) = connect(&url, "moltis.v1").await;
    assert_eq!(response.headers()["sec-websocket-protocol"], "moltis.v1");
    let talk = async {
        socket.send(Message::Binary("typed\n".into())).await.unwrap();
        let (mut printed, mut told) = (Vec::new(), Vec::<Value>::new());
        let mut is_fed = false;
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Binary(bytes) => printed.extend_from_slice(&bytes),
                Message::Text(text) => told.push(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => break,
                _ => {}
            }
            // Echoed by the terminal, and printed by the command.
            if !is_fed && printed.windows(5).filter(|window| window == b"typed").count() == 2 {
                is_fed = true;
                socket
                    .send(Message::Text(r#"{"type":"resize","rows":30,"columns":90}"#.into()))
                    .await
                    .unwrap();
                socket.send(Message::Text("nonsense".into())).await.unwrap();
                socket.send(Message::Binary(vec![4].into())).await.unwrap();
            }
        }
        let kinds: Vec<_> = told.iter().map(|event| event["type"].clone()).collect();
        assert_eq!(kinds, ["started", "exit"], "{told:?}");
        assert_eq!(told[1]["exitCode"], 0);
    };
    tokio::time::timeout(PATIENCE, talk).await.unwrap();
    let url =
        format!("ws://{}/api/v1/sessions/s/terminal?rows=20&columns=50&command=stty%20size", world.address);
    let (mut socket, _) = connect(&url, "moltis.v1").await;
    let talk = async {
        let mut printed = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Binary(bytes) = message {
                printed.extend_from_slice(&bytes);
            }
        }
        assert_eq!(String::from_utf8_lossy(&printed).trim(), "20 50");
    };
    tokio::time::timeout(PATIENCE, talk).await.unwrap();
    // Whoever leaves ends what runs there, and that is known.
    let url = format!("ws://{}/api/v1/sessions/left/terminal?command=sleep%20300", world.address);
    let (mut socket, _) = connect(&url, "moltis.v1").await;
    loop {
        match tokio::time::timeout(PATIENCE, socket.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) if text.contains("started") => break,
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(socket);
    crate::support::until(async || {
        let history = world.get(world.admin(), "/api/v1/sessions/left/history").await.is(200);
        let command = &history["commands"][0];
        assert_ne!(command["state"], "lost", "{command}");
        command["state"] == "ended" && command["cancelled"] == true
    })
    .await;
    // Without the upgrade it is a request like any other.
    let plain = world
        .request(world.admin(), Method::GET, "/api/v1/sessions/s/terminal", &[], Bytes::new())
        .await
        .fails(426, "websocket-needed");
    assert!(plain["fix"].is_null());
    assert_eq!(
        world.post(world.admin(), "/api/v1/sessions/s/exec", json!({ "command": "true" })).await.status,
        200
    );
    world.end().await;
}
