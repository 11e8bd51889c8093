//! Commands, from the request to the stream of events. A shell runs on a thread of its own; here its end is kept: its
//! deadline, its caller's wish, the loss of its caller, the end of its sandbox.

use std::fs::File;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use moltis_sandbox::exec::{ExecControl, ExecEvents, ProcessId, TerminalSize};
use moltis_sandbox::{
    Command, Ending, Exec, ExecEvent, ExecRequest, GuestPath, Outcome, Result as SandboxResult, Status,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result, blocking};
use crate::guarantees::NO_TERMINAL;
use crate::module::Modules;
use crate::place::Places;
use crate::sandbox::{Busy, Inner};
use crate::shell::{self, Ended, Input, Output, Switch, Task};
use crate::tree::Tree;
use crate::workers::Workers;

/// Pieces of output that wait, and of input.
const WAITING: usize = 64;
const WAITING_IN: usize = 2;

/// Largest piece of input that is passed on at once.
const PIECE: usize = 64 * 1024;

/// How long a shell that is to end may still compute before its caller is told that it is over.
const GRACE: Duration = Duration::from_millis(500);

/// How often it is looked whether the sandbox is still there.
const LOOK: Duration = Duration::from_millis(500);

/// Longest argument or variable, and all of them together, in bytes: as the kernel has it for programs.
const MAX_WORD: usize = 128 * 1024 - 1;
const MAX_WORDS: usize = 2 << 20;

/// Longest line of a command that is shown, in bytes.
const MAX_LINE: usize = 256;

/// `TERM`, as whoever is ended is told.
const TERM: i32 = 15;

/// Why a command ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    TimedOut,
    Cancelled,
    Signal(i32),
    /// Nobody listens, or the sandbox is gone.
    Lost,
}

/// The end of one command: the first reason counts.
#[derive(Debug)]
pub struct Fate {
    switch: Switch,
    why: Mutex<Option<Why>>,
    done: Mutex<Option<oneshot::Sender<Ended>>>,
    changed: tokio::sync::Notify,
}

impl Fate {
    fn end(&self, why: Why) {
        // What is over has ended by itself.
        if self.is_done() {
            return;
        }
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.switch.throw();
        self.changed.notify_one();
    }

    /// Ends it because its sandbox ends, or somebody stops it.
    pub fn close(&self) {
        self.end(Why::Cancelled);
    }

    /// Does what a signal would do.
    ///
    /// # Errors
    /// [`Error::Request`] for one that means nothing.
    pub fn signal(&self, signal: i32) -> Result<()> {
        match signal {
            // What ends a program that does nothing about it.
            1..=16 | 24..=27 | 29..=31 => self.end(Why::Signal(signal)),
            0 | 17 | 18 | 23 | 28 => {}
            _ => {
                let what = format!("signal {signal} means nothing to a shell without processes");
                return Err(Error::Request(what));
            }
        }
        Ok(())
    }

    fn finish(&self, ended: Ended) {
        if let Some(done) = self.done.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Nobody may be there to hear it.
            let _ = done.send(ended);
        }
        self.changed.notify_one();
    }

    fn is_done(&self) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// A command that runs.
pub struct Started {
    /// What it says.
    pub events: Events,
    /// What it hears, if it was asked to.
    pub feed: Option<mpsc::Sender<Bytes>>,
    /// By which it is ended.
    pub fate: Arc<Fate>,
}

impl Started {
    /// As its caller has it.
    pub fn exec(self) -> Exec {
        let Self { events, feed, fate } = self;
        Exec { events: ExecEvents::new(events), control: Box::new(Control { feed, fate }) }
    }
}

/// Starts a command. One that runs in the background has its number already.
pub async fn start(inner: &Arc<Inner>, asked: Asked, number: Option<ProcessId>) -> Result<Started> {
    let busy = inner.begin(true)?;
    let (opened, wanted) = (Arc::clone(inner), asked.cwd);
    let (busy, tree, cwd, there) = blocking(move || {
        let busy = busy.hold()?;
        let there = opened.places.look(&opened.id).ok_or(Error::Gone)?;
        let tree = Arc::new(opened.tree()?);
        let cwd = directory(&tree, &opened, wanted)?;
        Ok((busy, tree, cwd, there))
    })
    .await?;
    let modules = Arc::new(Modules {
        room: Arc::clone(&inner.room),
        commands: Arc::clone(&inner.commands),
        fuel: inner.fuel(),
        meter: Arc::clone(&inner.shared.meter),
    });
    let (feed, input) = mpsc::channel(WAITING_IN);
    let (send, output) = mpsc::channel(WAITING);
    let (done, outcome) = oneshot::channel();
    let fate = Arc::new(Fate {
        switch: Switch::default(),
        why: Mutex::new(None),
        done: Mutex::new(Some(done)),
        changed: tokio::sync::Notify::new(),
    });
    let files = inner.record.shown.iter().any(|shown| shown.target == moltis_host::target::FILES);
    let task = Task {
        script: asked.script,
        positional: asked.positional,
        cwd,
        env: shell::merged(shell::environment(files).into_iter().chain(asked.env)),
        tree,
        input: asked.stdin.then(|| Input::new(input)),
        modules,
        meter: Arc::clone(&inner.shared.meter),
        timeout: asked.timeout,
    };
    let began = Instant::now();
    let id = number.unwrap_or_else(|| ProcessId(inner.shared.number()));
    inner.shared.add(&fate);
    let of_thread = Arc::clone(&fate);
    let running = Running { busy: Some(busy), fate: Arc::clone(&fate) };
    Workers::of_process().run(move |runtime| {
        let mut running = running;
        let switch = of_thread.switch.clone();
        let ended = runtime.block_on(shell::run(task, send, switch));
        running.over(ended);
    })?;
    tokio::spawn(watch(
        Arc::clone(&fate),
        Arc::clone(inner),
        there,
        asked.timeout.map(|timeout| began + timeout),
    ));
    let events = Events {
        id,
        phase: Phase::Start,
        output,
        outcome: Some(outcome),
        fate: Arc::clone(&fate),
        began,
        bytes: [0; 2],
    };
    Ok(Started { events, feed: asked.stdin.then_some(feed), fate })
}

/// A command on its thread. Should the thread break, the command is over all the same.
struct Running {
    busy: Option<Busy>,
    fate: Arc<Fate>,
}

impl Running {
    fn over(&mut self, ended: Option<Ended>) {
        // Whoever hears that it is over finds it no longer counted.
        self.busy = None;
        self.fate.finish(ended.unwrap_or(Ended::with(143, Vec::new())));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.fate.is_done() {
            self.busy = None;
            let notes = vec!["wasm-shell-broke: the shell inside broke off".to_owned()];
            self.fate.finish(Ended::with(134, notes));
        }
    }
}

/// Keeps the deadline, and sees to it that whoever waits is told even when the shell computes on.
async fn watch(fate: Arc<Fate>, inner: Arc<Inner>, there: File, deadline: Option<Instant>) {
    loop {
        if fate.is_done() {
            return;
        }
        if fate.switch.is_thrown() {
            break;
        }
        let next = Instant::now() + LOOK;
        let next = deadline.map_or(next, |deadline| deadline.min(next));
        tokio::select! {
            () = fate.changed.notified() => {}
            () = tokio::time::sleep_until(next.into()) => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    fate.end(Why::TimedOut);
                } else if inner.is_closed() || Places::is_taken_away(&there) {
                    fate.end(Why::Lost);
                }
            }
        }
    }
    let given_up = Instant::now() + GRACE;
    while !fate.is_done() && Instant::now() < given_up {
        tokio::select! {
            () = fate.changed.notified() => {}
            () = tokio::time::sleep_until(given_up.into()) => {}
        }
    }
    let note = "wasm-computes-on: the shell inside had not noticed its end yet when this was said".to_owned();
    fate.finish(Ended::with(137, vec![note]));
}

/// A request, as far as it can be judged without the sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    script: String,
    positional: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    stdin: bool,
    timeout: Option<Duration>,
}

impl Asked {
    /// Whether the directory that it names is there. Blocks for a moment.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub fn has_directory(&self, tree: &Tree, inner: &Inner) -> Result<()> {
        directory(tree, inner, self.cwd.clone()).map(drop)
    }

    /// Judges it.
    ///
    /// # Errors
    /// Those of what cannot be had, and of what cannot be right.
    pub fn read(request: &ExecRequest) -> Result<Self> {
        if request.terminal.is_some() {
            return Err(declared("a terminal cannot be had", NO_TERMINAL, "terminal-unsupported"));
        }
        let text = |what, text: &std::ffi::OsStr| -> Result<String> {
            let text = text.to_str().ok_or(Error::NotUtf8(what))?;
            if text.contains('\0') {
                return Err(Error::Request(format!("{what} holds a NUL byte")));
            }
            Ok(text.to_owned())
        };
        let (script, positional) = match &request.command {
            Command::Shell(line) => (text("the command", line)?, Vec::new()),
            Command::Argv(words) => {
                let words = words.iter().map(|word| text("an argument", word)).collect::<Result<Vec<_>>>()?;
                if words.first().is_none_or(String::is_empty) {
                    return Err(Error::Request("no program is named".to_owned()));
                }
                ("export -n PWD; \"$@\"".to_owned(), words)
            }
        };
        let mut env = Vec::with_capacity(request.env.len());
        for (name, value) in &request.env {
            let name = text("the name of a variable", name)?;
            if name.is_empty() || name.contains('=') {
                return Err(Error::Request(format!("`{name}` is no name of a variable")));
            }
            env.push((name, text("the value of a variable", value)?));
        }
        let variables = env.iter().map(|(name, value)| name.len() + 1 + value.len());
        let lengths = || positional.iter().map(String::len).chain([script.len()]).chain(variables.clone());
        let (longest, all) =
            (lengths().max().unwrap_or(0), lengths().map(|length| length + 1).sum::<usize>());
        if longest > MAX_WORD || all > MAX_WORDS {
            let what = format!(
                "an argument or a variable is {longest} bytes long, and all are {all}; {MAX_WORD} and {MAX_WORDS} are \
                 the most"
            );
            return Err(Error::Request(what));
        }
        let cwd = match &request.cwd {
            Some(cwd) => {
                let cwd = std::str::from_utf8(cwd.as_bytes()).map_err(|_| Error::NotUtf8("the directory"))?;
                Some(cwd.to_owned())
            }
            None => None,
        };
        Ok(Self { script, positional, env, cwd, stdin: request.stdin, timeout: request.timeout })
    }

    /// What was asked for, as a line to be shown.
    pub fn line(&self) -> String {
        let words = std::iter::once(self.script.as_str()).filter(|_| self.positional.is_empty());
        let words: Vec<&str> = words.chain(self.positional.iter().map(String::as_str)).collect();
        let mut line = words.join(" ");
        line.truncate(line.floor_char_boundary(MAX_LINE));
        line
    }
}

/// What the backend says it does not do.
pub fn declared(what: &'static str, why: &'static str, code: &'static str) -> Error {
    Error::Declared { what, why, code }
}

/// Where a command begins.
fn directory(tree: &Tree, inner: &Inner, wanted: Option<String>) -> Result<String> {
    let Some(cwd) = wanted else { return Ok(inner.directory().to_owned()) };
    let path = GuestPath::new(cwd.as_bytes()).ok_or_else(|| Error::Directory(cwd.clone()))?;
    match tree.stat(&path, true) {
        Ok(found) if found.kind == moltis_sandbox::EntryKind::Directory => Ok(cwd),
        _ if is_built_in(&cwd) => Ok(cwd),
        _ => Err(Error::Directory(cwd)),
    }
}

/// Directories that the shell has of its own.
fn is_built_in(path: &str) -> bool {
    ["/bin", "/etc", "/proc", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/dev"]
        .contains(&path.trim_end_matches('/'))
}

enum Phase {
    Start,
    Runs,
    Over(Outcome),
    End,
}

/// What a command says.
pub struct Events {
    id: ProcessId,
    phase: Phase,
    output: mpsc::Receiver<Output>,
    outcome: Option<oneshot::Receiver<Ended>>,
    fate: Arc<Fate>,
    began: Instant,
    bytes: [u64; 2],
}

impl Events {
    fn event(&mut self, output: Output) -> ExecEvent {
        match output {
            Output::Out(bytes) => {
                self.bytes[0] += bytes.len() as u64;
                ExecEvent::Stdout(bytes)
            }
            Output::Err(bytes) => {
                self.bytes[1] += bytes.len() as u64;
                ExecEvent::Stderr(bytes)
            }
        }
    }

    fn over(&self, ended: Ended) -> Outcome {
        let why = *self.fate.why.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, ending) = match why {
            None => (ended.status(), Ending::Exited),
            Some(Why::TimedOut) => (Status::Signal(TERM), Ending::TimedOut),
            Some(Why::Cancelled | Why::Lost) => (Status::Signal(TERM), Ending::Cancelled),
            Some(Why::Signal(signal)) => (Status::Signal(signal), Ending::Exited),
        };
        Outcome {
            status,
            ending,
            duration: self.began.elapsed(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            leftovers: Vec::new(),
            leftovers_total: 0,
            out_of_memory: ended.out_of_memory,
            newly_dangerous: Vec::new(),
            newly_dangerous_total: 0,
            notes: ended.notes,
        }
    }
}

impl Stream for Events {
    type Item = SandboxResult<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match &this.phase {
                Phase::Start => {
                    this.phase = Phase::Runs;
                    return Poll::Ready(Some(Ok(ExecEvent::Started(this.id))));
                }
                Phase::Runs => {
                    if let Poll::Ready(Some(output)) = this.output.poll_recv(cx) {
                        return Poll::Ready(Some(Ok(this.event(output))));
                    }
                    let Some(outcome) = &mut this.outcome else {
                        this.phase = Phase::End;
                        continue;
                    };
                    match Pin::new(outcome).poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(ended) => {
                            this.outcome = None;
                            let lost = Ended::with(134, Vec::new());
                            this.phase = Phase::Over(this.over(ended.unwrap_or(lost)));
                        }
                    }
                }
                Phase::Over(outcome) => {
                    let mut outcome = outcome.clone();
                    // What it had to say was said before its end.
                    if let Ok(output) = this.output.try_recv() {
                        return Poll::Ready(Some(Ok(this.event(output))));
                    }
                    [outcome.stdout_bytes, outcome.stderr_bytes] = this.bytes;
                    this.phase = Phase::End;
                    return Poll::Ready(Some(Ok(ExecEvent::Exit(outcome))));
                }
                Phase::End => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::End) {
            self.fate.end(Why::Lost);
        }
    }
}

struct Control {
    feed: Option<mpsc::Sender<Bytes>>,
    fate: Arc<Fate>,
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, mut bytes: Bytes) -> SandboxResult<()> {
        let Some(feed) = &self.feed else { return Ok(()) };
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            if feed.send(piece).await.is_err() {
                // Nobody reads any more.
                self.feed = None;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> SandboxResult<()> {
        self.feed = None;
        Ok(())
    }

    async fn resize(&mut self, _: TerminalSize) -> SandboxResult<()> {
        Err(declared("there is no terminal", NO_TERMINAL, "terminal-unsupported").into())
    }

    async fn signal(&mut self, signal: i32) -> SandboxResult<()> {
        Ok(self.fate.signal(signal)?)
    }

    async fn cancel(&mut self) -> SandboxResult<()> {
        self.fate.end(Why::Cancelled);
        Ok(())
    }
}
