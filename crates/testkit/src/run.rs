//! Running commands in a case: requests in short, whole runs, and runs that are looked at while they last.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Command, Ending, Exec, ExecEvent, ExecRequest, Outcome, Status};

use crate::{Fail, Place, ensure, fail, patience};

/// Time-out of commands that are not about time.
pub const USUAL: Duration = Duration::from_secs(20);

/// A request for a shell line.
pub fn shell(line: impl Into<Vec<u8>>) -> ExecRequest {
    let mut request = ExecRequest::new(Command::Shell(OsString::from_vec(line.into())));
    request.timeout = Some(patience(USUAL));
    request
}

/// A request for a program and its arguments.
pub fn argv<A: AsRef<[u8]>>(arguments: &[A]) -> ExecRequest {
    let arguments = arguments.iter().map(|a| OsString::from_vec(a.as_ref().to_vec())).collect();
    let mut request = ExecRequest::new(Command::Argv(arguments));
    request.timeout = Some(patience(USUAL));
    request
}

/// A command that is over.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Number of the command.
    pub process: ProcessId,
    /// All of standard output.
    pub stdout: Vec<u8>,
    /// All of standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub outcome: Outcome,
    /// From the request to the end of the stream, by the caller's clock.
    pub took: Duration,
}

impl Ran {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails unless it left by itself with 0.
    pub fn good(self) -> Result<Self, Fail> {
        ensure!(
            self.outcome.status == Status::Code(0) && self.outcome.ending == Ending::Exited,
            "ended {:?} ({:?}), stdout {:?}, stderr {:?}",
            self.outcome.status,
            self.outcome.ending,
            self.text(),
            self.errors()
        );
        Ok(self)
    }
}

/// A command that runs.
pub struct Live {
    /// Number of the command.
    pub process: ProcessId,
    /// Standard output so far.
    pub stdout: Vec<u8>,
    /// Standard error so far.
    pub stderr: Vec<u8>,
    /// Bytes that were missed, of each stream.
    pub missed: (u64, u64),
    /// Its end, once it has been seen.
    pub outcome: Option<Outcome>,
    /// The running command.
    pub exec: Exec,
    started: Instant,
}

impl Live {
    /// Takes over a command that was just started; the first event must be `Started`.
    pub async fn of(mut exec: Exec, started: Instant) -> Result<Self, Fail> {
        let first = tokio::time::timeout(patience(USUAL), exec.events.next()).await;
        let process = match first {
            Ok(Some(Ok(ExecEvent::Started(process)))) => process,
            Ok(Some(Err(e))) => return Err(e.into()),
            other => fail!("the first event is not Started but {other:?}"),
        };
        Ok(Self {
            process,
            stdout: Vec::new(),
            stderr: Vec::new(),
            missed: (0, 0),
            outcome: None,
            exec,
            started,
        })
    }

    /// Takes in the next event; `false` at the end of the stream.
    pub async fn step(&mut self) -> Result<bool, Fail> {
        let Some(event) = self.exec.events.next().await else { return Ok(false) };
        match event? {
            ExecEvent::Started(_) => fail!("a second Started"),
            _ if self.outcome.is_some() => fail!("an event after Exit"),
            ExecEvent::Stdout(bytes) => self.stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => self.stderr.extend_from_slice(&bytes),
            // A watcher that falls behind may miss more than once.
            ExecEvent::Missed { stdout, stderr } => {
                self.missed.0 += stdout;
                self.missed.1 += stderr;
            }
            ExecEvent::Exit(outcome) => self.outcome = Some(outcome),
        }
        Ok(true)
    }

    /// Reads on until standard output holds `needle`.
    pub async fn until(&mut self, needle: &str, within: Duration) -> Result<(), Fail> {
        let within = patience(within);
        let waiting = async {
            while !contains(&self.stdout, needle.as_bytes()) {
                if !self.step().await? {
                    return Ok(false);
                }
            }
            Ok::<_, Fail>(true)
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(found) => {
                ensure!(found?, "ended without {needle:?}: {:?}", String::from_utf8_lossy(&self.stdout));
                Ok(())
            }
            Err(_) => fail!(
                "no {needle:?} within {within:?}; so far {:?}, stderr {:?}",
                String::from_utf8_lossy(&self.stdout),
                String::from_utf8_lossy(&self.stderr)
            ),
        }
    }

    /// Reads to the end.
    pub async fn finish(mut self, within: Duration) -> Result<Ran, Fail> {
        let within = patience(within);
        let reading = async {
            while self.step().await? {}
            Ok::<_, Fail>(())
        };
        match tokio::time::timeout(within, reading).await {
            Ok(done) => done?,
            Err(_) => fail!(
                "not over within {within:?} (exit seen: {}); so far {:?}",
                self.outcome.is_some(),
                crate::case::shortened(&String::from_utf8_lossy(&self.stdout))
            ),
        }
        let Some(outcome) = self.outcome else { fail!("the stream ended without Exit") };
        Ok(Ran {
            process: self.process,
            stdout: self.stdout,
            stderr: self.stderr,
            outcome,
            took: self.started.elapsed(),
        })
    }

    /// Sends text to standard input.
    pub async fn say(&mut self, text: impl Into<Bytes>) -> Result<(), Fail> {
        Ok(self.exec.control.stdin(text.into()).await?)
    }
}

impl Place {
    /// Starts a command.
    pub async fn start(&self, request: ExecRequest) -> Result<Live, Fail> {
        let started = Instant::now();
        Live::of(self.sandbox.exec(request).await?, started).await
    }

    /// Runs a command to its end.
    pub async fn run(&self, request: ExecRequest) -> Result<Ran, Fail> {
        let within = request.timeout.unwrap_or(USUAL) + Duration::from_secs(20);
        self.start(request).await?.finish(within).await
    }

    /// Runs a shell line to its end.
    pub async fn sh(&self, line: impl Into<Vec<u8>>) -> Result<Ran, Fail> {
        self.run(shell(line)).await
    }

    /// Fails unless its folder for files is still empty, which shows that a command did not run.
    pub async fn is_empty(&self) -> Result<(), Fail> {
        let there = self.out(format!("ls -A {}", self.tmp)).await?;
        ensure!(there.is_empty(), "something ran: {there:?}");
        Ok(())
    }

    /// Runs a shell line that must succeed, and returns what it printed.
    pub async fn out(&self, line: impl Into<Vec<u8>>) -> Result<String, Fail> {
        Ok(self.sh(line).await?.good()?.text())
    }
}

/// Whether `needle` stands in `hay`.
pub fn contains(hay: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || hay.windows(needle.len()).any(|w| w == needle)
}

/// Waits until `check` is true; `false` if it never was.
pub async fn eventually(
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<bool, Fail>,
) -> Result<bool, Fail> {
    let end = Instant::now() + patience(within);
    loop {
        if check().await? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
