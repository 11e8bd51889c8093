//! What a backend takes, by turns with the machine's own.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_runtime::{Opened, Overrides, Runtime, error};
use moltis_sandbox::{BuildSink, Command, Diagnosis, Error, Exec, ExecEvent, ExecRequest, Result, Sandbox};

use super::baseline::{self, Plain};
use super::figure::{Figure, Rounds};

/// What bounds a part: turns, and time.
struct Bound {
    turns: usize,
    time: Duration,
}

const STARTS: Bound = Bound { turns: 30, time: Duration::from_millis(3500) };
const EXECS: Bound = Bound { turns: 400, time: Duration::from_millis(2000) };
const OUTPUTS: Bound = Bound { turns: 5, time: Duration::from_millis(3000) };

/// Turns before those that count: the first ones warm caches.
const WARM: usize = 3;

/// Time that one run of output is to take.
const RUN: f64 = 0.3;

/// Bytes of one run of output, at least and at most.
const BYTES: (u64, u64) = (1 << 20, 1 << 30);

/// A command that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was measured of a backend. What there was no time for is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// A new sandbox, to the end of its first `true`.
    pub start: Option<Figure>,
    /// `true` in a sandbox that runs.
    pub exec: Option<Figure>,
    /// Standard output.
    pub output: Option<Figure>,
}

/// Measures the backend that the overrides name. Ends early once `stop` is set; whatever was opened is closed.
///
/// # Errors
/// Those of opening and of commands; `bench-command-failed`, `baseline-failed`.
pub async fn backend(
    runtime: &Runtime,
    overrides: &Overrides,
    progress: &BuildSink,
    starts: Plain,
    stop: &Cell<bool>,
) -> Result<Measured> {
    // The first one fetches and builds what all need.
    let opened = runtime.open_with(overrides, progress).await?;
    let held = held(&opened.sandbox, stop).await;
    let closed = opened.sandbox.close().await;
    let mut measured = held?;
    closed?;
    let mut rounds = Rounds::default();
    let begun = Instant::now();
    while !stop.get() && rounds.count() < STARTS.turns && begun.elapsed() < STARTS.time {
        let at = Instant::now();
        let Opened { sandbox, .. } = runtime.open(overrides).await?;
        let ran = run(&sandbox, ExecRequest::new(Command::Argv(vec!["true".into()])), None).await;
        let ours = at.elapsed();
        sandbox.close().await?;
        ran?;
        rounds.push(ours, starts.took()?);
    }
    measured.start = Figure::time(&rounds);
    Ok(measured)
}

/// What is measured in one sandbox that runs.
async fn held(sandbox: &Arc<dyn Sandbox>, stop: &Cell<bool>) -> Result<Measured> {
    let mut rounds = Rounds::default();
    let mut begun = Instant::now();
    let mut warm = WARM;
    while !stop.get() && rounds.count() < EXECS.turns && begun.elapsed() < EXECS.time {
        let at = Instant::now();
        run(sandbox, ExecRequest::new(Command::Argv(vec!["true".into()])), None).await?;
        let ours = at.elapsed();
        let baseline = Plain::Sh.took()?;
        if warm > 0 {
            warm -= 1;
            begun = Instant::now();
        } else {
            rounds.push(ours, baseline);
        }
    }
    let exec = Figure::time(&rounds);
    Ok(Measured { start: None, exec, output: if stop.get() { None } else { output(sandbox, stop).await? } })
}

/// A line that prints so many bytes.
fn line(device: bool, bytes: u64) -> String {
    if device { format!("head -c {bytes} /dev/zero") } else { format!("yes | head -c {bytes}") }
}

async fn output(sandbox: &Arc<dyn Sandbox>, stop: &Cell<bool>) -> Result<Option<Figure>> {
    let shell = |device, bytes| ExecRequest::new(Command::Shell(line(device, bytes).into()));
    let (least, most) = BYTES;
    // The in-process shell has no such device.
    let device = run(sandbox, shell(true, least), Some(least)).await.is_ok();
    let at = Instant::now();
    run(sandbox, shell(device, least), Some(least)).await?;
    let rate = least as f64 / at.elapsed().as_secs_f64().max(1e-6);
    let bytes = ((rate * RUN) as u64).clamp(least, most);
    let mut rounds = Rounds::default();
    let begun = Instant::now();
    while !stop.get() && rounds.count() < OUTPUTS.turns && begun.elapsed() < OUTPUTS.time {
        let at = Instant::now();
        run(sandbox, shell(device, bytes), Some(bytes)).await?;
        let ours = at.elapsed();
        rounds.push(ours, baseline::pipe(&line(device, bytes), bytes)?);
    }
    Ok(Figure::rate(&rounds, bytes))
}

/// Runs a command to its end, which is to be good, with so many bytes of output if that is said.
async fn run(sandbox: &Arc<dyn Sandbox>, mut request: ExecRequest, bytes: Option<u64>) -> Result<()> {
    request.timeout = Some(PATIENCE);
    // The control is held: without it the command's input would be at its end, which is no matter here.
    let Exec { mut events, control: _control } = sandbox.exec(request).await?;
    let mut printed = 0;
    loop {
        match events.next().await {
            Some(Ok(ExecEvent::Stdout(piece))) => printed += piece.len() as u64,
            Some(Ok(ExecEvent::Exit(outcome))) => {
                let status = outcome.exit_code();
                if status == 0 && bytes.is_none_or(|bytes| bytes == printed) {
                    return Ok(());
                }
                return Err(Error::Unavailable(
                    Diagnosis::new("bench-command-failed", "a command of the measurement failed")
                        .cause(format!("it ended with {status} after {printed} bytes"))
                        .fix("see that `moltis exec 'true && head -c 9 /dev/zero'` runs on this backend"),
                ));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(error::ended_without_exit()),
        }
    }
}
