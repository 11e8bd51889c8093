//! What goes wrong without an agent, in the words that sandboxes with one use.

use moltis_sandbox::{Diagnosis, Error};

use crate::engine::EngineError;

/// Before anything of a request ran.
pub fn before(error: EngineError) -> Error {
    match error {
        EngineError::NoSuchContainer { .. } => gone(),
        error => error.into(),
    }
}

/// While something ran.
pub fn lost(error: &EngineError) -> Error {
    Error::Lost(
        Diagnosis::new("agent-lost", "the connection to the sandbox broke off")
            .cause(error)
            .fix("look at what the command has done before running it again"),
    )
}

/// The container is over.
pub fn gone() -> Error {
    Error::Unavailable(
        Diagnosis::new("sandbox-gone", "the sandbox is gone")
            .fix("run the command again: a new sandbox is made"),
    )
}

/// The container ended while a command ran.
pub fn ended() -> Error {
    Error::Lost(
        Diagnosis::new("agent-lost", "the sandbox ended while the command ran")
            .fix("look at what the command has done before running it again"),
    )
}

/// A descent that could not be ended otherwise.
pub fn killed() -> Error {
    Error::Lost(
        Diagnosis::new("sandbox-killed", "the whole sandbox was ended, because a command could not be")
            .cause(
                "processes of it were still there after every one that was found had been killed many times",
            )
            .fix("run the next command: a new sandbox is made; set a limit of processes (`pids_limit`)"),
    )
}

/// What is not to be had.
pub fn declared(what: &'static str, why: &str) -> Error {
    Error::Refused(
        Diagnosis::new("demand-not-kept", format!("this sandbox cannot keep `{what}`"))
            .cause(why)
            .fix("use another backend, or run a Moltis whose agent is made for the engine's processors"),
    )
}

/// An image that has not what it takes.
pub fn image(what: &str, why: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "image-unsuitable",
            format!("the image cannot be used without an agent: it has no {what}"),
        )
        .cause(why)
        .fix("use an image with a POSIX shell and the usual small tools (coreutils or BusyBox)"),
    )
}
