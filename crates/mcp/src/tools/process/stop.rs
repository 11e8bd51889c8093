//! `process_stop`: the end of a background command, or a signal to it.

use moltis_sandbox::Result;
use moltis_sandbox::exec::ProcessId;
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::{NO_OUTPUT, end_schema, how, missing, running, sandbox, tell_end};
use crate::answer::Answered;
use crate::schema::{input, integer, may, needs, output, string, word};
use crate::server::Call;
use crate::tools::Manner;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Signal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Term,
    Cont,
    Stop,
    Kill,
}

impl Signal {
    fn number(self) -> i32 {
        match self {
            Self::Hup => libc::SIGHUP,
            Self::Int => libc::SIGINT,
            Self::Quit => libc::SIGQUIT,
            Self::Usr1 => libc::SIGUSR1,
            Self::Usr2 => libc::SIGUSR2,
            Self::Term => libc::SIGTERM,
            Self::Cont => libc::SIGCONT,
            Self::Stop => libc::SIGSTOP,
            Self::Kill => libc::SIGKILL,
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct Arguments {
    process: u32,
    signal: Option<Signal>,
}

pub(crate) fn tool() -> Tool {
    let mut fields = vec![
        needs("process", integer("Its number", 0, None)),
        may("sent", string("The signal that was sent, where one was asked for")),
    ];
    fields.extend(end_schema());
    let signals = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "STOP", "KILL"];
    crate::tools::tool(
        "process_stop",
        "Stop a background command",
        "Ends a background command and all that it started, and waits until nothing of it is left. With `signal` it only \
         sends that signal, and ends nothing by itself.",
        input(vec![
            needs("process", integer("Its number, as process_start gave it", 0, None)),
            may("signal", word("Signal to send instead", &signals)),
        ]),
        output(fields),
        &Manner { read_only: false, destructive: true, idempotent: true, open_world: false },
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let process = ProcessId(args.process);
    let sandbox = sandbox(call, process).await?;
    if let Some(signal) = args.signal {
        running(&*sandbox, process).await?;
        let mut watch = sandbox.attach(process, NO_OUTPUT, NO_OUTPUT, true).await?;
        watch.control.signal(signal.number()).await?;
        let name = format!("{signal:?}").to_uppercase();
        let text = format!("sent {name} to process {process}");
        return Ok(Answered::new(text, json!({ "process": process, "sent": name })));
    }
    let outcome = sandbox.stop(process).await.map_err(|error| missing(process, error))?;
    let mut data = json!({ "process": process });
    tell_end(&outcome, &mut data);
    Ok(Answered::new(format!("process {process} is over: {}", how(&outcome)), data))
}
