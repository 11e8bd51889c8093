//! Whether a sandbox whose first process lives can be used: it answers, it says nothing, or it is not for us.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use moltis_agent_protocol::message::{Reply, Request};
use moltis_sandbox::{Diagnosis, Error as SandboxError};

use crate::client::{Connection, Patience};
use crate::error::{Error, Subject};
use crate::transport::Transport;

/// How long an agent is waited for that is asked whether it is there.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Time between two attempts at an agent that does not listen: it does not yet, or its process is about to be over.
const PAUSE: Duration = Duration::from_millis(20);

/// What a look at a sandbox came to whose first process lived a moment ago.
#[derive(Debug)]
pub enum Presence {
    /// It answers.
    Answers,
    /// Its process is over by now.
    Over,
    /// It lives and does not answer in time: it may be in use, and may answer later.
    Silent(SandboxError),
    /// It lives and does not speak as we do: another version made it, or it is broken. It can only be ended.
    Foreign(SandboxError),
}

/// Asks the agent with process id `agent` whether it is there; with `idle_millis` the answer also sets the idle time
/// after which it ends itself, and begins it anew. `ends_within` waits for its process's end, at most for the time given.
pub async fn presence<F: Future<Output = bool>>(
    transport: &dyn Transport,
    agent: u32,
    idle_millis: Option<u64>,
    ends_within: impl Fn(Duration) -> F,
) -> Presence {
    let request = match idle_millis {
        Some(idle_millis) => Request::Configure { idle_millis },
        None => Request::Status,
    };
    let asking = async {
        loop {
            match ask(transport, &request).await {
                Ok(()) => return Presence::Answers,
                Err(
                    error @ (Error::Version(_) | Error::Protocol(_) | Error::Impostor(_) | Error::Failed(..)),
                ) => {
                    return Presence::Foreign(foreign(agent, &error));
                }
                // Nobody listens, or the listener has just gone.
                Err(Error::Gone | Error::Lost(_)) => {}
                Err(error) => return Presence::Silent(silent(agent, Some(&error))),
            }
            if ends_within(PAUSE).await {
                return Presence::Over;
            }
        }
    };
    let came_to = match tokio::time::timeout(ANSWERS_WITHIN, asking).await {
        Ok(presence) => presence,
        Err(_) => Presence::Silent(silent(agent, None)),
    };
    match came_to {
        Presence::Silent(_) | Presence::Foreign(_) if ends_within(Duration::ZERO).await => Presence::Over,
        presence => presence,
    }
}

/// The same for an agent to which there is no way, such as one whose socket is gone.
pub async fn absence<F: Future<Output = bool>>(
    agent: u32,
    error: &Error,
    ends_within: impl Fn(Duration) -> F,
) -> Presence {
    if ends_within(Duration::ZERO).await {
        return Presence::Over;
    }
    match error {
        Error::Impostor(_) => Presence::Foreign(foreign(agent, error)),
        _ => Presence::Silent(silent(agent, Some(error))),
    }
}

async fn ask(transport: &dyn Transport, request: &Request) -> Result<(), Error> {
    // The time for all of it is bounded by the caller.
    let mut connection = Connection::open(transport, request, Patience::default()).await?;
    match connection.answer(Subject::Agent).await? {
        Reply::Status(_) | Reply::Done => Ok(()),
        _ => Err(Error::unexpected("instead of its state")),
    }
}

const END_IT: &str = "end the sandbox (`moltis sandbox stop`, or `--recreate` with the next command)";

fn silent(agent: u32, error: Option<&Error>) -> SandboxError {
    let cause = match error {
        Some(error) => match error.source() {
            Some(source) => format!("its first process {agent} lives, but {error}: {source}"),
            None => format!("its first process {agent} lives, but {error}"),
        },
        None => {
            let seconds = ANSWERS_WITHIN.as_secs();
            format!("its first process {agent} lives and does not answer within {seconds} s")
        }
    };
    let diagnosis = Diagnosis::new("sandbox-silent", "the sandbox does not answer").cause(cause);
    SandboxError::Unavailable(diagnosis.fix(format!("wait and try again, or {END_IT}")))
}

fn foreign(agent: u32, error: &Error) -> SandboxError {
    let diagnosis = Diagnosis::new("sandbox-foreign", "the sandbox cannot be spoken to")
        .cause(format!("its first process {agent} lives, but {error}"));
    SandboxError::Unavailable(diagnosis.fix(END_IT))
}
