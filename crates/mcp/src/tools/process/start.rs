//! `process_start`: a command that goes on.

use std::collections::BTreeMap;

use moltis_sandbox::Result;
use moltis_sandbox::exec::ExecEvent;
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use crate::answer::Answered;
use crate::schema::{array, input, integer, may, needs, object, output, string, texts};
use crate::server::Call;
use crate::tools::exec::{MAX_SECS, request, timeout};
use crate::tools::{Manner, shown};

#[derive(Deserialize)]
pub(crate) struct Arguments {
    command: String,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    timeout_secs: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    let not_enforced = object("A setting", vec![needs("key", string("")), needs("reason", string(""))]);
    crate::tools::tool(
        "process_start",
        "Start a background command",
        "Starts a shell command that goes on in the sandbox, such as a server or a long build, and gives its number at \
         once. See what it prints by process_output, send it input by process_input, end it by process_stop. Other \
         commands of the sandbox reach its ports on 127.0.0.1.",
        input(vec![
            needs("command", string("A line for `sh -c`")),
            may(
                "cwd",
                string("Directory to run it in; otherwise the workspace, or the home where there is none"),
            ),
            may("env", texts("Variables to set for it")),
            may(
                "timeout_secs",
                integer("Seconds after which it is ended; otherwise it may go on", 1, Some(MAX_SECS)),
            ),
        ]),
        output(vec![
            needs("process", integer("Its number", 0, None)),
            needs("notEnforced", array("Defaults that this backend does not keep", not_enforced)),
            needs("notes", array("What else is to be known", string(""))),
        ]),
        &Manner { read_only: false, destructive: true, idempotent: false, open_world: true },
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let limit = timeout("process_start", args.timeout_secs)?;
    let mut open = call.open().await?;
    let mut request = request("process_start", &open, args.command, args.cwd.as_deref(), args.env)?;
    request.timeout = limit;
    request.background = true;
    // It is sent later, by another call.
    request.stdin = true;
    let mut exec = open.exec(request).await?;
    let process = loop {
        match exec.events.next().await {
            Some(Ok(ExecEvent::Started(process))) => break process,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(moltis_runtime::error::ended_without_exit()),
        }
    };
    let mut text = format!("process {process} has been started\n");
    for line in open
        .news()
        .iter()
        .chain(&open.notes().iter().map(|note| format!("[note: {note}]")).collect::<Vec<_>>())
    {
        shown::append(&mut text, line);
    }
    let data = json!({ "process": process, "notEnforced": open.not_enforced(), "notes": open.notes() });
    Ok(Answered::new(text, data))
}
