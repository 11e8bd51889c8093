//! Running Apple's tool: arguments as a list, no standard input, bounded output, a time limit; it ends when nobody waits
//! for it any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::words;
use crate::engine::{EngineError, EngineKind, Result};

/// How long a question may take.
pub const QUESTION: Duration = Duration::from_secs(20);
/// How long a change may take. A first start unpacks the image into a file system.
pub const CHANGE: Duration = Duration::from_secs(120);

/// Bytes of an answer, at most.
const MAX_ANSWER: usize = 16 << 20;
/// Bytes of what it complains of that are kept, at most: the last ones.
const MAX_WORDS: usize = 64 << 10;
/// How long the output of a tool that has ended is waited for, which somebody else may hold open.
const LINGER: Duration = Duration::from_secs(2);

/// Exit code of the tool for arguments that it does not know (`EX_USAGE`).
pub const USAGE: i32 = 64;

/// Apple's tool.
#[derive(Clone, Debug)]
pub struct Tool {
    program: PathBuf,
    variables: BTreeMap<String, String>,
}

/// What it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code; absent when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained of.
    pub words: String,
}

impl Answer {
    /// Whether it did what it was asked.
    pub fn is_ok(&self) -> bool {
        self.code == Some(0)
    }
}

/// Which end of a long output is kept.
#[derive(Clone, Copy)]
enum Keep {
    /// The whole; more is an error.
    Whole(usize),
    /// The last bytes.
    Tail(usize),
}

impl Tool {
    /// The tool at this path, with these environment variables and no others.
    pub fn new(program: PathBuf, variables: BTreeMap<String, String>) -> Self {
        Self { program, variables }
    }

    /// Where it is.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The tool with these arguments, not begun. Its standard streams are pipes but for input, of which it has none.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What a person types at a terminal is for us and not for it.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    /// Begins it.
    ///
    /// # Errors
    /// [`EngineError::NotInstalled`] when it cannot be executed.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        command.spawn().map_err(|cause| EngineError::NotInstalled {
            engine: EngineKind::Apple,
            cause: format!("{}: {cause}", self.program.display()),
        })
    }

    /// Asks it something. `what` follows "took too long to".
    ///
    /// # Errors
    /// When it cannot be executed, takes too long, or says too much.
    pub async fn ask(&self, what: &str, limit: Duration, arguments: &[String]) -> Result<Answer> {
        self.run(what, Some(limit), arguments, Keep::Whole(MAX_ANSWER)).await
    }

    /// The same without a time limit, for a download.
    ///
    /// # Errors
    /// As above.
    pub async fn ask_at_length(&self, what: &str, arguments: &[String]) -> Result<Answer> {
        self.run(what, None, arguments, Keep::Tail(MAX_WORDS)).await
    }

    /// The same, of which the last bytes are kept.
    ///
    /// # Errors
    /// When it cannot be executed or takes too long.
    pub async fn tail(&self, what: &str, bytes: usize, arguments: &[String]) -> Result<Answer> {
        self.run(what, Some(QUESTION), arguments, Keep::Tail(bytes)).await
    }

    async fn run(
        &self,
        what: &str,
        limit: Option<Duration>,
        arguments: &[String],
        keep: Keep,
    ) -> Result<Answer> {
        let mut child = self.spawn(&mut self.command(arguments))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(answer("it has no standard streams".to_owned()));
        };
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let wait = async {
            let status = child.wait().await.map_err(|cause| answer(format!("waiting for it: {cause}")))?;
            let _ = ended.send(());
            Ok(status)
        };
        let linger = async {
            if has_ended.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(LINGER).await;
        };
        let output = async {
            let both = async { tokio::try_join!(read(stdout, keep), read(stderr, Keep::Tail(MAX_WORDS))) };
            tokio::select! {
                read = both => read,
                () = linger => Err(answer("its output is held open by somebody else".to_owned())),
            }
        };
        let work = async {
            // Whichever fails ends the other, and the tool with it.
            let (status, (stdout, words)) = tokio::try_join!(wait, output)?;
            Ok(Answer { code: status.code(), stdout, words: String::from_utf8_lossy(&words).into_owned() })
        };
        match limit {
            None => work.await,
            Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
                Err(EngineError::TimedOut {
                    engine: EngineKind::Apple,
                    what: what.to_owned(),
                    seconds: limit.as_secs(),
                })
            }),
        }
    }
}

async fn read(mut stream: impl AsyncRead + Unpin, keep: Keep) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 32 << 10];
    loop {
        let count = stream.read(&mut buffer).await.map_err(|cause| answer(format!("reading it: {cause}")))?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..count]);
        match keep {
            Keep::Whole(most) if bytes.len() > most => {
                return Err(answer(format!("it said more than {} MiB", most >> 20)));
            }
            // Shortened seldom, so that each byte is moved once at most.
            Keep::Tail(most) if bytes.len() > 2 * most.max(buffer.len()) => {
                bytes.drain(..bytes.len() - most);
            }
            _ => {}
        }
    }
    if let Keep::Tail(most) = keep {
        bytes.drain(..bytes.len().saturating_sub(most));
    }
    Ok(bytes)
}

/// It answered something else than it documents.
pub fn answer(message: String) -> EngineError {
    EngineError::Answer { engine: EngineKind::Apple, message: words::clean(&message) }
}
