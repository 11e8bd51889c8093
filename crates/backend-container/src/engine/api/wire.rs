//! One connection to an engine: a Unix socket, a TCP port with or without TLS, or the standard streams of an `ssh`.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use crate::engine::endpoint::{self, Endpoint, Environment};
use crate::engine::{EngineError, EngineKind, Result};

/// How long it may take to reach another machine.
const REACH: Duration = Duration::from_secs(15);

/// Bytes both ways.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Makes connections.
pub(super) struct Connector {
    engine: EngineKind,
    endpoint: Endpoint,
    tls: Option<Arc<ClientConfig>>,
    /// The variables that `ssh` gets.
    ssh_env: Vec<(String, String)>,
}

/// Variables that `ssh` needs to find its keys and its agent.
const SSH_ENV: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "XDG_RUNTIME_DIR",
    "LANG",
    "LC_ALL",
];

impl Connector {
    /// Reads the TLS files, if there are any. Blocks.
    pub(super) fn new(engine: EngineKind, endpoint: Endpoint, environment: &Environment) -> Result<Self> {
        let tls = match &endpoint {
            Endpoint::Tcp { tls: Some(files), .. } => Some(files.load(engine)?),
            _ => None,
        };
        let ssh_env = SSH_ENV
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), environment.var(name)?.to_owned())))
            .collect();
        Ok(Self { engine, endpoint, tls, ssh_env })
    }

    pub(super) fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Where, for people.
    pub(super) fn name(&self) -> String {
        self.endpoint.name()
    }

    /// Whether the engine is reached by a Unix socket.
    pub(super) fn is_unix(&self) -> bool {
        matches!(self.endpoint, Endpoint::Unix(_))
    }

    /// The engine is not there.
    pub(super) fn unreachable(&self, cause: impl std::fmt::Display) -> EngineError {
        EngineError::Unreachable {
            engine: self.engine,
            endpoint: self.name(),
            cause: crate::engine::words::message(&cause.to_string()),
        }
    }

    /// Connects.
    pub(super) async fn open(&self) -> Result<Box<dyn Wire>> {
        match &self.endpoint {
            Endpoint::Unix(path) => match endpoint::open_socket(path).await {
                Ok(socket) => Ok(Box::new(socket)),
                Err(error) => Err(endpoint::socket_refused(self.engine, path, error).await),
            },
            Endpoint::Tcp { host, port, .. } => {
                let reach = self.reach(host, *port);
                match tokio::time::timeout(REACH, reach).await {
                    Ok(result) => result,
                    Err(_) => Err(self.unreachable("no answer within 15 s")),
                }
            }
            Endpoint::Ssh { destination, port, socket } => self.ssh(destination, *port, socket.as_deref()),
            Endpoint::Podman { .. } => Err(self.unreachable("the program podman has no socket")),
        }
    }

    async fn reach(&self, host: &str, port: u16) -> Result<Box<dyn Wire>> {
        let socket = TcpStream::connect((host, port)).await.map_err(|error| self.unreachable(error))?;
        // Small frames of interactive programs must not wait for more.
        socket.set_nodelay(true).map_err(|error| self.unreachable(error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| self.unreachable(error))?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, socket).await.map_err(|error| self.unreachable(error))?;
        Ok(Box::new(stream))
    }

    /// Docker's own way over ssh: its program on the other machine joins its streams with the socket there.
    fn ssh(&self, destination: &str, port: Option<u16>, socket: Option<&str>) -> Result<Box<dyn Wire>> {
        let mut command = Command::new("ssh");
        command.env_clear().envs(self.ssh_env.iter().map(|(name, value)| (name, value)));
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]);
        if let Some(port) = port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", destination, "docker"]);
        if let Some(socket) = socket {
            // The other side's shell reads this.
            command.args(["-H", &quoted(&format!("unix://{socket}"))]);
        }
        command.args(["system", "dial-stdio"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.unreachable(format!("ssh: {error}")))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => {
                Ok(Box::new(Program { stdin: Some(stdin), stdout, _child: child }))
            }
            _ => Err(self.unreachable("ssh has no streams")),
        }
    }
}

/// A word that a shell reads as itself.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A program whose standard streams are the connection. It ends with it.
struct Program {
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    _child: Child,
}

impl AsyncRead for Program {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdout).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Program {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stdin = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_stay_one() {
        assert_eq!(quoted("unix:///a b"), "'unix:///a b'");
        assert_eq!(quoted("a'b;c"), r"'a'\''b;c'");
    }
}
