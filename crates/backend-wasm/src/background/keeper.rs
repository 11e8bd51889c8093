//! A process of its own that holds a background command, so that it outlives whoever started it: this program again,
//! which is told on its standard input what to run and says there whether it does.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use moltis_sandbox::SandboxId;
use serde::{Deserialize, Serialize};

use super::holder;
use crate::WasmBackend;
use crate::backend::Config;
use crate::commands::Asked;
use crate::error::{Error, Result, long};
use crate::sandbox::Inner;

/// The one argument by which this program knows that it is one.
const ARGUMENT: &str = "__hold-background-command";

/// Longest message to it.
const MAX: u64 = 32 << 20;

/// What it says once the command runs.
const RUNS: &str = "runs";

static ABLE: AtomicBool = AtomicBool::new(false);

/// To be called first in `main`. If this process is to hold a background command, it does so, and then is to leave with
/// this status; else it is known from now on that others of this program can.
#[must_use]
pub fn keeper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(ARGUMENT)) && arguments.next().is_none() {
        return Some(hold());
    }
    ABLE.store(true, Ordering::Relaxed);
    None
}

/// Whether this program can be one.
pub fn can_be_one() -> bool {
    ABLE.load(Ordering::Relaxed)
}

/// What it is told.
#[derive(Serialize, Deserialize)]
struct Task {
    config: Config,
    sandbox: String,
    created_nanos: u64,
    number: u32,
    asked: Asked,
}

/// Starts one, and waits until the command runs.
///
/// # Errors
/// [`Error::Keeper`].
pub async fn start(inner: &Arc<Inner>, number: u32, asked: Asked) -> Result<()> {
    let task = Task {
        config: inner.config.clone(),
        sandbox: inner.id.as_str().to_owned(),
        created_nanos: inner.record.created_nanos,
        number,
        asked,
    };
    long(move || {
        let failed = |cause: String| Error::Keeper(cause);
        let message = serde_json::to_vec(&task).map_err(|e| failed(e.to_string()))?;
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(program);
        // Nothing of the caller's comes along but the time zone.
        command.arg(ARGUMENT).env_clear().current_dir("/");
        command.envs(std::env::var_os("TZ").map(|zone| ("TZ", zone)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let told = child.stdin.take().map(|mut stdin| stdin.write_all(&message));
        let mut answer = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout.take(4096)).read_line(&mut answer);
        }
        let answer = answer.trim_end();
        let reaped = thread::Builder::new().name("moltis-wasm-reap".to_owned()).spawn(move || child.wait());
        if answer == RUNS && reaped.is_ok() {
            return Ok(());
        }
        let cause = match told {
            _ if !answer.is_empty() => answer.to_owned(),
            Some(Err(error)) => error.to_string(),
            _ => "it said nothing".to_owned(),
        };
        Err(failed(cause))
    })
    .await
}

fn hold() -> ExitCode {
    // The terminal of whoever started it is none of its own.
    let _ = rustix::process::setsid();
    match held() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&why);
            ExitCode::FAILURE
        }
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    let line = format!("{}\n", word.replace('\n', " "));
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn held() -> Result<(), String> {
    let mut message = Vec::new();
    std::io::stdin().take(MAX).read_to_end(&mut message).map_err(|e| e.to_string())?;
    let task: Task = serde_json::from_slice(&message).map_err(|e| e.to_string())?;
    let id = SandboxId::parse(&task.sandbox).ok_or("it was named no sandbox")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let backend = WasmBackend::new(task.config);
        let inner = backend.this_very(&id, task.created_nanos).ok_or("the sandbox has ended")?;
        let running =
            holder::begin(&inner, task.number, task.asked).await.map_err(|error| error.to_string())?;
        say(RUNS);
        running.hold().await;
        Ok(())
    })
}
