//! Running `podman`: a clean environment, bounded output, a time limit, and an end with the one who waits for it.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdout, Command};

use crate::engine::endpoint::Environment;
use crate::engine::words::{is_full, message};
use crate::engine::{Bytes, EngineError, EngineKind, Result};

/// Largest output that is kept: lists of some thousand containers fit.
const OUTPUT_LIMIT: usize = 16 << 20;

/// How much of its messages is kept: the last of them.
const MESSAGE_LIMIT: usize = 64 << 10;

/// How long output is waited for once the program is over; what it started may hold its streams open.
const GRACE: Duration = Duration::from_secs(2);

/// Variables that `podman` gets, beside those that begin with one of [`PREFIXES`].
const VARIABLES: [&str; 26] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "REGISTRY_AUTH_FILE",
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "STORAGE_DRIVER",
    "STORAGE_OPTS",
    "CONTAINER_HOST",
    "CONTAINER_SSHKEY",
    "CONTAINER_CONNECTION",
    "BUILDAH_ISOLATION",
];

/// How the names of Podman's own variables begin.
const PREFIXES: [&str; 2] = ["CONTAINERS_", "PODMAN_"];

/// What is written to it.
pub(super) enum Input {
    Nothing,
    Whole(Vec<u8>),
}

/// What it said, and how it ended: 125 when Podman itself failed.
pub(super) struct Said {
    pub code: i32,
    pub stdout: Vec<u8>,
    /// The last of it.
    pub stderr: Vec<u8>,
}

impl Said {
    /// Podman's own words: what it wrote to its second stream, but for its log, which tells of other things as well,
    /// such as a container that somebody else has removed. Where there is nothing but the log, the log.
    pub(super) fn message(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let words: Vec<&str> = text.lines().filter(|line| !line.starts_with("time=\"")).collect();
        let words = words.join("\n");
        message(if words.trim().is_empty() { &text } else { &words })
    }

    /// The last line of it, after those that tell of attempts.
    pub(super) fn last_message(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        message(text.trim_end().rsplit('\n').next().unwrap_or_default())
    }
}

/// The program.
#[derive(Clone)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    remote: Option<String>,
}

impl Program {
    pub(super) fn new(
        environment: &Environment,
        path: PathBuf,
        arguments: Vec<String>,
        remote: Option<String>,
    ) -> Self {
        let wanted =
            |name: &str| VARIABLES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let environment = environment
            .vars
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self { path, arguments, environment, remote }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        match &self.remote {
            Some(remote) => format!("podman ({remote})"),
            None => "podman".to_owned(),
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        !self.arguments.is_empty()
    }

    /// It cannot be used.
    pub(super) fn unreachable(&self, cause: &str) -> EngineError {
        EngineError::Unreachable { engine: EngineKind::Podman, endpoint: self.name(), cause: message(cause) }
    }

    /// What a failure means of which nothing more is known.
    pub(super) fn failure(&self, said: &Said) -> EngineError {
        let message = said.message();
        if is_full(&message) {
            return EngineError::Full { engine: EngineKind::Podman, message };
        }
        // Podman has one exit code for all its failures; that of a service behind it is told by these words only.
        if self.is_remote() && message.to_ascii_lowercase().contains("connect to podman") {
            return self.unreachable(&message);
        }
        EngineError::Refused { engine: EngineKind::Podman, message }
    }

    /// It, ready to be started: it ends when what waits for it is dropped.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .args(arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// What it means that it cannot be started.
    pub(super) fn not_started(&self, error: &std::io::Error) -> EngineError {
        if error.kind() == std::io::ErrorKind::NotFound {
            let cause = format!("there is no program {}", self.path.display());
            return EngineError::NotInstalled { engine: EngineKind::Podman, cause };
        }
        EngineError::NotAsked {
            engine: EngineKind::Podman,
            cause: format!("{}: {error}", self.path.display()),
        }
    }

    fn spawn(&self, arguments: &[&str], input: bool) -> Result<Child> {
        let mut command = self.command(arguments);
        if input {
            command.stdin(Stdio::piped());
        }
        command.spawn().map_err(|error| self.not_started(&error))
    }

    /// Runs it within a time limit.
    pub(super) async fn run(
        &self,
        seconds: u64,
        what: &str,
        arguments: &[&str],
        input: Input,
    ) -> Result<Said> {
        let work = async {
            match input {
                Input::Nothing => self.run_long(arguments).await,
                Input::Whole(bytes) => self.run_with(arguments, Box::new(std::io::Cursor::new(bytes))).await,
            }
        };
        self.within(seconds, what, work).await
    }

    /// A future within a time limit.
    async fn within<T>(&self, seconds: u64, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(Duration::from_secs(seconds), work).await {
            Ok(result) => result,
            Err(_) => {
                Err(EngineError::TimedOut { engine: EngineKind::Podman, what: what.to_owned(), seconds })
            }
        }
    }

    /// Runs it for as long as it takes.
    pub(super) async fn run_long(&self, arguments: &[&str]) -> Result<Said> {
        let child = self.spawn(arguments, false)?;
        self.collect(child, None).await
    }

    /// Runs it with input, for as long as it takes.
    pub(super) async fn run_with(&self, arguments: &[&str], input: Bytes) -> Result<Said> {
        let child = self.spawn(arguments, true)?;
        self.collect(child, Some(input)).await
    }

    async fn collect(&self, mut child: Child, input: Option<Bytes>) -> Result<Said> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut told = Vec::new();
        let mut errors = Vec::new();
        let feed = async {
            if let (Some(mut stdin), Some(mut input)) = (stdin, input) {
                // One that does not read to the end says why by its exit code.
                let _ = tokio::io::copy(&mut input, &mut stdin).await;
                let _ = stdin.shutdown().await;
            }
            std::future::pending::<()>().await
        };
        let read = async {
            tokio::join!(keep_first(stdout, &mut told), keep_last(stderr, &mut errors));
        };
        let status = {
            tokio::pin!(read);
            let mut done = false;
            let ended = async {
                tokio::select! {
                    status = child.wait() => status,
                    () = feed => child.wait().await,
                }
            };
            tokio::pin!(ended);
            let status = loop {
                tokio::select! {
                    status = &mut ended => break status,
                    () = &mut read, if !done => done = true,
                }
            };
            if !done {
                let _ = tokio::time::timeout(GRACE, read).await;
            }
            status
        };
        let status = status.map_err(|error| self.unreachable(&error.to_string()))?;
        if told.len() > OUTPUT_LIMIT {
            return Err(EngineError::Answer {
                engine: EngineKind::Podman,
                message: format!("an answer of more than {} MiB", OUTPUT_LIMIT >> 20),
            });
        }
        Ok(Said { code: code(status), stdout: told, stderr: errors })
    }

    /// The last bytes of both its streams, in the order in which it wrote them: they are one pipe.
    pub(super) async fn last_output(
        &self,
        seconds: u64,
        what: &str,
        arguments: &[&str],
        limit: usize,
    ) -> Result<Vec<u8>> {
        let work = async {
            let broken = |error: std::io::Error| self.unreachable(&error.to_string());
            let (reader, writer) = std::io::pipe().map_err(broken)?;
            let mut output = pipe::Receiver::from_owned_fd(reader.into()).map_err(broken)?;
            let mut command = self.command(arguments);
            command.stdout(writer.try_clone().map_err(broken)?).stderr(writer);
            let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
            // It holds the ends to write to.
            drop(command);
            let mut last = std::collections::VecDeque::new();
            let mut piece = [0; 16 << 10];
            loop {
                let count = output.read(&mut piece).await.map_err(broken)?;
                if count == 0 {
                    break;
                }
                last.extend(&piece[..count]);
                let over = last.len().saturating_sub(limit);
                last.drain(..over);
            }
            let status = child.wait().await.map_err(|error| self.unreachable(&error.to_string()))?;
            if status.success() {
                return Ok(last.into());
            }
            let stderr = last.into();
            Err(self.failure(&Said { code: code(status), stdout: Vec::new(), stderr }))
        };
        self.within(seconds, what, work).await
    }

    /// Runs it, and tells of what it writes to its second stream as it does.
    pub(super) async fn follow(&self, arguments: &[&str], mut each: impl FnMut(&str) + Send) -> Result<Said> {
        let mut child = self.spawn(arguments, false)?;
        let (stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
        let mut told = Vec::new();
        let mut errors = Vec::new();
        let read = async {
            let mut piece = [0; 16 << 10];
            while stderr.is_some() {
                let count = read_some(&mut stderr, &mut piece).await;
                each(&String::from_utf8_lossy(&piece[..count]));
                errors.extend_from_slice(&piece[..count]);
                let over = errors.len().saturating_sub(MESSAGE_LIMIT);
                errors.drain(..over);
            }
        };
        tokio::join!(keep_first(stdout, &mut told), read);
        let status = child.wait().await.map_err(|error| self.unreachable(&error.to_string()))?;
        Ok(Said { code: code(status), stdout: told, stderr: errors })
    }

    /// Runs it for the sake of its output. That is handed over with its first bytes; without any, it is waited for,
    /// and what it said is the inner error, also if it takes that for a success.
    pub(super) async fn stream(
        &self,
        seconds: u64,
        what: &str,
        arguments: &[&str],
    ) -> Result<Result<Bytes, Said>> {
        let work = async {
            let mut child = self.spawn(arguments, false)?;
            let (Some(mut stdout), stderr) = (child.stdout.take(), child.stderr.take()) else {
                return Err(self.unreachable("it has no output"));
            };
            let mut first = vec![0; 64 << 10];
            let count =
                stdout.read(&mut first).await.map_err(|error| self.unreachable(&error.to_string()))?;
            first.truncate(count);
            let mut errors = Vec::new();
            if count > 0 {
                // Its messages are read on, so that it does not wait for somebody to do that.
                let messages = tokio::spawn(async move {
                    keep_last(stderr, &mut errors).await;
                    errors
                });
                return Ok(Ok(
                    Box::new(Streamed { first, stdout, child: Some(child), failed: false, messages })
                        as Bytes,
                ));
            }
            keep_last(stderr, &mut errors).await;
            let status = child.wait().await.map_err(|error| self.unreachable(&error.to_string()))?;
            Ok(Err(Said { code: code(status), stdout: Vec::new(), stderr: errors }))
        };
        self.within(seconds, what, work).await
    }
}

/// An exit code; a signal as a shell tells it.
pub(super) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Reads a piece; at the end, or when it breaks, the stream is gone.
async fn read_some<R: AsyncRead + Unpin>(stream: &mut Option<R>, piece: &mut [u8]) -> usize {
    let Some(reader) = stream else { return std::future::pending().await };
    match reader.read(piece).await {
        Ok(count) if count > 0 => count,
        _ => {
            *stream = None;
            0
        }
    }
}

/// Reads to the end, and keeps what fits; one byte more tells that there was more.
async fn keep_first<R: AsyncRead + Unpin>(stream: Option<R>, into: &mut Vec<u8>) {
    let Some(stream) = stream else { return };
    // Closing the stream of one that says too much ends it.
    let _ = stream.take(OUTPUT_LIMIT as u64 + 1).read_to_end(into).await;
}

/// Reads to the end, and keeps the last of it.
async fn keep_last<R: AsyncRead + Unpin>(mut stream: Option<R>, into: &mut Vec<u8>) {
    let mut piece = [0; 16 << 10];
    while stream.is_some() {
        let count = read_some(&mut stream, &mut piece).await;
        into.extend_from_slice(&piece[..count]);
        let over = into.len().saturating_sub(MESSAGE_LIMIT);
        into.drain(..over);
    }
}

/// Output of a program that is still running; it breaks at its end if the program failed.
struct Streamed {
    first: Vec<u8>,
    stdout: ChildStdout,
    child: Option<Child>,
    failed: bool,
    messages: tokio::task::JoinHandle<Vec<u8>>,
}

impl AsyncRead for Streamed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..count]);
            self.first.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stdout).poll_read(cx, buffer))?;
        if buffer.filled().len() > before || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(child) = &mut self.child {
            let status = {
                let wait = child.wait();
                tokio::pin!(wait);
                std::task::ready!(wait.poll(cx))?
            };
            self.child = None;
            self.failed = !status.success();
        }
        if !self.failed {
            return Poll::Ready(Ok(()));
        }
        let text = std::task::ready!(Pin::new(&mut self.messages).poll(cx)).unwrap_or_default();
        self.failed = false;
        Poll::Ready(Err(std::io::Error::other(message(&String::from_utf8_lossy(&text)))))
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.messages.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_not_what_a_command_says() {
        let said = |text: &str| Said { code: 125, stdout: Vec::new(), stderr: text.into() }.message();
        let log =
            "time=\"2026-11-30T12:54:53Z\" level=error msg=\"Removing container 1: no such container\"\n";
        assert_eq!(said(&format!("{log}Error: runc: no such file\n")), "runc: no such file");
        assert_eq!(said("Error: one\ntwo\n"), "one; two");
        assert_eq!(said(log), message(log));
    }
}
