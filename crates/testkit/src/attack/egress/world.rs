//! What the cases through the proxy stand on: servers of the host that nobody may reach, names of a resolver of ours, a
//! sandbox with the real proxy behind its port, and a proxy that defends nothing.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use moltis_egress::{
    Approvals, Asked, Audit, Entry, OnUnknown, Origin as Whose, Policy, Proxy, ProxyLimits, ProxySettings,
    Resolve, Rule, SessionProxy, Verdict,
};
use moltis_sandbox::{Network, Origin, Setting};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::naive;
use crate::{Ctx, Fail, Place};

/// Ends a task with what it belongs to.
pub struct Task(JoinHandle<()>);

impl Task {
    /// Runs it.
    pub fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A server of the host. It answers whatever it is told with its word and what it was told, and remembers it.
pub struct Victim {
    /// Where it listens.
    pub port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
    _tasks: Vec<Task>,
}

impl Victim {
    async fn listen(word: &'static str, addresses: &[IpAddr], port: u16) -> Result<Self, Fail> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (mut port, mut tasks) = (port, Vec::new());
        for address in addresses {
            let listener = match TcpListener::bind((*address, port)).await {
                Ok(listener) => listener,
                // A machine without IPv6.
                Err(_) if address.is_ipv6() => continue,
                Err(error) => return Err(error.into()),
            };
            port = listener.local_addr()?.port();
            let heard = heard.clone();
            tasks.push(Task::of(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(word, stream, heard.clone()));
                }
            }));
        }
        Ok(Self { port, heard, _tasks: tasks })
    }

    /// Whether it was told this.
    pub fn heard(&self, what: &[u8]) -> bool {
        crate::run::contains(&self.heard.lock().unwrap_or_else(PoisonError::into_inner), what)
    }

    /// Whether it was told anything.
    pub fn heard_anything(&self) -> bool {
        !self.heard.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

async fn serve(word: &'static str, mut stream: TcpStream, heard: Arc<Mutex<Vec<u8>>>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stream.read(&mut piece).await {
        let mut body = format!("{word} was told: ").into_bytes();
        body.extend_from_slice(&piece[..n.min(4096)]);
        {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            // A request that comes in two pieces is one all the same.
            if heard.len() < 4 << 20 {
                heard.extend_from_slice(&piece[..n]);
            }
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all(&[head.as_bytes(), &body].concat()).await.is_err() {
            return;
        }
    }
}

/// Names, and what they resolve to at each lookup; the last stays.
#[derive(Default)]
pub struct Names(Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>);

impl Names {
    /// Gives a name its lookups.
    pub fn put(&self, name: &str, lookups: &[&[IpAddr]]) {
        let lookups = lookups.iter().map(|addresses| addresses.to_vec()).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), lookups);
    }

    /// One lookup.
    pub fn look(&self, name: &str) -> Option<Vec<IpAddr>> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lookups = names.get_mut(name)?;
        if lookups.len() > 1 { lookups.pop_front() } else { lookups.front().cloned() }
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.look(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The host, as a case sees it.
pub struct World {
    /// On 127.0.0.1, as `good.test`: what the policies of the cases allow.
    pub good: Victim,
    /// On 127.0.0.2, as `evil.test`: what they do not.
    pub evil: Victim,
    /// On 127.0.0.1 with the port of `evil`.
    pub twin: Victim,
    /// On every address of the host.
    pub own: Victim,
    /// An address of the host that is not loopback, if it has one.
    pub address: Option<IpAddr>,
    /// What names resolve to.
    pub names: Arc<Names>,
}

const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const EVIL: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

impl World {
    /// Starts the servers.
    pub async fn new() -> Result<Self, Fail> {
        let (evil, twin) = twins().await?;
        let everywhere = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()];
        let names = Arc::new(Names::default());
        let address =
            crate::contract::network::host_addresses().into_iter().find(|address| !address.is_loopback());
        let address = address.map(IpAddr::V4);
        let mapped = Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped().into();
        for (name, addresses) in [
            ("good.test", vec![GOOD]),
            ("evil.test", vec![EVIL]),
            ("good.test.evil.test", vec![EVIL]),
            ("x.good.test", vec![EVIL]),
            ("xgood.test", vec![EVIL]),
            ("mapped.test", vec![mapped]),
            ("zero.test", vec![Ipv4Addr::UNSPECIFIED.into()]),
            ("six.test", vec![Ipv6Addr::LOCALHOST.into()]),
            ("own.test", address.into_iter().collect()),
            ("metadata.test", vec![Ipv4Addr::new(169, 254, 169, 254).into()]),
            ("both.test", vec![GOOD, EVIL]),
        ] {
            names.put(name, &[&addresses]);
        }
        let good = Victim::listen("WORD-good", &[GOOD], 0).await?;
        let own = Victim::listen("WORD-own", &everywhere, 0).await?;
        Ok(Self { good, evil, twin, own, address, names })
    }

    /// Starts a proxy that defends nothing, on a port of the host.
    pub async fn naive(&self) -> Result<(u16, Task), Fail> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let names = self.names.clone();
        let task = Task::of(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(naive::serve(stream, names.clone()));
            }
        });
        Ok((port, task))
    }
}

/// Two servers with the same port, which somebody else may have on the one address or the other.
async fn twins() -> Result<(Victim, Victim), Fail> {
    for _ in 0..32 {
        let evil = Victim::listen("WORD-evil", &[EVIL], 0).await?;
        if let Ok(twin) = Victim::listen("WORD-twin", &[GOOD], evil.port).await {
            return Ok((evil, twin));
        }
    }
    crate::fail!("no port is free on both addresses")
}

/// Entries of the audit log.
#[derive(Default)]
pub struct Entries(Mutex<Vec<Entry>>);

impl Audit for Entries {
    fn record(&self, entry: Entry) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

impl Entries {
    /// What was written so far.
    pub fn all(&self) -> Vec<Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Nobody is there to be asked.
struct Nobody;

#[async_trait]
impl Approvals for Nobody {
    async fn ask(&self, _: &Asked) -> Verdict {
        Verdict::Denied
    }
}

/// A policy of these patterns.
pub fn policy(trusted: &[String]) -> Policy {
    let rule = |text: &String| Rule { pattern: text.parse().expect("a pattern"), origin: Whose::Config };
    Policy { trusted: trusted.iter().map(rule).collect(), denied: Vec::new(), on_unknown: OnUnknown::Deny }
}

/// The proxy of a process, over the names of the world.
pub fn proxy(world: &World, limits: ProxyLimits) -> (Proxy, Arc<Entries>) {
    proxy_of(world, limits, None)
}

/// The proxy of a process that listens on this port itself.
pub fn proxy_of(world: &World, limits: ProxyLimits, own: Option<u16>) -> (Proxy, Arc<Entries>) {
    let entries = Arc::new(Entries::default());
    let settings = ProxySettings {
        limits,
        upstream: None,
        resolver: world.names.clone(),
        own: Arc::new(move |address: SocketAddr| Some(address.port()) == own),
        audit: entries.clone(),
    };
    (Proxy::new(settings), entries)
}

/// A sandbox whose network is `trusted`, with the proxy behind its port.
pub struct Road {
    /// The sandbox.
    pub place: Place,
    /// The port inside.
    pub port: u16,
    /// What it may reach.
    pub policy: watch::Sender<Policy>,
    /// The proxy's side.
    pub session: SessionProxy,
    _task: Task,
}

impl Road {
    /// Opens a sandbox and stands behind its port.
    pub async fn open(ctx: &Ctx, proxy: &Proxy, key: &str, trusted: &[String]) -> Result<Self, Fail> {
        let mut spec = ctx.spec()?;
        spec.network = Setting::new(Network::Trusted, Origin::Flag);
        let place = ctx.open(&spec).await?;
        let forwarder = place.egress().await?;
        let port = forwarder.port();
        let (policy, seen) = watch::channel(policy(trusted));
        let session = proxy.session(key, seen, Arc::new(Nobody));
        let running = session.clone();
        let task = Task::of(async move {
            running.run(forwarder).await;
        });
        Ok(Self { place, port, policy, session, _task: task })
    }
}

/// Copies both ways until both have ended.
pub async fn splice(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) {
    let _ =
        tokio::time::timeout(Duration::from_secs(60), tokio::io::copy_bidirectional(&mut one, &mut other))
            .await;
}
