//! A program that the engine runs in a sandbox, marked, so that all of its descent can be found and ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_agentless::{NotStarted, plain};
use moltis_sandbox::{Diagnosis, Error, Result};

use super::steward::Steward;
use super::{failure, scripts};
use crate::engine::{Engine, EngineError, ExecSpec, Execution, Output, Sink, Stream};

/// How long it may take until a program runs.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// How long a descent that was asked to stop is waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(100);

/// Longest line with which a program says that it runs.
const MAX_SAID: usize = 256;

/// What is to run.
pub struct Wanted<'a> {
    /// Program and arguments.
    pub argv: &'a [&'a [u8]],
    /// Its variables.
    pub env: Vec<(String, String)>,
    /// Variables that the container would give it, and that it is not to have.
    pub unset: &'a [String],
    /// Where it runs; empty: wherever the engine starts it.
    pub directory: &'a [u8],
    /// Whether it has input.
    pub stdin: bool,
    /// Rows and columns of its terminal.
    pub terminal: Option<(u16, u16)>,
}

/// A marked program that runs. Dropping it ends its descent.
pub struct Program {
    /// Where it runs.
    pub engine: Arc<dyn Engine>,
    /// The engine's id of it.
    pub exec: String,
    /// Its process id inside.
    pub pid: u32,
    /// Its input.
    pub stdin: Option<Sink>,
    /// Its output.
    pub output: Box<dyn Output>,
    /// Output that came with the word that it runs.
    pub first: Vec<(Stream, Vec<u8>)>,
    /// When it began.
    pub started: Instant,
    descent: Descent,
}

/// The processes of one program. Dropping it ends them, unless they were let go.
pub struct Descent {
    steward: Arc<Steward>,
    mark: u64,
    is_over: bool,
}

impl Drop for Descent {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (steward, mark) = (Arc::clone(&self.steward), self.mark);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { Descent { steward, mark, is_over: true }.end(true).await });
        }
    }
}

impl Descent {
    /// What lives on is let go.
    pub fn leave(&mut self) {
        self.is_over = true;
    }

    /// The same for somebody else to see to.
    pub fn take(&mut self) -> Self {
        let is_over = std::mem::replace(&mut self.is_over, true);
        Self { steward: Arc::clone(&self.steward), mark: self.mark, is_over }
    }

    /// Those that live.
    pub async fn living(&self) -> Result<Vec<u32>> {
        let said = self.steward.ask(format!("list {}", self.mark)).await?;
        Ok(said.iter().filter_map(|line| line.strip_prefix("p ")?.parse().ok()).collect())
    }

    /// Ends it, and says whether nothing is left. It is asked first, if `gently`.
    pub async fn end(&mut self, gently: bool) -> Result<bool> {
        if gently {
            self.steward.ask(format!("term {}", self.mark)).await?;
            let deadline = Instant::now() + GRACE;
            while Instant::now() < deadline {
                if self.living().await?.is_empty() {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        let said = self.steward.ask(format!("kill {}", self.mark)).await?;
        self.is_over = true;
        Ok(said.is_empty())
    }
}

impl Program {
    /// Starts it, and waits until it runs.
    ///
    /// # Errors
    /// `Invalid` for what cannot be run there, `Unavailable` when nothing ran, `Lost` when it may have.
    pub async fn start(
        engine: &Arc<dyn Engine>,
        container: &str,
        steward: &Arc<Steward>,
        wanted: Wanted<'_>,
    ) -> Result<Self> {
        let mark = moltis_agentless::mark()?;
        let text = |number: u64| number.to_string().into_bytes();
        let (mark_text, count) = (text(mark), text(wanted.unset.len() as u64));
        let stdin = wanted.stdin || wanted.terminal.is_some();
        let mut all: Vec<&[u8]> = vec![&mark_text, if stdin { b"1" } else { b"0" }, b"0", &count];
        all.extend(wanted.unset.iter().map(String::as_bytes));
        all.push(wanted.directory);
        all.extend(wanted.argv);
        let mut words = moltis_agentless::words(&all, 2, "the engine")?;
        let mut argv = ["/bin/sh", "-c", scripts::PROGRAM, "sh"].map(str::to_owned).to_vec();
        argv.append(&mut words);
        let spec = ExecSpec {
            argv,
            user: None,
            directory: Some("/".to_owned()),
            env: wanted.env,
            terminal: wanted.terminal,
        };
        let begun = engine.exec(container, &spec).await;
        let Execution { id, stdin, output } = begun.map_err(|error| match error {
            EngineError::Unreachable { .. } | EngineError::TimedOut { .. } | EngineError::Answer { .. } => {
                failure::lost(&error)
            }
            error => failure::before(error),
        })?;
        let mut program = Self {
            engine: Arc::clone(engine),
            exec: id,
            pid: 0,
            stdin: Some(stdin),
            output,
            first: Vec::new(),
            started: Instant::now(),
            descent: Descent { steward: Arc::clone(steward), mark, is_over: false },
        };
        match tokio::time::timeout(STARTS_WITHIN, program.said(container)).await {
            Ok(Ok(pid)) => program.pid = pid,
            Ok(Err(error)) => {
                program.descent.leave();
                return Err(error);
            }
            Err(_) => return Err(slow()),
        }
        if !wanted.stdin && wanted.terminal.is_none() {
            program.stdin = None;
        }
        Ok(program)
    }

    /// What it says before it runs: its process id, or why it does not.
    async fn said(&mut self, container: &str) -> Result<u32> {
        let mut line = Vec::new();
        let rest = loop {
            match self.output.next().await {
                Ok(Some((Stream::Stdout, mut piece))) => {
                    match piece.iter().position(|byte| *byte == b'\n') {
                        Some(end) => {
                            let rest = piece.split_off(end + 1);
                            line.extend_from_slice(&piece);
                            break rest;
                        }
                        None => line.extend_from_slice(&piece),
                    }
                    if line.len() > MAX_SAID {
                        return Err(unlike(&line));
                    }
                }
                Ok(Some(piece)) => self.first.push(piece),
                Ok(None) => return Err(self.why_not(container).await),
                Err(error) => return Err(failure::lost(&error)),
            }
            if self.first.len() > 64 {
                return Err(unlike(b"errors"));
            }
        };
        if !rest.is_empty() {
            self.first.push((Stream::Stdout, rest));
        }
        let line = String::from_utf8_lossy(&line);
        moltis_agentless::started(&line).map_err(|why| match why {
            NotStarted::Mark => failure::image(NotStarted::MARK.0, NotStarted::MARK.1),
            NotStarted::Directory(error) => error,
            NotStarted::Unlike => unlike(line.as_bytes()),
        })
    }

    /// Why it ended without a word.
    async fn why_not(&mut self, container: &str) -> Error {
        match self.engine.inspect(container).await {
            Ok(Some(found)) if found.lives() => {}
            Ok(_) => return failure::gone(),
            Err(error) => return failure::lost(&error),
        }
        let words: Vec<u8> = self.first.iter().flat_map(|(_, piece)| piece.clone()).collect();
        let diagnosis =
            Diagnosis::new("sandbox-exhausted", "the command could not be started in the sandbox")
                .fix("end commands that run in the sandbox, or raise its limits (memory, pids)");
        let words = plain(&words);
        // The kernel may take less than Moltis lets through.
        if words.contains("too long") || words.contains("too big") {
            return Error::Invalid(
                Diagnosis::new("command-too-long", "the command is too long").cause(words),
            );
        }
        Error::Unavailable(if words.is_empty() { diagnosis } else { diagnosis.cause(words) })
    }

    /// Its exit code, if it is over; `Lost` if the sandbox is.
    pub async fn code(&mut self) -> Result<Option<i32>> {
        self.engine.exec_result(&self.exec).await.map_err(|error| match error {
            EngineError::Unreachable { .. } | EngineError::TimedOut { .. } => failure::lost(&error),
            _ => failure::ended(),
        })
    }

    /// Its processes.
    pub fn descent(&mut self) -> &mut Descent {
        &mut self.descent
    }
}

fn slow() -> Error {
    Error::Lost(
        Diagnosis::new(
            "agent-silent",
            format!("the command did not start within {} s", STARTS_WITHIN.as_secs()),
        )
        .fix("look at what the command has done; stop the sandbox if it stays silent"),
    )
}

fn unlike(line: &[u8]) -> Error {
    Error::Unavailable(
        Diagnosis::new("agent-protocol", "the sandbox's shell said something else than expected")
            .cause(plain(line))
            .fix("look at the image's /bin/sh; use another image"),
    )
}
