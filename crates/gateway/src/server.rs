//! A gateway from its start to its end: the lock, the listeners, connections, what is done every minute, the shutdown.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use moltis_runtime::Runtime;
pub use moltis_runtime::link::SOCKET;
use moltis_runtime::store::Store;
use moltis_sandbox::{BackendName, Diagnosis, Error};
use rustix::fs::{FlockOperation, flock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::auth::Peer;
use crate::error::GatewayError;
use crate::notify::{self, Told};
use crate::options::{DEADLINE, Options};
use crate::reload;
use crate::router::router;
use crate::secrets;
use crate::state::State;
use crate::tls::Tls;

/// Name of the file with the admin token, where there is no terminal to show it on.
pub const TOKEN_FILE: &str = "admin-token";

/// Connections over the network at the same time.
const CONNECTIONS: usize = 2048;

/// Time that a caller has to send the head of a request.
const HEAD: Duration = Duration::from_secs(30);

/// Time that a caller has for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How often sandboxes and the pool are looked after.
const ROUND: Duration = Duration::from_secs(60);

/// Time that an accept waits after the kernel had no descriptor for it.
const BREATH: Duration = Duration::from_millis(50);

/// How the admin token is come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// It was made now, and is to be shown on the terminal.
    Shown(String),
    /// It was made now, and stands in this file.
    Written(PathBuf),
    /// It was made before.
    Known,
}

/// What is said at the start.
#[derive(Clone, Debug)]
pub struct Banner {
    /// What holds the sandbox of a session that sets nothing.
    pub backend: Option<BackendName>,
    /// The URL that it is reached by.
    pub url: String,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The private socket.
    pub socket: PathBuf,
    /// How to log in.
    pub token: Token,
    /// What a person should know.
    pub warnings: Vec<Diagnosis>,
}

/// A gateway that runs.
pub struct Running {
    state: Arc<State>,
    banner: Banner,
    /// Accepting, and what is done every minute.
    tasks: JoinSet<()>,
    lock: File,
}

/// Starts a gateway. `on_terminal`: whether a token that is made now may be shown.
///
/// # Errors
/// `gateway-running`, `gateway-exposed`, `gateway-cannot-listen`, those of TLS, of the configuration, of the store, and of
/// the backend that the configuration names.
pub async fn start(options: Options, on_terminal: bool) -> Result<Running, Error> {
    let reading = options.clone();
    let loaded = blocking(move || reading.read().map_err(Error::from)).await?;
    let gateway = loaded.config.gateway.clone();
    let tls = blocking(move || Ok(Tls::read(&gateway)?)).await?.map(Arc::new);
    let (bind, port) = (loaded.config.gateway.bind.value, loaded.config.gateway.port.value);
    if tls.is_none() && !bind.is_loopback() && !options.allow_unencrypted {
        return Err(GatewayError::Exposed(SocketAddr::new(bind, port)).into());
    }
    let data = loaded.config.data_dir.value.clone();
    let lock = blocking(move || {
        // Makes the data directory, and sees that it is ours alone.
        Store::new(&data).run_blocking(|_| Ok(()))?;
        Ok(held(&data)?)
    })
    .await?;
    let data = loaded.config.data_dir.value.clone();
    let listener = TcpListener::bind((bind, port))
        .await
        .map_err(|source| GatewayError::Listen { place: SocketAddr::new(bind, port).to_string(), source })?;
    let address = listener
        .local_addr()
        .map_err(|source| GatewayError::Listen { place: SocketAddr::new(bind, port).to_string(), source })?;
    let runtime =
        Runtime::long_lived(loaded.config.clone(), options.config_dir(), loaded.files_read.clone()).await?;
    runtime.set_own_addresses(Arc::new(move |to| is_own(address, to)));
    let token = token(&runtime, &data, on_terminal).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", shown(address));
    let mut lock = lock;
    say_who(&mut lock, &url);
    let socket = data.join(SOCKET);
    let private = private_socket(&data, &socket)?;
    let mut warnings = reload::warnings(&loaded);
    warnings.extend(runtime.shared_home_warning().await.ok().flatten());
    if tls.is_none() && !bind.is_loopback() {
        warnings.push(
            Diagnosis::new(
                "gateway-unencrypted",
                format!("{url} is reached by other machines, and nothing is encrypted"),
            )
            .fix("set `tls_cert` and `tls_key` in [gateway]"),
        );
    }
    let state = Arc::new(State::new(options, runtime, loaded, address.ip(), address.port(), tls.clone()));
    let backend = state.backend().await;
    if matches!(backend, Some(BackendName::None | BackendName::RestrictedHost)) {
        warnings.insert(
            0,
            Diagnosis::new(
                "not-isolated",
                "commands run on this machine itself, with its files and its network",
            )
            .fix("`moltis sandbox status` says what would isolate them"),
        );
    }
    state.warn(warnings.clone());
    let banner = Banner { backend, url, address, socket, token, warnings };
    let router = router(&state);
    let mut tasks = JoinSet::new();
    let serve = Serve { state: Arc::clone(&state), router };
    tasks.spawn(accept_network(serve.clone(), listener, tls));
    tasks.spawn(accept_private(serve, private));
    tasks.spawn(reload::watch(Arc::clone(&state)));
    tasks.spawn(look_after(Arc::clone(&state)));
    notify::tell(Told::Ready, &format!("on {}", banner.url));
    Ok(Running { state, banner, tasks, lock })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Error::Unavailable(
            Diagnosis::new("start-failed", "starting the gateway broke off").fix("try again"),
        ))
    })
}

/// Takes the data directory for this gateway.
fn held(data: &Path) -> Result<File, GatewayError> {
    let place = data.join("gateway.lock");
    let failed = |error| GatewayError::write(&place, error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let mut file = options.open(&place).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // What it says is for people; a file of somebody else's making is cut.
            let _ = Read::by_ref(&mut file).take(200).read_to_string(&mut holder);
            let holder: String = holder.trim().chars().filter(|c| !c.is_control()).collect();
            Err(GatewayError::Held { place: data.to_owned(), holder })
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

fn say_who(lock: &mut File, url: &str) {
    let written = (|| {
        lock.set_len(0)?;
        lock.rewind()?;
        write!(lock, "process {} on {url}", std::process::id())
    })();
    if let Err(error) = written {
        tracing::debug!(%error, "the lock does not say who holds it");
    }
}

/// An address as a URL writes it; one that stands for all is reached by loopback.
fn shown(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => address,
        IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(_) => SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), address.port()),
    }
}

/// Whether a connection to this address would reach the gateway.
fn is_own(own: SocketAddr, to: SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    if to.port() != own.port() {
        return false;
    }
    if !own.ip().is_unspecified() {
        return ip == own.ip().to_canonical();
    }
    // An address of this machine is one that something could listen on.
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The admin token: made if there is none yet.
async fn token(runtime: &Runtime, data: &Path, on_terminal: bool) -> Result<Token, Error> {
    if runtime.store().run(|db| db.admin_token()).await?.is_some() {
        return Ok(Token::Known);
    }
    let token = secrets::draw(secrets::TOKEN)?;
    let hash = secrets::hash(&token);
    let made = if on_terminal {
        Token::Shown(token)
    } else {
        let place = data.join(TOKEN_FILE);
        write_token(&place, &token)?;
        Token::Written(place)
    };
    // Only once it can be known: one that nobody has would keep everybody out.
    runtime.store().run(move |db| db.set_admin_token(&hash)).await?;
    Ok(made)
}

/// Writes a token into a file of its owner alone.
///
/// # Errors
/// `Write`.
pub fn write_token(place: &Path, token: &str) -> Result<(), GatewayError> {
    let failed = |error| GatewayError::write(place, error);
    match fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(place).map_err(failed)?;
    writeln!(file, "{token}").map_err(failed)
}

/// Listens on the private socket. What another gateway left there is in nobody's use: this one has the lock.
fn private_socket(data: &Path, place: &Path) -> Result<UnixListener, GatewayError> {
    let failed = |source| GatewayError::Listen { place: place.display().to_string(), source };
    match fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // By the folder's handle: the path may be longer than a socket's name can be.
    let folder = File::open(data).map_err(failed)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()));
    let listener = std::os::unix::net::UnixListener::bind(&short).map_err(failed)?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map_err(failed)
}

/// What serves a connection.
#[derive(Clone)]
struct Serve {
    state: Arc<State>,
    router: Router,
}

/// One more open connection, until this is dropped.
pub struct Open(watch::Sender<usize>);

impl Open {
    /// Counts it.
    pub fn new(counter: &watch::Sender<usize>) -> Self {
        counter.send_modify(|count| *count += 1);
        Self(counter.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Serve {
    async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S, peer: Peer) {
        let _counted = self.state.metrics.connection();
        let inner = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            inner.call(request)
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 << 10);
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let done = tokio::select! {
            done = connection.as_mut() => done,
            () = self.state.until_end() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = done {
            tracing::trace!(%error, "a connection ended");
        }
    }
}

async fn accept_network(serve: Serve, listener: TcpListener, tls: Option<Arc<Tls>>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = async {
                // Whoever comes while there is no room waits in the kernel's queue.
                let place = Arc::clone(&room).acquire_owned().await;
                listener.accept().await.map(|accepted| (accepted, place))
            } => accepted,
            () = serve.state.until_end() => return,
        };
        let ((stream, from), place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection cannot be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (serve, peer) = (serve.clone(), Peer::Network(from.ip().to_canonical()));
        let tls = tls.as_ref().map(|tls| tls.acceptor());
        let open = Open::new(&serve.state.open);
        tokio::spawn(async move {
            let (_open, _place) = (open, place);
            match tls {
                None => serve.connection(stream, peer).await,
                Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve.connection(stream, peer).await,
                    Ok(Err(error)) => tracing::trace!(%error, "no TLS"),
                    Err(_) => tracing::trace!("no TLS in time"),
                },
            }
        });
    }
}

async fn accept_private(serve: Serve, listener: UnixListener) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = serve.state.until_end() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection cannot be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let uid = match stream.peer_cred() {
            Ok(peer) if peer.uid() == own || peer.uid() == 0 => peer.uid(),
            // The folder keeps others out; this holds if somebody has opened it.
            _ => {
                tracing::warn!("somebody else came to the private socket");
                continue;
            }
        };
        let serve = serve.clone();
        let open = Open::new(&serve.state.open);
        tokio::spawn(async move {
            let _open = open;
            serve.connection(stream, Peer::Owner(uid)).await;
        });
    }
}

/// Takes over what runs, and then looks after sandboxes and the pool.
async fn look_after(state: Arc<State>) {
    let runtime = state.runtime();
    match runtime.adopt_all().await {
        Ok(adopted) => {
            tracing::info!(
                running = adopted.running,
                silent = adopted.silent,
                lost = adopted.lost,
                removed = adopted.pruned.removed.len(),
                "took over what runs"
            );
            state.has_adopted(Some(adopted));
        }
        Err(error) => {
            tracing::error!(%error, "what runs cannot be taken over");
            state.has_adopted(None);
        }
    }
    let mut round = tokio::time::interval_at(tokio::time::Instant::now() + ROUND, ROUND);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let runtime = state.runtime();
        if let Err(error) = runtime.fill_pool().await {
            tracing::warn!(%error, "the pool cannot be filled");
        }
        tokio::select! {
            biased;
            _ = round.tick() => {}
            () = runtime.pool_taken() => continue,
        }
        match state.runtime().end_unused().await {
            Ok(kept) if kept.idle + kept.gone > 0 => {
                tracing::info!(idle = kept.idle, gone = kept.gone, "sandboxes have ended");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "sandboxes cannot be looked after"),
        }
    }
}

impl Running {
    /// What is said at the start.
    pub fn banner(&self) -> &Banner {
        &self.banner
    }

    /// What all requests share.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Reads the configuration and the files of TLS anew.
    pub async fn reload(&self) {
        notify::tell(Told::Reloading, "reading the configuration");
        reload::again(&self.state).await;
        notify::tell(Told::Ready, &format!("on {}", self.banner.url));
    }

    /// Ends it: nothing new is taken, what runs has until the deadline, and then is ended. Sandboxes, and what runs in
    /// their background, go on. Gives what of the network's log could not be written.
    pub async fn end(mut self) -> Option<Diagnosis> {
        let deadline = self.state.options.deadline.unwrap_or(DEADLINE);
        notify::tell(Told::Stopping, "waiting for requests to end");
        self.state.ending.send_replace(true);
        self.state.stop.cancel();
        // From here on it is not found any more.
        let _ = fs::remove_file(&self.banner.socket);
        let mut open = self.state.open.subscribe();
        let over = tokio::time::timeout(deadline, open.wait_for(|open| *open == 0)).await;
        if over.is_err() {
            tracing::warn!("requests run still, and end with the gateway");
        }
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        let runtime = self.state.runtime();
        runtime.drain_pool().await;
        let untold = runtime.finish_network().await;
        drop(self.lock);
        untold
    }
}
