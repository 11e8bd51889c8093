//! `process_input`: what a background command reads.

use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::exec::{ExecEvent, ProcessId};
use moltis_sandbox::{Error, Exec, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::{NO_OUTPUT, how, running, sandbox};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{boolean, input, integer, may, needs, output, string};
use crate::server::Call;
use crate::tools::{Manner, shown};

/// Time that a command has to read what it is sent.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
pub(crate) struct Arguments {
    process: u32,
    #[serde(default)]
    text: String,
    #[serde(default)]
    close: bool,
}

pub(crate) fn tool() -> Tool {
    crate::tools::tool(
        "process_input",
        "Send input to a background command",
        "Sends text to the standard input of a background command, as it stands: end a line with a newline. With `close` \
         the input ends after it.",
        input(vec![
            needs("process", integer("Its number, as process_start gave it", 0, None)),
            may("text", string("What to send")),
            may("close", boolean("End its input")),
        ]),
        output(vec![
            needs("process", integer("Its number", 0, None)),
            needs("bytes", integer("Bytes that were sent", 0, None)),
            needs("closed", boolean("Whether its input was ended")),
        ]),
        &Manner { read_only: false, destructive: true, idempotent: false, open_world: false },
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let process = ProcessId(args.process);
    let sandbox = sandbox(call, process).await?;
    running(&*sandbox, process).await?;
    let Exec { mut events, mut control } = sandbox.attach(process, NO_OUTPUT, NO_OUTPUT, true).await?;
    let bytes = args.text.len();
    let sending = async {
        if bytes > 0 {
            control.stdin(Bytes::from(args.text)).await?;
        }
        if args.close {
            control.close_stdin().await?;
        }
        Ok::<_, Error>(())
    };
    let over = async {
        loop {
            match events.next().await {
                Some(Ok(ExecEvent::Exit(outcome))) => {
                    return ToolError::ProcessEnded { process, how: how(&outcome) }.into();
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => return moltis_runtime::error::ended_without_exit(),
            }
        }
    };
    tokio::select! {
        // What was taken was taken, though it may be over by now.
        biased;
        sent = sending => sent?,
        over = over => return Err(over),
        () = tokio::time::sleep(PATIENCE) => return Err(ToolError::InputNotRead(process).into()),
    }
    let end = if args.close { ", and its input has ended" } else { "" };
    let text = format!("sent {} to process {process}{end}", shown::count(bytes as u64, "byte", "bytes"));
    Ok(Answered::new(text, json!({ "process": process, "bytes": bytes, "closed": args.close })))
}
