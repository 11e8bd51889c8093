//! An SSH server on loopback that really runs programs, as an ordinary user, and really connects to Unix sockets: all that
//! is asked of the one in a machine.

use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use moltis_backend_firecracker::ssh::USER;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::process::Command;

/// Ends with everything that was brought to it.
pub struct Server {
    pub address: SocketAddr,
    pub key: Arc<PrivateKey>,
    pub logins: Arc<AtomicUsize>,
    pub home: tempfile::TempDir,
    /// How many of the next channels to a Unix socket are refused as if nobody listened there.
    pub deaf: Arc<AtomicUsize>,
    /// The kind of channel that it opens to whoever comes next, and what came of it.
    pub opens: Arc<Mutex<Option<Opens>>>,
    pub opened: Arc<Mutex<Option<Result<(), russh::Error>>>>,
    /// Ends what listens.
    listening: tokio::task::JoinHandle<()>,
    connections: Arc<Mutex<Vec<std::net::TcpStream>>>,
    shared: Shared,
}

#[derive(Clone)]
struct Shared {
    lets_in: PublicKey,
    home: std::path::PathBuf,
    forwards: bool,
    deaf: Arc<AtomicUsize>,
    opens: Arc<Mutex<Option<Opens>>>,
    opened: Arc<Mutex<Option<Result<(), russh::Error>>>>,
}

/// A channel that nobody asks a server for.
#[derive(Clone, Copy, Debug)]
pub enum Opens {
    Session,
    DirectTcp,
    DirectUnix,
    ForwardedTcp,
    ForwardedUnix,
    Agent,
    X11,
}

impl Opens {
    pub const ALL: [Self; 7] = [
        Self::Session,
        Self::DirectTcp,
        Self::DirectUnix,
        Self::ForwardedTcp,
        Self::ForwardedUnix,
        Self::Agent,
        Self::X11,
    ];

    async fn at(self, client: &russh::server::Handle) -> Result<(), russh::Error> {
        let opened = match self {
            Self::Session => client.channel_open_session().await,
            Self::DirectTcp => client.channel_open_direct_tcpip("localhost", 1, "localhost", 2).await,
            Self::DirectUnix => client.channel_open_direct_streamlocal("/s").await,
            Self::ForwardedTcp => client.channel_open_forwarded_tcpip("localhost", 1, "localhost", 2).await,
            Self::ForwardedUnix => client.channel_open_forwarded_streamlocal("/s").await,
            Self::Agent => client.channel_open_agent().await,
            Self::X11 => client.channel_open_x11("localhost", 1).await,
        };
        opened.map(drop)
    }
}

pub fn new_key() -> Arc<PrivateKey> {
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).unwrap();
    let pair = russh::keys::ssh_key::private::Ed25519Keypair::from_seed(&seed);
    Arc::new(PrivateKey::from(pair))
}

impl Server {
    pub async fn new(forwards: bool) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        if let Some(user) = user() {
            chown(home.path(), Some(user), Some(user)).unwrap();
        }
        let key = new_key();
        let deaf = Arc::new(AtomicUsize::new(0));
        let shared = Shared {
            lets_in: key.public_key().clone(),
            home: home.path().to_owned(),
            forwards,
            deaf: Arc::clone(&deaf),
            opens: Arc::default(),
            opened: Arc::default(),
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opens, opened) = (Arc::clone(&shared.opens), Arc::clone(&shared.opened));
        let (logins, connections) = (Arc::default(), Arc::default());
        let listening = listen(listener, shared.clone(), Arc::clone(&logins), Arc::clone(&connections));
        Self { address, key, logins, home, deaf, opens, opened, listening, connections, shared }
    }

    /// Breaks all connections, and listens anew at the same address, with another key of its own.
    pub async fn again(&mut self) {
        self.listening.abort();
        let _ = (&mut self.listening).await;
        self.cut();
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        };
        self.listening =
            listen(listener, self.shared.clone(), Arc::clone(&self.logins), Arc::clone(&self.connections));
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

/// Whom commands belong to where the tests are root.
fn user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(64_321)
}

fn listen(
    listener: TcpListener,
    shared: Shared,
    logins: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<std::net::TcpStream>>>,
) -> tokio::task::JoinHandle<()> {
    let config = Arc::new(Config { keys: vec![(*new_key()).clone()], ..Config::default() });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let visit = Visit { shared: shared.clone(), logins: Arc::clone(&logins), channel: None };
            let config = Arc::clone(&config);
            let stream = stream.into_std().unwrap();
            connections.lock().unwrap().push(stream.try_clone().unwrap());
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            tokio::spawn(async move {
                if let Ok(running) = russh::server::run_stream(config, stream, visit).await {
                    let _ = running.await;
                }
            });
        }
    })
}

struct Visit {
    shared: Shared,
    logins: Arc<AtomicUsize>,
    channel: Option<Channel<Msg>>,
}

impl Handler for Visit {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        if user != USER || key.public_key.key_data() != self.shared.lets_in.key_data() {
            return Ok(Auth::reject());
        }
        self.logins.fetch_add(1, Ordering::SeqCst);
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channel = Some(channel);
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(id)?;
        let line = String::from_utf8(data.to_vec()).unwrap();
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(line).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.shared.home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(user) = user() {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let (mut input, channel) = (child.stdin.take().unwrap(), self.channel.take().unwrap());
        let (mut reads, writes) = channel.split();
        tokio::spawn(async move {
            while let Some(message) = reads.wait().await {
                match message {
                    russh::ChannelMsg::Data { data } if input.write_all(&data).await.is_err() => break,
                    russh::ChannelMsg::Eof => break,
                    _ => {}
                }
            }
            drop(input);
            let (mut said, mut wrong) = (Vec::new(), Vec::new());
            let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
            let _ = tokio::join!(out.read_to_end(&mut said), err.read_to_end(&mut wrong));
            let status = child.wait().await.unwrap().code().unwrap_or(255);
            let _ = writes.data(&said[..]).await;
            let _ = writes.extended_data(1, &wrong[..]).await;
            let _ = writes.exit_status(u32::try_from(status).unwrap()).await;
            let _ = writes.eof().await;
            let _ = writes.close().await;
        });
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        if let Some(kind) = self.shared.opens.lock().unwrap().take() {
            let (client, opened) = (session.handle(), Arc::clone(&self.shared.opened));
            tokio::spawn(async move {
                let came = kind.at(&client).await;
                *opened.lock().unwrap() = Some(came);
            });
        }
        if !self.shared.forwards {
            reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
            return Ok(());
        }
        let fewer = |left: usize| left.checked_sub(1);
        if self.shared.deaf.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        }
        let Ok(mut socket) = UnixStream::connect(path).await else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        };
        reply.accept().await;
        tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut socket).await;
        });
        Ok(())
    }
}
