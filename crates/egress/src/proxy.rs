//! The proxy of a process, and its sessions.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moltis_sandbox::{Duplex, Forwarder};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::approval::Approvals;
use crate::ask::Questions;
use crate::audit::{Audit, Protocol};
use crate::client::Client;
use crate::journal::{Journal, Wanted};
use crate::limits::{ProxyLimits, Slot, Slots};
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::resolve::Resolve;
use crate::session::Session;
use crate::upstream::Upstream;
use crate::{http, socks5};

/// How many connections are told at once that there is no place for them, and how long each may take to listen.
const TURNED_AWAY: usize = 32;
const TURNING_AWAY: Duration = Duration::from_secs(1);

/// Says which addresses are Moltis's own, such as what a gateway listens on. They are never connected to.
pub type Own = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// What a proxy is made of.
pub struct ProxySettings {
    /// How much may be open, and for how long.
    pub limits: ProxyLimits,
    /// The proxy in front of ours, if there is one.
    pub upstream: Option<Upstream>,
    /// Who resolves names.
    pub resolver: Arc<dyn Resolve>,
    /// Which addresses are Moltis's own.
    pub own: Own,
    /// Where entries go.
    pub audit: Arc<dyn Audit>,
}

/// What all sessions share.
pub(crate) struct Shared {
    pub(crate) limits: ProxyLimits,
    pub(crate) upstream: Option<Upstream>,
    /// The addresses that the proxy in front of ours had when it was looked last.
    pub(crate) upstream_addresses: Mutex<Vec<IpAddr>>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) own: Own,
    pub(crate) lookups: Arc<Semaphore>,
    audit: Arc<dyn Audit>,
    ids: Arc<AtomicU64>,
    slots: Arc<Slots>,
    turning_away: Arc<Semaphore>,
}

/// The proxy of a process. A clone is the same one.
#[derive(Clone)]
pub struct Proxy {
    pub(crate) shared: Arc<Shared>,
}

impl Proxy {
    /// Makes one. It opens nothing by itself.
    pub fn new(settings: ProxySettings) -> Self {
        let ProxySettings { limits, upstream, resolver, own, audit } = settings;
        let shared = Shared {
            lookups: Arc::new(Semaphore::new(limits.lookups)),
            limits,
            upstream,
            upstream_addresses: Mutex::default(),
            resolver,
            own,
            audit,
            ids: Arc::default(),
            slots: Arc::default(),
            turning_away: Arc::new(Semaphore::new(TURNED_AWAY)),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The proxy in front of ours, to be shown; without its credentials. Names are resolved there.
    pub fn upstream(&self) -> Option<String> {
        self.shared.upstream.as_ref().map(Upstream::to_string)
    }

    /// Connections of all sessions that are open now.
    pub fn connections(&self) -> usize {
        self.shared.slots.used()
    }

    /// Opens a session: what it may reach, followed as it changes, and who is asked about the rest.
    pub fn session(
        &self,
        key: &str,
        policy: watch::Receiver<Policy>,
        approvals: Arc<dyn Approvals>,
    ) -> SessionProxy {
        let shared = Arc::clone(&self.shared);
        let journal = Journal::new(Arc::clone(&shared.audit), key.into(), Arc::clone(&shared.ids));
        let session = Session::new(shared, journal, policy, Questions::new(approvals));
        SessionProxy { session: Arc::new(session), running: Arc::default() }
    }
}

/// The proxy of one session. When the last clone is dropped, every connection that [`run`](Self::run) took is cut.
#[derive(Clone)]
pub struct SessionProxy {
    session: Arc<Session>,
    running: Arc<Mutex<JoinSet<()>>>,
}

impl SessionProxy {
    /// Serves one connection till its end.
    pub fn serve(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + use<> {
        serve(Arc::clone(&self.session), stream)
    }

    /// Takes connections and serves each, until the forwarder ends; says why it did. Those that were taken go on.
    pub async fn run(&self, mut forwarder: Box<dyn Forwarder>) -> moltis_sandbox::Error {
        loop {
            let stream = match forwarder.accept().await {
                Ok(stream) => stream,
                Err(why) => return why,
            };
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            while running.try_join_next().is_some() {}
            running.spawn(self.serve(stream));
        }
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.session.open.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn serve(session: Arc<Session>, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send {
    // Taken before the first byte is waited for: a connection that says nothing is one, too.
    let slot = session.shared.slots.take(&session.open, &session.shared.limits);
    async move {
        match slot {
            Some(slot) => taken(session, stream, slot).await,
            None => turned_away(&session, stream).await,
        }
    }
}

async fn taken(session: Arc<Session>, stream: Box<dyn Duplex>, slot: Slot) {
    let begun = timeout(session.shared.limits.header_time, Client::begun(stream)).await;
    // Nothing, or not in time: there is nobody to answer.
    if let Ok(Ok(Some((first, client)))) = begun {
        match first {
            5 => Box::pin(socks5::serve(session, client)).await,
            _ => http::serve(session, client).await,
        }
    }
    drop(slot);
}

async fn turned_away(session: &Session, stream: Box<dyn Duplex>) {
    session.journal.refused(&Wanted::nothing(), Protocol::Connect, &Refusal::TooManyConnections);
    let Ok(_permit) = Arc::clone(&session.shared.turning_away).try_acquire_owned() else { return };
    let answer = async {
        if let Ok(Some((first, mut client))) = Client::begun(stream).await {
            match first {
                5 => socks5::turn_away(&mut client).await,
                _ => http::turn_away(&mut client).await,
            }
        }
    };
    // Whoever does not listen in time goes without.
    let _ = timeout(TURNING_AWAY, answer).await;
}
