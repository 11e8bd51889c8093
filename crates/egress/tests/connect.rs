//! CONNECT.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::world::{Server, World, expect, policy, rest, soon};

pub const OPENED: &str = "HTTP/1.1 200 OK\r\n\r\n";

/// A TLS greeting with this name.
pub fn hello(name: &str) -> Vec<u8> {
    fn vector(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        [&length[4 - bytes..], content].concat()
    }
    let mut extensions = Vec::new();
    if !name.is_empty() {
        let entry = [&[0][..], &vector(2, name.as_bytes())].concat();
        extensions = [&[0, 0][..], &vector(2, &vector(2, &entry))].concat();
    }
    let body =
        [&[3, 3][..], &[7; 32], &[0], &vector(2, &[0x13, 1]), &vector(1, &[0]), &vector(2, &extensions)]
            .concat();
    let handshake = [&[1][..], &vector(3, &body)].concat();
    [&[22, 3, 1][..], &vector(2, &handshake)].concat()
}

#[tokio::test]
async fn nothing_is_lost_and_each_side_ends_by_itself() {
    let server = Server::echo().await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    let mut program = world.program();
    // What follows the request comes in one piece with it.
    let early = format!("CONNECT site.test:{port} HTTP/1.1\r\nHost: site.test\r\n\r\nearly ");
    program.write_all(early.as_bytes()).await.unwrap();
    expect(&mut program, &format!("{OPENED}early ")).await;
    program.write_all(b"and late").await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(rest(&mut program).await, "and late");
    assert_eq!(
        world.entries().await,
        [
            format!("open allowed connect site.test:{port} config (site.test) 0/0"),
            format!("close allowed connect site.test:{port} config (site.test) 14/14"),
        ]
    );
}

#[tokio::test]
async fn the_server_may_end_first() {
    let server = Server::new(|mut stream| async move {
        stream.write_all(b"bye").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "still here");
    })
    .await;
    let port = server.port();
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    // It says nothing, and yet what the server says comes.
    expect(&mut program, &format!("{OPENED}bye")).await;
    assert_eq!(rest(&mut program).await, "");
    program.write_all(b"still here").await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(
        world.entries().await[1],
        format!("close allowed connect 127.0.0.1:{port} config (127.0.0.1) 10/3")
    );
}

#[tokio::test]
async fn much_goes_through_both_ways() {
    let server = Server::echo().await;
    let world = World::new(policy(&["127.0.0.0/8"], &[]));
    let mut program = world.program();
    let request = format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", server.port());
    program.write_all(request.as_bytes()).await.unwrap();
    expect(&mut program, OPENED).await;
    let (mut read, mut write) = program.into_split();
    let size = 8 << 20;
    let sending = tokio::spawn(async move {
        let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
        for _ in 0..size >> 20 {
            write.write_all(&piece).await.unwrap();
        }
        write.shutdown().await.unwrap();
    });
    let mut all = Vec::new();
    soon(read.read_to_end(&mut all)).await.unwrap();
    sending.await.unwrap();
    assert_eq!(all.len(), size);
    assert!(all.chunks(1 << 20).all(|c| c.iter().zip(0u32..).all(|(b, i)| *b == (i % 251) as u8)));
}

#[tokio::test]
async fn what_is_not_allowed_is_told_so_and_not_looked_up() {
    let world = World::new(policy(&["site.test:443", "*.good.test"], &["bad.good.test"]));
    let said = world
        .said("CONNECT Evil.TEST.:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        .await;
    assert_eq!(
        said,
        "HTTP/1.1 403 Denied by Moltis (host-unknown)\r\nX-Moltis-Egress: denied; code=host-unknown\r\n\
         Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close\r\n\
         Content-Length: 146\r\n\r\n\
         Moltis did not let evil.test through: no rule allows it.\n\
         Whoever runs Moltis can let it through with `moltis network allow evil.test --session SESSION`.\n"
            .replace("146", &(57 + 96).to_string())
    );
    for (host, code) in [
        ("site.test:80", "host-unknown"),
        ("bad.good.test:1", "host-denied"),
        ("good.test:1", "host-unknown"),
    ] {
        let said = world.said(&format!("CONNECT {host} HTTP/1.1\r\n\r\n")).await;
        assert!(said.starts_with(&format!("HTTP/1.1 403 Denied by Moltis ({code})\r\n")), "{said}");
    }
    assert_eq!(
        world.entries().await,
        [
            "open denied connect evil.test:443 unknown (no rule names it) 0/0",
            "open denied connect site.test:80 unknown (no rule names it) 0/0",
            "open denied connect bad.good.test:1 config (bad.good.test) 0/0",
            "open denied connect good.test:1 unknown (no rule names it) 0/0",
        ]
    );
    assert_eq!(*world.names.asked.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn addresses_that_names_stand_for_are_judged() {
    let world = World::new(policy(&["*", "10.0.0.1:443", "127.0.0.1:9"], &["8.8.8.8"]));
    let kinds = [
        ("loop.test", &["127.0.0.1"][..], "loopback, and not listed"),
        ("meta.test", &["169.254.169.254"], "a metadata service, and not listed"),
        ("mapped.test", &["::ffff:192.168.0.1"], "private, and not listed"),
        ("nat.test", &["64:ff9b::7f00:1"], "loopback, and not listed"),
        ("port.test", &["10.0.0.1"], "private, and not listed"),
        ("zero.test", &["0.0.0.0", "::"], "reserved, and not listed"),
    ];
    let mut wanted = Vec::new();
    for (name, addresses, why) in kinds {
        world.names.put(name, &[addresses]);
        let said = world.said(&format!("CONNECT {name}:80 HTTP/1.1\r\n\r\n")).await;
        assert!(said.starts_with("HTTP/1.1 403 Denied by Moltis (address-refused)\r\n"), "{said}");
        assert!(addresses.iter().all(|address| !said.contains(address)), "{said}");
        wanted.push(format!("open denied connect {name}:80 address ({why}) 0/0"));
    }
    world.names.put("denied.test", &[&["8.8.8.8"]]);
    world.said("CONNECT denied.test:80 HTTP/1.1\r\n\r\n").await;
    wanted.push("open denied connect denied.test:80 config (8.8.8.8) 0/0".into());
    world.names.put("own.test", &[&["127.0.0.1"]]);
    world.said("CONNECT own.test:9 HTTP/1.1\r\n\r\n").await;
    wanted.push("open denied connect own.test:9 address (it leads back to Moltis) 0/0".into());
    world.said("CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n").await;
    wanted.push("open denied connect 127.0.0.1:9 address (it leads back to Moltis) 0/0".into());
    world.said("CONNECT [::1]:80 HTTP/1.1\r\n\r\n").await;
    wanted.push("open denied connect ::1:80 address (loopback, and not listed) 0/0".into());
    assert_eq!(world.entries().await, wanted);
}

#[tokio::test]
async fn a_name_that_changes_is_not_asked_twice() {
    let server = Server::echo().await;
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    // The second one is not listed, and the first lookup has one that is not, too.
    world.names.put("site.test", &[&["127.0.0.2", "127.0.0.1"], &["127.0.0.2"]]);
    let request = format!("CONNECT site.test:{} HTTP/1.1\r\n\r\nx", server.port());
    let said = world.said(&request).await;
    assert_eq!(said, format!("{OPENED}x"));
    assert!(world.said(&request).await.contains("address-refused"));
    assert_eq!(world.names.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn requests_that_are_none() {
    let world = World::new(policy(&["*", "127.0.0.1"], &[]));
    let cases = [
        ("CONNECT site.test HTTP/1.1\r\n\r\n", "400", "host-malformed"),
        ("CONNECT site.test:0 HTTP/1.1\r\n\r\n", "400", "host-malformed"),
        ("CONNECT u@site.test:443 HTTP/1.1\r\n\r\n", "400", "host-malformed"),
        ("CONNECT 127.1:443 HTTP/1.1\r\n\r\n", "400", "host-malformed"),
        ("CONNECT 0x7f000001:443 HTTP/1.1\r\n\r\n", "400", "host-malformed"),
        ("CONNECT /x HTTP/1.1\r\n\r\n", "400", "request-malformed"),
        ("CONNECT http://site.test:80/ HTTP/1.1\r\n\r\n", "400", "request-malformed"),
        ("CONNECT site.test:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "400", "request-malformed"),
        (
            "CONNECT site.test:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400",
            "request-malformed",
        ),
        ("CONNECT site.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", "400", "host-mismatch"),
        ("CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:80\r\n\r\n", "400", "host-mismatch"),
        (
            "CONNECT site.test:443 HTTP/1.1\r\nHost: site.test\r\nHost: site.test\r\n\r\n",
            "400",
            "host-mismatch",
        ),
    ];
    for (request, status, code) in cases {
        let said = world.said(request).await;
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} Denied by Moltis ({code})\r\n")),
            "{request}{said}"
        );
        assert!(said.contains("Connection: close\r\n"), "{said}");
    }
    for request in
        ["\x16\x03\x01\0\0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "hello\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n"]
    {
        let said = world.said(request).await;
        assert!(said.starts_with("HTTP/1.1 400 Bad Request\r\n") || said.is_empty(), "{request:?}: {said}");
    }
    let entries = world.entries().await;
    assert_eq!(
        entries[2],
        r"open denied connect site.test:443:0 malformed (no host: a user's name does not belong there) 0/0"
    );
    assert_eq!(entries.last().unwrap(), "open denied http :0 malformed (it is no HTTP request) 0/0");
}

#[tokio::test]
async fn hosts_that_are_not_there() {
    let world = World::new(policy(&["*", "127.0.0.1"], &[]));
    let said = world.said("CONNECT nowhere.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(said.starts_with("HTTP/1.1 502 Not reached by Moltis (name-unresolved)\r\n"), "{said}");
    let closed = Server::echo().await.port();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let said = world.said(&format!("CONNECT 127.0.0.1:{closed} HTTP/1.1\r\n\r\n")).await;
    assert!(said.starts_with("HTTP/1.1 502 Not reached by Moltis (host-unreachable)\r\n"), "{said}");
    assert_eq!(
        world.entries().await,
        [
            "open allowed connect nowhere.test:443 unreachable (the name has no address) 0/0".to_owned(),
            format!(
                "open allowed connect 127.0.0.1:{closed} unreachable (cannot connect: connection refused) 0/0"
            ),
        ]
    );
}

#[tokio::test]
async fn the_name_in_tls_must_be_the_allowed_one() {
    let (sender, mut reached) = mpsc::unbounded_channel();
    let server = Server::new(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            sender.send(all).unwrap();
        }
    })
    .await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &["evil.test"]));
    let cases: [(&str, &str, usize, bool); 8] = [
        ("site.test", "site.test", 4096, true),
        ("site.test", "SITE.test", 1, true),
        ("site.test", "", 4096, true),
        ("site.test", "other.test", 4096, false),
        ("site.test", "other.test", 1, false),
        ("site.test", "a.site.test", 4096, false),
        ("127.0.0.1", "any.test", 4096, true),
        ("127.0.0.1", "evil.test", 4096, false),
    ];
    for (host, name, step, passes) in cases {
        let mut program = world.program();
        program.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        expect(&mut program, OPENED).await;
        let bytes = hello(name);
        for part in bytes.chunks(step) {
            // It may have been cut in between.
            if program.write_all(part).await.is_err() {
                break;
            }
        }
        let _ = program.shutdown().await;
        rest(&mut program).await;
        let expected = if passes { bytes } else { Vec::new() };
        assert_eq!(soon(reached.recv()).await.unwrap(), expected, "{host} {name:?} {step}");
    }
    let entries = world.entries().await;
    assert_eq!(entries[0], format!("open allowed https site.test:{port} config (site.test) 0/0"));
    let size = hello("site.test").len();
    assert_eq!(entries[1], format!("close allowed https site.test:{port} config (site.test) {size}/0"));
    let cut = format!("open denied connect site.test:{port} mismatch (the name in TLS is other.test) 0/0");
    assert_eq!(entries.iter().filter(|entry| **entry == cut).count(), 2, "{entries:#?}");
}

#[tokio::test]
async fn a_greeting_that_never_ends_reaches_nobody() {
    let (server, mut reached) = Server::recorder("").await;
    let world = World::new(policy(&["127.0.0.1"], &[]));
    let mut program = world.program();
    program
        .write_all(format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", server.port()).as_bytes())
        .await
        .unwrap();
    expect(&mut program, OPENED).await;
    program.write_all(&hello("a.test")[..20]).await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(rest(&mut program).await, "");
    assert_eq!(soon(reached.recv()).await.unwrap(), "");
    let entries = world.entries().await;
    assert_eq!(entries.len(), 1);
    assert!(
        entries[0].ends_with("malformed (no readable TLS: it ends within the greeting) 0/0"),
        "{entries:?}"
    );
}
