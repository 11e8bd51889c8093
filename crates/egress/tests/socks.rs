//! SOCKS version 5.

use tokio::io::AsyncWriteExt;

use crate::connect::hello;
use crate::world::{Server, World, expect, policy, rest};

fn connect(host: &str, port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, host.len() as u8][..], host.as_bytes(), &port.to_be_bytes()].concat()
}

async fn bytes(world: &World, sent: &[u8]) -> Vec<u8> {
    let mut program = world.program();
    program.write_all(sent).await.unwrap();
    program.shutdown().await.unwrap();
    let mut all = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut program, &mut all).await;
    all
}

#[tokio::test]
async fn a_tunnel() {
    let server = Server::echo().await;
    let port = server.port();
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    // All at once, with what is for the host.
    let sent = [&[5, 2, 2, 0][..], &connect("SITE.test", port), b"hello"].concat();
    let said = bytes(&world, &sent).await;
    assert_eq!(said, [&[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"hello"].concat());
    assert_eq!(
        world.entries().await,
        [
            format!("open allowed socks5 site.test:{port} config (site.test) 0/0"),
            format!("close allowed socks5 site.test:{port} config (site.test) 5/5"),
        ]
    );
}

#[tokio::test]
async fn refusals() {
    let world = World::new(policy(&["*", "127.0.0.1"], &["bad.test"]));
    let closed = Server::echo().await.port();
    let code = async |request: &[u8]| {
        let said = bytes(&world, &[&[5, 1, 0][..], request].concat()).await;
        assert_eq!(said.len(), 12, "{said:?}");
        said[3]
    };
    assert_eq!(code(&connect("bad.test", 443)).await, 2);
    assert_eq!(code(&[5, 1, 0, 1, 10, 0, 0, 1, 0, 80]).await, 2);
    assert_eq!(code(&[5, 1, 0, 1, 169, 254, 169, 254, 0, 80]).await, 2);
    assert_eq!(code(&connect("nowhere.test", 443)).await, 4);
    assert_eq!(code(&connect("site.test", closed)).await, 5);
    assert_eq!(code(&[5, 2, 0, 1, 8, 8, 8, 8, 0, 80]).await, 7);
    assert_eq!(code(&[5, 3, 0, 1, 8, 8, 8, 8, 0, 80]).await, 7);
    assert_eq!(code(&[5, 1, 0, 9, 8, 8, 8, 8, 0, 80]).await, 8);
    assert_eq!(code(&connect("127.1", 80)).await, 1);
    assert_eq!(bytes(&world, &[5, 1, 2]).await, [5, 0xff]);
    let entries = world.entries().await;
    assert_eq!(entries[0], "open denied socks5 bad.test:443 config (bad.test) 0/0");
    assert_eq!(entries[1], "open denied socks5 10.0.0.1:80 address (private, and not listed) 0/0");
    assert_eq!(entries.len(), 10);
}

#[tokio::test]
async fn the_name_in_tls_counts_here_too() {
    let (server, mut reached) = Server::recorder("").await;
    let world = World::new(policy(&["site.test", "127.0.0.1"], &[]));
    let mut program = world.program();
    program.write_all(&[&[5, 1, 0][..], &connect("site.test", server.port())].concat()).await.unwrap();
    expect(&mut program, "\x05\0\x05\0\0\x01\0\0\0\0\0\0").await;
    program.write_all(&hello("other.test")).await.unwrap();
    assert_eq!(rest(&mut program).await, "");
    assert_eq!(reached.recv().await.unwrap(), "");
}
