//! A program on a rented machine, within the script that carries its bytes and knows its descent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use moltis_agentless::{Sink, Stream, hex, plain, random_bytes};
use moltis_sandbox::{Diagnosis, Error, Result};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::{oneshot, watch};

use crate::http::Failure;
use crate::machine::{Machine, Output, Piece, Run};
use crate::{failure, scripts};

/// How long it may take until a program runs.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Longest line with which a program says that it runs.
const MAX_SAID: usize = 256;
/// Longest line of base64 that the script writes, with room to spare.
const MAX_LINE: usize = 128 << 10;
/// Longest word with which a command's end is told.
const MAX_END: usize = 4 << 10;
/// Input that is sent at once.
const INPUT: usize = 1 << 20;
/// Pieces of input after which it is waited until the last but these were taken.
const AHEAD: u64 = 4;
/// How long the end of a program may be on its way after input of it was refused.
const GRACE: Duration = Duration::from_secs(2);
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

/// By what a program's processes and files are known inside.
pub struct Named {
    /// The limit that its processes have.
    pub mark: String,
    /// The name of its folder.
    pub tag: String,
}

impl Named {
    /// One that nothing else has.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub fn new() -> Result<Self> {
        Ok(Self { mark: moltis_agentless::mark()?.to_string(), tag: hex(&random_bytes::<16>()?) })
    }
}

/// How it ended, as the script tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The shell's number for it.
    pub code: i32,
    /// Why: `-` by itself, `t` its time was up, `c` it was to end.
    pub why: char,
    /// From start to end, by the machine's clock.
    pub duration: Duration,
    /// How many of its descent live on.
    pub living: u32,
    /// The first of them.
    pub pids: Vec<u32>,
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

/// The processes of one program. Dropping it ends them, unless they were let go.
pub struct Descent {
    machine: Arc<dyn Machine>,
    room: &'static str,
    mark: String,
    tag: String,
    is_over: bool,
}

impl Drop for Descent {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let other = self.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = other.end().await;
            });
        }
    }
}

impl Descent {
    /// Of a program whose folder is in this room.
    pub fn new(machine: &Arc<dyn Machine>, room: &'static str, Named { mark, tag }: Named) -> Self {
        Self { machine: Arc::clone(machine), room, mark, tag, is_over: false }
    }

    /// What lives on is let go.
    pub fn leave(&mut self) {
        self.is_over = true;
    }

    /// The same for somebody else to end.
    pub fn take(&mut self) -> Ending {
        self.is_over = true;
        Ending {
            machine: Arc::clone(&self.machine),
            room: self.room,
            mark: self.mark.clone(),
            tag: self.tag.clone(),
        }
    }
}

/// The end of a descent.
pub struct Ending {
    machine: Arc<dyn Machine>,
    room: &'static str,
    mark: String,
    tag: String,
}

impl Ending {
    /// Ends it, and says whether nothing is left.
    pub async fn end(&self) -> Result<bool, Failure> {
        let script_text = scripts::end(self.room);
        let argv =
            ["/bin/sh", "-c", &script_text, "sh", &self.mark, &self.tag, "c"].map(str::to_owned).to_vec();
        let said = script(&*self.machine, argv).await?;
        Ok(!said.contains("left"))
    }
}

/// Runs a script of ours as it is, without anything around it, and returns what it prints.
pub async fn script(machine: &dyn Machine, argv: Vec<String>) -> Result<String, Failure> {
    script_within(machine, argv, Duration::from_secs(120), false).await
}

/// The same for one that may take this long; `quiet`: it is no use of the machine.
pub async fn script_within(
    machine: &dyn Machine,
    argv: Vec<String>,
    within: Duration,
    quiet: bool,
) -> Result<String, Failure> {
    let run = Run { argv, env: vec![("LC_ALL".into(), "C".into())], within, quiet };
    let mut output = machine.run(run).await?;
    let mut said = String::new();
    let work = async {
        while let Some(piece) = output.next().await? {
            if let Piece::Stdout(text) = piece {
                said.push_str(&text);
                if said.len() > 1 << 20 {
                    return Err(Failure::Unlike("a script printed more than it should".to_owned()));
                }
            }
        }
        Ok(())
    };
    tokio::time::timeout(within + Duration::from_secs(30), work)
        .await
        .map_err(|_| Failure::Broken("the sandbox is silent".to_owned()))??;
    Ok(said)
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

/// Reads one stream: lines of base64, and in their bytes the word for the end.
struct Decoder {
    start: Vec<u8>,
    line: Vec<u8>,
    held: Vec<u8>,
    end: Option<End>,
}

impl Decoder {
    fn new(tag: &str) -> Self {
        let start = format!("\u{1e}{tag} ").into_bytes();
        Self { start, line: Vec::new(), held: Vec::new(), end: None }
    }

    fn take(&mut self, text: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
        let mut pieces = Vec::new();
        for part in text.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_LINE {
                return Err("a line of output is longer than it can be");
            }
            if self.line.last() != Some(&b'\n') {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if self.end.is_some() {
                continue;
            }
            if line.starts_with(b"!room") {
                return Err(
                    "there is no room for the command inside: its /tmp cannot be written to, or is full",
                );
            }
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(&line[..line.len() - 1])
                .map_err(|_| "a line of output is not what the script writes")?;
            self.held.extend_from_slice(&bytes);
            if let Some(piece) = self.split()? {
                pieces.push(piece);
            }
        }
        Ok(pieces)
    }

    /// What of the held bytes is output for certain.
    fn split(&mut self) -> Result<Option<Vec<u8>>, &'static str> {
        let at = memchr::memmem::find(&self.held, &self.start);
        let Some(at) = at else {
            let most = self.start.len().min(self.held.len() + 1);
            let kept = (1..most).rev().find(|n| self.held.ends_with(&self.start[..*n])).unwrap_or(0);
            let piece = self.held[..self.held.len() - kept].to_vec();
            self.held.drain(..piece.len());
            return Ok((!piece.is_empty()).then_some(piece));
        };
        let word = &self.held[at + self.start.len()..];
        match word.iter().position(|byte| *byte == 0x1e) {
            Some(close) => {
                let end = std::str::from_utf8(&word[..close]).ok().and_then(end);
                self.end =
                    Some(end.ok_or("the end of the command is told in other words than the script's")?);
                let mut piece = std::mem::take(&mut self.held);
                piece.truncate(at);
                Ok((!piece.is_empty()).then_some(piece))
            }
            None if word.len() > MAX_END => Err("the end of the command is told in too many words"),
            None => {
                let piece: Vec<u8> = self.held.drain(..at).collect();
                Ok((!piece.is_empty()).then_some(piece))
            }
        }
    }
}

/// Reads how a command ended.
pub fn end(text: &str) -> Option<End> {
    let mut words = text.split(' ');
    let code = words.next()?.parse().ok()?;
    let why = words.next()?.chars().next()?;
    let mut seconds = || words.next()?.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
    let (up, down) = (seconds()?, seconds()?);
    let living = words.next()?.parse().ok()?;
    let pids = words.next()?.split(',').filter_map(|pid| pid.parse().ok()).take(64).collect();
    Some(End { code, why, duration: Duration::try_from_secs_f64((down - up).max(0.0)).ok()?, living, pids })
}

/// Why input does not arrive; waits for ever if it does.
async fn unfed(told: &mut Option<oneshot::Receiver<Failure>>) -> Failure {
    if let Some(waiting) = told
        && let Ok(why) = waiting.await
    {
        return why;
    }
    *told = None;
    std::future::pending().await
}

/// Carries input, piece by piece, and no faster than it is taken.
async fn feed(
    machine: Arc<dyn Machine>,
    all: &'static str,
    tag: String,
    mut input: DuplexStream,
    mut is_over: watch::Receiver<bool>,
    tell: oneshot::Sender<Failure>,
) {
    let room = format!("{all}/{tag}");
    let mut buffer = vec![0; INPUT];
    let mut number = 0u64;
    loop {
        let count = tokio::select! {
            count = input.read(&mut buffer) => count,
            // Whoever ran it is gone, or it is over.
            _ = is_over.changed() => return,
        };
        let Ok(count) = count else { return };
        let put = if count == 0 {
            machine.put(vec![(format!("{room}/in/{number}.end"), Bytes::new())]).await
        } else {
            let piece = Bytes::copy_from_slice(&buffer[..count]);
            machine
                .put(vec![
                    (format!("{room}/in/{number}"), piece),
                    (format!("{room}/in/{number}.ok"), Bytes::new()),
                ])
                .await
        };
        if let Err(why) = put {
            // It may be over, and only the word for that on its way. Else it would wait for ever.
            tokio::select! {
                () = tokio::time::sleep(GRACE) => drop(tell.send(why)),
                _ = is_over.changed() => {}
            }
            return;
        }
        if count == 0 {
            return;
        }
        // At most twice as many wait inside.
        if let Some(waited) = (number + 1).checked_sub(AHEAD).filter(|waited| waited % AHEAD == 0) {
            let taken = scripts::taken(all);
            let argv = ["/bin/sh", "-c", &taken, "sh", &tag, &waited.to_string()].map(str::to_owned).to_vec();
            let run = Run { argv, env: Vec::new(), within: LONGEST, quiet: false };
            let mut output = match machine.run(run).await {
                Ok(output) => output,
                Err(why) => {
                    tokio::select! {
                        () = tokio::time::sleep(GRACE) => drop(tell.send(why)),
                        _ = is_over.changed() => {}
                    }
                    return;
                }
            };
            tokio::select! {
                () = async { while let Ok(Some(_)) = output.next().await {} } => {}
                _ = is_over.changed() => return,
            }
        }
        number += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes) + "\n"
    }

    #[test]
    fn the_end_is_found_wherever_lines_are_cut() {
        let told = b"out\xff\x1e\x1etag 7 t 1.50 3.25 2 11,12,,\x1e...";
        for cut in 0..told.len() {
            let mut decoder = Decoder::new("tag");
            let text = line(&told[..cut]) + &line(&told[cut..]);
            let mut out = Vec::new();
            for byte in text.as_bytes() {
                out.extend(decoder.take(&[*byte]).unwrap().concat());
            }
            assert_eq!(out, b"out\xff\x1e", "{cut}");
            let end = End {
                code: 7,
                why: 't',
                duration: Duration::from_millis(1750),
                living: 2,
                pids: vec![11, 12],
            };
            assert_eq!(decoder.end, Some(end));
        }
    }

    #[test]
    fn what_no_script_wrote_is_told_apart() {
        for text in ["!!!\n", "!room\n"] {
            assert!(Decoder::new("tag").take(text.as_bytes()).is_err(), "{text}");
        }
        let mut decoder = Decoder::new("tag");
        assert!(decoder.take(line(b"\x1etag junk\x1e").as_bytes()).is_err());
        assert!(Decoder::new("tag").take(&vec![b'a'; MAX_LINE + 1]).is_err());
    }
}
