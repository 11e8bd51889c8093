//! `moltis process input`: our standard input, passed on to a background command.

use moltis_runtime::Runtime;
use moltis_sandbox::exec::{ExecEvent, Outcome};

use super::{NO_OUTPUT, ended, next, see_running, which, with};
use crate::args;
use crate::failure::Failure;
use crate::{output, stdin};

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Input) -> Result<i32, Failure> {
    let (key, process) = which(&args.which)?;
    let (_, sandbox) = runtime.running_sandbox(&key).await?;
    see_running(&sandbox, process).await?;
    let mut watch = sandbox.attach(process, NO_OUTPUT, NO_OUTPUT, true).await?;
    let mut sent = 0u64;
    let mut pieces = (!args.eof).then(stdin::pieces);
    let over: Option<Outcome> = loop {
        let Some(source) = &mut pieces else { break None };
        let piece = tokio::select! {
            piece = source.recv() => piece,
            event = next(&mut watch, true) => match event? {
                Some(ExecEvent::Exit(outcome)) => break Some(outcome),
                _ => continue,
            },
        };
        let Some(piece) = piece else { break None };
        sent += piece.len() as u64;
        let moltis_sandbox::Exec { events, control } = &mut watch;
        let sending = control.stdin(piece);
        tokio::pin!(sending);
        // It may end instead of reading.
        let over = loop {
            tokio::select! {
                done = &mut sending => {
                    done?;
                    break None;
                }
                event = events.next() => match event {
                    Some(Ok(ExecEvent::Exit(outcome))) => break Some(outcome),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(moltis_runtime::error::ended_without_exit().into()),
                },
            }
        };
        if over.is_some() {
            break over;
        }
    };
    if let Some(outcome) = over {
        return Err(ended(process, &outcome));
    }
    let closed = !args.keep_open;
    if closed {
        watch.control.close_stdin().await?;
    }
    if args.json {
        let told = serde_json::json!({ "bytes": sent, "closed": closed });
        return output::print_json(&with(told, &key, process));
    }
    Ok(0)
}
