//! Programs that `podman exec` runs: one `podman` each, whose streams are theirs and whose exit code is theirs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::run::{Program, code};
use super::terminal::Terminal;
use crate::engine::{EngineError, EngineKind, Execution, Output, Result, Stream};

/// How many programs that are over are remembered.
const REMEMBERED: usize = 1024;

/// Largest piece of output.
const PIECE: usize = 64 << 10;

/// A program that was run.
struct Run {
    pid: Option<u32>,
    terminal: Option<Terminal>,
    code: OnceLock<i32>,
}

/// Those that were run, by number.
#[derive(Default)]
struct Table {
    next: u64,
    runs: BTreeMap<u64, Arc<Run>>,
}

/// The programs that were run over this driver.
#[derive(Default)]
pub(super) struct Programs(Mutex<Table>);

impl Programs {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one.
    pub(super) async fn start(
        &self,
        program: &Program,
        arguments: &[String],
        terminal: Option<(u16, u16)>,
    ) -> Result<Execution> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = program.command(&arguments);
        let failed = |error: std::io::Error| program.unreachable(&format!("no terminal: {error}"));
        let terminal = match terminal {
            None => {
                command.stdin(Stdio::piped());
                None
            }
            Some((rows, columns)) => {
                let (ours, theirs) = Terminal::open(rows, columns).map_err(failed)?;
                command.stdin(theirs.try_clone().map_err(failed)?);
                command.stdout(theirs.try_clone().map_err(failed)?);
                command.stderr(theirs);
                Some(ours)
            }
        };
        let mut child = command.spawn().map_err(|error| program.not_started(&error))?;
        // The command holds the program's end of the terminal, whose last holder ends the output.
        drop(command);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let run = Arc::new(Run { pid: child.id(), terminal: terminal.clone(), code: OnceLock::new() });
        let id = {
            let mut table = self.table();
            table.next += 1;
            let id = table.next;
            table.runs.insert(id, Arc::clone(&run));
            if table.runs.len() > REMEMBERED {
                table.runs.retain(|number, run| *number + REMEMBERED as u64 > id || run.code.get().is_none());
            }
            id.to_string()
        };
        tokio::spawn(watch(child, run));
        match (terminal, stdin, stdout, stderr) {
            (Some(terminal), ..) => Ok(Execution {
                id,
                stdin: Box::new(terminal.clone()),
                output: Box::new(Typed { terminal, program: program.clone() }),
            }),
            (None, Some(stdin), Some(stdout), Some(stderr)) => Ok(Execution {
                id,
                stdin: Box::new(Pipe(Some(stdin))),
                output: Box::new(Pipes {
                    stdout: Some(stdout),
                    stderr: Some(stderr),
                    program: program.clone(),
                }),
            }),
            _ => Err(program.unreachable("it has no streams")),
        }
    }

    fn find(&self, exec: &str) -> Result<Arc<Run>> {
        let found = exec.parse().ok().and_then(|id: u64| self.table().runs.get(&id).map(Arc::clone));
        found.ok_or_else(|| EngineError::Refused {
            engine: EngineKind::Podman,
            message: format!("there is no program {exec}"),
        })
    }

    /// How one is doing.
    pub(super) fn result(&self, exec: &str) -> Result<Option<i32>> {
        Ok(self.find(exec)?.code.get().copied())
    }

    /// Gives its terminal another size.
    pub(super) fn resize(&self, exec: &str, rows: u16, columns: u16) -> Result<()> {
        let run = self.find(exec)?;
        let Some(terminal) = &run.terminal else {
            return Err(EngineError::Refused {
                engine: EngineKind::Podman,
                message: format!("program {exec} has no terminal"),
            });
        };
        let failed = |error: std::io::Error| EngineError::Refused {
            engine: EngineKind::Podman,
            message: format!("its terminal cannot be resized: {error}"),
        };
        terminal.resize(rows, columns).map_err(failed)?;
        // The terminal is not the one that controls it, so that the kernel does not tell it.
        if run.code.get().is_none()
            && let Some(pid) =
                run.pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::WINCH);
        }
        Ok(())
    }
}

/// Waits for a program, which a caller that lets go of it does not end.
async fn watch(mut child: Child, run: Arc<Run>) {
    let code = match child.wait().await {
        Ok(status) => code(status),
        Err(_) => -1,
    };
    let _ = run.code.set(code);
}

/// Input whose shutdown closes it.
struct Pipe(Option<ChildStdin>);

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.0 {
            Some(stdin) => Pin::new(stdin).poll_write(cx, bytes),
            None => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.0 {
            Some(stdin) => Pin::new(stdin).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

/// Output apart.
struct Pipes {
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    program: Program,
}

/// Reads a piece; none at the end.
async fn piece<R: AsyncRead + Unpin>(stream: &mut Option<R>) -> std::io::Result<Option<Vec<u8>>> {
    let Some(reader) = stream else { return std::future::pending().await };
    let mut piece = vec![0; PIECE];
    let count = reader.read(&mut piece).await?;
    if count == 0 {
        *stream = None;
        return Ok(None);
    }
    piece.truncate(count);
    Ok(Some(piece))
}

#[async_trait]
impl Output for Pipes {
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        while self.stdout.is_some() || self.stderr.is_some() {
            let (stream, read) = tokio::select! {
                read = piece(&mut self.stdout) => (Stream::Stdout, read),
                read = piece(&mut self.stderr) => (Stream::Stderr, read),
            };
            if let Some(piece) = read.map_err(|error| self.program.unreachable(&error.to_string()))? {
                return Ok(Some((stream, piece)));
            }
        }
        Ok(None)
    }
}

/// Output of a terminal.
struct Typed {
    terminal: Terminal,
    program: Program,
}

#[async_trait]
impl Output for Typed {
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        let mut piece = vec![0; PIECE];
        let read = self.terminal.read(&mut piece).await;
        let count = read.map_err(|error| self.program.unreachable(&error.to_string()))?;
        piece.truncate(count);
        Ok((count > 0).then_some((Stream::Stdout, piece)))
    }
}
