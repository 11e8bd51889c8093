//! `moltis exec`: one command in a sandbox, with its output as it comes and its exit status as ours.

use std::cell::Cell;
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
use tokio::time::Instant;

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::output::{BROKEN_PIPE, Closed, Stream, Writer};
use crate::{environment, render, stdin, terminal};

/// Runs the command; gives its exit status.
pub async fn run(global: &Global, args: args::Exec) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let request = request(&runtime, &args)?;
    let overrides = overrides(&args)?;
    let cap = flag("--max-output", args.max_output.as_deref(), moltis_config::parse_size)?;
    // Signals are caught before anything starts, so that none can leave it behind.
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    // A signal does not break an opening off: it is waited for, and what it made is taken away again.
    let mut opening = std::pin::pin!(runtime.open(&overrides));
    let (opened, told) = tokio::select! {
        opened = &mut opening => (opened?, None),
        number = signals.next() => (opening.await?, Some(number)),
    };
    let result = match told {
        Some(number) => Ok(128 + number),
        None if args.json => collected(&runtime, &opened, request, cap, &mut signals).await,
        None => streamed(&opened, request, cap, &mut signals).await,
    };
    if let Err(error) = opened.sandbox.close().await {
        // The command is over and has its status; what is left of the sandbox is swept by the next start.
        render::warning(error.diagnosis());
    }
    result
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
    if let (true, Some(term)) = (args.tty, std::env::var_os("TERM").filter(|term| !term.is_empty())) {
        // What the command draws is for our terminal; one that --env names wins.
        request.env.insert(0, ("TERM".into(), term));
    }
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
    let source = std::path::absolute(&flag.dir).map_err(|error| {
        Failure::invalid(
            Diagnosis::new("workspace-missing", "--workspace is relative, and the current directory is gone")
                .cause(error)
                .fix("change to a directory that exists, or name the workspace from the root"),
        )
    })?;
    let name = flag.dir.to_string_lossy();
    if let (None, Some((_, word)), false) = (flag.mode, name.rsplit_once(':'), source.exists()) {
        return Err(Failure::invalid(
            Diagnosis::new("workspace-missing", format!("the workspace {} does not exist", source.display()))
                .fix(format!("write DIR, DIR:ro or DIR:rw (`:{word}` is no mode)")),
        ));
    }
    Ok(NamedWorkspace { source, mode: flag.mode })
}

/// Prints output as it comes.
async fn streamed(
    opened: &Opened,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let timeout = request.timeout;
    let raw = request.terminal.map(|_| terminal::RawMode::enter()).transpose()?;
    let mut printer = Printer::new(cap);
    let driven = drive(&opened.sandbox, request, signals, async |event| {
        if let ExecEvent::Started(_) = event {
            // Only now is it certain that there is something to be said of.
            warn(&opened.not_enforced, &opened.notes);
        }
        printer.print(event).await
    })
    .await;
    drop(raw);
    let outcome = match driven? {
        Driven::Ended(outcome) => outcome,
        Driven::Closed => return printer.finish().await.map(|_| BROKEN_PIPE),
        Driven::Told(number) => return Ok(128 + number),
    };
    match signals.race(printer.finish(), || true).await {
        Err(number) => return Ok(128 + number),
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => return Ok(BROKEN_PIPE),
        Ok(Err(failure)) => return Err(failure),
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
        Driven::Told(number) => return Ok(128 + number),
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
    let mut line = serde_json::to_vec(&answer).map_err(|error| Failure::output(error.into()))?;
    line.push(b'\n');
    // Its reader may stall like any other, and signals are heard then too.
    let mut printer = Printer::new(None);
    let written = async move {
        // A reader that is gone shows at the end.
        let _ = printer.print(ExecEvent::Stdout(line.into())).await;
        printer.finish().await
    };
    match signals.race(written, || true).await {
        Err(number) => Ok(128 + number),
        Ok(Ok(true)) => Ok(status),
        Ok(Ok(false)) => Ok(BROKEN_PIPE),
        Ok(Err(failure)) => Err(failure),
    }
}

/// How driving a command ended.
enum Driven {
    /// It is over.
    Ended(Outcome),
    /// The reader of our output is gone; the command was ended.
    Closed,
    /// A signal of this number told us to leave before it was over; the sandbox ends with us.
    Told(i32),
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
    let mut exec = match signals.race(sandbox.exec(request), || false).await {
        Ok(exec) => exec?,
        Err(number) => return Ok(Driven::Told(number)),
    };
    let feeder = tokio::spawn(feed(exec.control, input, on_terminal));
    let process = Cell::new(None);
    let work = async {
        while let Some(event) = exec.events.next().await {
            match event? {
                ExecEvent::Exit(outcome) => return Ok(Driven::Ended(outcome)),
                event => {
                    if let ExecEvent::Started(id) = event {
                        process.set(Some(id));
                    }
                    if take(event).await.is_err() {
                        return Ok(Driven::Closed);
                    }
                }
            }
        }
        Err(moltis_runtime::error::ended_without_exit())
    };
    let driven = signals.race(work, || match process.get() {
        Some(process) => {
            stop(Arc::clone(sandbox), process);
            true
        }
        None => false,
    });
    let driven = driven.await;
    feeder.abort();
    match driven {
        Ok(driven) => Ok(driven?),
        Err(number) => Ok(Driven::Told(number)),
    }
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

/// Time that a command and the reader of its output have after the first signal; then we leave.
const GRACE: Duration = Duration::from_secs(3);

/// Signals that end a program: Ctrl-C, Ctrl-\, a polite kill, the terminal closing.
struct Signals {
    caught: [(i32, Signal); 4],
    /// The first signal that was heard.
    ended_by: Option<i32>,
    /// When to leave, once one was heard.
    until: Option<Instant>,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        let of = |kind: SignalKind| Ok::<_, std::io::Error>((kind.as_raw_value(), signal(kind)?));
        let caught = [
            of(SignalKind::interrupt())?,
            of(SignalKind::terminate())?,
            of(SignalKind::hangup())?,
            of(SignalKind::quit())?,
        ];
        Ok(Self { caught, ended_by: None, until: None })
    }

    /// Number of the next signal.
    async fn next(&mut self) -> i32 {
        let [(a, on_a), (b, on_b), (c, on_c), (d, on_d)] = &mut self.caught;
        tokio::select! {
            _ = on_a.recv() => *a,
            _ = on_b.recv() => *b,
            _ = on_c.recv() => *c,
            _ = on_d.recv() => *d,
        }
    }

    /// Waits for `work`. At the first signal `first` begins the end and says whether there is anything to wait for;
    /// work then has [`GRACE`] left. Another signal, or the end of that time, gives the signal's number.
    async fn race<T>(&mut self, work: impl Future<Output = T>, first: impl Fn() -> bool) -> Result<T, i32> {
        let mut work = std::pin::pin!(work);
        loop {
            let until = self.until;
            let time_is_up = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                done = &mut work => return Ok(done),
                () = time_is_up => return Err(self.ended_by.unwrap_or(SignalKind::terminate().as_raw_value())),
                number = self.next() => {
                    if self.ended_by.replace(number).is_some() || !first() {
                        return Err(number);
                    }
                    self.until = Some(Instant::now() + GRACE);
                }
            }
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
struct Printer {
    writer: Writer,
    caps: Option<[Capped; 2]>,
}

impl Printer {
    fn new(cap: Option<u64>) -> Self {
        let caps = cap.map(|cap| {
            let cap = usize::try_from(cap).unwrap_or(usize::MAX);
            [Capped::new(cap), Capped::new(cap)]
        });
        Self { writer: Writer::start(), caps }
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

    /// Prints what the caps held back, and waits until everything is written; whether somebody read it.
    async fn finish(self) -> Result<bool, Failure> {
        let streams = [Stream::Stdout, Stream::Stderr];
        for (stream, capped) in streams.into_iter().zip(self.caps.into_iter().flatten()) {
            let (_, cut, tail) = capped.finish();
            let marker = cut.map(|cut| cut.marker()).unwrap_or_default();
            if self.writer.write(stream, [marker.into_bytes(), tail].concat().into()).await.is_err() {
                break;
            }
        }
        match self.writer.finish().await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::output(error)),
        }
    }
}

/// Says once, before the output, what is not as one might think.
fn warn(not_enforced: &[NotEnforced], notes: &[String]) {
    for promise in not_enforced {
        crate::say!("moltis: not enforced: {} ({})", promise.key, render::one_line(&promise.reason));
    }
    for note in notes {
        crate::say!("moltis: {}", render::one_line(note));
    }
}

/// Says after the output how it ended, where the exit status alone would not.
fn epilogue(outcome: &Outcome, timeout: Option<Duration>) {
    if outcome.ending == Ending::TimedOut {
        let time = timeout.map(|t| format!(" of {} s", t.as_secs_f64())).unwrap_or_default();
        crate::say!(
            "moltis: its time{time} was up: the command and all that it started were ended (--timeout sets it)"
        );
    }
    for leftover in &outcome.leftovers {
        crate::say!(
            "moltis: still running, ended with the sandbox: {} {}",
            leftover.pid,
            render::one_line(&leftover.command)
        );
    }
    let unnamed =
        outcome.leftovers_total as usize - outcome.leftovers.len().min(outcome.leftovers_total as usize);
    if unnamed > 0 {
        crate::say!("moltis: and {unnamed} more");
    }
}
