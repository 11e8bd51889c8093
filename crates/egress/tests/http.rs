//! Plain requests.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::world::{Server, World, expect, policy, rest, soon};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn every_request_of_a_connection_is_judged() {
    let (server, mut reached) = Server::recorder(OK).await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &["bad.test"]));
    let mut program = world.program();
    let get = |host: &str| format!("GET http://{host}/a?q=1 HTTP/1.1\r\nHost: {host}\r\n\r\n");
    program.write_all(get(&format!("site.test:{port}")).as_bytes()).await.unwrap();
    expect(&mut program, OK).await;
    program.write_all(get("bad.test").as_bytes()).await.unwrap();
    expect(&mut program, "HTTP/1.1 403 Denied by Moltis (host-denied)\r\n").await;
    let mut head = String::new();
    while !head.ends_with("forbids it.\n") {
        head.push(char::from(soon(program.read_u8()).await.unwrap()));
    }
    program.write_all(get(&format!("127.0.0.1:{port}")).as_bytes()).await.unwrap();
    expect(&mut program, OK).await;
    drop(program);
    let wanted = |host: &str| format!("GET /a?q=1 HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let mut both = [soon(reached.recv()).await.unwrap(), soon(reached.recv()).await.unwrap()];
    both.sort();
    assert_eq!(both, [wanted("127.0.0.1"), wanted("site.test")]);
    let sent = [wanted("site.test").len(), wanted("127.0.0.1").len()];
    assert_eq!(
        world.entries().await,
        [
            format!("open allowed http site.test:{port} config (site.test) 0/0"),
            format!("close allowed http site.test:{port} config (site.test) {}/{}", sent[0], OK.len()),
            "open denied http bad.test:80 config (bad.test) 0/0".to_owned(),
            format!("open allowed http 127.0.0.1:{port} config (127.0.0.1) 0/0"),
            format!("close allowed http 127.0.0.1:{port} config (127.0.0.1) {}/{}", sent[1], OK.len()),
        ]
    );
}

/// A server that reads one request with a length, answers, and goes on with the next.
async fn keeping() -> (Server, mpsc::UnboundedReceiver<String>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut all = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                all.push(byte);
                if all.ends_with(b"\r\n\r\n") {
                    sender.send(String::from_utf8_lossy(&std::mem::take(&mut all)).into_owned()).unwrap();
                    let _ = stream.write_all(OK.as_bytes()).await;
                }
            }
            sender.send("end".into()).unwrap();
        }
    })
    .await;
    (server, receiver)
}

#[tokio::test]
async fn the_connection_to_the_server_is_kept() {
    let (server, mut reached) = keeping().await;
    let authority = format!("site.test:{}", server.port());
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    let mut program = world.program();
    for path in ["/1", "/2", "/3"] {
        let request = format!(
            "GET http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\nProxy-Connection: keep-alive\r\n\r\n"
        );
        program.write_all(request.as_bytes()).await.unwrap();
        expect(&mut program, OK).await;
        assert_eq!(
            soon(reached.recv()).await.unwrap(),
            format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n\r\n")
        );
    }
    assert_eq!(world.names.asked.lock().unwrap().len(), 1);
    drop(program);
    assert_eq!(soon(reached.recv()).await.unwrap(), "end");
}

#[tokio::test]
async fn a_kept_connection_that_ended_is_made_anew() {
    // It answers once a connection, and then ends it without having said so.
    let server = Server::new(|mut stream| async move {
        let mut all = Vec::new();
        while !all.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            all.push(byte);
        }
        let _ = stream.write_all(OK.as_bytes()).await;
    })
    .await;
    let authority = format!("127.0.0.1:{}", server.port());
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let mut program = world.program();
    for _ in 0..20 {
        let request = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        program.write_all(request.as_bytes()).await.unwrap();
        expect(&mut program, OK).await;
    }
    drop(program);
    assert_eq!(world.entries().await.len(), 40);
}

/// What a server saw of one request with a body.
async fn seen(world: &World, request: &str) -> (String, String) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let (mut all, mut buffer) = (Vec::new(), [0; 1024]);
            while !(all.ends_with(b"end") || all.ends_with(b"0\r\n\r\n")) {
                match stream.read(&mut buffer).await {
                    Ok(length) if length > 0 => all.extend_from_slice(&buffer[..length]),
                    _ => break,
                }
            }
            let _ = stream.write_all(OK.as_bytes()).await;
            sender.send(String::from_utf8_lossy(&all).into_owned()).unwrap();
        }
    })
    .await;
    let said = world.said(&request.replace("HOST", &format!("127.0.0.1:{}", server.port()))).await;
    let seen = soon(receiver.recv()).await.unwrap();
    (said, seen.replace(&server.port().to_string(), "PORT"))
}

#[tokio::test]
async fn bodies_arrive_whole() {
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let head = "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\n";
    let (said, got) = seen(&world, &format!("{head}Content-Length: 7\r\n\r\nthe end")).await;
    assert_eq!(said, OK);
    assert_eq!(got, "POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 7\r\n\r\nthe end");
    let (said, got) =
        seen(&world, &format!("{head}Transfer-Encoding: chunked\r\n\r\n7;x=y\r\nthe end\r\n0\r\n\r\n")).await;
    assert_eq!(said, OK);
    assert_eq!(
        got,
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nthe end\r\n0\r\n\r\n"
    );
    let (said, got) =
        seen(&world, &format!("{head}Expect: 100-continue\r\nContent-Length: 7\r\n\r\nthe end")).await;
    assert_eq!(said, format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
    assert!(got.ends_with("\r\n\r\nthe end"), "{got}");
    // An answer to a program of old.
    let (said, _) = seen(&world, "POST http://HOST/ HTTP/1.0\r\nContent-Length: 3\r\n\r\nend").await;
    assert_eq!(said, OK.replace("1.1", "1.0"));
}

#[tokio::test]
async fn answers_end_where_they_end() {
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let cases = [
        // Asked, answered, told.
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nX: y\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nX: y\r\n\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "GET",
            "HTTP/1.0 200 Fine\r\n\r\nhello",
            "HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
    ];
    for (method, answer, told) in cases {
        let server = Server::new(move |mut stream| async move {
            let _ = stream.read(&mut [0; 1000]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        })
        .await;
        let authority = format!("127.0.0.1:{}", server.port());
        let said =
            world.said(&format!("{method} http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        assert_eq!(said, told, "{answer}");
    }
}

#[tokio::test]
async fn no_request_hides_in_another() {
    let (server, mut reached) =
        Server::recorder("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
    let authority = format!("127.0.0.1:{}", server.port());
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let head = format!("POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n");
    let hidden = "GET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    // Each is refused, or what is hidden is a body, or a request of its own that is refused.
    let cases = [
        format!("{head}Content-Length: 5\r\nContent-Length: 0\r\n\r\n{hidden}"),
        format!("{head}Content-Length: 5, 0\r\n\r\n{hidden}"),
        format!("{head}Content-Length: +5\r\n\r\n{hidden}"),
        format!("{head}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!(
            "{head}Transfer-Encoding: chunked\r\nContent-Length: {}\r\n\r\n0\r\n\r\n{hidden}",
            hidden.len() + 5
        ),
        format!("{head}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{head}Connection: content-length\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len()),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n0;\n\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n\r\n{hidden}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n{hidden}"),
        format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n0\r\nHost: evil.test\r\nContent-Length: 9\r\n\r\n{hidden}"
        ),
        format!("{head}\r\n{hidden}"),
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\n\r\n{hidden}"),
    ];
    for case in &cases {
        let said = world.said(case).await;
        let answers = said.matches("HTTP/1.1 ").count() - said.matches("HTTP/1.1 100").count();
        assert!(answers <= 2, "{case}\n{said}");
        world.entries().await;
        // What the server saw of it, if anything: one request, and the hidden one only as its body.
        while let Ok(got) = reached.try_recv() {
            if got.is_empty() {
                continue;
            }
            let (head, body) = got.split_once("\r\n\r\n").unwrap_or((&got, ""));
            assert_eq!(got.matches(&authority).count(), 1, "{case}\n{got}");
            assert_eq!(head.matches("HTTP/1.1").count(), 1, "{case}\n{got}");
            let lower = head.to_lowercase();
            let lengths =
                lower.matches("content-length").count() + lower.matches("transfer-encoding").count();
            assert!(lengths <= 1, "{case}\n{got}");
            if body.contains("/hidden") {
                assert!(lower.contains(&format!("content-length: {}", hidden.len())), "{case}\n{got}");
            }
        }
    }
    for entry in world.entries().await {
        assert!(!entry.contains("evil.test") || entry.contains("denied"), "{entry}");
    }
}

#[tokio::test]
async fn what_is_no_plain_request() {
    let world = World::new(policy(&["*", "127.0.0.1"], &[]));
    let cases = [
        ("GET / HTTP/1.1\r\nHost: site.test\r\n\r\n", "request-malformed"),
        ("GET https://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "request-malformed"),
        ("GET ftp://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "request-malformed"),
        ("GET http://site.test/ HTTP/1.1\r\n\r\n", "request-malformed"),
        ("GET http://site.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "host-mismatch"),
        ("GET http://site.test/ HTTP/1.1\r\nHost: site.test:81\r\n\r\n", "host-mismatch"),
        ("GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\nHost: other.test\r\n\r\n", "host-mismatch"),
        ("GET http://u:p@site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "host-malformed"),
        ("GET http://0177.0.0.1/ HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n", "host-malformed"),
        ("OPTIONS * HTTP/1.1\r\nHost: site.test\r\n\r\n", "request-malformed"),
    ];
    for (request, code) in cases {
        let said = world.said(request).await;
        assert!(said.starts_with(&format!("HTTP/1.1 400 Denied by Moltis ({code})\r\n")), "{request}{said}");
    }
    let entries = world.entries().await;
    assert_eq!(entries.len(), cases.len());
    assert!(entries.iter().all(|entry| !entry.contains("?") && !entry.contains("u:p")), "{entries:?}");
}

#[tokio::test]
async fn a_web_socket_becomes_a_tunnel_and_nothing_else_does() {
    let server = Server::new(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        if String::from_utf8(head).unwrap().contains("Upgrade: websocket") {
            let said =
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst";
            stream.write_all(said.as_bytes()).await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        } else {
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    })
    .await;
    let authority = format!("127.0.0.1:{}", server.port());
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let request = |kind: &str| {
        format!(
            "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: {kind}\r\n\r\n"
        )
    };
    assert_eq!(world.said(&request("h2c")).await, OK);
    let mut program = world.program();
    program.write_all(request("websocket").as_bytes()).await.unwrap();
    expect(
        &mut program,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst",
    )
    .await;
    program.write_all(b"second").await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(rest(&mut program).await, "second");
    let entries = world.entries().await;
    assert_eq!(entries.len(), 4, "{entries:#?}");
    // Each byte once.
    let (sent, received) = (request("websocket").len() - format!("http://{authority}").len() + 6, 88);
    assert!(entries[3].ends_with(&format!("config (127.0.0.1) {sent}/{received}")), "{sent} {entries:#?}");
}

#[tokio::test]
async fn a_reader_that_stalls_holds_the_server_back() {
    let (sender, mut sent) = mpsc::unbounded_channel();
    let size = 64 << 20;
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let piece = vec![7; 64 * 1024];
            for _ in 0..size / piece.len() {
                stream.write_all(&piece).await.unwrap();
                sender.send(piece.len()).unwrap();
            }
        }
    })
    .await;
    let authority = format!("127.0.0.1:{}", server.port());
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program
        .write_all(format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    expect(&mut program, &format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let mut held = 0;
    while let Ok(length) = sent.try_recv() {
        held += length;
    }
    assert!(held < size / 2, "{held}");
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while read < size {
        read += soon(program.read(&mut buffer)).await.unwrap();
    }
}

#[tokio::test]
async fn answers_that_are_none() {
    let world = World::new(policy(&["127.0.0.1"], &[]));
    for answer in [
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ] {
        let (server, _) = Server::recorder(answer).await;
        let authority = format!("127.0.0.1:{}", server.port());
        let server = Server::new(move |mut stream| async move {
            let _ = stream.read(&mut [0; 1000]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        })
        .await;
        let authority = authority.replace(&authority, &format!("127.0.0.1:{}", server.port()));
        let said =
            world.said(&format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        assert!(
            said.starts_with("HTTP/1.1 502 Not reached by Moltis (answer-malformed)\r\n"),
            "{answer}: {said}"
        );
    }
    let entries = world.entries().await;
    assert_eq!(entries.len(), 6, "{entries:#?}");
    assert!(
        entries[1].contains("close allowed http")
            && entries[1].contains("unreachable (cut: the host's answer cannot be read)"),
        "{entries:#?}"
    );
}
