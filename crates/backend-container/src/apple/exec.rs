//! Programs that the tool runs in a container beside its first process.
//!
//! The tool passes on what the program prints and its exit code, and complains of its own troubles on the same stream
//! and with an exit code that programs have, too. So what is printed there decides nothing: where a program may never
//! have begun (exit code 1, nothing on standard output), the tool is asked to run a program of ours in its place, whose
//! words are known, and is judged by that.

use std::collections::VecDeque;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, watch};

use super::{Apple, tool, words};
use crate::engine::{EngineError, ExecSpec, Execution, Output, Result, Stream};

/// Bytes of a piece of output.
const PIECE: usize = 64 << 10;
/// Programs whose exit codes are kept once they are over.
const KEPT: usize = 1024;
/// How long the tool may live on once nobody holds its streams.
const ALONE: Duration = Duration::from_secs(10);
/// Exit code of the tool for troubles of its own, which programs have, too.
const TROUBLE: i32 = 1;
/// A program of ours, and an argument that it only complains of.
const PROBE: [&str; 2] = ["/.moltis/guest", "probe"];

/// How a program is doing.
type Ended = watch::Receiver<Option<i32>>;

/// The programs that were run.
#[derive(Debug, Default)]
pub struct Executions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    known: VecDeque<(String, Ended)>,
}

impl Executions {
    fn add(&self, ended: Ended) -> String {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.next += 1;
        let id = format!("exec-{}", table.next);
        if table.known.len() >= KEPT
            && let Some(oldest) = table.known.iter().position(|(_, ended)| ended.borrow().is_some())
        {
            table.known.remove(oldest);
        }
        table.known.push_back((id.clone(), ended));
        id
    }

    /// The exit code of one that is over.
    ///
    /// # Errors
    /// When there is none of that id.
    pub fn result(&self, id: &str) -> Result<Option<i32>> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = table.known.iter().find(|(known, _)| known == id);
        let (_, ended) = found.ok_or_else(|| tool::answer(format!("there is no execution {id}")))?;
        Ok(*ended.borrow())
    }
}

/// The tool's arguments for a program. `user` is the container's own.
pub fn arguments(container: &str, spec: &ExecSpec, user: Option<(u32, u32)>) -> Vec<String> {
    let mut list = vec!["exec".to_owned(), "--interactive".to_owned()];
    if let Some((uid, gid)) = spec.user.or(user) {
        list.extend(["--user".to_owned(), format!("{uid}:{gid}")]);
    }
    if let Some(directory) = &spec.directory {
        list.extend(["--workdir".to_owned(), directory.clone()]);
    }
    for (name, value) in &spec.env {
        list.extend(["--env".to_owned(), format!("{name}={value}")]);
    }
    list.push(container.to_owned());
    list.extend(spec.argv.iter().cloned());
    list
}

/// Runs a program.
pub async fn begin(apple: &Apple, container: &str, spec: &ExecSpec) -> Result<Execution> {
    if spec.argv.is_empty() {
        return Err(apple.refused("there is no program to run".to_owned()));
    }
    if spec.terminal.is_some() {
        return Err(apple.refused("a terminal is the agent's to give, not the tool's".to_owned()));
    }
    let user = match spec.user {
        Some(_) => None,
        None => apple.user_of(container).await?,
    };
    let list = arguments(container, spec, user);
    let mut command = apple.tool().command(&list);
    command.stdin(std::process::Stdio::piped());
    let mut child = apple.tool().spawn(&mut command)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(tool::answer("it has no standard streams".to_owned()));
    };
    let (code, ended) = watch::channel(None);
    let id = apple.executions().add(ended.clone());
    // Whoever holds a stream holds one of these.
    let (held, holders) = mpsc::channel(1);
    tokio::spawn(reap(child, code, holders));
    let output = Running {
        apple: apple.clone(),
        container: container.to_owned(),
        out: Some(Box::new(stdout)),
        err: Some(Box::new(stderr)),
        ended,
        said: false,
        complaint: Vec::new(),
        _held: held.clone(),
    };
    Ok(Execution { id, stdin: Box::new(Input { stdin: Some(stdin), _held: held }), output: Box::new(output) })
}

/// Waits for the tool, and ends it if nobody is left who could.
async fn reap(mut child: Child, code: watch::Sender<Option<i32>>, mut holders: mpsc::Receiver<()>) {
    let alone = async {
        while holders.recv().await.is_some() {}
        tokio::time::sleep(ALONE).await;
    };
    let ended = tokio::select! {
        ended = child.wait() => ended.ok(),
        () = alone => {
            let _ = child.start_kill();
            child.wait().await.ok()
        }
    };
    let _ = code.send(Some(ended.map_or(-1, |status| code_of(&status))));
}

fn code_of(status: &ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;

    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Standard input of a program, which ends when it is shut down or dropped.
struct Input {
    stdin: Option<ChildStdin>,
    _held: mpsc::Sender<()>,
}

impl AsyncWrite for Input {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_write(context, bytes),
            None => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // A pipe ends for its reader when it is closed.
        self.stdin = None;
        Poll::Ready(Ok(()))
    }
}

type Pipe = Box<dyn AsyncRead + Send + Unpin>;

/// Output of a program that runs.
struct Running {
    apple: Apple,
    container: String,
    out: Option<Pipe>,
    err: Option<Pipe>,
    ended: Ended,
    /// Whether anything came on standard output: the program has begun.
    said: bool,
    /// The beginning of standard error.
    complaint: Vec<u8>,
    _held: mpsc::Sender<()>,
}

#[async_trait]
impl Output for Running {
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
        while self.out.is_some() || self.err.is_some() {
            let (stream, read) = tokio::select! {
                read = read(&mut self.out, &mut a), if self.out.is_some() => (Stream::Stdout, read),
                read = read(&mut self.err, &mut b), if self.err.is_some() => (Stream::Stderr, read),
            };
            let count = read.map_err(|cause| tool::answer(format!("reading its output: {cause}")))?;
            let piece = match (stream, count) {
                (Stream::Stdout, 0) => {
                    self.out = None;
                    continue;
                }
                (Stream::Stderr, 0) => {
                    self.err = None;
                    continue;
                }
                (Stream::Stdout, count) => {
                    self.said = true;
                    a.truncate(count);
                    a
                }
                (Stream::Stderr, count) => {
                    b.truncate(count);
                    let room = 16_usize.saturating_sub(self.complaint.len());
                    self.complaint.extend_from_slice(&b[..count.min(room)]);
                    b
                }
            };
            return Ok(Some((stream, piece)));
        }
        self.judge().await?;
        Ok(None)
    }
}

impl Running {
    /// Whether it was the tool that failed, and not the program.
    async fn judge(&mut self) -> Result<()> {
        if self.said || !self.complaint.starts_with(b"Error: ") {
            return Ok(());
        }
        let Ok(code) = self.ended.wait_for(Option::is_some).await.map(|code| *code) else { return Ok(()) };
        if code != Some(TROUBLE) {
            return Ok(());
        }
        self.complaint.clear();
        self.apple.probe(&self.container).await
    }
}

impl Apple {
    /// Asks whether programs can be run in a container, by one of ours.
    ///
    /// # Errors
    /// [`EngineError::Broken`] if the engine is broken; [`EngineError::NoSuchContainer`].
    pub(super) async fn probe(&self, container: &str) -> Result<()> {
        use crate::engine::Engine;

        if self.inspect(container).await?.is_none() {
            return Err(EngineError::NoSuchContainer { id: container.to_owned() });
        }
        let spec = ExecSpec {
            argv: PROBE.map(str::to_owned).to_vec(),
            user: None,
            directory: Some("/".to_owned()),
            env: Vec::new(),
            terminal: None,
        };
        let list = arguments(container, &spec, self.user_of(container).await?);
        let answer = self.tool().ask("run a program", tool::QUESTION, &list).await?;
        let is_tools = answer.code == Some(TROUBLE) && answer.words.trim_start().starts_with("Error: ");
        match words::broken(&answer.words, &list) {
            Some(code) if is_tools => Err(self.broken(code, &answer.words)),
            _ => Ok(()),
        }
    }
}

async fn read(pipe: &mut Option<Pipe>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => Ok(0),
    }
}
