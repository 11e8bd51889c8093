//! `exec`: a command in the sandbox, to its end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moltis_config::value::flag::MAX_TIMEOUT;
use moltis_runtime::answer::Answer;
use moltis_runtime::{Capped, Collected};
use moltis_sandbox::exec::{Command, Ending, ExecControl, ExecEvent, ExecRequest, Outcome, ProcessId};
use moltis_sandbox::{Diagnosis, Error, Exec, Result, Sandbox};
use rmcp::model::Tool;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Manner, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::place::Open;
use crate::progress::Progress;
use crate::schema::{array, boolean, input, integer, may, needs, number, object, output, string, texts};
use crate::server::Call;

/// Bytes of each stream that an answer keeps unless the call says otherwise.
pub(crate) const KEPT: u64 = 16 * 1024;

/// Time that a command has to end once nobody waits for it. Then its connection is cut, which ends it too.
const GRACE: Duration = Duration::from_secs(8);

/// Longest time that a command may take, in seconds.
pub(crate) const MAX_SECS: u64 = MAX_TIMEOUT.as_secs();

#[derive(Deserialize)]
pub(crate) struct Arguments {
    command: String,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    stdin: Option<String>,
    timeout_secs: Option<u64>,
    max_output_bytes: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    super::tool(
        "exec",
        "Run a command",
        "Runs a shell command in the sandbox and waits for its end. Gives exit code, standard output and standard \
         error. Each call is a shell of its own: `cd` and variables do not last, files do. A command that fails is an \
         ordinary answer with its exit code. When its time is up, the command and all that it started are ended and \
         what it printed so far is given. For something that goes on, such as a server, use process_start. Of long \
         output the head and the tail are given; write it to a file and read that for the rest.",
        input(vec![
            needs("command", string("A line for `sh -c`, as in `cargo test 2>&1 | tail -n 40`")),
            may(
                "cwd",
                string("Directory to run it in; otherwise the workspace, or the home where there is none"),
            ),
            may("env", texts("Variables to set for it")),
            may("stdin", string("What it reads from standard input; otherwise that is empty")),
            may(
                "timeout_secs",
                integer(
                    "Seconds that it may take; 30 unless the configuration says otherwise",
                    1,
                    Some(MAX_SECS),
                ),
            ),
            may(
                "max_output_bytes",
                integer(
                    "Bytes of each stream to give at most, head and tail; otherwise 16384. Ask for more only when \
                     the middle matters",
                    0,
                    None,
                ),
            ),
        ]),
        output(answer_schema()),
        &Manner { read_only: false, destructive: true, idempotent: false, open_world: true },
    )
}

/// The fields of [`Answer`].
fn answer_schema() -> Vec<crate::schema::Property> {
    let mut all = vec![
        needs(
            "exitCode",
            integer("What a shell would show: the code, 128 + signal, 124 when its time was up", 0, None),
        ),
        may("signal", integer("The signal that ended it", 1, None)),
        needs("timedOut", boolean("Its time was up")),
        needs("cancelled", boolean("It was ended because the call was taken back")),
        needs("durationMs", number("How long it took")),
    ];
    for (text, encoding, bytes, cut) in [
        ("stdout", "stdoutEncoding", "stdoutBytes", "stdoutCut"),
        ("stderr", "stderrEncoding", "stderrBytes", "stderrCut"),
    ] {
        all.push(needs(text, string("What it printed; where bytes are left out a line says so")));
        all.push(may(encoding, string("`base64` where it is not UTF-8")));
        all.push(needs(bytes, integer("Bytes that it printed", 0, None)));
        all.push(needs(cut, integer("Bytes of them that are left out", 0, None)));
    }
    let leftover =
        object("A process", vec![needs("pid", integer("", 0, None)), needs("command", string(""))]);
    let not_enforced = object("A setting", vec![needs("key", string("")), needs("reason", string(""))]);
    all.extend([
        needs("leftovers", array("Processes that it left running, the first 64", leftover)),
        needs("leftoversTotal", integer("How many there are", 0, None)),
        may("outOfMemory", boolean("The memory limit was hit while it ran")),
        may("newlyDangerous", array("Files it made that the user's machine may run later", string(""))),
        may("newlyDangerousTotal", integer("How many there are", 0, None)),
        needs("backend", string("What holds the sandbox")),
        needs("sandboxId", string("Which sandbox")),
        may("session", string("Which session")),
        needs("notEnforced", array("Defaults that this backend does not keep", not_enforced)),
        may("notes", array("What else is to be known", string(""))),
        may("restarted", string("Why this is a new sandbox, if there was one before")),
        may(
            "lost",
            array(
                "Earlier commands of which nobody knows how they ended",
                serde_json::json!({ "type": "object" }),
            ),
        ),
    ]);
    all
}

/// The request for a command that a model names.
pub(crate) fn request(
    tool: &'static str,
    open: &Open,
    command: String,
    cwd: Option<&str>,
    env: BTreeMap<String, String>,
) -> Result<ExecRequest> {
    let wrong =
        |why: &str, fix: &str| ToolError::Arguments { tool, why: why.to_owned(), fix: fix.to_owned() };
    if command.contains('\0') {
        return Err(wrong("`command` holds a NUL byte", "take it out").into());
    }
    if command.trim().is_empty() {
        return Err(wrong("`command` is empty", "name a command").into());
    }
    if env.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')) {
        return Err(
            wrong("`env` holds what is no variable", "use names without `=`, and no NUL bytes").into()
        );
    }
    let mut request = ExecRequest::new(Command::Shell(OsString::from(command)));
    request.cwd = cwd.map(|cwd| open.path(cwd)).transpose()?;
    request.env = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    Ok(request)
}

/// The time that a call asks for.
pub(crate) fn timeout(tool: &'static str, secs: Option<u64>) -> Result<Option<Duration>> {
    match secs {
        Some(secs) if !(1..=MAX_SECS).contains(&secs) => Err(ToolError::Arguments {
            tool,
            why: format!("`timeout_secs` is {secs}"),
            fix: format!("use a number from 1 to {MAX_SECS}; for what takes longer there is process_start"),
        }
        .into()),
        secs => Ok(secs.map(Duration::from_secs)),
    }
}

pub(crate) async fn run(call: &Call, args: Arguments, news: &mut Vec<String>) -> Result<Answered> {
    let runtime = call.runtime();
    let most = runtime.max_output_bytes();
    let cap = args.max_output_bytes.map_or(KEPT.min(most), |asked| asked.min(most));
    let limit = timeout("exec", args.timeout_secs)?.unwrap_or_else(|| runtime.default_timeout());
    let progress = call.progress(Some(limit));
    let done = async {
        let starting = async {
            let mut open = call.open_telling(progress.as_ref()).await?;
            *news = open.news();
            let mut request = request("exec", &open, args.command, args.cwd.as_deref(), args.env)?;
            request.timeout = Some(limit);
            request.stdin = args.stdin.is_some();
            let exec = open.exec(request).await?;
            *news = open.news();
            Ok::<_, Error>((open, exec))
        };
        let (open, exec) = tokio::select! {
            started = starting => started?,
            // If it has started, dropping it ends it.
            () = call.ended() => return Err(ToolError::Cancelled.into()),
        };
        let cap = usize::try_from(cap).unwrap_or(usize::MAX);
        let ran = follow(call, exec, open.sandbox(), args.stdin, cap, progress.as_ref()).await?;
        Ok((open, ran))
    };
    let done: Result<_> = done.await;
    if let Some(progress) = progress {
        progress.finish().await;
    }
    let (open, Ran { outcome, stdout, stderr }) = done?;
    let exit_code = outcome.exit_code();
    let answer = Answer {
        session: open.session().cloned(),
        backend: open.backend(),
        sandbox_id: open.sandbox().id().clone(),
        outcome,
        exit_code,
        stdout,
        stderr,
        not_enforced: open.not_enforced().to_vec(),
        notes: open.notes().to_vec(),
        restarted: open.restarted(),
        lost: open.lost().to_vec(),
    };
    answered(&answer, limit, open.news())
}

/// A command that is over.
struct Ran {
    outcome: Outcome,
    stdout: Collected,
    stderr: Collected,
}

/// Brings it to its end. If the call is taken back, it is ended; its end is waited for, so that it is known.
async fn follow(
    call: &Call,
    exec: Exec,
    sandbox: &Arc<dyn Sandbox>,
    stdin: Option<String>,
    cap: usize,
    progress: Option<&Progress>,
) -> Result<Ran> {
    let Exec { mut events, control } = exec;
    let (mut stdout, mut stderr) = (Capped::new(cap), Capped::new(cap));
    // Held to the end: dropping it could be taken for the loss of the caller.
    let mut feeding = std::pin::pin!(feed(control, stdin));
    let mut held: Option<Box<dyn ExecControl>> = None;
    let mut process: Option<ProcessId> = None;
    let mut until: Option<Instant> = None;
    let outcome = loop {
        let time_is_up = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = events.next() => event,
            control = &mut feeding, if held.is_none() => {
                held = Some(control);
                continue;
            }
            () = call.ended(), if until.is_none() => {
                until = Some(Instant::now() + GRACE);
                let Some(process) = process else { return Err(ToolError::Cancelled.into()) };
                // By a connection of its own: the command's may be full of input that nobody reads.
                let sandbox = Arc::clone(sandbox);
                tokio::spawn(async move { drop(sandbox.stop(process).await) });
                continue;
            }
            () = time_is_up => return Err(ToolError::Cancelled.into()),
        };
        match event {
            Some(Ok(ExecEvent::Started(id))) => process = Some(id),
            Some(Ok(ExecEvent::Stdout(bytes))) => {
                stdout.push(&bytes);
                if let Some(progress) = progress {
                    progress.printed(&bytes);
                }
            }
            Some(Ok(ExecEvent::Stderr(bytes))) => {
                stderr.push(&bytes);
                if let Some(progress) = progress {
                    progress.printed(&bytes);
                }
            }
            Some(Ok(ExecEvent::Missed { .. })) => {}
            Some(Ok(ExecEvent::Exit(outcome))) => break outcome,
            Some(Err(error)) => return Err(error),
            None => return Err(moltis_runtime::error::ended_without_exit()),
        }
    };
    Ok(Ran { outcome, stdout: stdout.into(), stderr: stderr.into() })
}

/// Passes the input on, and gives the control back, to be held.
async fn feed(mut control: Box<dyn ExecControl>, stdin: Option<String>) -> Box<dyn ExecControl> {
    if let Some(text) = stdin {
        // The event stream tells why, if it cannot.
        let sent = control.stdin(Bytes::from(text)).await;
        if sent.is_ok() {
            let _ = control.close_stdin().await;
        }
    }
    control
}

/// The answer as a model reads it: output first, then how it ended, then what is not as one might think.
fn answered(answer: &Answer, limit: Duration, news: Vec<String>) -> Result<Answered> {
    let mut text = String::new();
    shown::append(&mut text, &shown::output(&answer.stdout));
    if !answer.stderr.bytes.is_empty() {
        text.push_str("[standard error]\n");
        shown::append(&mut text, &shown::output(&answer.stderr));
    }
    let outcome = &answer.outcome;
    let took = outcome.duration.as_secs_f64();
    let is_error = outcome.ending != Ending::Exited;
    let how = match outcome.ending {
        Ending::Exited => format!("exit code {}", answer.exit_code),
        Ending::TimedOut => format!(
            "its time of {} s was up: the command and all that it started were ended; set `timeout_secs`, or use \
             process_start",
            limit.as_secs_f64()
        ),
        Ending::Cancelled => "it was ended, as asked".to_owned(),
    };
    text.push_str(&format!("[{how}, {took:.2} s]\n"));
    if outcome.out_of_memory {
        text.push_str("[the sandbox's memory limit was hit while it ran]\n");
    }
    if outcome.leftovers_total > 0 {
        let names: Vec<_> =
            outcome.leftovers.iter().take(8).map(|left| format!("{} ({})", left.pid, left.command)).collect();
        let many = shown::count(outcome.leftovers_total.into(), "process", "processes");
        text.push_str(&format!("[it left {many} running: {}]\n", names.join(", ")));
    }
    if outcome.newly_dangerous_total > 0 {
        let names = outcome.newly_dangerous.join(", ");
        text.push_str(&format!("[tell the user: the machine may run these new files later: {names}]\n"));
    }
    for line in news {
        shown::append(&mut text, &line);
    }
    for note in answer.notes.iter().chain(&outcome.notes) {
        text.push_str(&format!("[note: {note}]\n"));
    }
    if !answer.not_enforced.is_empty() {
        let keys: Vec<_> = answer.not_enforced.iter().map(|left| left.key.as_str()).collect();
        text.push_str(&format!("[not enforced here: {}]\n", keys.join(", ")));
    }
    let data = serde_json::to_value(answer).map_err(|error| {
        Error::Lost(Diagnosis::new("exec-lost", "the answer cannot be written").cause(error).fix("report it"))
    })?;
    Ok(Answered { is_error, ..Answered::new(text, data) })
}
