//! `process_output`: what a background command printed.

use std::time::Duration;

use moltis_runtime::answer::text_or_base64;
use moltis_runtime::{Capped, Collected};
use moltis_sandbox::exec::{ExecEvent, Outcome, ProcessId};
use moltis_sandbox::{Exec, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{end_schema, how, missing, sandbox, tell_end};
use crate::answer::Answered;
use crate::schema::{boolean, input, integer, may, needs, output, string};
use crate::server::Call;
use crate::tools::exec::KEPT;
use crate::tools::{LOOKS, shown};

/// Longest wait for output, in seconds.
const MAX_WAIT: u64 = 60;

/// What comes so soon after the first output belongs to it.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
pub(crate) struct Arguments {
    process: u32,
    #[serde(default)]
    stdout_from: u64,
    #[serde(default)]
    stderr_from: u64,
    #[serde(default)]
    wait_secs: u64,
}

pub(crate) fn tool() -> Tool {
    let mut fields =
        vec![needs("process", integer("Its number", 0, None)), needs("running", boolean("Whether it runs"))];
    for [text, encoding, next, cut, missed] in [
        ["stdout", "stdoutEncoding", "stdoutNext", "stdoutCut", "stdoutMissed"],
        ["stderr", "stderrEncoding", "stderrNext", "stderrCut", "stderrMissed"],
    ] {
        fields.push(needs(text, string("What it printed since the offset")));
        fields.push(may(encoding, string("`base64` where it is not UTF-8")));
        fields.push(needs(next, integer("Offset of what comes next", 0, None)));
        fields.push(needs(cut, integer("Bytes in the middle that are left out", 0, None)));
        fields.push(needs(missed, integer("Bytes that the sandbox does not keep any more", 0, None)));
    }
    fields.extend(end_schema());
    crate::tools::tool(
        "process_output",
        "Read a background command's output",
        "Gives what a background command has printed, from byte offsets on, whether it runs, and how it ended. Without \
         offsets it is all from the beginning; to see only what is new, pass `stdoutNext` and `stderrNext` of the answer \
         before. With `wait_secs` it waits until something new is printed or the command is over. Of long output the \
         head and the tail are given.",
        input(vec![
            needs("process", integer("Its number, as process_start gave it", 0, None)),
            may("stdout_from", integer("Offset in standard output from which to read", 0, None)),
            may("stderr_from", integer("Offset in standard error from which to read", 0, None)),
            may("wait_secs", integer("Seconds to wait for something new", 0, Some(MAX_WAIT))),
        ]),
        output(fields),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let process = ProcessId(args.process);
    let sandbox = sandbox(call, process).await?;
    let wait = Duration::from_secs(args.wait_secs.min(MAX_WAIT));
    let follow = !wait.is_zero();
    let watch = sandbox.attach(process, args.stdout_from, args.stderr_from, follow).await;
    let watch = watch.map_err(|error| missing(process, error))?;
    let cap = usize::try_from(KEPT.min(call.runtime().max_output_bytes())).unwrap_or(usize::MAX);
    let Seen { stdout, stderr, missed, outcome } =
        collect(watch, cap, follow.then(|| Instant::now() + wait)).await?;
    let mut data = json!({ "process": process, "running": outcome.is_none() });
    let mut text = String::new();
    let streams =
        [("stdout", stdout, args.stdout_from, missed[0]), ("stderr", stderr, args.stderr_from, missed[1])];
    for (name, capped, from, missed) in streams {
        let mut stream = Collected::from(capped);
        let mut next = from + missed + stream.total;
        if outcome.is_none() {
            next -= leave_half_a_character(&mut stream.bytes);
        }
        if missed > 0 {
            text.push_str(&format!("[{missed} bytes of {name} are not kept any more]\n"));
        }
        if name == "stderr" && !stream.bytes.is_empty() {
            text.push_str("[standard error]\n");
        }
        shown::append(&mut text, &shown::output(&stream));
        let (content, encoding) = text_or_base64(&stream.bytes);
        data[name] = content.into();
        if let Some(encoding) = encoding {
            data[format!("{name}Encoding")] = encoding.into();
        }
        data[format!("{name}Next")] = next.into();
        data[format!("{name}Cut")] = stream.cut.into();
        data[format!("{name}Missed")] = missed.into();
    }
    match &outcome {
        Some(outcome) => {
            tell_end(outcome, &mut data);
            text.push_str(&format!("[process {process} is over: {}]\n", how(outcome)));
        }
        None => text.push_str(&format!(
            "[process {process} runs; go on with stdout_from {}, stderr_from {}]\n",
            data["stdoutNext"], data["stderrNext"]
        )),
    }
    Ok(Answered::new(text, data))
}

struct Seen {
    stdout: Capped,
    stderr: Capped,
    missed: [u64; 2],
    outcome: Option<Outcome>,
}

/// What is there; with a time until which to wait, what comes until then or shortly after the first of it.
async fn collect(mut watch: Exec, cap: usize, mut until: Option<Instant>) -> Result<Seen> {
    let mut seen = Seen { stdout: Capped::new(cap), stderr: Capped::new(cap), missed: [0; 2], outcome: None };
    loop {
        let time_is_up = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = watch.events.next() => event,
            () = time_is_up => break,
        };
        match event {
            Some(Ok(ExecEvent::Stdout(bytes))) => drop(seen.stdout.push(&bytes)),
            Some(Ok(ExecEvent::Stderr(bytes))) => drop(seen.stderr.push(&bytes)),
            Some(Ok(ExecEvent::Missed { stdout, stderr })) => {
                seen.missed = [seen.missed[0] + stdout, seen.missed[1] + stderr];
                continue;
            }
            Some(Ok(ExecEvent::Exit(outcome))) => {
                seen.outcome = Some(outcome);
                break;
            }
            Some(Ok(ExecEvent::Started(_))) => continue,
            Some(Err(error)) => return Err(error),
            None => break,
        }
        until = until.map(|until| until.min(Instant::now() + SETTLE));
    }
    Ok(seen)
}

/// A character that is cut in the middle comes whole with the next call, unless it is all there is; gives how many
/// bytes are left for then.
fn leave_half_a_character(bytes: &mut Vec<u8>) -> u64 {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            let left = bytes.len() - error.valid_up_to();
            bytes.truncate(error.valid_up_to());
            left as u64
        }
        _ => 0,
    }
}
