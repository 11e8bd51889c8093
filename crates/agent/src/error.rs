//! What can go wrong between host and agent, and which of the four kinds of failure each is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use moltis_agent_protocol::message::{Failure, FailureCode};
use moltis_agent_protocol::{FrameError, HelloError};
use moltis_sandbox::{Diagnosis, Error as SandboxError};

/// Result of an operation on the agent.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Code of a connection that broke off.
pub(crate) const AGENT_LOST: &str = "agent-lost";

/// Longest message of the agent's that is passed on, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Why an operation on the agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made. Nothing was sent.
    #[error("the sandbox's agent cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The agent is not there any more, and it has not read the request.
    #[error("the sandbox is gone")]
    Gone,
    /// The agent took no connection for this long.
    #[error("the sandbox's agent took no connection for {} s", .0.as_secs())]
    Busy(Duration),
    /// Somebody else than the agent listens on its socket.
    #[error("the sandbox's socket does not belong to its agent: {0}")]
    Impostor(String),
    /// The other side speaks another version of the protocol; it has not read the request.
    #[error("the sandbox was made by another version of Moltis")]
    Version(#[source] HelloError),
    /// The agent said something that the protocol does not allow.
    #[error("the sandbox's agent broke the protocol: {0}")]
    Protocol(String),
    /// The connection broke after the request had been sent.
    #[error("the connection to the sandbox broke off")]
    Lost(#[source] io::Error),
    /// The process that carried a command is gone, and the agent is there.
    #[error("the process that carried the command was killed")]
    Carrier,
    /// The agent said nothing for this long after the request had been sent.
    #[error("the sandbox's agent said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent says that it did not do it.
    #[error("{}", .1.message)]
    Failed(Subject, Failure),
    /// A link of a writable workspace that `workspace_protect` names: nothing can be mounted over a link.
    #[error("{} cannot be protected: it is a link", .0.display())]
    LinkNotProtectable(PathBuf),
    /// Something that the system does not usually refuse.
    #[error("{what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// Found out on the host before anything was sent.
    #[error(transparent)]
    Judged(#[from] SandboxError),
}

/// What an operation was about; it decides the words for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command.
    Command,
    /// A command that was named by its number.
    Process,
    /// A file, directory or archive.
    File,
    /// A port inside the sandbox.
    Port,
    /// The agent itself.
    Agent,
}

impl Error {
    /// A reply that does not belong here.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self::Protocol(format!("an answer that does not belong here ({what})"))
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<Error> for SandboxError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Unreachable(source) => {
                Self::Unavailable(Diagnosis::new("agent-unreachable", message).cause(source))
            }
            Error::Gone => Self::Unavailable(
                Diagnosis::new("sandbox-gone", message).fix("run the command again: a new sandbox is made"),
            ),
            Error::Busy(_) => Self::Unavailable(
                Diagnosis::new("agent-busy", message)
                    .fix("wait until some of its operations are over, or stop the sandbox"),
            ),
            Error::Impostor(_) => Self::Lost(
                Diagnosis::new("agent-impostor", message)
                    .cause("code inside the sandbox, or another program of this user, took the agent's place")
                    .fix("stop the sandbox; the next command makes a new one"),
            ),
            Error::Version(source) => Self::Unavailable(
                Diagnosis::new("agent-version", message)
                    .cause(source)
                    .fix("stop the sandbox; the next command makes a new one"),
            ),
            Error::Protocol(_) => Self::Lost(
                Diagnosis::new("agent-protocol", message)
                    .cause("the agent is broken, or code inside the sandbox broke it")
                    .fix("stop the sandbox; the next command makes a new one"),
            ),
            Error::Lost(source) => Self::Lost(
                Diagnosis::new(AGENT_LOST, message)
                    .cause(source)
                    .fix("look at what the command has done before running it again"),
            ),
            Error::Carrier => Self::Lost(
                Diagnosis::new("command-lost", message)
                    .cause(
                        "code inside the sandbox, perhaps the command itself, killed it; all that the command had \
                         started is ended with it, and output that was not sent yet is lost",
                    )
                    .fix("look at what the command has done; end processes by their number, not all at once"),
            ),
            Error::Silent(_) => Self::Lost(
                Diagnosis::new("agent-silent", message)
                    .fix("look at what the command has done; stop the sandbox if it stays silent"),
            ),
            Error::Failed(subject, failure) => judge(subject, failure),
            Error::LinkNotProtectable(path) => Self::Refused(
                Diagnosis::new("workspace-link-not-protectable", message)
                    .cause("`workspace_protect` names it, and commands could replace the link or write through it")
                    .fix(format!(
                        "replace {} by what it leads to, show the workspace read-only (`:ro`), or take it out of \
                         `workspace_protect`",
                        path.display()
                    )),
            ),
            Error::System { cause, .. } => {
                Self::Unavailable(Diagnosis::new("system-error", message).cause(cause))
            }
            Error::Judged(error) => error,
        }
    }
}

/// The kind, code and fix of what the agent says that it did not do.
fn judge(subject: Subject, failure: Failure) -> SandboxError {
    const EXDEV: i32 = 18;
    let Failure { code, message, errno } = failure;
    let words = errno.map(kernel_words);
    // Some messages end with what the kernel said, which is shown as the cause.
    let message = match words.as_deref().and_then(|words| message.strip_suffix(words)?.strip_suffix(": ")) {
        Some(short) => short.to_owned(),
        None => message,
    };
    let message = bounded(message, MAX_MESSAGE);
    let say = |code: &'static str| {
        let diagnosis = Diagnosis::new(code, message.clone());
        match &words {
            Some(words) => diagnosis.cause(words),
            None => diagnosis,
        }
    };
    match (code, subject) {
        (FailureCode::Invalid, _) => SandboxError::Invalid(say("request-invalid")),
        (FailureCode::ProgramMissing, _) => SandboxError::Invalid(
            say("program-missing")
                .fix("name a program that is on PATH inside the sandbox, or its whole path"),
        ),
        (FailureCode::ProgramNotExecutable, _) => SandboxError::Invalid(
            say("program-not-executable")
                .fix("make it executable (`chmod +x`), or run it with its interpreter (`sh FILE`)"),
        ),
        (FailureCode::TooLong, _) => SandboxError::Invalid(say("command-too-long").fix(TOO_LONG_FIX)),
        (FailureCode::Cwd, _) => SandboxError::Invalid(
            say("cwd-missing").fix("name a directory that exists inside the sandbox, or make it first"),
        ),
        (FailureCode::Exhausted, _) => SandboxError::Unavailable(
            say("sandbox-exhausted")
                .fix("end commands that run in the sandbox, or raise its limits (memory, pids)"),
        ),
        (FailureCode::NotFound, Subject::Command | Subject::Process) => {
            SandboxError::Invalid(say("process-missing").fix("list the sandbox's background commands"))
        }
        (FailureCode::NotFound, Subject::Port) => SandboxError::Invalid(say("listener-missing")),
        (FailureCode::NotFound, _) => {
            SandboxError::Invalid(say("file-missing").fix("name something that is there inside the sandbox"))
        }
        (FailureCode::Exists, Subject::Port) => {
            SandboxError::Unavailable(say("port-in-use").fix("take another port, or 0 for any"))
        }
        (FailureCode::Exists, _) => {
            SandboxError::Invalid(say("file-exists").fix("take another name, or ask for it to be replaced"))
        }
        (FailureCode::WrongKind, _) => SandboxError::Invalid(say("file-wrong-kind")),
        (FailureCode::Denied, Subject::Port) => SandboxError::Refused(say("port-denied")),
        (FailureCode::Denied, _) => SandboxError::Refused(
            say("file-denied").fix("use another place inside the sandbox, or one that its user may change"),
        ),
        (FailureCode::ReadOnly, _) => SandboxError::Refused(
            say("file-read-only").fix("use a place that can be written, as the home or /tmp; a workspace can be if it is named with `:rw`"),
        ),
        (FailureCode::Full, _) => SandboxError::Unavailable(
            say("disk-full").fix("remove files inside the sandbox, or make room on the disk behind it"),
        ),
        (FailureCode::Escapes, _) => SandboxError::Invalid(
            say("archive-escapes").fix("make the archive with names relative to one directory"),
        ),
        (FailureCode::ConnectionRefused, _) => SandboxError::Unavailable(
            say("port-closed").fix("start the server inside the sandbox, listening on its loopback"),
        ),
        (FailureCode::MountLost, _) => SandboxError::Unavailable(
            say("files-mount-lost").fix("end the sandbox, so that the next command starts a new one"),
        ),
        (FailureCode::Busy, _) => SandboxError::Unavailable(say("sandbox-in-use")),
        (FailureCode::Unsupported, _) => moltis_sandbox::sandbox::no_egress(),
        (FailureCode::Io, Subject::File) if errno == Some(EXDEV) => {
            SandboxError::Invalid(say("file-other-mount").fix("copy it there and remove the old one"))
        }
        (FailureCode::Io, Subject::File) => SandboxError::Unavailable(say("file-io")),
        (FailureCode::Io, _) => SandboxError::Unavailable(say("sandbox-io")),
    }
}

/// What to do about a command that is longer than the kernel takes.
pub(crate) const TOO_LONG_FIX: &str =
    "pass the script on standard input to `sh -s`, or write it to a file and run that";

fn kernel_words(number: i32) -> String {
    // The standard library's text ends with ` (os error N)`, which is what a person searches for.
    io::Error::from_raw_os_error(number).to_string()
}

/// Cuts hostile text at a character boundary.
pub(crate) fn bounded(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(subject: Subject, code: FailureCode, errno: Option<i32>) -> SandboxError {
        Error::Failed(subject, Failure { code, message: "m".into(), errno }).into()
    }

    #[test]
    fn failures_have_stable_codes_and_kinds() {
        let cases = [
            (Subject::Command, FailureCode::ProgramMissing, None, "invalid", "program-missing"),
            (Subject::Command, FailureCode::ProgramNotExecutable, None, "invalid", "program-not-executable"),
            (Subject::Command, FailureCode::TooLong, Some(7), "invalid", "command-too-long"),
            (Subject::Command, FailureCode::Cwd, Some(2), "invalid", "cwd-missing"),
            (Subject::Command, FailureCode::Exhausted, Some(11), "unavailable", "sandbox-exhausted"),
            (Subject::Process, FailureCode::NotFound, None, "invalid", "process-missing"),
            (Subject::File, FailureCode::NotFound, Some(2), "invalid", "file-missing"),
            (Subject::File, FailureCode::Full, Some(28), "unavailable", "disk-full"),
            (Subject::File, FailureCode::ReadOnly, Some(30), "refused", "file-read-only"),
            (Subject::File, FailureCode::Io, Some(18), "invalid", "file-other-mount"),
            (Subject::File, FailureCode::Io, Some(5), "unavailable", "file-io"),
            (Subject::Command, FailureCode::MountLost, None, "unavailable", "files-mount-lost"),
            (Subject::Port, FailureCode::Unsupported, None, "refused", "egress-unsupported"),
            (Subject::Port, FailureCode::Exists, Some(98), "unavailable", "port-in-use"),
            (Subject::Port, FailureCode::ConnectionRefused, Some(111), "unavailable", "port-closed"),
        ];
        for (subject, code, errno, kind, stable) in cases {
            let error = failed(subject, code, errno);
            assert_eq!((error.kind(), error.code()), (kind, stable));
        }
    }

    #[test]
    fn the_kernels_words_are_said_once() {
        let message = "`x` cannot be run: No such file or directory (os error 2)".to_owned();
        let failure = Failure { code: FailureCode::ProgramMissing, message, errno: Some(2) };
        let error: SandboxError = Error::Failed(Subject::Command, failure).into();
        assert_eq!(error.to_string(), "`x` cannot be run: No such file or directory (os error 2)");
        assert_eq!(error.diagnosis().message, "`x` cannot be run");
    }

    #[test]
    fn hostile_text_is_cut_at_a_character() {
        let error: SandboxError = Error::Failed(
            Subject::File,
            Failure { code: FailureCode::Io, message: "é".repeat(100_000), errno: None },
        )
        .into();
        assert!(error.diagnosis().message.len() <= MAX_MESSAGE + '…'.len_utf8());
        assert_eq!(bounded("aé".into(), 2), "a…");
    }
}
