//! A program on a rented machine, within the script that carries its bytes and knows its descent.

mod decoder;
mod descent;
mod input;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use moltis_agentless::{Sink, Stream, plain};
use moltis_sandbox::{Diagnosis, Error, Result};
use tokio::sync::{oneshot, watch};

use crate::http::Failure;
use crate::machine::{Machine, Output, Piece, Run};
use crate::{failure, scripts};

use decoder::Decoder;
pub use decoder::{End, end};
pub use descent::{Descent, Ending, Named, script, script_within};
use input::{INPUT, feed, unfed};

/// How long it may take until a program runs.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Longest line with which a program says that it runs.
const MAX_SAID: usize = 256;
/// What the provider gives a program beyond its own time, before it kills it.
const BEYOND: Duration = Duration::from_secs(90);
/// Time of what has none of its own.
const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// What is to run.
pub struct Wanted<'a> {
    /// Program and arguments.
    pub argv: &'a [&'a [u8]],
    /// Its variables, and no others.
    pub env: Vec<(String, String)>,
    /// Where it runs; empty: wherever the provider starts it.
    pub directory: &'a [u8],
    /// Whether it has input.
    pub stdin: bool,
    /// When its descent is ended; absent: never.
    pub timeout: Option<Duration>,
    /// Whether it is counted as a command.
    pub counts: bool,
}

impl Wanted<'_> {
    /// The words of a script around it: what comes first, for its limit in seconds and whether it has input, then the
    /// script that turns itself into the program, and what that takes.
    pub fn argv(&self, head: impl FnOnce(&str, &str) -> Vec<String>, inner: String) -> Result<Vec<String>> {
        let kept = self.env.iter().fold(":".to_owned(), |all, (name, _)| all + name + ":");
        let mut all: Vec<&[u8]> = vec![b"0", kept.as_bytes(), self.directory];
        all.extend(self.argv);
        let words = moltis_agentless::words(&all, 0, "the provider")?;
        let limit =
            self.timeout.map_or_else(|| "0".to_owned(), |limit| format!("{:.3}", limit.as_secs_f64()));
        let mut argv = head(&limit, if self.stdin { "1" } else { "0" });
        argv.push(inner);
        argv.extend(words);
        Ok(argv)
    }
}

/// A program that runs. Dropping it ends its descent.
pub struct Program {
    /// Its process id inside; 0 if it was ended before it ran.
    pub pid: u32,
    /// Its input.
    pub stdin: Option<Sink>,
    /// How it ended, once both streams have said so.
    pub end: Option<End>,
    output: Box<dyn Output>,
    ready: VecDeque<(Stream, Vec<u8>)>,
    streams: [Decoder; 2],
    descent: Descent,
    over: watch::Sender<bool>,
    /// Why input that was sent does not arrive.
    unfed: Option<oneshot::Receiver<Failure>>,
}

impl Program {
    /// Starts it, and waits until it runs. `launch` starts a program with the signals that programs expect.
    ///
    /// # Errors
    /// `Invalid` for what cannot be run there, `Unavailable` when nothing ran, `Lost` when it may have.
    pub async fn start(
        machine: &Arc<dyn Machine>,
        launch: &str,
        room: &'static str,
        wanted: Wanted<'_>,
    ) -> Result<Self> {
        let named = Named::new()?;
        let tag = named.tag.clone();
        let wrapper = scripts::wrapper(room);
        let counts = if wanted.counts { "1" } else { "0" };
        let head = |limit: &str, stdin: &str| {
            ["/bin/sh", "-c", &wrapper, "sh", &named.mark, &tag, limit, stdin, counts, launch]
                .map(str::to_owned)
                .to_vec()
        };
        let argv = wanted.argv(head, scripts::inner(1))?;
        let within = wanted.timeout.map_or(LONGEST, |timeout| timeout + BEYOND);
        let mut descent = Descent::new(machine, room, named);
        let begun = machine.run(Run { argv, env: wanted.env, within, quiet: false }).await;
        let output = begun.map_err(|error| {
            let error = failure::before(&error);
            if !matches!(error, Error::Lost(_)) {
                descent.leave();
            }
            error
        })?;
        let mut program = Self {
            pid: 0,
            stdin: None,
            end: None,
            output,
            ready: VecDeque::new(),
            streams: [Decoder::new(&tag), Decoder::new(&tag)],
            descent,
            over: watch::Sender::new(false),
            unfed: None,
        };
        match tokio::time::timeout(STARTS_WITHIN, program.said()).await {
            Ok(Ok(pid)) => program.pid = pid,
            Ok(Err(error)) => {
                if !matches!(error, Error::Lost(_)) {
                    program.descent.leave();
                }
                return Err(error);
            }
            Err(_) => return Err(slow()),
        }
        if wanted.stdin {
            let (near, far) = tokio::io::duplex(INPUT);
            program.stdin = Some(Box::new(near));
            let is_over = program.over.subscribe();
            let (tell, unfed) = oneshot::channel();
            // What has a time of its own ends by that.
            program.unfed = wanted.timeout.is_none().then_some(unfed);
            tokio::spawn(feed(Arc::clone(machine), room, tag, far, is_over, tell));
        }
        Ok(program)
    }

    /// What it says before it runs: its process id, or why it does not.
    async fn said(&mut self) -> Result<u32> {
        let (mut line, mut others) = (Vec::new(), Vec::new());
        loop {
            let Some((stream, piece)) = self.next().await? else {
                // Its time was up, or it was to end, before it could say so.
                return match &self.end {
                    Some(end) if end.why != '-' => Ok(0),
                    _ => Err(failure::unavailable(&Failure::Unlike(plain(&line)))),
                };
            };
            if stream == Stream::Stderr {
                others.push((stream, piece));
                continue;
            }
            line.extend_from_slice(&piece);
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                let rest = line.split_off(end + 1);
                if !rest.is_empty() {
                    self.ready.push_front((Stream::Stdout, rest));
                }
                break;
            }
            if line.len() > MAX_SAID || others.len() > 64 {
                return Err(failure::unavailable(&Failure::Unlike(plain(&line))));
            }
        }
        for other in others.into_iter().rev() {
            self.ready.push_front(other);
        }
        let line = String::from_utf8_lossy(&line);
        failure::started(&line)
    }

    /// The next output; `None` once both streams have told the end.
    ///
    /// # Errors
    /// `Lost` when it breaks off before.
    pub async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            if self.streams.iter().all(|stream| stream.end.is_some()) {
                self.end = self.streams[0].end.clone();
                let _ = self.over.send(true);
                return Ok(None);
            }
            let next = tokio::select! {
                biased;
                next = self.output.next() => next,
                why = unfed(&mut self.unfed) => return Err(failure::lost(&why)),
            };
            match next {
                Ok(Some(Piece::Stdout(text))) => self.take(0, &text)?,
                Ok(Some(Piece::Stderr(text))) => self.take(1, &text)?,
                Ok(None) => {
                    return Err(match self.descent.machine.lives().await {
                        Ok(false) => failure::ended(),
                        _ => failure::broke(),
                    });
                }
                Err(Failure::Answer { status: 404 | 410 | 422, .. }) => return Err(failure::ended()),
                Err(error) => {
                    return Err(match self.descent.machine.lives().await {
                        Ok(false) => failure::ended(),
                        _ => failure::lost(&error),
                    });
                }
            }
        }
    }

    fn take(&mut self, which: usize, text: &str) -> Result<()> {
        let stream = if which == 0 { Stream::Stdout } else { Stream::Stderr };
        let pieces = self.streams[which].take(text.as_bytes());
        let pieces = pieces.map_err(|why| failure::lost(&Failure::Unlike(why.to_owned())))?;
        self.ready.extend(pieces.into_iter().map(|piece| (stream, piece)));
        Ok(())
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
