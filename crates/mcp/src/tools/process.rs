//! Background commands: started, watched, fed and stopped. They live in the sandbox.

pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod start;
pub(crate) mod stop;

use std::sync::Arc;

use moltis_runtime::json::Ended;
use moltis_sandbox::exec::{Outcome, ProcessId};
use moltis_sandbox::{Error, ProcessInfo, Result, Sandbox};
use serde_json::{Map, Value};

use crate::error::ToolError;
use crate::schema::{Property, boolean, integer, may, number};
use crate::server::Call;

/// Offsets of a watcher who wants no output.
const NO_OUTPUT: u64 = u64::MAX;

/// How a background command ended, as data; absent while it runs.
fn end_schema() -> Vec<Property> {
    vec![
        may("exitCode", integer("What a shell would show, once it is over", 0, None)),
        may("signal", integer("The signal that ended it", 1, None)),
        may("timedOut", boolean("Its time was up")),
        may("cancelled", boolean("Somebody stopped it")),
        may("durationMs", number("How long it ran")),
    ]
}

/// Writes how it ended into an answer.
fn tell_end(outcome: &Outcome, data: &mut Value) {
    let ended: Map<_, _> = match serde_json::to_value(Ended::from(outcome)) {
        Ok(Value::Object(ended)) => ended,
        _ => Map::new(),
    };
    if let Value::Object(data) = data {
        data.extend(ended);
    }
}

/// How it ended, in words.
fn how(outcome: &Outcome) -> String {
    let ended = Ended::from(outcome);
    let how = match ended.signal {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("exit code {}", outcome.status.shell_code()),
    };
    match (ended.timed_out, ended.cancelled) {
        (true, _) => "its time was up".to_owned(),
        (_, true) => format!("stopped, {how}"),
        _ => how,
    }
}

/// The sandbox in which the command runs. None is started for it: what ran in one that is gone is gone with it.
async fn sandbox(call: &Call, process: ProcessId) -> Result<Arc<dyn Sandbox>> {
    let found = call.place().found(call.runtime()).await?;
    found.ok_or_else(|| ToolError::ProcessMissing(process).into())
}

/// A background command that runs.
///
/// # Errors
/// `process-missing`, `process-ended`.
async fn running(sandbox: &dyn Sandbox, process: ProcessId) -> Result<ProcessInfo> {
    let known = sandbox.processes().await?;
    let Some(info) = known.into_iter().find(|info| info.id == process) else {
        return Err(ToolError::ProcessMissing(process).into());
    };
    match &info.outcome {
        None => Ok(info),
        Some(outcome) => Err(ToolError::ProcessEnded { process, how: how(outcome) }.into()),
    }
}

/// An agent's answer that there is none, in the words of these tools.
fn missing(process: ProcessId, error: Error) -> Error {
    if error.code() == "process-missing" { ToolError::ProcessMissing(process).into() } else { error }
}
