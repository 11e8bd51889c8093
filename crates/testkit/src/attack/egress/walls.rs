//! Past the proxy: every way that does not ask it. There is none, with the network `blocked` as with `trusted`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use moltis_sandbox::{Network, Origin, Promise, Setting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::attack::{Probe, all_reached, all_stopped, inside, outside};
use crate::case::Control;
use crate::contract::network::host_addresses;
use crate::{Case, Ctx, Fail, Verdict, case, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("egress.noproxy", noproxy).control(|ctx| Box::pin(noproxy_control(ctx))).law(1),
        case!("egress.raw-ip", raw_ip).control(|ctx| Box::pin(raw_ip_control(ctx))).law(1),
        case!("egress.udp", udp).control(|ctx| Box::pin(udp_control(ctx))).law(1).limit(60),
        case!("egress.dns", dns).control(|ctx| Box::pin(dns_control(ctx))).law(1).limit(90),
        case!("egress.no-route", no_route).control(|ctx| Box::pin(no_route_control(ctx))).law(1),
        case!("egress.icmp", icmp).control(|ctx| Box::pin(icmp_control(ctx))).law(1),
        case!("egress.socket-families", families).control(|ctx| Box::pin(families_control(ctx))),
        case!("egress.interfaces", interfaces).control(|ctx| Box::pin(interfaces_control(ctx))),
        case!("egress.unix-sockets", unix_sockets).control(|ctx| Box::pin(unix_control(ctx))).limit(60),
    ]
}

const FAMILIES: &[Probe] = &[
    Probe::same("socket-family=17"),
    Probe::optional("socket-family=40"),
    Probe::same("raw-socket"),
    Probe::same("raw-ipv6-socket"),
];

const INTERFACES: &[Probe] = &[
    Probe::weaker("add-address", "add-address=weaker"),
    Probe::weaker("add-route", "add-route=weaker"),
    Probe { inside: "add-interface", control: "add-interface=weaker", optional: true },
    Probe { inside: "make-tunnel", control: "make-tunnel=weaker", optional: true },
    Probe::weaker("set-address-by-ioctl", "set-address-by-ioctl=weaker"),
    Probe::weaker("set-flags-by-ioctl", "set-flags-by-ioctl=weaker"),
];

/// Runs the probes in a sandbox of each policy that has walls.
async fn walled(ctx: &Ctx, calls: &[String]) -> Result<Verdict, Fail> {
    let mut verdict = None;
    for (network, promise) in [
        (Network::Blocked, &ctx.guarantees.network_blocked),
        (Network::Trusted, &ctx.guarantees.network_trusted),
    ] {
        if let Promise::NotEnforced(reason) = promise {
            verdict.get_or_insert(Verdict::Declared(reason.clone()));
            continue;
        }
        let mut spec = ctx.spec()?;
        spec.network = Setting::new(network, Origin::Flag);
        let place = ctx.open(&spec).await?;
        all_stopped(&inside(&place, &refs(calls)).await?)
            .map_err(|e| Fail::new(format!("{network}: {e}")))?;
        ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
        verdict = Some(Verdict::Pass);
    }
    Ok(verdict.unwrap_or(Verdict::Pass))
}

fn refs(calls: &[String]) -> Vec<&str> {
    calls.iter().map(String::as_str).collect()
}

fn aimed(probe: &str, targets: &[SocketAddr]) -> Vec<String> {
    targets.iter().map(|target| format!("{probe}={}:{}", target.ip(), target.port())).collect()
}

/// Addresses of the host, of both families, its loopback first.
fn addresses() -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = host_addresses().into_iter().map(IpAddr::V4).collect();
    all.push(Ipv6Addr::LOCALHOST.into());
    // Sends nothing; it only picks the address that would be used.
    if let Ok(socket) = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
        && socket.connect(("2001:db8::1", 9)).is_ok()
        && let Ok(own) = socket.local_addr()
    {
        all.push(own.ip());
    }
    all.sort();
    all.dedup();
    all
}

/// What ends with the case.
struct Served(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Served {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Listens on every address of the host and answers each connection with the word, once it has said something or a
/// moment has passed.
async fn listeners(word: &'static [u8]) -> Result<(Vec<SocketAddr>, Served), Fail> {
    let (mut all, mut served) = (Vec::new(), Served(Vec::new()));
    for address in addresses() {
        // A machine without IPv6 has nothing there to reach.
        let Ok(listener) = TcpListener::bind((address, 0)).await else { continue };
        all.push(listener.local_addr()?);
        served.0.push(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut said = [0; 512];
                    let _ = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut said)).await;
                    let _ = stream.write_all(word).await;
                });
            }
        }));
    }
    Ok((all, served))
}

/// The same for datagrams, which are answered with what they said.
async fn echoes() -> Result<(Vec<SocketAddr>, Served), Fail> {
    let (mut all, mut served) = (Vec::new(), Served(Vec::new()));
    for address in addresses() {
        let Ok(socket) = tokio::net::UdpSocket::bind((address, 0)).await else { continue };
        all.push(socket.local_addr()?);
        served.0.push(tokio::spawn(async move {
            let mut said = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut said).await {
                let _ = socket.send_to(&said[..n], from).await;
            }
        }));
    }
    Ok((all, served))
}

const PAGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhost";

async fn noproxy_targets() -> Result<(Vec<String>, Served), Fail> {
    let (mut targets, served) = listeners(PAGE).await?;
    // An address of IPv6 is written otherwise in a URL.
    targets.retain(SocketAddr::is_ipv4);
    Ok((aimed("http-without-proxy", &targets), served))
}

async fn noproxy(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (calls, _served) = noproxy_targets().await?;
    walled(ctx, &calls).await
}

async fn noproxy_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (calls, _served) = noproxy_targets().await?;
    all_reached(&outside(&refs(&calls)).await?, &[])
}

async fn raw_targets() -> Result<(Vec<String>, Served), Fail> {
    let (targets, served) = listeners(b"host").await?;
    let mut calls = aimed("connect-tcp", &targets);
    calls.extend(aimed("raw-connect", &targets));
    Ok((calls, served))
}

async fn raw_ip(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (calls, _served) = raw_targets().await?;
    walled(ctx, &calls).await
}

async fn raw_ip_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (calls, _served) = raw_targets().await?;
    all_reached(&outside(&refs(&calls)).await?, &[])
}

async fn udp(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (targets, _served) = echoes().await?;
    walled(ctx, &aimed("udp", &targets)).await
}

async fn udp_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (targets, _served) = echoes().await?;
    all_reached(&outside(&refs(&aimed("udp", &targets))).await?, &[])
}

/// Servers of names on the host, by datagrams and by connections: what they answer is no matter, only that they do.
async fn name_servers() -> Result<(Vec<String>, Served), Fail> {
    let (datagrams, mut served) = echoes().await?;
    let (streams, mut more) = listeners(b"\x00\x04host").await?;
    served.0.append(&mut more.0);
    let mut calls = aimed("dns-by-udp", &datagrams);
    calls.extend(aimed("dns-by-tcp", &streams));
    Ok((calls, served))
}

async fn dns(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (mut calls, _served) = name_servers().await?;
    calls.push("dns-of-the-system".to_owned());
    walled(ctx, &calls).await
}

async fn dns_control(_ctx: &Ctx) -> Result<Control, Fail> {
    // Whether the machine resolves names of others is its own affair; its servers are tried by the same two ways.
    let (calls, _served) = name_servers().await?;
    all_reached(&outside(&refs(&calls)).await?, &[])
}

/// Addresses beside loopback, of networks that are nobody's, of the cloud's metadata, and of multicast.
fn elsewhere() -> Vec<String> {
    let mut all: Vec<IpAddr> = vec![
        Ipv4Addr::new(203, 0, 113, 1).into(),
        Ipv4Addr::new(169, 254, 169, 254).into(),
        Ipv4Addr::new(10, 0, 2, 2).into(),
        Ipv4Addr::new(172, 17, 0, 1).into(),
        Ipv4Addr::new(224, 0, 0, 251).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254).into(),
    ];
    all.extend(addresses().into_iter().filter(|address| !address.is_loopback()));
    all.iter().map(|address| format!("udp-route={address}")).collect()
}

async fn no_route(ctx: &Ctx) -> Result<Verdict, Fail> {
    walled(ctx, &elsewhere()).await
}

async fn no_route_control(_ctx: &Ctx) -> Result<Control, Fail> {
    // The machine need not have a way to others; it has one to itself.
    let own = format!("udp-route={}", Ipv4Addr::LOCALHOST);
    all_reached(&outside(&[&own]).await?, &[])
}

async fn icmp(ctx: &Ctx) -> Result<Verdict, Fail> {
    // Its own loopback answers a sandbox that may ask; what must not answer is the host.
    let own = host_addresses().into_iter().filter(|address| !address.is_loopback());
    let mut calls: Vec<String> = own.map(|address| format!("ping={address}")).collect();
    calls.push("ping=203.0.113.1".to_owned());
    walled(ctx, &calls).await
}

async fn icmp_control(_ctx: &Ctx) -> Result<Control, Fail> {
    all_reached(&outside(&[&format!("ping={}", Ipv4Addr::LOCALHOST)]).await?, &[])
}

fn within(probes: &[Probe]) -> Vec<String> {
    probes.iter().map(|probe| probe.inside.to_owned()).collect()
}

async fn families(ctx: &Ctx) -> Result<Verdict, Fail> {
    walled(ctx, &within(FAMILIES)).await
}

async fn families_control(ctx: &Ctx) -> Result<Control, Fail> {
    crate::attack::reached(ctx, FAMILIES).await
}

async fn interfaces(ctx: &Ctx) -> Result<Verdict, Fail> {
    walled(ctx, &within(INTERFACES)).await
}

async fn interfaces_control(ctx: &Ctx) -> Result<Control, Fail> {
    crate::attack::reached(ctx, INTERFACES).await
}

/// Sockets of the host that greet everybody: one by path, one abstract.
fn unix_targets(ctx: &Ctx) -> Result<(Vec<String>, Served), Fail> {
    use std::os::linux::net::SocketAddrExt;
    let unique = crate::context::unique();
    let path = ctx.scratch().join(format!("greets-{unique}"));
    let name = format!("moltis-testkit-{unique}");
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
    let abstract_one = std::os::unix::net::UnixListener::bind_addr(&address)?;
    abstract_one.set_nonblocking(true)?;
    let mut served = Served(Vec::new());
    for listener in [UnixListener::bind(&path)?, UnixListener::from_std(abstract_one)?] {
        served.0.push(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(unique_word().as_bytes()).await;
            }
        }));
    }
    let mut calls = vec![format!("connect-path={}", path.display()), format!("connect-abstract={name}")];
    calls.push(format!("find-sockets={}", unique_word()));
    Ok((calls, served))
}

/// What the host's sockets say; another process's say something else.
fn unique_word() -> String {
    format!("host{}", std::process::id())
}

async fn unix_sockets(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (mut calls, _served) = unix_targets(ctx)?;
    for path in
        ["/run/docker.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"]
    {
        calls.push(format!("connect-path={path}"));
    }
    walled(ctx, &calls).await
}

async fn unix_control(ctx: &Ctx) -> Result<Control, Fail> {
    let (mut calls, _served) = unix_targets(ctx)?;
    // Looking through the whole machine would take too long, and connect to sockets of others.
    calls.truncate(2);
    all_reached(&outside(&refs(&calls)).await?, &[])
}
