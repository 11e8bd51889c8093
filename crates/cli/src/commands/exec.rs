//! `moltis exec`: one command in a sandbox, with its output as it comes and its exit status as ours.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moltis_config::InvalidValue;
use moltis_runtime::answer::Answer;
use moltis_runtime::{Capped, NamedWorkspace, Opened, Overrides, Runtime};
use moltis_sandbox::exec::{
    Command, Ending, ExecControl, ExecEvent, ExecRequest, Outcome, ProcessId, TerminalSize,
};
use moltis_sandbox::{Diagnosis, GuestPath, NotEnforced, Origin, Sandbox, Setting};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::output::{BROKEN_PIPE, Closed, Stream, Writer};
use crate::{environment, output, render, stdin, terminal};

/// Runs the command; gives its exit status.
pub async fn run(global: &Global, args: args::Exec) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let request = request(&runtime, &args)?;
    let overrides = overrides(&args)?;
    let cap = flag("--max-output", args.max_output.as_deref(), moltis_config::parse_size)?;
    // Signals are caught before anything starts, so that none can leave it behind.
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let opened = tokio::select! {
        opened = runtime.open(&overrides) => opened?,
        number = signals.next() => return Ok(128 + number),
    };
    let result = if args.json {
        collected(&runtime, &opened, request, cap, &mut signals).await
    } else {
        streamed(&opened, request, cap, &mut signals).await
    };
    let closed = opened.sandbox.close().await;
    let status = result?;
    closed?;
    Ok(status)
}

/// What to run, from the flags.
fn request(runtime: &Runtime, args: &args::Exec) -> Result<ExecRequest, Failure> {
    let command = match &args.line {
        Some(line) => Command::Shell(line.clone()),
        None => Command::Argv(args.program.clone()),
    };
    let mut request = ExecRequest::new(command);
    request.env = environment::collect(&args.env_file, &args.env)?;
    request.cwd = args.cwd.clone().map(guest_directory).transpose()?;
    let timeout = flag("--timeout", args.timeout.as_deref(), moltis_config::parse_timeout)?;
    // A terminal is somebody at work: it has no time-out unless one is given.
    request.timeout = timeout.or_else(|| (!args.tty).then(|| runtime.default_timeout()));
    request.stdin = stdin::wanted(args.tty);
    request.terminal = args.tty.then(terminal::size);
    Ok(request)
}

fn guest_directory(path: std::ffi::OsString) -> Result<GuestPath, Failure> {
    GuestPath::new(path.clone().into_vec()).ok_or_else(|| {
        Failure::invalid(
            Diagnosis::new(
                "cwd-not-absolute",
                format!("--cwd {} is not an absolute path inside the sandbox", path.to_string_lossy()),
            )
            .fix("write it from the root, as in --cwd /workspace/src"),
        )
    })
}

/// Reads the value of a flag, if it was given.
fn flag<T>(
    name: &str,
    text: Option<&str>,
    parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
) -> Result<Option<T>, Failure> {
    text.map(parse).transpose().map_err(|error| Failure::invalid(error.diagnosis(name)))
}

/// What the flags ask of the sandbox.
fn overrides(args: &args::Exec) -> Result<Overrides, Failure> {
    fn set<T>(value: T) -> Setting<T> {
        Setting::new(value, Origin::Flag)
    }
    Ok(Overrides {
        backend: flag("--backend", args.backend.as_deref(), moltis_config::parse_backend)?.map(set),
        network: flag("--network", args.network.as_deref(), moltis_config::parse_network)?.map(set),
        memory: flag("--memory", args.memory.as_deref(), moltis_config::parse_memory)?.map(set),
        cpus: flag("--cpus", args.cpus.as_deref(), moltis_config::parse_cores)?.map(set),
        pids: flag("--pids", args.pids.as_deref(), moltis_config::parse_pids)?.map(set),
        workspace: args.workspace.as_deref().map(workspace).transpose()?.map(set),
    })
}

/// The workspace that a flag names; a relative folder is relative to where we are.
fn workspace(text: &OsStr) -> Result<NamedWorkspace, Failure> {
    let flag = moltis_config::parse_workspace_flag(text)
        .map_err(|error| Failure::invalid(error.diagnosis("--workspace")))?;
    let source = std::path::absolute(&flag.dir).map_err(Failure::runtime)?;
    Ok(NamedWorkspace { source, mode: flag.mode })
}

/// Prints output as it comes.
async fn streamed(
    opened: &Opened,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    warn(&opened.not_enforced, &opened.notes);
    let timeout = request.timeout;
    let raw = request.terminal.map(|_| terminal::RawMode::enter()).transpose()?;
    let writer = Writer::start();
    let mut printer = Printer::new(&writer, cap);
    let outcome = drive(&opened.sandbox, request, signals, async |event| printer.print(event).await).await;
    drop(raw);
    let outcome = match outcome? {
        Driven::Ended(outcome) => outcome,
        Driven::Closed => return Ok(BROKEN_PIPE),
        Driven::Interrupted(number) => return Ok(128 + number),
    };
    let cut = printer.finish().await.is_err();
    if writer.finish().await.is_err() || cut {
        return Ok(BROKEN_PIPE);
    }
    epilogue(&outcome, timeout);
    Ok(exit_status(&outcome, signals))
}

/// Prints one JSON object at the end.
async fn collected(
    runtime: &Runtime,
    opened: &Opened,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let cap = cap.unwrap_or_else(|| runtime.max_output_bytes());
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    let mut stdout = Capped::new(cap);
    let mut stderr = Capped::new(cap);
    let driven = drive(&opened.sandbox, request, signals, async |event| {
        match event {
            ExecEvent::Stdout(bytes) => drop(stdout.push(&bytes)),
            ExecEvent::Stderr(bytes) => drop(stderr.push(&bytes)),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } | ExecEvent::Exit(_) => {}
        }
        Ok(())
    })
    .await?;
    let outcome = match driven {
        Driven::Ended(outcome) => outcome,
        Driven::Closed => return Ok(BROKEN_PIPE),
        Driven::Interrupted(number) => return Ok(128 + number),
    };
    let status = exit_status(&outcome, signals);
    let answer = Answer {
        backend: opened.backend,
        sandbox: opened.sandbox.id().clone(),
        outcome,
        stdout: stdout.into(),
        stderr: stderr.into(),
        not_enforced: opened.not_enforced.clone(),
    };
    match output::print_json(&answer)? {
        0 => Ok(status),
        closed => Ok(closed),
    }
}

/// How driving a command ended.
enum Driven {
    /// It is over.
    Ended(Outcome),
    /// The reader of our output is gone; the command was ended.
    Closed,
    /// A second signal of this number: we leave at once, and the sandbox ends with us.
    Interrupted(i32),
}

/// Starts the command and brings it to its end: input goes in, events go to `take`, the first signal that we get ends
/// the whole descent.
async fn drive(
    sandbox: &Arc<dyn Sandbox>,
    request: ExecRequest,
    signals: &mut Signals,
    mut take: impl AsyncFnMut(ExecEvent) -> Result<(), Closed>,
) -> Result<Driven, Failure> {
    let input = request.stdin;
    let on_terminal = request.terminal.is_some();
    let mut exec = tokio::select! {
        exec = sandbox.exec(request) => exec?,
        number = signals.next() => {
            signals.ended_by = Some(number);
            return Ok(Driven::Interrupted(number));
        }
    };
    let feeder = tokio::spawn(feed(exec.control, input, on_terminal));
    let mut process = None;
    let driven = loop {
        tokio::select! {
            event = exec.events.next() => match event {
                None => return Err(moltis_runtime::error::ended_without_exit().into()),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(ExecEvent::Exit(outcome))) => break Driven::Ended(outcome),
                Some(Ok(event)) => {
                    if let ExecEvent::Started(id) = event {
                        process = Some(id);
                    }
                    if take(event).await.is_err() {
                        break Driven::Closed;
                    }
                }
            },
            number = signals.next() => {
                if signals.ended_by.replace(number).is_some() {
                    break Driven::Interrupted(number);
                }
                if let Some(process) = process {
                    stop(Arc::clone(sandbox), process);
                } else {
                    break Driven::Interrupted(number);
                }
            }
        }
    };
    feeder.abort();
    Ok(driven)
}

/// Ends the descent by a connection of its own: the command's may be full of input that nobody reads.
fn stop(sandbox: Arc<dyn Sandbox>, process: ProcessId) {
    tokio::spawn(async move {
        // If it cannot be reached the event stream says so.
        let _ = sandbox.stop(process).await;
    });
}

/// Passes our input, and changes of our terminal's size, on to the command.
async fn feed(mut control: Box<dyn ExecControl>, input: bool, on_terminal: bool) {
    let mut pieces = input.then(stdin::pieces);
    let mut resized = if on_terminal { signal(SignalKind::window_change()).ok() } else { None };
    loop {
        let done = tokio::select! {
            piece = next_piece(&mut pieces) => match piece {
                Some(piece) => control.stdin(piece).await,
                None => {
                    pieces = None;
                    control.close_stdin().await
                }
            },
            size = next_size(&mut resized) => control.resize(size).await,
        };
        if done.is_err() {
            // The event stream tells why.
            return;
        }
    }
}

async fn next_piece(pieces: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match pieces {
        Some(pieces) => pieces.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_size(resized: &mut Option<Signal>) -> TerminalSize {
    match resized {
        Some(resized) => {
            resized.recv().await;
            terminal::size()
        }
        None => std::future::pending().await,
    }
}

/// Signals that end a program: Ctrl-C, a polite kill, the terminal closing.
struct Signals {
    caught: [(i32, Signal); 3],
    /// The signal by which we ended the command.
    ended_by: Option<i32>,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        let caught = [
            (SignalKind::interrupt().as_raw_value(), signal(SignalKind::interrupt())?),
            (SignalKind::terminate().as_raw_value(), signal(SignalKind::terminate())?),
            (SignalKind::hangup().as_raw_value(), signal(SignalKind::hangup())?),
        ];
        Ok(Self { caught, ended_by: None })
    }

    /// Number of the next signal.
    async fn next(&mut self) -> i32 {
        let [(a, on_a), (b, on_b), (c, on_c)] = &mut self.caught;
        tokio::select! {
            _ = on_a.recv() => *a,
            _ = on_b.recv() => *b,
            _ = on_c.recv() => *c,
        }
    }
}

/// The command's status; ours when a signal to us ended it.
fn exit_status(outcome: &Outcome, signals: &Signals) -> i32 {
    match (outcome.ending, signals.ended_by) {
        (Ending::Cancelled, Some(number)) => 128 + number,
        _ => outcome.exit_code(),
    }
}

/// Prints events within a cap: heads as they come, tails at the end.
struct Printer<'a> {
    writer: &'a Writer,
    caps: Option<[Capped; 2]>,
}

impl<'a> Printer<'a> {
    fn new(writer: &'a Writer, cap: Option<u64>) -> Self {
        let caps = cap.map(|cap| {
            let cap = usize::try_from(cap).unwrap_or(usize::MAX);
            [Capped::new(cap), Capped::new(cap)]
        });
        Self { writer, caps }
    }

    async fn print(&mut self, event: ExecEvent) -> Result<(), Closed> {
        let (stream, mut bytes) = match event {
            ExecEvent::Stdout(bytes) => (Stream::Stdout, bytes),
            ExecEvent::Stderr(bytes) => (Stream::Stderr, bytes),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } | ExecEvent::Exit(_) => return Ok(()),
        };
        if let Some(caps) = &mut self.caps {
            let now = caps[stream as usize].push(&bytes);
            bytes.truncate(now);
        }
        if bytes.is_empty() { Ok(()) } else { self.writer.write(stream, bytes).await }
    }

    /// Prints what the caps held back.
    async fn finish(&mut self) -> Result<(), Closed> {
        let Some([stdout, stderr]) = self.caps.take() else { return Ok(()) };
        for (stream, capped) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            let (_, cut, tail) = capped.finish();
            let marker = cut.map(|cut| cut.marker()).unwrap_or_default();
            self.writer.write(stream, [marker.into_bytes(), tail].concat().into()).await?;
        }
        Ok(())
    }
}

/// Says once, before the output, what is not as one might think.
fn warn(not_enforced: &[NotEnforced], notes: &[String]) {
    for promise in not_enforced {
        eprintln!("moltis: not enforced: {} ({})", promise.key, render::printable(&promise.reason));
    }
    for note in notes {
        eprintln!("moltis: {}", render::printable(note));
    }
}

/// Says after the output how it ended, where the exit status alone would not.
fn epilogue(outcome: &Outcome, timeout: Option<Duration>) {
    if outcome.ending == Ending::TimedOut {
        let time = timeout.map(|t| format!(" of {} s", t.as_secs_f64())).unwrap_or_default();
        eprintln!(
            "moltis: its time{time} was up: the command and all that it started were ended (--timeout sets it)"
        );
    }
    for leftover in &outcome.leftovers {
        eprintln!(
            "moltis: still running, ended with the sandbox: {} {}",
            leftover.pid,
            render::printable(&leftover.command)
        );
    }
    let unnamed =
        outcome.leftovers_total as usize - outcome.leftovers.len().min(outcome.leftovers_total as usize);
    if unnamed > 0 {
        eprintln!("moltis: and {unnamed} more");
    }
}
