//! A whole connection from inside. Every host but one is let through, to an upstream proxy that reads what it gets as
//! strictly as can be: nothing for that one may be among it.
#![no_main]

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use libfuzzer_sys::fuzz_target;
use moltis_egress::{
    Approvals, Asked, Audit, Entry, Origin, Policy, Proxy, ProxyLimits, ProxySettings, Resolve, Rule,
    SessionProxy, Upstream, Verdict,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

struct Nothing;

#[async_trait]
impl Resolve for Nothing {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[async_trait]
impl Approvals for Nothing {
    async fn ask(&self, _: &Asked) -> Verdict {
        Verdict::Denied
    }
}

impl Audit for Nothing {
    fn record(&self, entry: Entry) {
        assert!(entry.domain.len() <= 253 && entry.domain.bytes().all(|b| (0x20..0x7f).contains(&b)));
        assert!(!entry.domain.contains('@'));
    }
}

struct World {
    runtime: Runtime,
    session: SessionProxy,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    _policy: watch::Sender<Policy>,
}

async fn upstream(mut stream: TcpStream, seen: Arc<Mutex<Vec<Vec<u8>>>>) {
    let (mut all, mut answered, mut buffer) = (Vec::new(), 0, [0; 4096]);
    loop {
        let length = stream.read(&mut buffer).await.unwrap_or(0);
        all.extend_from_slice(&buffer[..length]);
        let ends = all.windows(4).filter(|w| w == b"\r\n\r\n").count();
        while answered < ends.min(16) {
            answered += 1;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
        if length == 0 {
            break;
        }
    }
    seen.lock().unwrap().push(all);
}

fn world() -> World {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let seen = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let log = Arc::clone(&seen);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(upstream(stream, Arc::clone(&log)));
        }
    });
    let proxy = Proxy::new(ProxySettings {
        limits: ProxyLimits { header_time: Duration::from_millis(200), ..ProxyLimits::default() },
        upstream: Some(Upstream::parse(&format!("http://127.0.0.1:{port}"), "").unwrap()),
        resolver: Arc::new(Nothing),
        own: Arc::new(|_| false),
        audit: Arc::new(Nothing),
    });
    let rule = |text: &str| Rule { pattern: text.parse().unwrap(), origin: Origin::Config };
    let policy = Policy {
        trusted: vec![rule("*")],
        denied: vec![rule("evil.test"), rule("*.evil.test")],
        ..Policy::default()
    };
    let (sender, receiver) = watch::channel(policy);
    let session = proxy.session("fuzz", receiver, Arc::new(Nothing));
    World { runtime, session, seen, _policy: sender }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(world());
}

/// The request lines in what a strict reader is sent; nothing more once it is a tunnel.
fn request_lines(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 4..];
        let mut fields = head.split("\r\n");
        let line = fields.next().unwrap_or_default().to_owned();
        assert!(!head.replace("\r\n", "").contains(['\r', '\n']), "{head:?}");
        let tunnel = line.starts_with("CONNECT ");
        lines.push(line);
        let (mut length, mut chunked, mut hosts) = (None, false, 0);
        for field in fields {
            let (name, value) = field.split_once(':').expect("a field");
            assert!(!name.is_empty() && !name.contains([' ', '\t']), "{field:?}");
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    assert!(length.replace(value.trim().parse::<usize>().expect("a length")).is_none())
                }
                "transfer-encoding" => {
                    assert!(!chunked && value.trim() == "chunked", "{head}");
                    chunked = true;
                }
                "host" => {
                    hosts += 1;
                    assert!(!value.contains("evil.test"), "{head}");
                }
                name => assert!(!name.starts_with("proxy-"), "{head}"),
            }
        }
        assert_eq!(hosts, 1, "{head}");
        assert!(!(chunked && length.is_some()), "{head}");
        if tunnel {
            break;
        }
        if chunked {
            loop {
                let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") else { return lines };
                let size = String::from_utf8_lossy(&bytes[..at]);
                let size = usize::from_str_radix(&size, 16).expect("a size");
                bytes = &bytes[at + 2..];
                if size == 0 {
                    // Trailers end like a head.
                    let end = if bytes.starts_with(b"\r\n") {
                        Some(2)
                    } else {
                        bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
                    };
                    let Some(end) = end else { return lines };
                    bytes = &bytes[end..];
                    break;
                }
                let Some(rest) = bytes.get(size + 2..) else { return lines };
                bytes = rest;
            }
        } else {
            let Some(rest) = bytes.get(length.unwrap_or(0)..) else { return lines };
            bytes = rest;
        }
    }
    lines
}

fuzz_target!(|input: (u16, &[u8])| {
    let (step, bytes) = input;
    WORLD.with_borrow(|world| {
        world.runtime.block_on(async {
            let (program, proxy) = tokio::io::duplex(64 * 1024);
            let serving = tokio::spawn(world.session.serve(Box::new(proxy)));
            let (mut read, mut write) = tokio::io::split(program);
            let sending = async {
                for part in bytes.chunks(usize::from(step).max(1)) {
                    if write.write_all(part).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                let _ = write.shutdown().await;
            };
            let reading = async {
                let mut all = Vec::new();
                let _ = read.read_to_end(&mut all).await;
            };
            let both = async { futures(sending, reading).await };
            tokio::time::timeout(Duration::from_secs(5), both).await.expect("an end");
            tokio::time::timeout(Duration::from_secs(5), serving).await.expect("an end").expect("no panic");
        });
        for all in world.seen.lock().unwrap().drain(..) {
            for line in request_lines(&all) {
                let host = line.split(' ').nth(1).unwrap_or_default();
                let host = host.strip_prefix("http://").unwrap_or(host).split('/').next().unwrap_or_default();
                assert!(!host.contains("evil.test"), "{line}");
            }
        }
    });
});

/// Both to their ends.
async fn futures(one: impl Future<Output = ()>, two: impl Future<Output = ()>) {
    let (mut one, mut two) = (Box::pin(one), Box::pin(two));
    let (mut first, mut second) = (false, false);
    std::future::poll_fn(|cx| {
        first = first || one.as_mut().poll(cx).is_ready();
        second = second || two.as_mut().poll(cx).is_ready();
        if first && second { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
