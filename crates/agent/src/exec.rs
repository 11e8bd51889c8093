//! Commands: from a request to the agent's words, and from its frames to events.

mod assemble;
mod control;
mod events;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use moltis_agent_protocol::message::{Ending as WireEnding, Process as WireProcess};
use moltis_agent_protocol::message::{ExecStart, Exited, Left, Order, Reply, Request};
use moltis_sandbox::exec::{ExecEvents, ProcessId};
use moltis_sandbox::{
    Ending, Error as SandboxError, Exec, ExecEvent, Leftover, Outcome, ProcessInfo, Status,
};

pub use assemble::assemble;

use crate::client::{Connection, Patience};
use crate::error::{AGENT_LOST, Error, Result, Subject, bounded};
use crate::sandbox::{Inspection, status};
use crate::transport::Transport;
use control::{Control, Shared};
use events::Events;

/// For an agent that may be gone.
const ASKED: Patience = Patience {
    hello: Duration::from_secs(2),
    answer: Duration::from_secs(2),
    work: Duration::from_secs(2),
    grace: Duration::from_secs(2),
};

/// Longest command line of a process that is passed on, in bytes; agents send 256.
const MAX_COMMAND: usize = 256;

/// Most children that are named; agents send 64.
const MAX_LEFTOVERS: usize = 64;

/// Starts a command and waits until it runs.
pub(crate) async fn start(
    transport: &Arc<dyn Transport>,
    start: ExecStart,
    patience: Patience,
    inspection: Option<Inspection>,
) -> Result<Exec> {
    let timeout_millis = start.timeout_millis;
    let follows_deadline = !start.background && timeout_millis > 0;
    let mut connection = Connection::open(&**transport, &Request::Exec(start), patience).await?;
    let process = started(&mut connection, Subject::Command).await?;
    let deadline = follows_deadline.then(|| Duration::from_millis(timeout_millis));
    Ok(pair(transport, connection, process, deadline, inspection))
}

/// What a watcher wants of a background command.
pub(crate) struct Wish {
    pub(crate) process: ProcessId,
    /// First bytes of standard output and standard error.
    pub(crate) offsets: [u64; 2],
    pub(crate) follow: bool,
}

/// Watches a background command.
pub(crate) async fn attach(
    transport: &Arc<dyn Transport>,
    wish: Wish,
    patience: Patience,
    inspection: Option<Inspection>,
) -> Result<Exec> {
    let Wish { process, offsets: [stdout, stderr], follow } = wish;
    let request = Request::Attach { process: process.0, stdout, stderr, follow };
    let mut connection = Connection::open(&**transport, &request, patience).await?;
    let named = started(&mut connection, Subject::Process).await?;
    if named != process {
        return Err(Error::unexpected("another process's output"));
    }
    Ok(pair(transport, connection, process, None, inspection))
}

/// Whether the process that was to take a request over ended at that very moment. What can be asked twice is asked
/// again then.
fn ended_meanwhile(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};

    matches!(error, Error::Lost(cause) if matches!(cause.kind(), UnexpectedEof | ConnectionReset))
}

/// Ends a command's descent and waits for its end.
pub(crate) async fn stop(
    transport: &dyn Transport,
    process: ProcessId,
    patience: Patience,
) -> Result<Outcome> {
    match stop_once(transport, process, patience).await {
        Err(error) if ended_meanwhile(&error) => stop_once(transport, process, patience).await,
        answer => answer,
    }
}

async fn stop_once(transport: &dyn Transport, process: ProcessId, patience: Patience) -> Result<Outcome> {
    let mut connection = Connection::open(transport, &Request::Stop { process: process.0 }, patience).await?;
    match connection.answer(Subject::Process).await? {
        Reply::Exited(exited) => outcome(exited),
        _ => Err(Error::unexpected("instead of an end")),
    }
}

/// Says something to a command over a connection of its own.
pub(crate) async fn order(
    transport: &dyn Transport,
    process: ProcessId,
    order: Order,
    patience: Patience,
) -> Result<()> {
    let request = Request::Order { process: process.0, order };
    let mut connection = Connection::open(transport, &request, patience).await?;
    match connection.answer(Subject::Process).await? {
        Reply::Done => Ok(()),
        _ => Err(Error::unexpected("instead of done")),
    }
}

/// Lists background commands.
pub(crate) async fn processes(transport: &dyn Transport, patience: Patience) -> Result<Vec<ProcessInfo>> {
    let mut connection = Connection::open(transport, &Request::Processes, patience).await?;
    connection.reader.take_long_replies();
    match connection.answer(Subject::Process).await? {
        Reply::Processes(list) => list.into_iter().map(info).collect(),
        _ => Err(Error::unexpected("instead of processes")),
    }
}

async fn started(connection: &mut Connection, subject: Subject) -> Result<ProcessId> {
    match connection.answer(subject).await? {
        Reply::Started { process, .. } => Ok(ProcessId(process)),
        _ => Err(Error::unexpected("instead of a start")),
    }
}

fn pair(
    transport: &Arc<dyn Transport>,
    connection: Connection,
    process: ProcessId,
    deadline: Option<Duration>,
    inspection: Option<Inspection>,
) -> Exec {
    let Connection { reader, writer, patience } = connection;
    let shared = Arc::new(Shared::new(writer));
    let events = Events::new(reader, Arc::clone(&shared), process, deadline, patience.grace);
    let control = Control::new(shared, Arc::clone(transport), process, patience);
    let control = Box::new(control);
    let transport = Arc::clone(transport);
    let events = events.then(move |event| {
        // Only the last event is looked at, and only it costs anything.
        let inspection = matches!(event, Ok(ExecEvent::Exit(_))).then(|| inspection.clone()).flatten();
        let transport = event.is_err().then(|| Arc::clone(&transport));
        async move {
            match (event, inspection, transport) {
                (Ok(ExecEvent::Exit(outcome)), Some(inspection), _) => {
                    Ok(ExecEvent::Exit(inspection.finish(outcome).await))
                }
                (Err(error), _, Some(transport)) => Err(explain(error, &*transport).await),
                (event, ..) => event,
            }
        }
    });
    Exec { events: ExecEvents::new(events), control }
}

/// Tells a command that was lost in a sandbox that still serves from the loss of the sandbox.
async fn explain(error: SandboxError, transport: &dyn Transport) -> SandboxError {
    if !matches!(&error, SandboxError::Lost(diagnosis) if diagnosis.code == AGENT_LOST) {
        return error;
    }
    match status(transport, ASKED).await {
        Ok(_) => Error::Carrier.into(),
        Err(_) => error,
    }
}

/// The end of a command in our words, checked.
pub(crate) fn outcome(exited: Exited) -> Result<Outcome> {
    if exited.leftovers.len() > MAX_LEFTOVERS {
        return Err(Error::Protocol("too many leftovers".to_owned()));
    }
    let status = match exited.left {
        Left::Code(code @ 0..=255) => Status::Code(code),
        Left::Signal(signal @ 1..=64) => Status::Signal(signal),
        Left::Code(number) | Left::Signal(number) => {
            return Err(Error::Protocol(format!("an exit status that there is not ({number})")));
        }
    };
    Ok(Outcome {
        status,
        ending: match exited.ending {
            WireEnding::Exited => Ending::Exited,
            WireEnding::TimedOut => Ending::TimedOut,
            WireEnding::Cancelled => Ending::Cancelled,
        },
        duration: Duration::from_micros(exited.micros),
        stdout_bytes: exited.stdout_bytes,
        stderr_bytes: exited.stderr_bytes,
        leftovers: exited
            .leftovers
            .into_iter()
            .map(|leftover| Leftover { pid: leftover.pid, command: text(&leftover.command) })
            .collect(),
        leftovers_total: exited.leftovers_total,
        out_of_memory: false,
        newly_dangerous: Vec::new(),
        newly_dangerous_total: 0,
        notes: Vec::new(),
    })
}

fn info(process: WireProcess) -> Result<ProcessInfo> {
    Ok(ProcessInfo {
        id: ProcessId(process.process),
        pid: process.pid,
        command: text(&process.command),
        background: process.background,
        started_millis: process.started_millis,
        outcome: process.exited.map(outcome).transpose()?,
    })
}

fn text(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX_COMMAND)];
    bounded(String::from_utf8_lossy(cut).into_owned(), MAX_COMMAND)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn exited() -> Exited {
        left_by(Left::Code(0))
    }

    fn left_by(left: Left) -> Exited {
        Exited {
            left,
            ending: WireEnding::Exited,
            micros: 1,
            stdout_bytes: 0,
            stderr_bytes: 0,
            leftovers: Vec::new(),
            leftovers_total: 0,
        }
    }

    #[test]
    fn an_end_is_checked() {
        assert!(outcome(left_by(Left::Code(255))).is_ok());
        assert!(outcome(left_by(Left::Signal(9))).is_ok());
        for left in [Left::Code(256), Left::Code(-1), Left::Signal(0), Left::Signal(i32::MAX)] {
            assert!(matches!(outcome(left_by(left)), Err(Error::Protocol(_))));
        }
    }
}
