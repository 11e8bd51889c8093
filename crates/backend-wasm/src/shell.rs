//! Tier 1: a shell of our own process, bashkit's, on our tree. Each command has a fresh one, as `sh -c` has: files last,
//! variables do not.

mod cut;
mod input;
mod jobs;
mod kill;
mod modules;
mod names;
mod own;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bashkit::{
    Bash, BuiltinRegistry, Error, ExecOptions, ExecutionLimits, LimitExceeded, MemoryLimits, SessionLimits,
    StreamData,
};
use bytes::Bytes;
use moltis_sandbox::Status;
use tokio::sync::mpsc;

use crate::meter::{self, Meter};
use crate::module::Modules;
use crate::tree::Tree;
use crate::tree::lent::Lent;
pub use input::Input;

/// Name of the host inside.
const HOST: &str = "sandbox";

/// A time that does not come: ends are ours to keep.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How much later than the switch is thrown those commands end that keep the time themselves.
const LATER: Duration = Duration::from_millis(100);

/// What the shell says of a script that is nested too deep.
const TOO_LARGE: &str = "budget validation failed";

/// Turns of loops.
const MAX_TURNS: usize = 200_000_000;

/// Largest piece of output, in bytes.
const PIECE: usize = 16 * 1024;

/// Longest script in bytes.
pub const MAX_SCRIPT: usize = 4 << 20;

/// Largest file that the shell's own commands take in, which hold it in memory, and what of all memory that may be.
const MAX_FILE: u64 = 256 << 20;

/// What is to be run.
pub struct Task {
    /// A line for the shell.
    pub script: String,
    /// `$1` and so on.
    pub positional: Vec<String>,
    /// Directory to begin in.
    pub cwd: String,
    /// All variables.
    pub env: Vec<(String, String)>,
    /// Its files.
    pub tree: Arc<Tree>,
    /// What its caller sends, if it sends something.
    pub input: Option<Input>,
    /// WASI modules and what they may use.
    pub modules: Arc<Modules>,
    /// Memory of the whole sandbox.
    pub meter: Arc<Meter>,
    /// Time that it has. Whoever holds the switch keeps it; some of the shell's commands look at it themselves.
    pub timeout: Option<Duration>,
}

/// How a shell ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code.
    pub code: i32,
    /// The signal by which it ended itself, if it did.
    pub signal: Option<i32>,
    /// Whether it used up its memory.
    pub out_of_memory: bool,
    /// What a person should know.
    pub notes: Vec<String>,
}

impl Ended {
    /// With this code.
    pub fn with(code: i32, notes: Vec<String>) -> Self {
        Self { code, signal: None, out_of_memory: false, notes }
    }

    /// How its main process would have left, were it one.
    pub fn status(&self) -> Status {
        match self.signal {
            Some(signal) if self.code == 128 + signal => Status::Signal(signal),
            _ => Status::Code(self.code),
        }
    }
}

/// The switch by which a running shell is ended from outside. What it computes at the moment looks at it now and then.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    stop: Arc<AtomicBool>,
    inner: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl Switch {
    /// Ends the shell.
    pub fn throw(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(inner) = self.inner.get() {
            inner.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was thrown.
    pub fn is_thrown(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// A piece of output.
#[derive(Debug)]
pub enum Output {
    /// Of standard output.
    Out(Bytes),
    /// Of standard error.
    Err(Bytes),
}

/// Runs it to its end. `None` when it was ended from outside, or nobody takes its output any more.
pub async fn run(task: Task, output: mpsc::Sender<Output>, switch: Switch) -> Option<Ended> {
    let Task { script, positional, cwd, env, tree, input, modules, meter, timeout } = task;
    let metered = meter.enter();
    let memory = meter.limit();
    let share = |part: u64| usize::try_from(memory / part).unwrap_or(usize::MAX);
    let registry = BuiltinRegistry::new();
    own::register(&registry, &tree);
    let named =
        names::Named::new(registry.clone(), Arc::clone(&modules), Arc::clone(&tree), switch.clone(), &env);
    named.script(&script);
    let lent = Lent::new(tree, (memory / 4).min(MAX_FILE), named.clone());
    let kill = kill::Kill::default();
    let mut builder = Bash::builder()
        .fs(Arc::new(lent))
        .hostname(HOST)
        .cwd(PathBuf::from(cwd))
        .limits(limits(share(2), timeout))
        .session_limits(SessionLimits::unlimited())
        .memory_limits(
            MemoryLimits::unlimited().max_total_variable_bytes(share(4)).max_variable_count(1_000_000),
        )
        .builtin_registry(registry.clone())
        .before_tool(kill.hook())
        .command_resolver(Arc::new(names::Unknown));
    for (name, value) in env {
        builder = builder.env(name, value);
    }
    let mut bash = builder.build();
    let token = bash.cancellation_token();
    let _ = switch.inner.set(Arc::clone(&token));
    if switch.is_thrown() {
        return None;
    }
    let mut options = ExecOptions::new().arg0("sh").positional(positional);
    let cut = cut::notes(&script);
    let (of_jobs, mut left) = mpsc::channel(1);
    let script = jobs::watched(script, &registry, of_jobs);
    let script = match input {
        None => {
            options = options.stdin(StreamData::new());
            script
        }
        Some(input) => {
            // What it says nobody hears.
            let _ = bash.exec(&input::prelude()).await;
            input.wrap(script, &registry)
        }
    };
    metered.stop_by(token);
    let (out, err) = (output.clone(), output.clone());
    let running = async {
        bash.execute(&script)
            .options(options)
            .cancel_with(Arc::clone(&switch.stop))
            .stdout_fn(move |bytes| give(out.clone(), Output::Out(bytes.into())))
            .stderr_fn(move |bytes| give(err.clone(), Output::Err(bytes.into())))
            .await
    };
    let done = tokio::select! {
        done = running => Ok(done),
        Some(left) = left.recv() => Err(left),
    };
    let over_memory = metered.is_over();
    drop(metered);
    let mut notes = named.notes();
    notes.extend(cut);
    let done = match done {
        Ok(done) => done,
        Err(left) if !over_memory => {
            let jobs::Left { code, jobs } = left;
            notes.push(format!("wasm-jobs-ended: {jobs} background job(s) of the shell ended with it"));
            return Some(Ended::with(code & 0xff, notes));
        }
        Err(_) => Err(Error::Cancelled),
    };
    let signal = kill.signal();
    let ended = |code, out_of_memory| Some(Ended { code, signal, out_of_memory, notes: notes.clone() });
    match done {
        Ok(result) if !over_memory => ended(result.exit_code & 0xff, named.ran_out()),
        _ if switch.is_thrown() => None,
        Ok(_) => out_of_memory(&output, &ended).await,
        Err(_) if over_memory => out_of_memory(&output, &ended).await,
        Err(Error::ResourceLimit(limit)) if is_of_memory(&limit) => out_of_memory(&output, &ended).await,
        Err(Error::Cancelled | Error::ResourceLimit(LimitExceeded::Timeout(_))) => None,
        Err(Error::Io(_)) if output.is_closed() => None,
        Err(Error::ResourceLimit(limit)) => bounded(&output, &ended, limit.to_string()).await,
        Err(Error::Execution(what)) if what.starts_with(TOO_LARGE) => bounded(&output, &ended, what).await,
        Err(error @ Error::Parse { .. }) => {
            say(&output, &format!("sh: {error}\n")).await;
            ended(2, false)
        }
        Err(error) => {
            say(&output, &format!("sh: {error}\n")).await;
            ended(1, false)
        }
    }
}

async fn out_of_memory(
    output: &mpsc::Sender<Output>,
    ended: &impl Fn(i32, bool) -> Option<Ended>,
) -> Option<Ended> {
    say(output, "sh: killed: the sandbox's memory limit was reached\n").await;
    ended(137, true)
}

/// The shell came to a bound of its own, which does not let itself be set.
async fn bounded(
    output: &mpsc::Sender<Output>,
    ended: &impl Fn(i32, bool) -> Option<Ended>,
    what: String,
) -> Option<Ended> {
    let line = format!("wasm-shell-limit: {what}");
    say(output, &format!("sh: {line}\n")).await;
    ended(1, false).map(|mut ended| {
        ended.notes.push(line);
        ended
    })
}

async fn say(output: &mpsc::Sender<Output>, text: &str) {
    let _ = output.send(Output::Err(Bytes::copy_from_slice(text.as_bytes()))).await;
}

async fn give(output: mpsc::Sender<Output>, piece: Output) -> bashkit::Result<()> {
    let (mut bytes, whose): (_, fn(Bytes) -> Output) = match piece {
        Output::Out(bytes) => (bytes, Output::Out),
        Output::Err(bytes) => (bytes, Output::Err),
    };
    meter::handed_over(bytes.len());
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(PIECE));
        output.send(whose(part)).await.map_err(|_| Error::Io(std::io::ErrorKind::BrokenPipe.into()))?;
    }
    Ok(())
}

fn is_of_memory(limit: &LimitExceeded) -> bool {
    use bashkit::ExecutionBudgetExceeded as Budget;

    matches!(limit, LimitExceeded::Memory(_) | LimitExceeded::ExecutionBudget(Budget::LiveBytes { .. }))
}

/// What a shell may do: as much as its time and its memory allow. What is left bounds the depth of its own stack.
fn limits(live: usize, timeout: Option<Duration>) -> ExecutionLimits {
    let mut limits = ExecutionLimits::new();
    limits.max_work_units = u64::MAX / 2;
    limits.max_aggregate_input_bytes = u64::MAX / 2;
    limits.max_live_intermediate_bytes = live as u64;
    limits.max_commands = usize::MAX;
    // More than the shell gets through in the longest time that a command may have. `awk` counts its own loops by it, which
    // nothing else ends.
    limits.max_loop_iterations = MAX_TURNS;
    limits.max_total_loop_iterations = MAX_TURNS;
    limits.timeout = timeout.map_or(NEVER, |timeout| timeout + LATER);
    limits.parser_timeout = Duration::from_secs(30);
    limits.max_input_bytes = MAX_SCRIPT;
    limits.max_parser_operations = 50_000_000;
    limits.max_stdout_bytes = usize::MAX / 4;
    limits.max_stderr_bytes = usize::MAX / 4;
    limits.max_word_split_fields = 10_000_000;
    limits.max_word_split_bytes = live;
    limits
}

/// The variables that every command finds, but for what its request sets.
pub fn environment(files: bool) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        [("HOME", moltis_host::target::HOME), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    if let Some(zone) = moltis_host::caller::time_zone().and_then(|zone| zone.into_string().ok()) {
        all.push(("TZ".to_owned(), zone));
    }
    if files {
        all.push(("MOLTIS_FILES_DIR".to_owned(), moltis_host::target::FILES.to_owned()));
    }
    all
}

/// Later ones win over earlier ones of the same name.
pub fn merged(all: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut last: HashMap<String, usize> = HashMap::new();
    let mut merged: Vec<(String, String)> = Vec::new();
    for (name, value) in all {
        match last.get(&name) {
            Some(at) => merged[*at].1 = value,
            None => {
                last.insert(name.clone(), merged.len());
                merged.push((name, value));
            }
        }
    }
    merged
}
