//! What can go wrong in a tool itself, beside what the runtime and the sandbox say.

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Diagnosis, Error};

/// Why a tool did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The arguments do not fit the tool's schema.
    #[error("these arguments are not what `{tool}` takes: {why}")]
    Arguments {
        /// The tool.
        tool: &'static str,
        /// What is wrong with them.
        why: String,
        /// What was probably meant.
        fix: String,
    },
    /// A path that no file of a sandbox can have.
    #[error("{0:?} is no path inside the sandbox")]
    Path(String),
    /// A pattern for names or for text that cannot be read.
    #[error("the pattern {pattern:?} cannot be read")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file that is too large for the tool, with its size and the most that it takes, in bytes.
    #[error("`{path}` has {bytes} bytes, and this tool takes {most} at most")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// The tool wants a regular file.
    #[error("`{0}` is no regular file")]
    NotFile(String),
    /// The text to be replaced is nowhere in the file.
    #[error("`{path}` does not contain `old_string`")]
    NoMatch {
        /// The file.
        path: String,
        /// What may be the matter.
        hint: String,
    },
    /// The text to be replaced stands in more than one place.
    #[error("`{path}` contains `old_string` {count} times")]
    NotUnique {
        /// The file.
        path: String,
        /// How often.
        count: usize,
        /// On which lines, the first of them.
        lines: String,
    },
    /// An edit that changes nothing.
    #[error("`old_string` and `new_string` are the same")]
    NoChange,
    /// An edit that says nothing of what is to be replaced.
    #[error("`old_string` is empty")]
    NothingToReplace,
    /// Somebody else wrote to the file meanwhile.
    #[error("`{0}` was changed by something else meanwhile")]
    Changed(String),
    /// There is no such background command.
    #[error("there is no background command {0}")]
    ProcessMissing(ProcessId),
    /// A background command that is over.
    #[error("the background command {process} is over: {how}")]
    ProcessEnded {
        /// Which.
        process: ProcessId,
        /// How it ended.
        how: String,
    },
    /// A background command that takes no more input.
    #[error("the background command {0} does not read its input")]
    InputNotRead(ProcessId),
    /// The client has gone, or the program ends.
    #[error("the server is about to end")]
    Closing,
    /// A call that its client took back.
    #[error("the call was cancelled")]
    Cancelled,
    /// A request over HTTP that nobody gave a session.
    #[error("this request has no session")]
    NoSession,
    /// Work of our own broke off.
    #[error("the work for this call broke off")]
    Broke(String),
}

impl From<ToolError> for Error {
    fn from(error: ToolError) -> Self {
        let message = error.to_string();
        let say = |code| Diagnosis::new(code, message.clone());
        match error {
            ToolError::Arguments { fix, .. } => Self::Invalid(say("arguments-invalid").fix(fix)),
            ToolError::Path(_) => {
                Self::Invalid(say("path-invalid").fix("name a path without NUL bytes, 4095 bytes at most"))
            }
            ToolError::Pattern { why, .. } => {
                Self::Invalid(say("pattern-invalid").cause(why).fix("correct the pattern"))
            }
            ToolError::TooLarge { .. } => Self::Refused(
                say("file-too-large").fix("work on it with `exec`, as with sed, head or a script"),
            ),
            ToolError::NotFile(_) => Self::Invalid(
                say("file-wrong-kind").fix("name a regular file; `list_directory` shows what a directory holds"),
            ),
            ToolError::NoMatch { hint, .. } => Self::Invalid(say("edit-no-match").cause(hint).fix(
                "read the file again and copy the text exactly, with its indentation and without line numbers",
            )),
            ToolError::NotUnique { lines, .. } => Self::Invalid(
                say("edit-not-unique")
                    .cause(format!("on lines {lines}"))
                    .fix("add lines around it until it is the only one, or set `replace_all`"),
            ),
            ToolError::NoChange => Self::Invalid(say("edit-no-change").fix("say what is to stand there instead")),
            ToolError::NothingToReplace => Self::Invalid(
                say("edit-nothing-named").fix("name the text to be replaced; `write_file` makes a new file"),
            ),
            ToolError::Changed(_) => {
                Self::Unavailable(say("file-changed").fix("read the file again, and edit what it is now"))
            }
            ToolError::ProcessMissing(_) => Self::Invalid(
                say("process-missing").fix("`sandbox_info` names those that there are; `process_start` starts one"),
            ),
            ToolError::ProcessEnded { .. } => {
                Self::Invalid(say("process-ended").fix("`process_output` shows what it printed"))
            }
            ToolError::InputNotRead(_) => Self::Unavailable(
                say("input-not-read").fix("see by `process_output` what it waits for; some of the input may have arrived"),
            ),
            ToolError::Closing => Self::Unavailable(say("server-closing").fix("start the server anew")),
            ToolError::Cancelled => Self::Unavailable(say("call-cancelled").fix("call again if it is still wanted")),
            ToolError::NoSession => {
                Self::Refused(say("session-missing").fix("name a session in the URL, or use a key that is bound to one"))
            }
            ToolError::Broke(cause) => {
                Self::Unavailable(say("start-failed").cause(cause).fix("try again; if it stays, report it"))
            }
        }
    }
}
