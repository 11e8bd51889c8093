//! The proxy port: connections that programs inside make to it come out, and while nobody stands behind it they are told
//! so.

use std::time::{Duration, Instant};

use moltis_sandbox::{Duplex, Error, Forwarder, Network, Origin, Promise, Setting};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::forward::from_inside;
use super::lifetime::LONG;
use crate::run::{argv, eventually, shell};
use crate::{Case, Ctx, Fail, Live, Place, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    let all = [
        case!("egress.half-close", half_close),
        case!("egress.large", large).limit(90),
        case!("egress.many", many).limit(60),
        case!("egress.same-port", same_port).law(1),
        case!("egress.nobody", nobody).law(1),
        case!("egress.two-hosts", two_hosts),
        case!("egress.own-port", own_port),
        case!("egress.no-use", no_use),
        case!("egress.idle", idle),
        case!("egress.close", close),
        case!("egress.sessions-apart", sessions_apart).law(1),
        case!("egress.another-process", another_process).needs(|promised| &promised.adopt),
        case!("egress.killed-inside", killed_inside).limit(60),
        case!("egress.file-for-node", file_for_node),
        case!("egress.flood", flood).limit(120).alone(),
    ];
    all.into_iter().collect()
}

/// Where a backend does not keep `trusted`, there is no such port.
macro_rules! need_egress {
    ($ctx:expr) => {
        if let Promise::NotEnforced(reason) = &$ctx.guarantees.network_trusted {
            match $ctx.place().await?.egress().await {
                Err(Error::Refused(refusal)) => {
                    ensure_eq!(refusal.code.as_ref(), "egress-unsupported", "code of the refusal");
                    ensure!(refusal.fix.is_some(), "the refusal says not what to do");
                }
                Err(error) => fail!("{} instead of a refusal: {error}", error.kind()),
                Ok(_) => fail!("there is a proxy port though `trusted` is not kept"),
            }
            return Ok(Verdict::Declared(reason.clone()));
        }
    };
}

/// A sandbox with network `trusted`.
async fn trusted(ctx: &Ctx) -> Result<Place, Fail> {
    let mut spec = ctx.spec()?;
    spec.network = Setting::new(Network::Trusted, Origin::Flag);
    ctx.open(&spec).await
}

async fn accept(forwarder: &mut Box<dyn Forwarder>) -> Result<Box<dyn Duplex>, Fail> {
    match tokio::time::timeout(patience(Duration::from_secs(10)), forwarder.accept()).await {
        Ok(accepted) => Ok(accepted?),
        Err(_) => fail!("no connection arrives"),
    }
}

async fn all(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Fail> {
    let mut bytes = Vec::new();
    match tokio::time::timeout(patience(Duration::from_secs(60)), stream.read_to_end(&mut bytes)).await {
        Ok(read) => read?,
        Err(_) => fail!("the stream does not end; so far {} bytes", bytes.len()),
    };
    Ok(bytes)
}

/// Answers each connection with what it says, until it is aborted.
fn echo(mut forwarder: Box<dyn Forwarder>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok(stream) = forwarder.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    })
}

/// Starts a python program to which `connect()` is the way to the proxy port.
async fn program(place: &Place, port: u16, text: &str) -> Result<Live, Fail> {
    let head = format!(
        "import socket,time\ndef connect(): return socket.create_connection(('127.0.0.1',{port}),20)\n"
    );
    let mut request = argv(&["python3", "-c", &format!("{head}{text}")]);
    request.timeout = Some(patience(Duration::from_secs(90)));
    place.start(request).await
}

/// What it prints.
async fn printed(place: &Place, port: u16, text: &str) -> Result<String, Fail> {
    Ok(program(place, port, text).await?.finish(Duration::from_secs(90)).await?.good()?.text())
}

/// What the port answers to a request.
const ASK: &str = "s=connect(); s.sendall(b'CONNECT example.org:443 HTTP/1.1\\r\\nHost: example.org\\r\\n\\r\\n')\n\
                   print(s.makefile('rb').read().decode())";

/// Says something through the port and prints what comes back.
const ECHO: &str = "s=connect(); s.sendall(b'hello'); s.shutdown(1); print(s.makefile('rb').read().decode())";

async fn half_close(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let mut forwarder = place.egress().await?;
    let port = forwarder.port();
    let text = "s=connect(); s.sendall(b'ping'); s.shutdown(1); print(s.makefile().read())";
    let live = program(&place, port, text).await?;
    let mut stream = accept(&mut forwarder).await?;
    ensure_eq!(all(&mut stream).await?, b"ping", "what the program sent");
    stream.write_all(b"pong").await?;
    stream.shutdown().await?;
    ensure_eq!(live.finish(Duration::from_secs(10)).await?.good()?.text(), "pong\n", "what the program got");
    // The other side may end first as well.
    let text = "s=connect(); print(s.makefile().read()); s.sendall(b'after the end'); s.close()";
    let live = program(&place, port, text).await?;
    let mut stream = accept(&mut forwarder).await?;
    stream.write_all(b"first").await?;
    stream.shutdown().await?;
    ensure_eq!(all(&mut stream).await?, b"after the end", "what the program sent");
    ensure_eq!(live.finish(Duration::from_secs(10)).await?.good()?.text(), "first\n", "what the program got");
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let mut forwarder = place.egress().await?;
    // Both ways at once, each another stream, which is known to the other side by its rule alone.
    let text = "import hashlib,threading\ns=connect()\ndata=bytes((n*7+n//251)%256 for n in range(1<<16))*256\n\
                t=threading.Thread(target=lambda: (s.sendall(data), s.shutdown(1))); t.start()\n\
                h=hashlib.sha256(); n=0\n\
                while True:\n  b=s.recv(1<<16)\n  if not b: break\n  h.update(b); n+=len(b)\n\
                t.join(); print(n, h.hexdigest(), hashlib.sha256(data).hexdigest())";
    let live = program(&place, forwarder.port(), text).await?;
    let stream = accept(&mut forwarder).await?;
    let down: Vec<u8> = (0..16u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        writer.write_all(&down).await?;
        writer.shutdown().await?;
        Ok::<_, Fail>(())
    };
    let (sent, up) = tokio::join!(sending, all(&mut reader));
    sent?;
    let expected = format!("{} {} {}\n", down.len(), sha256(&down), sha256(&up?));
    ensure_eq!(live.finish(Duration::from_secs(60)).await?.good()?.text(), expected, "lengths and checksums");
    Ok(Verdict::Pass)
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn many(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let forwarder = place.egress().await?;
    let port = forwarder.port();
    let echoing = echo(forwarder);
    let text = "all=[connect() for _ in range(200)]\n\
                for n,s in enumerate(all): s.sendall(b'%d ' % n * 1000)\n\
                for s in all: s.shutdown(1)\n\
                print(sum(s.makefile('rb').read() == b'%d ' % n * 1000 for n,s in enumerate(all)))";
    let right = printed(&place, port, text).await?;
    echoing.abort();
    ensure_eq!(right, "200\n", "connections that were answered with their own words");
    Ok(Verdict::Pass)
}

async fn same_port(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let first = place.egress().await?;
    let port = first.port();
    ensure!(port != 0, "no port");
    ensure!(place.egress().await?.port() != port, "two have one port");
    drop(first);
    // That it has gone is known inside a moment later.
    let until = Instant::now() + Duration::from_secs(10);
    while place.egress().await?.port() != port {
        ensure!(Instant::now() < until, "the port is not given again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nobody inside can take it, whether somebody stands there or not.
    let text = "for a in ('127.0.0.1','0.0.0.0'):\n  try: socket.create_server((a,s_port)); print('taken')\n  \
                except OSError: print('kept')";
    let text = text.replace("s_port", &port.to_string());
    ensure_eq!(printed(&place, port, &text).await?, "kept\nkept\n", "who has the port");
    ensure!(place.listen(port).await.is_err(), "the port was given twice");
    Ok(Verdict::Pass)
}

async fn nobody(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let forwarder = place.egress().await?;
    let port = forwarder.port();
    let echoing = echo(forwarder);
    ensure_eq!(printed(&place, port, ECHO).await?, "hello\n", "while somebody stands there");
    echoing.abort();
    let refused = eventually(Duration::from_secs(5), async || {
        Ok(printed(&place, port, ASK).await?.starts_with("HTTP/1.1 503 "))
    });
    ensure!(refused.await?, "nobody stands there, and that is not said");
    let answer = printed(&place, port, ASK).await?;
    let Some((head, body)) = answer.trim_end_matches('\n').split_once("\r\n\r\n") else {
        fail!("no whole answer: {answer:?}");
    };
    ensure!(head.contains("\r\nContent-Type: text/plain"), "{head:?}");
    ensure!(head.contains(&format!("\r\nContent-Length: {}", body.len() + 1)), "{head:?} {body:?}");
    ensure!(body.contains("no proxy is attached") && body.contains("again"), "{body:?}");
    let socks = "s=connect(); f=s.makefile('rb'); s.sendall(bytes([5,1,0])); print(list(f.read(2)))\n\
                 s.sendall(bytes([5,1,0,1,192,0,2,1,0,80])); print(list(f.read()))";
    let expected = "[5, 0]\n[5, 1, 0, 1, 0, 0, 0, 0, 0, 0]\n";
    ensure_eq!(printed(&place, port, socks).await?, expected, "by SOCKS");
    // Said nothing, closed at once, or never ended: the port goes on.
    let rude = "a=[connect() for _ in range(20)]; [s.close() for s in a[:10]]; a[10].sendall(b'x'*300000)";
    printed(&place, port, rude).await?;
    let echoing = echo(place.egress().await?);
    ensure_eq!(printed(&place, port, ECHO).await?, "hello\n", "once somebody stands there again");
    echoing.abort();
    Ok(Verdict::Pass)
}

async fn two_hosts(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let first = place.egress().await?;
    let port = first.port();
    let first = echo(first);
    let text = "s=connect(); s.sendall(b'one'); print(s.recv(3).decode(),flush=True); input()\n\
                s.sendall(b'two'); s.shutdown(1); print(s.makefile().read())";
    let mut request = argv(&[
        "python3",
        "-c",
        &format!(
            "import socket\ndef connect(): return socket.create_connection(('127.0.0.1',{port}),20)\n{text}"
        ),
    ]);
    request.stdin = true;
    let mut held = place.start(request).await?;
    held.until("one\n", Duration::from_secs(10)).await?;
    let second = echo(place.egress().await?);
    first.abort();
    for n in 0..20 {
        ensure_eq!(printed(&place, port, ECHO).await?, "hello\n", "connection {n} after one has gone");
    }
    held.say("\n").await?;
    let text = held.finish(Duration::from_secs(10)).await?.good()?.text();
    ensure_eq!(text, "one\ntwo\n", "what was taken goes on");
    second.abort();
    Ok(Verdict::Pass)
}

async fn own_port(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    // The one that came first does not carry what is the other's, and takes nothing along when it goes.
    let first = echo(place.egress().await?);
    let second = place.egress().await?;
    let port = second.port();
    let second = echo(second);
    let text = "s=connect(); s.sendall(b'one'); print(s.recv(3).decode(),flush=True); input()\n\
                s.sendall(b'two'); s.shutdown(1); print(s.makefile().read())";
    let connect = format!(
        "import socket\ndef connect(): return socket.create_connection(('127.0.0.1',{port}),20)\n{text}"
    );
    let mut request = argv(&["python3", "-c", &connect]);
    request.stdin = true;
    let mut held = place.start(request).await?;
    held.until("one\n", Duration::from_secs(10)).await?;
    first.abort();
    ensure!(first.await.is_err_and(|e| e.is_cancelled()), "the first goes");
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.say("\n").await?;
    let text = held.finish(Duration::from_secs(10)).await?.good()?.text();
    ensure_eq!(text, "one\ntwo\n", "what is the other's goes on");
    second.abort();
    Ok(Verdict::Pass)
}

async fn no_use(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let mut forwarder = place.egress().await?;
    ensure!(
        tokio::time::timeout(Duration::from_millis(300), forwarder.accept()).await.is_err(),
        "a connection"
    );
    ensure_eq!(place.activity().await?.operations, 0, "operations while somebody stands there");
    let stream = from_inside(&place, &mut forwarder).await?;
    let counted = async |count: u32| {
        eventually(Duration::from_secs(5), async || Ok(place.activity().await?.operations == count)).await
    };
    ensure!(counted(1).await?, "an open connection is no use");
    ensure!(!place.close_if_idle().await?, "closed in spite of an open connection");
    drop(stream);
    ensure!(counted(0).await?, "a closed connection is still use");
    ensure!(place.close_if_idle().await?, "not closed though nothing uses it");
    Ok(Verdict::Pass)
}

async fn idle(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let mut spec = ctx.session(Duration::from_secs(2))?;
    spec.network = Setting::new(Network::Trusted, Origin::Flag);
    let place = ctx.open(&spec).await?;
    let mut forwarder = place.egress().await?;
    match tokio::time::timeout(patience(Duration::from_secs(20)), forwarder.accept()).await {
        Err(_) => fail!("it goes on for ever since somebody stands behind its port"),
        Ok(Ok(_)) => fail!("a connection that nobody made"),
        Ok(Err(_)) => {}
    }
    Ok(Verdict::Pass)
}

async fn close(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let mut forwarder = place.egress().await?;
    let mut stream = from_inside(&place, &mut forwarder).await?;
    let waiting = tokio::spawn(async move { forwarder.accept().await.map(drop) });
    place.close().await?;
    match tokio::time::timeout(patience(Duration::from_secs(10)), waiting).await {
        Ok(Ok(Err(Error::Unavailable(_) | Error::Lost(_)))) => {}
        Ok(other) => fail!("{other:?} after the end"),
        Err(_) => fail!("it is waited on after the end"),
    }
    let _ = all(&mut stream).await;
    ensure!(place.egress().await.is_err(), "a place behind the port of one that has ended");
    Ok(Verdict::Pass)
}

async fn sessions_apart(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let (ours, other) = (trusted(ctx).await?, trusted(ctx).await?);
    let mut forwarder = ours.egress().await?;
    let port = forwarder.port();
    let text = "for f,a in ((socket.AF_INET,'127.0.0.1'),(socket.AF_INET6,'::1')):\n  s=socket.socket(f)\n  \
                try:\n    s.connect((a,s_port)); s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n'); print(s.recv(12))\n  \
                except OSError: print('closed')";
    let text = text.replace("s_port", &port.to_string());
    let other_side = printed(&other, port, &text);
    let (said, reached) =
        tokio::join!(other_side, tokio::time::timeout(Duration::from_secs(2), forwarder.accept()));
    ensure!(reached.is_err(), "another sandbox reaches the port");
    let said = said?;
    ensure!(said.lines().all(|line| line == "closed" || line == "b'HTTP/1.1 503'"), "{said:?}");
    // Nor does it stand on the host.
    if let Ok(mut outside) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
        let _ = outside.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
        let reached = tokio::time::timeout(Duration::from_millis(500), forwarder.accept()).await;
        ensure!(reached.is_err(), "the host's loopback leads to the port");
    }
    Ok(Verdict::Pass)
}

async fn another_process(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let mut spec = ctx.session(LONG)?;
    spec.network = Setting::new(Network::Trusted, Origin::Flag);
    let place = ctx.open(&spec).await?;
    let port = place.egress().await?.port();
    let Some(adopted) = ctx.backend_again().adopt(&spec).await? else { fail!("not adopted") };
    let again = ctx.keep(adopted).await?;
    let forwarder = again.egress().await?;
    ensure_eq!(forwarder.port(), port, "the port");
    let echoing = echo(forwarder);
    ensure_eq!(printed(&place, port, ECHO).await?, "hello\n", "by another process");
    echoing.abort();
    // What was blocked when it began is the same sandbox, and has the same port.
    spec.network = Setting::new(Network::Blocked, Origin::Flag);
    let Some(blocked) = ctx.backend_again().adopt(&spec).await? else { fail!("not adopted as blocked") };
    ensure_eq!(ctx.keep(blocked).await?.egress().await?.port(), port, "the port once it is blocked");
    Ok(Verdict::Pass)
}

async fn killed_inside(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let forwarder = place.egress().await?;
    let port = forwarder.port();
    let echoing = echo(forwarder);
    for n in 0..3 {
        ensure_eq!(printed(&place, port, ECHO).await?, "hello\n", "before killing {n}");
        // Everything that may be killed: the command itself, too.
        let _ = place.sh("kill -9 -1").await;
        let back = eventually(Duration::from_secs(10), async || {
            Ok(printed(&place, port, ECHO).await.is_ok_and(|text| text == "hello\n"))
        });
        ensure!(back.await?, "nobody stands behind the port after killing {n}");
    }
    echoing.abort();
    Ok(Verdict::Pass)
}

/// Makes connections that say nothing, as many as there can be, and holds them until its input ends.
const FLOOD: &str = "import resource\n\
    h=resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE,(h,h))\n\
    a=[]\n\
    for _ in range(10000):\n  s=socket.socket(); s.setblocking(False)\n  \
    try: s.connect(('127.0.0.1',s_port))\n  except OSError: pass\n  a.append(s)\n\
    print(len(a),flush=True)\ninput()";

async fn flood(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let forwarder = place.egress().await?;
    let port = forwarder.port();
    drop(forwarder);
    for stands in [false, true] {
        // Whoever stands there takes what comes and waits with it.
        let taking = stands.then_some(place.egress().await?).map(|mut forwarder| {
            tokio::spawn(async move {
                let mut held = Vec::new();
                while let Ok(stream) = forwarder.accept().await {
                    held.push(stream);
                }
            })
        });
        let text = format!("import socket\n{}", FLOOD.replace("s_port", &port.to_string()));
        let mut request = argv(&["python3", "-c", &text]);
        (request.stdin, request.timeout) = (true, Some(patience(Duration::from_secs(60))));
        let mut live = place.start(request).await?;
        // Where there are few descriptors it ends before, having made what it could.
        let made = live.until("\n", Duration::from_secs(30)).await;
        let asked = Instant::now();
        ensure_eq!(place.out("echo alive").await?, "alive\n", "beside it");
        ensure!(
            asked.elapsed() < patience(Duration::from_secs(10)),
            "a command took {:?} beside it",
            asked.elapsed()
        );
        place.activity().await?;
        if made.is_ok() {
            live.say("\n").await?;
        }
        live.finish(Duration::from_secs(60)).await?;
        if let Some(taking) = taking {
            taking.abort();
        }
    }
    let echoing = echo(place.egress().await?);
    let back =
        eventually(Duration::from_secs(20), async || Ok(printed(&place, port, ECHO).await? == "hello\n"));
    ensure!(back.await?, "nothing comes through after it");
    echoing.abort();
    let left =
        eventually(Duration::from_secs(20), async || Ok(place.activity().await?.operations == 0)).await?;
    ensure!(left, "what is over counts as use");
    ensure_eq!(place.run(shell("echo still")).await?.good()?.text(), "still\n", "at last");
    Ok(Verdict::Pass)
}

/// `NODE_OPTIONS` names it, so that Node does not start where it is missing; and it is code that every Node runs.
async fn file_for_node(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_egress!(ctx);
    let place = trusted(ctx).await?;
    let line = "cd /.moltis; for way in 'echo x >>node-proxy.cjs' 'rm -f node-proxy.cjs' 'mv node-proxy.cjs other' 'chmod 777 node-proxy.cjs' ': >new'; \
                do (eval \"$way\") 2>/dev/null && echo \"$way\"; done; \
                test -s node-proxy.cjs; grep -c \"^'use strict';\" node-proxy.cjs";
    ensure_eq!(place.out(line).await?, "1\n", "what can be done to the file, and that it is there");
    Ok(Verdict::Pass)
}
