//! The steward: a shell that the engine keeps running in a sandbox without an agent, and that looks at and ends processes
//! when it is told to. Code inside may end it or answer in its place, as it may end itself; a new one is started then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::{Error, Result};
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use super::{failure, scripts};
use crate::engine::{Engine, ExecSpec, Execution, Output, Sink, Stream};

/// How long an answer may take: ending a large descent is the longest.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// How long another one is tried for one that ended, and the time between two attempts.
const TRIED_FOR: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// Longest answer in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// One steward of one handle.
pub struct Steward {
    engine: Arc<dyn Engine>,
    container: String,
    /// Whether the sandbox ends with it.
    holds: bool,
    talk: Mutex<Option<Talk>>,
}

struct Talk {
    stdin: Sink,
    output: Box<dyn Output>,
    rest: Vec<u8>,
}

/// Why there was no answer.
enum Silence {
    /// The steward is over, or was never there.
    Over,
    Error(Error),
}

impl Steward {
    /// Of this container; nothing is started yet.
    pub fn new(engine: Arc<dyn Engine>, container: String, holds: bool) -> Arc<Self> {
        Arc::new(Self { engine, container, holds, talk: Mutex::new(None) })
    }

    /// Tells it something and waits for the lines of its answer. Carried on to its end whatever becomes of the caller: half
    /// an answer would be taken for the next one's.
    ///
    /// # Errors
    /// `Unavailable` when the sandbox is gone or the engine does not answer.
    pub async fn ask(self: &Arc<Self>, order: String) -> Result<Vec<String>> {
        let steward = Arc::clone(self);
        let asking = tokio::spawn(async move { steward.ask_here(&order).await });
        asking.await.unwrap_or_else(|_| Err(failure::gone()))
    }

    async fn ask_here(&self, order: &str) -> Result<Vec<String>> {
        let mut held = self.talk.lock().await;
        let begun = Instant::now();
        loop {
            let asked = async {
                let mut talk = match held.take() {
                    Some(talk) => talk,
                    None => self.begin().await?,
                };
                let lines = talk.ask(order).await?;
                *held = Some(talk);
                Ok(lines)
            };
            match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
                Ok(Ok(lines)) => return Ok(lines),
                Ok(Err(Silence::Error(error))) => return Err(error),
                // Somebody inside has ended it, or all is ending, which the engine is a moment late to tell.
                Ok(Err(Silence::Over)) if begun.elapsed() < TRIED_FOR => {}
                Ok(Err(Silence::Over)) | Err(_) => return Err(silent()),
            }
            match self.engine.inspect(&self.container).await {
                Ok(Some(container)) if container.lives() => tokio::time::sleep(PAUSE).await,
                Ok(_) => return Err(failure::gone()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn begin(&self) -> Result<Talk, Silence> {
        let holds = if self.holds { "1" } else { "0" };
        let spec = ExecSpec {
            argv: ["/bin/sh", "-c", scripts::STEWARD, "sh", holds].map(str::to_owned).to_vec(),
            user: None,
            directory: Some("/".to_owned()),
            env: Vec::new(),
            terminal: None,
        };
        let started = self.engine.exec(&self.container, &spec).await;
        let Execution { stdin, output, .. } =
            started.map_err(|error| Silence::Error(failure::before(error)))?;
        let mut talk = Talk { stdin, output, rest: Vec::new() };
        talk.answer().await?;
        Ok(talk)
    }
}

impl Talk {
    async fn ask(&mut self, order: &str) -> Result<Vec<String>, Silence> {
        let line = format!("{order}\n");
        self.stdin.write_all(line.as_bytes()).await.map_err(|_| Silence::Over)?;
        self.stdin.flush().await.map_err(|_| Silence::Over)?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Vec<String>, Silence> {
        let mut lines = Vec::new();
        let mut taken = 0;
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).take(end).collect();
                if line == b"." {
                    return Ok(lines);
                }
                lines.push(String::from_utf8_lossy(&line).into_owned());
            }
            match self.output.next().await {
                Ok(Some((Stream::Stdout, piece))) => {
                    taken += piece.len();
                    if taken > MAX_ANSWER {
                        return Err(Silence::Over);
                    }
                    self.rest.extend_from_slice(&piece);
                }
                Ok(Some((Stream::Stderr, _))) => {}
                Ok(None) | Err(_) => return Err(Silence::Over),
            }
        }
    }
}

fn silent() -> Error {
    Error::Unavailable(
        moltis_sandbox::Diagnosis::new("sandbox-silent", "the sandbox does not answer")
            .cause("no process can be started in it, or code inside ends each one")
            .fix("end the sandbox (`moltis sandbox stop`, or `--recreate` with the next command)"),
    )
}
