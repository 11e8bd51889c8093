//! Network policy: `blocked` reaches nothing but its own loopback, `open` never the host's.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use moltis_sandbox::{Network, Origin, Setting};
use tokio::net::TcpListener;

use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("network.blocked", blocked).law(1),
        case!("network.own-loopback", own_loopback),
        case!("network.trusted-demand", trusted).law(1),
        case!("network.open", open).law(1),
    ]
}

/// Addresses under which the host can be reached, its loopback first.
pub(crate) fn host_addresses() -> Vec<Ipv4Addr> {
    let mut all = vec![Ipv4Addr::LOCALHOST];
    // A connected datagram socket sends nothing; it only picks the address that would be used.
    if let Ok(socket) = std::net::UdpSocket::bind("0.0.0.0:0")
        && socket.connect("203.0.113.1:9").is_ok()
        && let Ok(SocketAddr::V4(address)) = socket.local_addr()
    {
        all.push(*address.ip());
    }
    all
}

/// Tries from inside to connect to each address on the port, and returns those that answered with the host's word.
async fn reached(place: &Place, addresses: &[Ipv4Addr], port: u16) -> Result<Vec<String>, Fail> {
    if !place.processes {
        return reached_by_shell(place, addresses, port).await;
    }
    let program = "import socket,sys\nfor a in sys.argv[2:]:\n  try:\n    s=socket.create_connection((a,int(sys.argv[1])),2)\n    \
                   if s.recv(4)==b'host': print(a)\n  except OSError: pass\nprint('done')";
    let port = port.to_string();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut given = vec!["python3", "-c", program, &port];
    given.extend(addresses.iter().map(String::as_str));
    let text = place.run(crate::run::argv(&given)).await?.good()?.text();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure_eq!(lines.pop().as_deref(), Some("done"), "the last line");
    Ok(lines)
}

/// The same by all ways that a shell might have of its own.
async fn reached_by_shell(place: &Place, addresses: &[Ipv4Addr], port: u16) -> Result<Vec<String>, Fail> {
    let mut reached = Vec::new();
    for address in addresses {
        let line = format!(
            "exec 2>&1; for by in 'curl -s telnet://{address}:{port}' 'wget -qO- http://{address}:{port}' \
             'nc {address} {port}' 'cat /dev/tcp/{address}/{port}'; do $by </dev/null; done; \
             head -c 4 </dev/tcp/{address}/{port}; exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3; echo done"
        );
        let ran = place.sh(line).await?;
        ensure!(!ran.text().is_empty(), "nothing was tried: {ran:?}");
        if ran.text().contains("host\n") || ran.text().starts_with("host") {
            reached.push(address.to_string());
        }
    }
    Ok(reached)
}

/// A listener on all of the host's addresses that says `host` to everybody.
pub(crate) async fn host_listener() -> Result<(u16, tokio::task::JoinHandle<()>), Fail> {
    let listener = TcpListener::bind(("0.0.0.0", 0)).await?;
    let port = listener.local_addr()?.port();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"host").await;
        }
    });
    Ok((port, task))
}

async fn blocked(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    if let Some(reason) = ctx.refused(&ctx.guarantees.network_blocked, &spec, "network")? {
        return Ok(Verdict::Declared(reason));
    }
    spec.network = Setting::new(Network::Blocked, Origin::Flag);
    let place = ctx.open(&spec).await?;
    if place.processes {
        only_loopback(&place).await?;
    }
    let (port, task) = host_listener().await?;
    // The listener works: the host reaches itself.
    for address in host_addresses() {
        let stream = tokio::net::TcpStream::connect((address, port)).await;
        ensure!(stream.is_ok(), "the host does not reach its own listener at {address}");
    }
    let found = reached(&place, &host_addresses(), port).await?;
    ensure_eq!(found, Vec::<String>::new(), "addresses of the host that answer inside");
    task.abort();
    Ok(Verdict::Pass)
}

/// There is no interface and no route but loopback's.
async fn only_loopback(place: &Place) -> Result<(), Fail> {
    let interfaces = place.out("sed -n 's/^ *\\([^ :]*\\):.*/\\1/p' /proc/net/dev").await?;
    ensure_eq!(interfaces, "lo\n", "interfaces");
    let routes =
        place.out("tail -n +2 /proc/net/route; cat /proc/net/ipv6_route | grep -v ' lo$'; :").await?;
    ensure_eq!(routes, "", "routes");
    Ok(())
}

async fn own_loopback(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let program = "import socket\nfor f,a in ((socket.AF_INET,'127.0.0.1'),(socket.AF_INET6,'::1')):\n  \
                   s=socket.socket(f); s.bind((a,0)); s.listen(); c=socket.socket(f); c.connect(s.getsockname()); \
                   c.sendall(b'x'); print(s.accept()[0].recv(1))";
    let ran = place.run(crate::run::argv(&["python3", "-c", program])).await?.good()?;
    ensure_eq!(ran.text(), "b'x'\nb'x'\n", "its own loopback works, in both families");
    Ok(Verdict::Pass)
}

async fn trusted(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.network = Setting::new(Network::Trusted, Origin::Flag);
    if let Some(reason) = ctx.refused(&ctx.guarantees.network_trusted, &spec, "network")? {
        return Ok(Verdict::Declared(reason));
    }
    // Whatever the proxy allows, a program that ignores it reaches nothing.
    let place = ctx.open(&spec).await?;
    only_loopback(&place).await?;
    let (port, task) = host_listener().await?;
    ensure_eq!(
        reached(&place, &host_addresses(), port).await?,
        Vec::<String>::new(),
        "reached without the proxy"
    );
    task.abort();
    Ok(Verdict::Pass)
}

async fn open(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.network = Setting::new(Network::Open, Origin::Flag);
    if let Some(reason) = ctx.refused(&ctx.guarantees.network_open, &spec, "network")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    // It has a way out: an interface beside loopback with a route.
    let interfaces =
        place.out("sed -n 's/^ *\\([^ :]*\\):.*/\\1/p' /proc/net/dev | grep -v '^lo$' | wc -l").await?;
    ensure!(interfaces.trim() != "0", "no interface beside loopback");
    let routed = crate::run::eventually(Duration::from_secs(5), async || {
        Ok(!place.out("tail -n +2 /proc/net/route").await?.is_empty())
    })
    .await?;
    ensure!(routed, "no route");
    // The host's loopback stays out of reach, also through the gateway's address.
    let own = place.out("readlink /proc/self/ns/net").await?;
    if ctx.shared_kernel() {
        let host = std::fs::read_link("/proc/self/ns/net")?;
        ensure!(own.trim() != host.to_string_lossy(), "it shares the host's network namespace");
    }
    let loopback = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = loopback.local_addr()?.port();
    let gateway = place.out("awk '$2==\"00000000\"{print $3}' /proc/net/route | head -1").await?;
    let mut addresses = vec![Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 2, 2)];
    if let Ok(raw) = u32::from_str_radix(gateway.trim(), 16) {
        addresses.push(Ipv4Addr::from(raw.to_le_bytes()));
    }
    let accepting = tokio::spawn(async move {
        while let Ok((mut stream, _)) = loopback.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"host").await;
        }
    });
    let found = reached(&place, &addresses, port).await?;
    accepting.abort();
    if !found.is_empty() {
        fail!("the host's loopback answers under {found:?}");
    }
    Ok(Verdict::Pass)
}
