//! `moltis process`: background commands, found in sandboxes that run. Nothing is started for them.

mod input;
mod output;

use std::sync::Arc;

use moltis_runtime::json::{Ended, Process};
use moltis_runtime::{Runtime, error};
use moltis_sandbox::exec::{ExecEvent, Outcome, ProcessId};
use moltis_sandbox::{Diagnosis, Error, ProcessInfo, Sandbox, SessionKey};

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::{flags, render, signal_name};

/// Offsets of a watcher who wants no output.
const NO_OUTPUT: u64 = u64::MAX;

/// Code of the answer that there is no such background command.
const MISSING: &str = "process-missing";

/// Runs one of them; gives the exit status.
pub async fn run(global: &Global, command: args::Process) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    match command {
        args::Process::List(args) => list(&runtime, &args).await,
        args::Process::Output(args) => output::run(&runtime, &args).await,
        args::Process::Input(args) => input::run(&runtime, &args).await,
        args::Process::Stop(args) => stop(&runtime, &args).await,
    }
}

async fn list(runtime: &Runtime, args: &args::List) -> Result<i32, Failure> {
    let found = match args.key.as_ref().or(args.session.as_ref()) {
        Some(key) => of_one(runtime, flags::session_key(key)?).await?,
        None => {
            let mut found = Vec::new();
            let all = runtime.sandboxes().await?;
            for key in all.into_iter().filter(|info| info.running).filter_map(|info| info.session) {
                // One that ends meanwhile holds none any more.
                found.extend(of_one(runtime, key).await.unwrap_or_default());
            }
            found
        }
    };
    if args.json {
        let told: Vec<_> = found.iter().map(|(key, process)| told(key, process)).collect();
        return print_json(&serde_json::json!({ "processes": told }));
    }
    if found.is_empty() {
        return print("No background commands.\n");
    }
    let mut rows = vec![["SESSION", "PROCESS", "STATE", "STARTED", "COMMAND"].map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|(key, process)| {
        vec![
            render::name(key.as_str()),
            process.id.to_string(),
            process.outcome.as_ref().map_or("running".to_owned(), ending),
            render::age(process.started_millis),
            render::one_line(&process.command),
        ]
    }));
    print(&render::table(&rows))
}

/// Those of one session. A sandbox that does not run holds none.
async fn of_one(runtime: &Runtime, key: SessionKey) -> Result<Vec<(SessionKey, ProcessInfo)>, Failure> {
    let Some((_, sandbox)) = runtime.find_sandbox(&key).await? else { return Ok(Vec::new()) };
    let processes = sandbox.processes().await?;
    Ok(processes.into_iter().map(|process| (key.clone(), process)).collect())
}

fn told(key: &SessionKey, process: &ProcessInfo) -> serde_json::Value {
    let mut told = serde_json::json!(Process::from(process));
    told["session"] = serde_json::json!(key);
    told
}

/// How a command ended, in a word or two.
fn ending(outcome: &Outcome) -> String {
    let ended = Ended::from(outcome);
    let how = match ended.signal {
        Some(signal) => format!("signal {}", signal_name::show(signal)),
        None => format!("exit {}", outcome.status.shell_code()),
    };
    match (ended.timed_out, ended.cancelled) {
        (true, _) => "time was up".to_owned(),
        (_, true) => format!("stopped, {how}"),
        _ => how,
    }
}

async fn stop(runtime: &Runtime, args: &args::Stop) -> Result<i32, Failure> {
    let (key, process) = which(&args.which)?;
    let signal = args.signal.as_deref().map(signal_name::parse).transpose()?;
    let (_, sandbox) = runtime.running_sandbox(&key).await?;
    let Some(signal) = signal else {
        let outcome = sandbox.stop(process).await.map_err(|error| missing(process, error))?;
        if args.json {
            let told = serde_json::json!(Ended::from(&outcome));
            return print_json(&with(told, &key, process));
        }
        let took = render::took(outcome.duration);
        return print(&format!("process {process} is over after {took}: {}\n", ending(&outcome)));
    };
    see_running(&sandbox, process).await?;
    let mut watch = sandbox.attach(process, NO_OUTPUT, NO_OUTPUT, true).await?;
    watch.control.signal(signal).await?;
    if args.json {
        return print_json(&with(serde_json::json!({ "sent": signal }), &key, process));
    }
    print(&format!("sent {} to process {process}\n", signal_name::show(signal)))
}

fn with(mut told: serde_json::Value, key: &SessionKey, process: ProcessId) -> serde_json::Value {
    told["session"] = serde_json::json!(key);
    told["process"] = serde_json::json!(process);
    told
}

fn which(which: &args::Which) -> Result<(SessionKey, ProcessId), Failure> {
    Ok((flags::session_key(&which.key)?, ProcessId(which.process)))
}

/// Sees that a background command runs.
///
/// # Errors
/// `process-missing`, `process-ended`.
async fn see_running(sandbox: &Arc<dyn Sandbox>, process: ProcessId) -> Result<(), Failure> {
    let known = sandbox.processes().await?;
    let Some(info) = known.iter().find(|info| info.id == process) else {
        return Err(no_such(process));
    };
    match &info.outcome {
        None => Ok(()),
        Some(outcome) => Err(ended(process, outcome)),
    }
}

/// An agent's answer that there is none, in the words of this program.
fn missing(process: ProcessId, error: Error) -> Failure {
    if error.code() == MISSING { no_such(process) } else { error.into() }
}

fn no_such(process: ProcessId) -> Failure {
    Error::Invalid(
        Diagnosis::new(MISSING, format!("there is no background command {process}"))
            .fix("`moltis process list` names those that there are"),
    )
    .into()
}

fn ended(process: ProcessId, outcome: &Outcome) -> Failure {
    let message = format!("process {process} is over: {}", ending(outcome));
    Error::Invalid(
        Diagnosis::new("process-ended", message).fix("`moltis process output` shows what it printed"),
    )
    .into()
}

/// What a watcher is told, until the end.
async fn next(watch: &mut moltis_sandbox::Exec, follow: bool) -> Result<Option<ExecEvent>, Failure> {
    match watch.events.next().await {
        Some(event) => Ok(Some(event?)),
        // Without following, the end of what is there is the end.
        None if !follow => Ok(None),
        None => Err(error::ended_without_exit().into()),
    }
}
