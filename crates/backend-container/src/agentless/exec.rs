//! Commands: from a request to a marked program, and from its output to events. The deadline is kept here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agent::Inspect;
use moltis_agentless::{Control, Steers, status, until};
use moltis_sandbox::exec::{Leftover, ProcessId, TerminalSize};
use moltis_sandbox::{Ending, Error, Exec, ExecEvent, ExecRequest, Outcome, Result, Status};
use tokio::sync::{Notify, mpsc, watch};

use super::failure;
use super::program::{Program, Wanted};
use super::sandbox::{Agentless, Busy};
use crate::engine::Stream;

/// Pieces of output between the engine and a caller who does not read.
const PIECES: usize = 4;

/// How long after a command's end its output is waited for, while a child that lives on keeps it open.
const QUIET: Duration = Duration::from_millis(250);
/// The same for a child that goes on writing.
const NOISY: Duration = Duration::from_millis(1500);

/// Between two looks at whether a command is over that says nothing.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Most children that are named.
const MAX_LEFTOVERS: usize = 64;

/// Starts a command and waits until it runs.
pub async fn start(
    sandbox: &Arc<Agentless>,
    request: ExecRequest,
    inspector: Option<Arc<dyn Inspect>>,
) -> Result<Exec> {
    if request.background {
        return Err(failure::declared("background", super::sandbox::NO_BACKGROUND));
    }
    let start = moltis_agent::exec::assemble(&sandbox.place(), request)?;
    let busy = sandbox.begin(true).await?;
    let env = moltis_agentless::variables(&start.env, "the engine")?;
    let unset: Vec<String> =
        sandbox.given.iter().filter(|name| !env.iter().any(|(set, _)| set == *name)).cloned().collect();
    let argv: Vec<&[u8]> = start.argv.iter().map(AsRef::as_ref).collect();
    let directory: &[u8] = start.cwd.as_ref().map_or(b"", |cwd| cwd.as_ref());
    let before = inspector.as_ref().map_or(0, |inspector| inspector.before());
    let wanted =
        Wanted { argv: &argv, env, unset: &unset, directory, stdin: start.stdin, terminal: start.terminal };
    let mut program = Program::start(&sandbox.engine, &sandbox.container, &sandbox.steward, wanted).await?;
    let process = ProcessId(program.pid);
    let (events, receiver) = mpsc::channel(PIECES);
    let (over, is_over) = watch::channel(false);
    let cancel = Arc::new(Notify::new());
    let has_input = start.stdin || start.terminal.is_some();
    let steers = Steered { sandbox: Arc::clone(sandbox), exec: program.exec.clone(), pid: program.pid };
    let control = Control {
        steers: Box::new(steers),
        stdin: program.stdin.take().filter(|_| has_input),
        cancel: Arc::clone(&cancel),
        is_over,
    };
    let deadline = (start.timeout_millis > 0)
        .then(|| program.started.checked_add(Duration::from_millis(start.timeout_millis)))
        .flatten();
    let run = Run { sandbox: Arc::clone(sandbox), deadline, cancel, counted: [0; 2], _busy: busy };
    tokio::spawn(async move {
        let last = run.finish(program, &events).await;
        let last = match (last, inspector) {
            (Some(Ok(outcome)), Some(inspector)) => Some(Ok(inspector.after(before, outcome).await)),
            (last, _) => last,
        };
        let _ = over.send(true);
        if let Some(last) = last {
            let _ = events.send(last.map(ExecEvent::Exit)).await;
        }
    });
    Ok(moltis_agentless::handed(process, receiver, control))
}

/// One command while it runs.
struct Run {
    sandbox: Arc<Agentless>,
    deadline: Option<Instant>,
    cancel: Arc<Notify>,
    counted: [u64; 2],
    _busy: Busy,
}

/// Why the loop goes on to the end.
enum Happened {
    Piece(Option<(Stream, Vec<u8>)>),
    Failed(Error),
    Sent,
    Look,
    TimedOut,
    Cancelled,
    Abandoned,
    Killed(Result<bool>),
}

type Sender = mpsc::Sender<Result<ExecEvent>>;

impl Run {
    /// Carries it to its end. `None` if nobody wants to know.
    async fn finish(mut self, mut program: Program, events: &Sender) -> Option<Result<Outcome>> {
        let mut held: std::collections::VecDeque<(Stream, Vec<u8>)> =
            std::mem::take(&mut program.first).into();
        let mut ending = Ending::Exited;
        let mut killing: Option<tokio::task::JoinHandle<Result<bool>>> = None;
        let mut killed = false;
        let mut is_open = true;
        let mut abandoned = false;
        let mut code: Option<(Status, Instant, Duration)> = None;
        let mut pause = LOOK.0;
        let mut last_piece = Instant::now();
        loop {
            if abandoned {
                held.clear();
            }
            if let Some((_, at, _)) = &code
                && held.is_empty()
                && (killing.is_none() || killed)
                && (!is_open || last_piece.max(*at).elapsed() >= QUIET || at.elapsed() >= NOISY)
            {
                break;
            }
            if code.is_some() {
                pause = pause.min(Duration::from_millis(50));
            }
            let happened = {
                let output = &mut program.output;
                let deadline = self.deadline.filter(|_| ending == Ending::Exited && code.is_none());
                tokio::select! {
                    biased;
                    done = async { match &mut killing { Some(task) => task.await, None => std::future::pending().await } }, if killing.is_some() && !killed => {
                        Happened::Killed(done.unwrap_or(Ok(false)))
                    }
                    () = events.closed(), if !abandoned => Happened::Abandoned,
                    () = self.cancel.notified(), if ending == Ending::Exited && code.is_none() => Happened::Cancelled,
                    () = until(deadline), if deadline.is_some() => Happened::TimedOut,
                    permit = events.reserve(), if !held.is_empty() && !abandoned => {
                        if let (Ok(permit), Some((stream, piece))) = (permit, held.pop_front()) {
                            self.counted[usize::from(stream == Stream::Stderr)] += piece.len() as u64;
                            let bytes = Bytes::from(piece);
                            permit.send(Ok(match stream {
                                Stream::Stdout => ExecEvent::Stdout(bytes),
                                Stream::Stderr => ExecEvent::Stderr(bytes),
                            }));
                        }
                        Happened::Sent
                    }
                    piece = output.next(), if is_open && held.is_empty() => match piece {
                        Ok(piece) => Happened::Piece(piece),
                        Err(error) => Happened::Failed(failure::lost(&error)),
                    },
                    () = tokio::time::sleep(pause) => Happened::Look,
                }
            };
            match happened {
                Happened::Sent => {}
                Happened::Piece(None) => {
                    is_open = false;
                    pause = Duration::ZERO;
                }
                Happened::Piece(Some(piece)) => {
                    last_piece = Instant::now();
                    pause = LOOK.0;
                    held.push_back(piece);
                }
                Happened::Failed(error) => {
                    // The connection broke: what became of it is not known, and it is not left to run.
                    if code.is_none() {
                        return Some(Err(match self.sandbox.lives().await {
                            Ok(false) => failure::ended(),
                            _ => error,
                        }));
                    }
                    is_open = false;
                }
                Happened::Look => {
                    if code.is_none() {
                        match program.code().await {
                            Ok(Some(number)) => {
                                code = Some((status(number), Instant::now(), program.started.elapsed()));
                            }
                            Ok(None) => pause = (pause * 2).clamp(LOOK.0, LOOK.1),
                            Err(error) => return Some(Err(error)),
                        }
                    }
                }
                Happened::TimedOut | Happened::Cancelled | Happened::Abandoned => {
                    match happened {
                        Happened::TimedOut => ending = Ending::TimedOut,
                        Happened::Cancelled => ending = Ending::Cancelled,
                        _ => abandoned = true,
                    }
                    if killing.is_none() && !(abandoned && code.is_some()) {
                        let mut descent = program.descent().take();
                        killing = Some(tokio::spawn(async move { descent.end(true).await }));
                        killed = false;
                    }
                    if abandoned && code.is_some() {
                        program.descent().leave();
                        return None;
                    }
                }
                Happened::Killed(Ok(true)) => killed = true,
                Happened::Killed(Ok(false)) | Happened::Killed(Err(_)) => {
                    // The last resort.
                    let lives = self.sandbox.lives().await;
                    if matches!(lives, Ok(false)) {
                        return Some(Err(failure::ended()));
                    }
                    let _ = self.sandbox.engine.remove(&self.sandbox.container).await;
                    return Some(Err(failure::killed()));
                }
            }
            if abandoned && killed {
                return None;
            }
        }
        let (status, _, duration) = code?;
        let (leftovers, leftovers_total) =
            if killed { (Vec::new(), 0) } else { self.leftovers(&mut program).await };
        program.descent().leave();
        Some(Ok(Outcome {
            status,
            ending,
            duration,
            stdout_bytes: self.counted[0],
            stderr_bytes: self.counted[1],
            leftovers,
            leftovers_total,
            out_of_memory: false,
            newly_dangerous: Vec::new(),
            newly_dangerous_total: 0,
            notes: Vec::new(),
        }))
    }

    /// What lives on.
    async fn leftovers(&self, program: &mut Program) -> (Vec<Leftover>, u32) {
        let Ok(living) = program.descent().living().await else { return (Vec::new(), 0) };
        if living.is_empty() {
            return (Vec::new(), 0);
        }
        let named: Vec<String> = living.iter().take(MAX_LEFTOVERS).map(ToString::to_string).collect();
        let said = self.sandbox.steward.ask(format!("name {}", named.join(" "))).await.unwrap_or_default();
        let first = &living[..living.len().min(MAX_LEFTOVERS)];
        let leftovers = moltis_agentless::leftovers(first, said.iter().map(String::as_str));
        (leftovers, u32::try_from(living.len()).unwrap_or(u32::MAX))
    }
}

/// What the caller does to it.
struct Steered {
    sandbox: Arc<Agentless>,
    exec: String,
    pid: u32,
}

#[async_trait]
impl Steers for Steered {
    async fn signal(&self, signal: i32) -> Result<()> {
        self.sandbox.steward.ask(format!("group {signal} {}", self.pid)).await.map(drop)
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        match self.sandbox.engine.exec_resize(&self.exec, size.rows, size.columns).await {
            Ok(()) => Ok(()),
            Err(error) => match self.sandbox.engine.exec_result(&self.exec).await {
                Ok(None) => Err(failure::before(error)),
                // It is over.
                _ => Ok(()),
            },
        }
    }
}
