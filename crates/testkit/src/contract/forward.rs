//! Forwarding: ports inside reached from outside, and ports outside served inside, over loopback only.

use std::time::Duration;

use moltis_sandbox::{Duplex, Error, Forwarder, Promise};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::run::shell;
use crate::{Case, Ctx, Fail, Live, Place, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("forward.connect", connect),
        case!("forward.connect-refused", connect_refused),
        case!("forward.listen", listen),
        case!("forward.half-close", half_close),
        case!("forward.large", large).limit(60),
        case!("forward.many", many),
        case!("forward.closed-listener", closed_listener),
    ]
}

fn lacking(ctx: &Ctx) -> Option<Verdict> {
    match &ctx.guarantees.forward {
        Promise::Held => None,
        Promise::NotEnforced(reason) => Some(Verdict::Declared(reason.clone())),
    }
}

/// Where a backend forwards nothing, both ways are refused.
macro_rules! need_forward {
    ($ctx:expr) => {
        if let Some(verdict) = lacking($ctx) {
            let place = $ctx.place().await?;
            ensure!(matches!(place.connect(1).await, Err(Error::Refused(_))), "connect is not refused");
            ensure!(matches!(place.listen(0).await, Err(Error::Refused(_))), "listen is not refused");
            return Ok(verdict);
        }
    };
}

/// A server inside that answers each line in capitals and at the end of input says `bye`.
const SERVER: &str = r#"
import socket, threading
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
def serve(c):
    f = c.makefile("rwb")
    for line in f:
        f.write(line.upper()); f.flush()
    f.write(b"bye"); f.flush(); c.shutdown(socket.SHUT_WR); c.close()
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

/// Runs a python program inside that prints a port first.
async fn serving(place: &Place, program: &str) -> Result<(Live, u16), Fail> {
    let mut request = crate::run::argv(&["python3", "-c", program]);
    request.timeout = Some(patience(Duration::from_secs(60)));
    let mut live = place.start(request).await?;
    live.until("\n", Duration::from_secs(10)).await?;
    let port = String::from_utf8_lossy(&live.stdout).trim().parse();
    Ok((live, port.map_err(|_| Fail::new("the server inside printed no port"))?))
}

async fn all(stream: &mut Box<dyn Duplex>) -> Result<Vec<u8>, Fail> {
    let mut bytes = Vec::new();
    match tokio::time::timeout(patience(Duration::from_secs(10)), stream.read_to_end(&mut bytes)).await {
        Ok(read) => read?,
        Err(_) => fail!("the stream does not end; so far {} bytes", bytes.len()),
    };
    Ok(bytes)
}

/// A connection from the inside, made by a process that is no use of the sandbox: what a command left behind.
pub(super) async fn from_inside(
    place: &Place,
    listener: &mut Box<dyn Forwarder>,
) -> Result<Box<dyn Duplex>, Fail> {
    let line = format!(
        "setsid python3 -c 'import socket,time; s=socket.create_connection((\"127.0.0.1\",{})); time.sleep(60)' \
         >/dev/null 2>&1 &",
        listener.port()
    );
    place.sh(line).await?.good()?;
    match tokio::time::timeout(patience(Duration::from_secs(10)), listener.accept()).await {
        Ok(accepted) => Ok(accepted?),
        Err(_) => fail!("no connection arrives"),
    }
}

async fn connect(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    let (_server, port) = serving(&place, SERVER).await?;
    let mut stream = place.connect(port).await?;
    stream.write_all(b"hello\n").await?;
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).await?;
    ensure_eq!(&answer, b"HELLO\n", "answer");
    stream.shutdown().await?;
    ensure_eq!(all(&mut stream).await?, b"bye", "after the end of input");
    Ok(Verdict::Pass)
}

async fn connect_refused(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    // A port on which the host listens, to be sure that it is the sandbox's loopback which is meant.
    let host = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = host.local_addr()?.port();
    match tokio::time::timeout(patience(Duration::from_secs(5)), place.connect(port)).await {
        Err(_) => fail!("connecting to nothing hangs"),
        Ok(Ok(_)) if ctx.guarantees.network_blocked.is_held() => fail!("connected to the host's port {port}"),
        Ok(Ok(_)) => {}
        Ok(Err(Error::Unavailable(_) | Error::Invalid(_))) => {}
        Ok(Err(e)) => fail!("{} {e}", e.kind()),
    }
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

async fn listen(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    let mut listener = place.listen(0).await?;
    let port = listener.port();
    ensure!(port != 0, "no port");
    let line = format!(
        "python3 -c 'import socket; s=socket.create_connection((\"127.0.0.1\",{port})); s.sendall(b\"ping\"); \
         s.shutdown(1); print(s.makefile().read())'"
    );
    let live = place.start(shell(line)).await?;
    let accepted = tokio::time::timeout(patience(Duration::from_secs(10)), listener.accept()).await;
    let mut stream = accepted.map_err(|_| Fail::new("no connection arrives"))??;
    ensure_eq!(all(&mut stream).await?, b"ping", "what the inside sent");
    stream.write_all(b"pong").await?;
    stream.shutdown().await?;
    ensure_eq!(live.finish(Duration::from_secs(10)).await?.good()?.text(), "pong\n", "what the inside got");
    // The host does not listen there.
    if ctx.guarantees.network_blocked.is_held() {
        let outside = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        ensure!(outside.is_err(), "the listener stands on the host");
    }
    ensure!(place.listen(port).await.is_err(), "the port was given twice");
    Ok(Verdict::Pass)
}

async fn half_close(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    // The server ends its side first and still reads.
    let program = "import socket\ns=socket.create_server((\"127.0.0.1\",0))\nprint(s.getsockname()[1],flush=True)\n\
                   c,_=s.accept()\nc.sendall(b\"first\")\nc.shutdown(socket.SHUT_WR)\n\
                   print(c.makefile().read(),flush=True)";
    let (live, port) = serving(&place, program).await?;
    let mut stream = place.connect(port).await?;
    ensure_eq!(all(&mut stream).await?, b"first", "what the server sent");
    stream.write_all(b"after the end").await?;
    stream.shutdown().await?;
    let ran = live.finish(Duration::from_secs(10)).await?.good()?;
    ensure!(ran.text().ends_with("after the end\n"), "what the server got: {:?}", ran.text());
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    let program = "import socket,threading\ns=socket.create_server((\"127.0.0.1\",0))\nprint(s.getsockname()[1],flush=True)\n\
                   c,_=s.accept()\nwhile True:\n  b=c.recv(65536)\n  if not b: break\n  c.sendall(b)\nc.shutdown(socket.SHUT_WR)\n";
    let (_server, port) = serving(&place, program).await?;
    let stream = place.connect(port).await?;
    let data: Vec<u8> = (0..8 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        writer.write_all(&data).await?;
        writer.shutdown().await
    };
    let mut back = Vec::new();
    let (sent, read) = tokio::join!(sending, reader.read_to_end(&mut back));
    sent?;
    read?;
    ensure!(back == data, "came back changed: {} bytes of {}", back.len(), data.len());
    Ok(Verdict::Pass)
}

async fn many(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    let (_server, port) = serving(&place, SERVER).await?;
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(place.connect(port).await?);
    }
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(format!("line {n}\n").as_bytes()).await?;
    }
    for (n, mut stream) in streams.into_iter().enumerate() {
        stream.shutdown().await?;
        ensure_eq!(
            String::from_utf8_lossy(&all(&mut stream).await?),
            format!("LINE {n}\nbye"),
            "answer of connection {n}"
        );
    }
    Ok(Verdict::Pass)
}

async fn closed_listener(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_forward!(ctx);
    let place = ctx.place().await?;
    let listener = place.listen(0).await?;
    let port = listener.port();
    let try_it = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\",{port}),2)' 2>/dev/null && echo open || echo closed"
    );
    ensure_eq!(place.out(try_it.as_str()).await?, "open\n", "while it listens");
    drop(listener);
    let closed = crate::run::eventually(Duration::from_secs(5), async || {
        Ok(place.out(try_it.as_str()).await? == "closed\n")
    })
    .await?;
    ensure!(closed, "a dropped listener still listens");
    let mut again = place.listen(port).await?;
    let connecting = place.start(shell(try_it)).await?;
    let accepted = tokio::time::timeout(patience(Duration::from_secs(5)), again.accept()).await;
    ensure!(matches!(accepted, Ok(Ok(_))), "the port cannot be used again");
    connecting.finish(Duration::from_secs(10)).await?;
    Ok(Verdict::Pass)
}
