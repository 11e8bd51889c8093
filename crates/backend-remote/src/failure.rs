//! What goes wrong with a rented machine, in the words that sandboxes everywhere use.

use moltis_agentless::{NotStarted, plain};
use moltis_sandbox::{Diagnosis, Error};

use crate::http::Failure;

/// Before anything of a request ran.
pub fn before(failure: &Failure) -> Error {
    match failure {
        // Machines that are over are not found, or said to be gone.
        Failure::Answer { status: 404 | 410 | 422, .. } => gone(),
        Failure::Broken(_) | Failure::Answer { status: 500..=599, .. } => lost(failure),
        failure => unavailable(failure),
    }
}

/// The provider does not do what is asked now.
pub fn unavailable(failure: &Failure) -> Error {
    let diagnosis = match failure {
        Failure::Unreachable(_) => Diagnosis::new("provider-unreachable", "the provider cannot be reached")
            .fix("look at this machine's network, and at the provider's status page"),
        Failure::Answer { status: 401, .. } => {
            Diagnosis::new("provider-token", "the provider does not know the token")
                .fix("make a new one and set it; `moltis sandbox status` says where")
        }
        Failure::Answer { status: 403, .. } => {
            Diagnosis::new("provider-forbidden", "the token may not do this at the provider")
                .fix("look at what the token, its team and its project may do, and at the plan's limits")
        }
        Failure::Answer { status: 402, .. } => {
            Diagnosis::new("provider-quota", "the provider asks for payment, or the plan's quota is used up")
                .fix("look at the plan and its usage at the provider, or use another backend")
        }
        Failure::Answer { status: 429, .. } => {
            Diagnosis::new("provider-busy", "the provider takes no more calls for now")
                .fix("try again later, or with fewer sandboxes at once")
        }
        Failure::Answer { status: 400 | 422, .. } => {
            Diagnosis::new("provider-refused", "the provider refuses what it was asked for").fix(
                "look at the settings of this backend: runtime, region, size and time must be of the plan",
            )
        }
        Failure::Answer { .. } | Failure::Broken(_) => {
            Diagnosis::new("provider-failed", "the provider failed").fix("try again later")
        }
        Failure::Unlike(_) => {
            Diagnosis::new("provider-protocol", "the provider answered something else than expected")
                .fix("look whether the API's address is right")
        }
    };
    Error::Unavailable(diagnosis.cause(failure))
}

/// While something ran.
pub fn lost(failure: &Failure) -> Error {
    Error::Lost(
        Diagnosis::new("agent-lost", "the connection to the sandbox broke off")
            .cause(failure)
            .fix("look at what the command has done before running it again"),
    )
}

/// What a program says before it runs: its process id.
///
/// # Errors
/// Why it does not run.
pub fn started(line: &str) -> Result<u32, Error> {
    moltis_agentless::started(line).map_err(|why| match why {
        NotStarted::Mark => unsuitable(NotStarted::MARK.0, NotStarted::MARK.1),
        NotStarted::Directory(error) => error,
        NotStarted::Unlike => unavailable(&Failure::Unlike(plain(line.as_bytes()))),
    })
}

/// The machine is over.
pub fn gone() -> Error {
    Error::Unavailable(
        Diagnosis::new("sandbox-gone", "the sandbox is gone")
            .cause("the provider ends a machine when its time is up")
            .fix("run the command again: a new sandbox is made"),
    )
}

/// The machine ended while a command ran.
pub fn ended() -> Error {
    Error::Lost(
        Diagnosis::new("agent-lost", "the sandbox ended while the command ran")
            .fix("look at what the command has done before running it again"),
    )
}

/// What is around the command broke.
pub fn broke() -> Error {
    Error::Lost(
        Diagnosis::new("agent-lost", "what ran the command inside the sandbox ended without a word")
            .cause("something inside may have killed it")
            .fix("look at what the command has done before running it again"),
    )
}

/// What is not to be had.
pub fn declared(what: &'static str, why: &str) -> Error {
    Error::Refused(
        Diagnosis::new("demand-not-kept", format!("this sandbox cannot keep `{what}`"))
            .cause(why)
            .fix("use another backend: `moltis sandbox status` says what each of them keeps"),
    )
}

/// A machine that has not what it takes.
pub fn unsuitable(what: &str, why: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new("image-unsuitable", format!("the provider's machine has no {what}"))
            .cause(why)
            .fix("use a runtime or snapshot with a POSIX shell and coreutils"),
    )
}
