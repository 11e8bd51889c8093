//! What can go wrong between this backend and an engine.

use moltis_sandbox::{Diagnosis, Error};

use super::EngineKind;

/// Result of what an engine is asked.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Why an engine did not do what it was asked. Messages are the engine's own words, shortened and without control
/// characters; none of them holds what a container printed, but for the log of a build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It is not installed: no program, no socket.
    #[error("{engine} is not installed: {cause}")]
    NotInstalled {
        /// Which engine.
        engine: EngineKind,
        /// What was looked for.
        cause: String,
    },
    /// It is not there: nobody listens, or the connection broke.
    #[error("{engine} does not answer at {endpoint}: {cause}")]
    Unreachable {
        /// Which engine.
        engine: EngineKind,
        /// Where.
        endpoint: String,
        /// What the system said.
        cause: String,
    },
    /// The socket is there, and this user may not use it.
    #[error("{engine}'s socket {socket} belongs to others")]
    NoPermission {
        /// Which engine.
        engine: EngineKind,
        /// Path of the socket.
        socket: String,
        /// The group that may, where it has a name and may.
        group: Option<String>,
    },
    /// What says where it is cannot be used: an environment variable, a context, a connection.
    #[error("{message}")]
    Endpoint {
        /// Which engine.
        engine: EngineKind,
        /// What is wrong, naming the variable or file.
        message: String,
        /// What to do.
        fix: String,
    },
    /// It runs without root and has no ids for a container.
    #[error("Podman cannot map ids here: {cause}")]
    NoIds {
        /// What stands in the way.
        cause: String,
        /// What to do.
        fix: String,
    },
    /// It could not be asked for want of something that is ours: descriptors, processes, memory. That says nothing of
    /// the engine.
    #[error("{engine} could not be asked: {cause}")]
    NotAsked {
        /// Which engine.
        engine: EngineKind,
        /// What the system said.
        cause: String,
    },
    /// It took too long.
    #[error("{engine} took longer than {seconds} s to {what}")]
    TimedOut {
        /// Which engine.
        engine: EngineKind,
        /// What it was asked, as in "start a container".
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The image is not here.
    #[error("there is no image {reference}")]
    NoSuchImage {
        /// Which.
        reference: String,
    },
    /// The container is not there.
    #[error("there is no container {id}")]
    NoSuchContainer {
        /// Which.
        id: String,
    },
    /// There is no such path in it.
    #[error("there is no {path} in it")]
    NoSuchPath {
        /// Which.
        path: String,
    },
    /// A name is taken, or a thing is in use.
    #[error("{message}")]
    Conflict {
        /// The engine's words.
        message: String,
    },
    /// It does not take what it was asked for.
    #[error("{engine} refuses: {message}")]
    Refused {
        /// Which engine.
        engine: EngineKind,
        /// The engine's words.
        message: String,
    },
    /// The container does not start.
    #[error("the container does not start: {message}")]
    CannotStart {
        /// The engine's words.
        message: String,
    },
    /// The image cannot be fetched.
    #[error("{reference} cannot be fetched: {message}")]
    CannotPull {
        /// Which.
        reference: String,
        /// The engine's words.
        message: String,
    },
    /// The build failed.
    #[error("the build failed: {message}")]
    BuildFailed {
        /// The engine's words.
        message: String,
        /// Last lines of the build's log.
        log: Vec<String>,
    },
    /// The disk is full where the engine keeps its things.
    #[error("{engine} has no room left: {message}")]
    Full {
        /// Which engine.
        engine: EngineKind,
        /// The engine's words.
        message: String,
    },
    /// The engine itself is broken, in one of the ways that it is known for: a stable code, and its words.
    #[error("{engine} is broken: {message}")]
    Broken {
        /// Which engine.
        engine: EngineKind,
        /// `apple-config-missing`, `apple-vm-never-booted`, `apple-code-22`, `apple-service`.
        code: &'static str,
        /// The engine's words.
        message: String,
    },
    /// It answered something else than it documents.
    #[error("{engine} answered what is not understood: {message}")]
    Answer {
        /// Which engine.
        engine: EngineKind,
        /// What.
        message: String,
    },
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let told = |code: &'static str| Diagnosis::new(code, message.clone());
        let unavailable = |code: &'static str, fix: String| Self::Unavailable(told(code).fix(fix));
        match error {
            EngineError::NotInstalled { engine, .. } => unavailable("engine-missing", install(engine)),
            EngineError::Unreachable { engine, .. } => unavailable("engine-unreachable", begin(engine)),
            EngineError::NoPermission { group: Some(group), .. } => unavailable(
                "engine-permission",
                format!("sudo usermod -aG {group} \"$USER\", then log in again (or: newgrp {group})"),
            ),
            EngineError::NoPermission { .. } => {
                unavailable("engine-permission", "run as the user that the socket belongs to".to_owned())
            }
            EngineError::Endpoint { fix, .. } => unavailable("engine-endpoint", fix),
            EngineError::NoIds { fix, .. } => unavailable("podman-no-ids", fix),
            EngineError::NotAsked { .. } => unavailable(
                "engine-not-asked",
                "raise the limit that is reached (`ulimit -n`, `ulimit -u`), or end something".to_owned(),
            ),
            EngineError::TimedOut { .. } => {
                unavailable("engine-slow", "try again; if it stays so, restart the engine".to_owned())
            }
            EngineError::NoSuchImage { .. } => {
                unavailable("image-unavailable", "moltis sandbox build".to_owned())
            }
            EngineError::CannotPull { .. } => unavailable(
                "image-unavailable",
                "check the name, and that the registry can be reached and lets you in".to_owned(),
            ),
            EngineError::BuildFailed { log, .. } => {
                let diagnosis = told("image-build-failed");
                Self::Unavailable(if log.is_empty() { diagnosis } else { diagnosis.cause(log.join("\n")) })
            }
            EngineError::Full { .. } => unavailable(
                "engine-disk-full",
                "moltis sandbox clean, or make room where the engine keeps its images".to_owned(),
            ),
            EngineError::NoSuchContainer { .. } => Self::Unavailable(told("container-gone")),
            EngineError::NoSuchPath { .. } => Self::Invalid(told("not-found")),
            EngineError::Conflict { .. } => Self::Unavailable(told("engine-conflict")),
            EngineError::Refused { .. } => Self::Unavailable(told("engine-refused")),
            EngineError::CannotStart { .. } => Self::Unavailable(told("container-start-failed")),
            EngineError::Broken { code, .. } => Self::Unavailable(told(code)),
            EngineError::Answer { .. } => Self::Unavailable(told("engine-answer")),
        }
    }
}

/// How an engine is installed.
fn install(engine: EngineKind) -> String {
    match engine {
        EngineKind::Docker => {
            "install Docker (Debian: sudo apt-get install docker.io), see https://docs.docker.com/get-docker/"
        }
        EngineKind::Podman => "install Podman (Debian: sudo apt-get install podman), see https://podman.io",
        EngineKind::Apple => {
            "install Apple's container (macOS 26 or newer), see https://github.com/apple/container"
        }
    }
    .to_owned()
}

/// How an engine is started.
fn begin(engine: EngineKind) -> String {
    match engine {
        EngineKind::Docker => "start it: sudo systemctl start docker (or open Docker Desktop)",
        EngineKind::Podman => "start it: systemctl --user start podman.socket (or: podman machine start)",
        EngineKind::Apple => "start it: container system start",
    }
    .to_owned()
}
