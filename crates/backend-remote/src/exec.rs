//! Commands: from a request to a program on the machine, and from its output to events. The deadline is kept inside.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agentless::{Control, Steers, Stream, is_name, status, until};
use moltis_sandbox::exec::{Leftover, ProcessId, TerminalSize};
use moltis_sandbox::{Command, Diagnosis, Ending, Error, Exec, ExecEvent, ExecRequest, Outcome, Result};
use tokio::sync::{Notify, mpsc, watch};

use crate::program::{Program, Wanted, script};
use crate::sandbox::{Busy, NO_TERMINAL, Remote};
use crate::scripts;
use crate::{background, failure};

/// Pieces of output between the machine and a caller who does not read.
const PIECES: usize = 4;
/// How long after its time a command's end is waited for.
const LATE: Duration = Duration::from_secs(90);

/// Starts a command and waits until it runs.
pub async fn start(remote: &Arc<Remote>, request: ExecRequest) -> Result<Exec> {
    if request.terminal.is_some() {
        return Err(failure::declared("terminal", NO_TERMINAL));
    }
    let (timeout, background) = (request.timeout, request.background);
    let line = line(&request.command);
    let start = moltis_agent::exec::assemble(&remote.place, request)?;
    let env = moltis_agentless::variables(&start.env, "the provider")?;
    if let Some((name, _)) = env.iter().find(|(name, _)| !is_name(name)) {
        return Err(Error::Invalid(
            Diagnosis::new("env-name-invalid", format!("`{name}` cannot be the name of a variable here"))
                .cause("a shell sets the variables at a provider: letters, digits and _ are names to it")
                .fix("give the variable another name, or use another backend"),
        ));
    }
    let busy = remote.begin(timeout).await?;
    let argv: Vec<&[u8]> = start.argv.iter().map(AsRef::as_ref).collect();
    let directory: &[u8] = start.cwd.as_ref().map_or(b"", |cwd| cwd.as_ref());
    let wanted = Wanted { argv: &argv, env, directory, stdin: start.stdin, timeout, counts: true };
    if background {
        return background::start(remote, wanted, &line).await;
    }
    let mut program = Program::start(&remote.machine, &remote.launch, remote.room, wanted).await?;
    let process = ProcessId(program.pid);
    let (events, receiver) = mpsc::channel(PIECES);
    let (over, is_over) = watch::channel(false);
    let cancel = Arc::new(Notify::new());
    let control = Control {
        steers: Box::new(Steered { remote: Arc::clone(remote), pid: program.pid }),
        stdin: program.stdin.take(),
        cancel: Arc::clone(&cancel),
        is_over,
    };
    let run = Run { remote: Arc::clone(remote), timeout, cancel, counted: [0; 2], _busy: busy };
    tokio::spawn(async move {
        let last = run.finish(program, &events).await;
        let _ = over.send(true);
        if let Some(last) = last {
            let _ = events.send(last.map(ExecEvent::Exit)).await;
        }
    });
    Ok(moltis_agentless::handed(process, receiver, control))
}

/// One command while it runs.
struct Run {
    remote: Arc<Remote>,
    timeout: Option<Duration>,
    cancel: Arc<Notify>,
    counted: [u64; 2],
    _busy: Busy,
}

type Sender = mpsc::Sender<Result<ExecEvent>>;

impl Run {
    /// Carries it to its end. `None` if nobody wants to know.
    async fn finish(mut self, mut program: Program, events: &Sender) -> Option<Result<Outcome>> {
        let began = Instant::now();
        let mut held: Option<(Stream, Vec<u8>)> = None;
        // When the end is overdue, whatever the machine does.
        let mut overdue = self.timeout.map(|timeout| began + timeout + LATE);
        let mut cancelled = false;
        loop {
            tokio::select! {
                biased;
                // Dropping the program ends its descent.
                () = events.closed() => return None,
                () = self.cancel.notified(), if !cancelled => {
                    cancelled = true;
                    overdue = Some(Instant::now() + LATE);
                    let ending = program.descent().take();
                    tokio::spawn(async move { ending.end().await });
                }
                () = until(overdue), if held.is_none() => {
                    return Some(Err(failure::broke()));
                }
                permit = events.reserve(), if held.is_some() => {
                    if let (Ok(permit), Some((stream, piece))) = (permit, held.take()) {
                        self.counted[usize::from(stream == Stream::Stderr)] += piece.len() as u64;
                        let bytes = Bytes::from(piece);
                        permit.send(Ok(match stream {
                            Stream::Stdout => ExecEvent::Stdout(bytes),
                            Stream::Stderr => ExecEvent::Stderr(bytes),
                        }));
                    }
                }
                piece = program.next(), if held.is_none() => match piece {
                    Ok(Some(piece)) => held = Some(piece),
                    Ok(None) => break,
                    Err(error) => return Some(Err(error)),
                },
            }
        }
        program.descent().leave();
        let end = program.end.clone()?;
        let leftovers = self.remote.leftovers(&end.pids).await;
        Some(Ok(Outcome {
            status: status(end.code),
            ending: match end.why {
                't' => Ending::TimedOut,
                'c' => Ending::Cancelled,
                _ => Ending::Exited,
            },
            duration: end.duration,
            stdout_bytes: self.counted[0],
            stderr_bytes: self.counted[1],
            leftovers,
            leftovers_total: end.living,
            out_of_memory: false,
            newly_dangerous: Vec::new(),
            newly_dangerous_total: 0,
            notes: Vec::new(),
        }))
    }
}

impl Remote {
    /// What lives on, by name.
    pub(crate) async fn leftovers(&self, pids: &[u32]) -> Vec<Leftover> {
        if pids.is_empty() {
            return Vec::new();
        }
        let mut argv = ["/bin/sh", "-c", scripts::NAMES, "sh"].map(str::to_owned).to_vec();
        argv.extend(pids.iter().map(ToString::to_string));
        let said = script(&*self.machine, argv).await.unwrap_or_default();
        moltis_agentless::leftovers(pids, said.lines())
    }
}

/// A command as one line to show.
fn line(command: &Command) -> Vec<u8> {
    match command {
        Command::Shell(line) => line.as_bytes().to_vec(),
        Command::Argv(words) => words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' '),
    }
}

/// What the caller does to it.
struct Steered {
    remote: Arc<Remote>,
    pid: u32,
}

#[async_trait]
impl Steers for Steered {
    async fn signal(&self, signal: i32) -> Result<()> {
        if self.pid == 0 {
            return Ok(());
        }
        let (signal, pid) = (signal.to_string(), self.pid.to_string());
        let argv = ["/bin/sh", "-c", scripts::SIGNAL, "sh", &signal, &pid].map(str::to_owned).to_vec();
        script(&*self.remote.machine, argv).await.map_err(|error| failure::unavailable(&error)).map(drop)
    }

    async fn resize(&self, _: TerminalSize) -> Result<()> {
        // There is no terminal.
        Ok(())
    }
}
