//! Commands: from a request to a marked program, and from its output to events. The deadline is kept here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agent::Inspect;
use moltis_sandbox::exec::{ExecEvents, Leftover, ProcessId, TerminalSize};
use moltis_sandbox::{
    Diagnosis, Ending, Error, Exec, ExecControl, ExecEvent, ExecRequest, Outcome, Result, Status,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, watch};

use super::failure;
use super::program::{Program, Wanted};
use super::sandbox::{Agentless, Busy};
use crate::engine::{Sink, Stream};

/// Pieces of output between the engine and a caller who does not read.
const PIECES: usize = 4;

/// How long after a command's end its output is waited for, while a child that lives on keeps it open.
const QUIET: Duration = Duration::from_millis(250);
/// The same for a child that goes on writing.
const NOISY: Duration = Duration::from_millis(1500);

/// Between two looks at whether a command is over that says nothing.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Most children that are named, and bytes of each one's command line.
const MAX_LEFTOVERS: usize = 64;
const MAX_COMMAND: usize = 256;

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
    let mut env = Vec::with_capacity(start.env.len());
    for (name, value) in &start.env {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let (Some(name), Some(value)) = (text(name.as_ref()), text(value.as_ref())) else {
            return Err(not_text(name.as_ref()));
        };
        env.push((name, value));
    }
    let unset: Vec<String> =
        sandbox.given.iter().filter(|name| !env.iter().any(|(set, _)| set == *name)).cloned().collect();
    let argv: Vec<&[u8]> = start.argv.iter().map(AsRef::as_ref).collect();
    let directory: &[u8] = start.cwd.as_ref().map_or(b"", |cwd| cwd.as_ref());
    let before = inspector.as_ref().map_or(0, |inspector| inspector.before());
    let wanted =
        Wanted { argv: &argv, env, unset: &unset, directory, stdin: start.stdin, terminal: start.terminal };
    let mut program = Program::start(&sandbox.engine, &sandbox.container, &sandbox.steward, wanted).await?;
    let process = ProcessId(program.pid);
    let (events, mut receiver) = mpsc::channel(PIECES);
    let (over, is_over) = watch::channel(false);
    let cancel = Arc::new(Notify::new());
    let control = Control {
        sandbox: Arc::clone(sandbox),
        exec: program.exec.clone(),
        pid: program.pid,
        stdin: program.stdin.take(),
        cancel: Arc::clone(&cancel),
        is_over,
        has_input: start.stdin || start.terminal.is_some(),
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
    let mut first = Some(ExecEvent::Started(process));
    let stream = futures_util::stream::poll_fn(move |cx| match first.take() {
        Some(started) => std::task::Poll::Ready(Some(Ok(started))),
        None => receiver.poll_recv(cx),
    });
    Ok(Exec { events: ExecEvents::new(stream), control: Box::new(control) })
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
        let name = |pid: u32| {
            let line = said.iter().find_map(|line| {
                let (number, name) = line.strip_prefix("n ")?.split_once(' ')?;
                (number.parse() == Ok(pid)).then_some(name)
            });
            line.unwrap_or_default().trim_end().chars().scan(0, |length, c| {
                *length += c.len_utf8();
                (*length <= MAX_COMMAND).then_some(c)
            })
        };
        let leftovers = living
            .iter()
            .take(MAX_LEFTOVERS)
            .map(|pid| Leftover { pid: *pid, command: name(*pid).collect() })
            .collect();
        (leftovers, u32::try_from(living.len()).unwrap_or(u32::MAX))
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// What an engine's number means: it tells signals as a shell does.
fn status(code: i32) -> Status {
    match code {
        129..=192 => Status::Signal(code - 128),
        code => Status::Code(code & 0xff),
    }
}

fn not_text(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name).into_owned();
    Error::Invalid(
        Diagnosis::new("env-value-invalid", format!("the variable {name} is no text"))
            .cause("a sandbox without an agent gets its variables through the engine, which carries text (UTF-8) only")
            .fix("write the value to a file and pass the file's name"),
    )
}

/// The caller's side.
struct Control {
    sandbox: Arc<Agentless>,
    exec: String,
    pid: u32,
    stdin: Option<Sink>,
    cancel: Arc<Notify>,
    is_over: watch::Receiver<bool>,
    has_input: bool,
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, bytes: Bytes) -> Result<()> {
        let Some(stdin) = self.stdin.as_mut().filter(|_| self.has_input) else { return Ok(()) };
        let mut is_over = self.is_over.clone();
        let written = tokio::select! {
            written = async { stdin.write_all(&bytes).await?; stdin.flush().await } => written.is_ok(),
            _ = is_over.wait_for(|over| *over) => false,
        };
        if !written {
            // Its events say what became of it.
            self.stdin = None;
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> Result<()> {
        if let Some(mut stdin) = self.stdin.take() {
            let mut is_over = self.is_over.clone();
            tokio::select! {
                _ = stdin.shutdown() => {}
                _ = is_over.wait_for(|over| *over) => {}
            }
        }
        Ok(())
    }

    async fn resize(&mut self, size: TerminalSize) -> Result<()> {
        match self.sandbox.engine.exec_resize(&self.exec, size.rows, size.columns).await {
            Ok(()) => Ok(()),
            // It is over, or is about to be.
            Err(_) if *self.is_over.borrow() => Ok(()),
            Err(error) => match self.sandbox.engine.exec_result(&self.exec).await {
                Ok(None) => Err(failure::before(error)),
                _ => Ok(()),
            },
        }
    }

    async fn signal(&mut self, signal: i32) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(Error::Invalid(Diagnosis::new(
                "request-invalid",
                format!("there is no signal {signal}"),
            )));
        }
        if *self.is_over.borrow() {
            return Ok(());
        }
        self.sandbox.steward.ask(format!("group {signal} {}", self.pid)).await.map(drop)
    }

    async fn cancel(&mut self) -> Result<()> {
        self.cancel.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_a_shell_tells_them() {
        for (code, want) in [
            (0, Status::Code(0)),
            (128, Status::Code(128)),
            (137, Status::Signal(9)),
            (192, Status::Signal(64)),
            (255, Status::Code(255)),
        ] {
            assert_eq!(status(code), want);
        }
    }
}
