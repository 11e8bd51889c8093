//! A proxy that defends nothing: it believes every name and address, looks a name up for its judgement and once more to
//! connect, passes on what it does not understand, and puts what it was told into its answers.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{Names, splice};

/// Serves one connection.
pub async fn serve(mut client: TcpStream, names: Arc<Names>) {
    let mut said = vec![0; 64 * 1024];
    let Ok(n @ 1..) = client.read(&mut said).await else { return };
    said.truncate(n);
    match said[0] {
        5 => socks(client, &names).await,
        _ => http(client, said, &names).await,
    }
}

async fn socks(mut client: TcpStream, names: &Names) {
    let mut request = [0; 512];
    if client.write_all(&[5, 0]).await.is_err() {
        return;
    }
    let Ok(n @ 8..) = client.read(&mut request).await else { return };
    let port = u16::from_be_bytes([request[n - 2], request[n - 1]]);
    let host = match request[3] {
        1 => std::net::Ipv4Addr::from([request[4], request[5], request[6], request[7]]).to_string(),
        4 => {
            let mut address = [0; 16];
            address.copy_from_slice(&request[4..20]);
            std::net::Ipv6Addr::from(address).to_string()
        }
        _ => String::from_utf8_lossy(&request[5..n - 2]).into_owned(),
    };
    if let Some(server) = dial(&host, port, names).await
        && client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.is_ok()
    {
        splice(client, server).await;
    }
}

/// Every piece that begins with a request goes where its line says, whatever else it says; other pieces go where the
/// last one went.
async fn http(mut client: TcpStream, mut said: Vec<u8>, names: &Names) {
    let mut server: Option<TcpStream> = None;
    loop {
        let text = String::from_utf8_lossy(&said).into_owned();
        let mut words = text.split([' ', '\r', '\n']);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if method == "CONNECT" {
            let (host, port) = authority(target, 443);
            match dial(&host, port, names).await {
                Some(server) => {
                    if client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_ok() {
                        splice(client, server).await;
                    }
                }
                None => refuse(&mut client, &text).await,
            }
            return;
        }
        if let Some(rest) = target.strip_prefix("http://") {
            let (host, port) = authority(rest.split(['/', '?', '#']).next().unwrap_or_default(), 80);
            server = dial(&host, port, names).await;
        }
        let Some(server) = &mut server else { return refuse(&mut client, &text).await };
        if server.write_all(&said).await.is_err() {
            return;
        }
        let mut answer = vec![0; 64 * 1024];
        let Ok(n @ 1..) = server.read(&mut answer).await else { return };
        if client.write_all(&answer[..n]).await.is_err() {
            return;
        }
        said.resize(64 * 1024, 0);
        let Ok(n @ 1..) = client.read(&mut said).await else { return };
        said.truncate(n);
    }
}

/// The host is what stands after the last `@`, and a number may be written in any way.
fn authority(text: &str, default: u16) -> (String, u16) {
    let text = text.rsplit('@').next().unwrap_or_default();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
            (host, port.parse().unwrap_or(default))
        }
        _ => (text, default),
    };
    (host.trim_matches(['[', ']']).to_owned(), port)
}

async fn refuse(client: &mut TcpStream, told: &str) {
    let told = told.replace("%0d", "\r").replace("%0a", "\n");
    let _ = client.write_all(format!("HTTP/1.1 502 Bad Gateway\r\nX-Told: {told}\r\n\r\n").as_bytes()).await;
}

async fn dial(host: &str, port: u16, names: &Names) -> Option<TcpStream> {
    let name = host.trim_end_matches('.').to_lowercase();
    let addresses = match names.look(&name) {
        // The second lookup is the one that counts.
        Some(_) => names.look(&name)?.into_iter().rev().map(|ip| SocketAddr::new(ip, port)).collect(),
        None => (name, port).to_socket_addrs().ok()?.collect::<Vec<_>>(),
    };
    for address in addresses {
        if let Ok(stream) = TcpStream::connect(address).await {
            return Some(stream);
        }
    }
    None
}
