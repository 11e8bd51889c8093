//! Commands without a caller: what they print is kept inside, so that they outlive whatever process started them.

mod scripts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use moltis_agentless::{hex, plain, random_bytes, status};
use moltis_sandbox::exec::{ExecEvents, ProcessId, TerminalSize};
use moltis_sandbox::{
    Diagnosis, Ending as Why, Error, Exec, ExecControl, ExecEvent, Outcome, ProcessInfo, Result, Status,
};
use tokio::sync::mpsc;

use crate::failure;
use crate::http::Failure;
use crate::machine::{Piece, Run};
use crate::program::{Descent, Ending, Named, Wanted, end, script, script_within};
use crate::sandbox::Remote;

pub use scripts::folder;

/// Pieces of output between the machine and a watcher who does not read.
const PIECES: usize = 4;
/// How long one look at the output waits for more, in tenths of a second.
const ROUNDS: &str = "250";
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(120);
/// How often a look that broke off is begun again.
const AGAIN: u32 = 5;
/// A look that ends sooner than this for no reason is not begun again at once, unless this much was printed.
const SOON: Duration = Duration::from_secs(1);
const MUCH: u64 = 1 << 20;
/// Longest line that a look prints, with room to spare.
const MAX_LINE: usize = 128 << 10;
/// Bytes of a command's line that are remembered.
const MAX_COMMAND: usize = 256;
/// Largest offset that the shells there can count to, with room to spare.
const MAX_OFFSET: u64 = 1 << 62;
/// Input that is sent at once.
const INPUT: usize = 1 << 20;

/// One that the machine knows.
struct Known {
    id: ProcessId,
    tag: String,
    mark: String,
    pid: u32,
    started_millis: u64,
    command: String,
    /// How it ended, if it has.
    outcome: Option<Outcome>,
}

/// Starts one and waits until it runs.
///
/// # Errors
/// As for commands with a caller.
pub async fn start(remote: &Arc<Remote>, wanted: Wanted<'_>, line: &[u8]) -> Result<Exec> {
    let named = Named::new()?;
    let tag = named.tag.clone();
    let short = &line[..line.len().min(MAX_COMMAND)];
    let kept = scripts::keep(remote.kept, remote.room);
    let now = crate::journal::now_millis().to_string();
    // A word of its own even if the line is empty.
    let told = format!("={}", STANDARD.encode(short));
    let head = |limit: &str, stdin: &str| {
        ["/bin/sh", "-c", &kept, "sh", &named.mark, &tag, limit, stdin, &now, &told, &remote.launch]
            .map(str::to_owned)
            .to_vec()
    };
    let argv = wanted.argv(head, crate::scripts::inner(7))?;
    let mut descent = Descent::new(&remote.machine, remote.kept, named);
    let run = Run { argv, env: wanted.env, within: Duration::MAX, quiet: false };
    remote.machine.detach(&tag, run).await.map_err(|error| {
        let error = failure::before(&error);
        if !matches!(error, Error::Lost(_)) {
            descent.leave();
        }
        error
    })?;
    // Dropping the descent ends what may have begun.
    let argv = ["/bin/sh", "-c", &scripts::began(remote.kept), "sh", &tag].map(str::to_owned).to_vec();
    let said = script(&*remote.machine, argv).await.map_err(|error| failure::lost(&error))?;
    let unlike = || failure::lost(&Failure::Unlike(plain(said.as_bytes())));
    let (id, word) = said
        .trim_end_matches('\n')
        .strip_prefix("began ")
        .and_then(|rest| rest.split_once(' '))
        .ok_or_else(unlike)?;
    let id = id.parse().ok().filter(|id| *id > 0).map(ProcessId).ok_or_else(unlike)?;
    // Without a word its time was up before it could say one.
    let pid = match word {
        "" => 0,
        word => match failure::started(word) {
            Ok(pid) => pid,
            Err(error) => {
                descent.leave();
                remote.machine.let_go(&tag).await;
                return Err(error);
            }
        },
    };
    let ending = descent.take();
    remote.keep_while_used();
    Ok(watched(remote, id, (tag, pid), ending, [0; 2], true))
}

/// Those that the machine knows, oldest first.
pub async fn list(remote: &Remote) -> Result<Vec<ProcessInfo>> {
    let known = known(remote, None).await?;
    Ok(known
        .into_iter()
        .map(|Known { id, pid, started_millis, command, outcome, .. }| ProcessInfo {
            id,
            pid,
            command,
            background: true,
            started_millis,
            outcome,
        })
        .collect())
}

/// Watches one from these offsets on.
pub async fn attach(remote: &Arc<Remote>, process: ProcessId, from: [u64; 2], follow: bool) -> Result<Exec> {
    let Known { tag, mark, pid, .. } = one(remote, process).await?;
    let ending = Descent::new(&remote.machine, remote.kept, Named { mark, tag: tag.clone() }).take();
    Ok(watched(remote, process, (tag, pid), ending, from, follow))
}

/// Ends one with its descent and waits until it is gone.
pub async fn stop(remote: &Arc<Remote>, process: ProcessId) -> Result<Outcome> {
    let Known { tag, mark, outcome, .. } = one(remote, process).await?;
    if let Some(outcome) = outcome {
        return Ok(outcome);
    }
    let ending = Descent::new(&remote.machine, remote.kept, Named { mark, tag: tag.clone() }).take();
    let done = ending.end().await.map_err(|error| failure::unavailable(&error))?;
    remote.machine.let_go(&tag).await;
    let left = || {
        Error::Unavailable(
            Diagnosis::new("process-stays", format!("background command {process} does not end"))
                .fix("stop it again, or end its sandbox"),
        )
    };
    if !done {
        return Err(left());
    }
    one(remote, process).await?.outcome.ok_or_else(left)
}

async fn one(remote: &Remote, process: ProcessId) -> Result<Known> {
    let found = known(remote, Some(process)).await?.into_iter().find(|known| known.id == process);
    found.ok_or_else(|| {
        Error::Invalid(
            Diagnosis::new("process-missing", format!("there is no background command {process}"))
                .fix("list the sandbox's background commands"),
        )
    })
}

async fn known(remote: &Remote, process: Option<ProcessId>) -> Result<Vec<Known>> {
    let mut argv = ["/bin/sh", "-c", &scripts::list(remote.kept), "sh"].map(str::to_owned).to_vec();
    argv.extend(process.map(|process| process.to_string()));
    let said = script_within(&*remote.machine, argv, LOOK, true).await;
    let said = said.map_err(|error| match failure::before(&error) {
        Error::Lost(diagnosis) => Error::Unavailable(diagnosis),
        error => error,
    })?;
    let mut all: Vec<Known> = said.lines().filter_map(read).collect();
    all.sort_by_key(|known| known.id);
    Ok(all)
}

/// Reads how one is.
fn read(line: &str) -> Option<Known> {
    let mut words = line.strip_prefix("p ")?.splitn(7, ' ');
    let id = ProcessId(words.next()?.parse().ok()?);
    let tag = words.next().filter(|tag| tag.len() == 32 && tag.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let mark = words.next().filter(|mark| mark.parse::<u64>().is_ok())?;
    let pid = words.next()?.parse().unwrap_or(0);
    let started_millis = words.next()?.parse().ok()?;
    let command = STANDARD.decode(words.next()?.strip_prefix('=')?).ok()?;
    let command = String::from_utf8_lossy(&command[..command.len().min(MAX_COMMAND)]).into_owned();
    let outcome = match words.next()? {
        "runs" => None,
        "gone" => Some(vanished()),
        over => Some(outcome(over.strip_prefix("over ")?)?),
    };
    Some(Known { id, tag: tag.to_owned(), mark: mark.to_owned(), pid, started_millis, command, outcome })
}

/// Reads how one ended; what lives on has no names yet.
fn outcome(text: &str) -> Option<Outcome> {
    let mut words = text.rsplitn(3, ' ');
    let stderr_bytes = words.next()?.parse().ok()?;
    let stdout_bytes = words.next()?.parse().ok()?;
    let end = end(words.next()?)?;
    Some(Outcome {
        status: status(end.code),
        ending: match end.why {
            't' => Why::TimedOut,
            'c' => Why::Cancelled,
            _ => Why::Exited,
        },
        duration: end.duration,
        stdout_bytes,
        stderr_bytes,
        leftovers: moltis_agentless::leftovers(&end.pids, std::iter::empty()),
        leftovers_total: end.living,
        out_of_memory: false,
        newly_dangerous: Vec::new(),
        newly_dangerous_total: 0,
        notes: Vec::new(),
    })
}

/// The end of one that nobody saw: its machine was stopped meanwhile, or something inside killed what kept it.
fn vanished() -> Outcome {
    Outcome {
        status: Status::Signal(9),
        ending: Why::Exited,
        duration: Duration::ZERO,
        stdout_bytes: 0,
        stderr_bytes: 0,
        leftovers: Vec::new(),
        leftovers_total: 0,
        out_of_memory: false,
        newly_dangerous: Vec::new(),
        newly_dangerous_total: 0,
        notes: vec!["what kept it inside ended without a word, as when the sandbox is stopped".to_owned()],
    }
}

fn watched(
    remote: &Arc<Remote>,
    process: ProcessId,
    (tag, pid): (String, u32),
    ending: Ending,
    from: [u64; 2],
    follow: bool,
) -> Exec {
    let (sender, mut receiver) = mpsc::channel(PIECES);
    let control = Control { remote: Arc::clone(remote), tag: tag.clone(), pid, ending: Arc::new(ending) };
    let watch =
        Watch { remote: Arc::clone(remote), tag, at: from.map(|at| at.min(MAX_OFFSET)), bytes: 0, follow };
    tokio::spawn(async move {
        let done = tokio::select! {
            // A watcher that goes away ends nothing.
            () = sender.closed() => return,
            done = watch.run(&sender) => done,
        };
        if let Err(error) = done {
            let _ = sender.send(Err(error)).await;
        }
    });
    let mut first = Some(ExecEvent::Started(process));
    let events = stream::poll_fn(move |cx| match first.take() {
        Some(started) => std::task::Poll::Ready(Some(Ok(started))),
        None => receiver.poll_recv(cx),
    });
    Exec { events: ExecEvents::new(events), control: Box::new(control) }
}

/// One that looks at what a command prints.
struct Watch {
    remote: Arc<Remote>,
    tag: String,
    /// What is wanted next of each stream.
    at: [u64; 2],
    /// Bytes of output that were read.
    bytes: u64,
    follow: bool,
}

/// Why a look ended.
enum Last {
    Over(Outcome, Vec<u32>),
    There,
    More,
    Gone,
}

impl Watch {
    async fn run(mut self, events: &mpsc::Sender<Result<ExecEvent>>) -> Result<()> {
        let (mut again, mut idle) = (0u32, 0u32);
        loop {
            let (had, bytes, began) = (self.at, self.bytes, Instant::now());
            match self.look(events).await {
                Ok(Last::More) => {
                    again = 0;
                    // The script says so after a while, or after much output. What says so at once is none of ours, and
                    // is not to keep the provider busy.
                    if began.elapsed() < SOON && self.bytes - bytes < MUCH {
                        idle = (idle + 1).min(25);
                        tokio::time::sleep(Duration::from_millis(200) * idle).await;
                    } else {
                        idle = 0;
                    }
                }
                Ok(Last::There) => return Ok(()),
                Ok(Last::Gone) => return Err(failure::broke()),
                Ok(Last::Over(mut outcome, pids)) => {
                    outcome.leftovers = self.remote.leftovers(&pids).await;
                    if self.follow {
                        self.remote.machine.let_go(&self.tag).await;
                    }
                    let _ = events.send(Ok(ExecEvent::Exit(outcome))).await;
                    return Ok(());
                }
                Err(error) => {
                    again = if self.at == had { again + 1 } else { 0 };
                    if matches!(self.remote.machine.lives().await, Ok(false)) {
                        return Err(failure::ended());
                    }
                    if again >= AGAIN {
                        return Err(failure::lost(&error));
                    }
                    tokio::time::sleep(Duration::from_millis(200) * (again + 1)).await;
                }
            }
        }
    }

    /// What there is, and what comes for a while.
    async fn look(&mut self, events: &mpsc::Sender<Result<ExecEvent>>) -> Result<Last, Failure> {
        let text = scripts::take(self.remote.kept);
        let [stdout, stderr] = self.at.map(|at| at.to_string());
        let follow = if self.follow { "1" } else { "0" };
        let argv = ["/bin/sh", "-c", &text, "sh", &self.tag, &stdout, &stderr, follow, ROUNDS];
        let argv = argv.map(str::to_owned).to_vec();
        let run = Run { argv, env: vec![("LC_ALL".into(), "C".into())], within: LOOK, quiet: true };
        let mut output = self.remote.machine.run(run).await?;
        let mut line = String::new();
        loop {
            let next = tokio::time::timeout(LOOK, output.next()).await;
            let Some(piece) = next.map_err(|_| Failure::Broken("the sandbox is silent".to_owned()))?? else {
                return Err(Failure::Broken("a look at output broke off".to_owned()));
            };
            let Piece::Stdout(text) = piece else { continue };
            for part in text.split_inclusive('\n') {
                line.push_str(part);
                if line.len() > MAX_LINE {
                    return Err(Failure::Unlike("a line of output is longer than it can be".to_owned()));
                }
                if !line.ends_with('\n') {
                    continue;
                }
                let whole = std::mem::take(&mut line);
                if let Some(last) = self.take(whole.trim_end(), events).await? {
                    return Ok(last);
                }
            }
        }
    }

    async fn take(
        &mut self,
        line: &str,
        events: &mpsc::Sender<Result<ExecEvent>>,
    ) -> Result<Option<Last>, Failure> {
        let unlike = || Failure::Unlike("a line of output is not what the script writes".to_owned());
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let which = match word {
            "o" => 0,
            "e" => 1,
            "there" => return Ok(Some(Last::There)),
            "more" => return Ok(Some(Last::More)),
            "gone" => return Ok(Some(Last::Gone)),
            "over" => {
                let told = outcome(rest).ok_or_else(unlike)?;
                let pids = told.leftovers.iter().map(|one| one.pid).collect();
                return Ok(Some(Last::Over(told, pids)));
            }
            _ => return Err(unlike()),
        };
        let (at, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let at: u64 = at.parse().map_err(|_| unlike())?;
        let bytes = STANDARD.decode(text).map_err(|_| unlike())?;
        let missed = at.checked_sub(self.at[which]).ok_or_else(unlike)?;
        if missed > 0 {
            let (stdout, stderr) = if which == 0 { (missed, 0) } else { (0, missed) };
            let _ = events.send(Ok(ExecEvent::Missed { stdout, stderr })).await;
        }
        self.at[which] = at.saturating_add(bytes.len() as u64);
        self.bytes += bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(None);
        }
        let bytes = Bytes::from(bytes);
        let event = if which == 0 { ExecEvent::Stdout(bytes) } else { ExecEvent::Stderr(bytes) };
        let _ = events.send(Ok(event)).await;
        Ok(None)
    }
}

/// Of what is not done twice: it may have been done, unless it is certain that it was not.
fn unsure(failure: &Failure) -> Error {
    match failure {
        Failure::Broken(_) | Failure::Unlike(_) | Failure::Answer { status: 500..=599, .. } => {
            failure::lost(failure)
        }
        failure => failure::unavailable(failure),
    }
}

/// What a watcher does to one.
struct Control {
    remote: Arc<Remote>,
    tag: String,
    pid: u32,
    ending: Arc<Ending>,
}

impl Control {
    async fn say(&self, text: &str, args: &[&str], within: Duration) -> Result<String, Failure> {
        let mut argv = ["/bin/sh", "-c", text, "sh"].map(str::to_owned).to_vec();
        argv.extend(args.iter().map(|word| (*word).to_owned()));
        script_within(&*self.remote.machine, argv, within, false).await
    }
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, bytes: Bytes) -> Result<()> {
        for piece in bytes.chunks(INPUT) {
            let word = hex(&random_bytes::<8>()?);
            let path = format!("{}/{}/in-{word}", self.remote.kept, self.tag);
            let files = vec![(path.clone(), Bytes::copy_from_slice(piece))];
            self.remote.machine.put(files).await.map_err(|error| failure::unavailable(&error))?;
            // It waits as long as the command does not read.
            let within = Duration::from_secs(12 * 3600);
            let said = self.say(&scripts::input(self.remote.kept), &[&self.tag, &path], within).await;
            match said.map_err(|error| unsure(&error))?.trim_end() {
                "taken" => {}
                // The command has closed it, or is over: it takes nothing of the rest either.
                "closed" => return Ok(()),
                other => return Err(failure::lost(&Failure::Unlike(plain(other.as_bytes())))),
            }
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> Result<()> {
        let said = self.say(&scripts::close(self.remote.kept), &[&self.tag], LOOK).await;
        said.map(drop).map_err(|error| failure::unavailable(&error))
    }

    async fn resize(&mut self, _: TerminalSize) -> Result<()> {
        // There is no terminal.
        Ok(())
    }

    async fn signal(&mut self, signal: i32) -> Result<()> {
        if !(1..=64).contains(&signal) {
            let what = format!("there is no signal {signal}");
            return Err(Error::Invalid(Diagnosis::new("request-invalid", what)));
        }
        if self.pid == 0 {
            return Ok(());
        }
        let (signal, pid) = (signal.to_string(), self.pid.to_string());
        let said = self.say(crate::scripts::SIGNAL, &[&signal, &pid], LOOK).await;
        said.map(drop).map_err(|error| unsure(&error))
    }

    async fn cancel(&mut self) -> Result<()> {
        let ending = Arc::clone(&self.ending);
        tokio::spawn(async move { ending.end().await });
        Ok(())
    }
}

#[cfg(test)]
mod hostile;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_of_a_command_is_read_strictly() {
        let tag = "0123456789abcdef0123456789abcdef";
        let known = read(&format!("p 3 {tag} 77 41 1700 =ZWNobw== over 7 c 1.50 3.25 1 9,, 10 6")).unwrap();
        let outcome = known.outcome.unwrap();
        assert_eq!((known.id, known.pid, known.command.as_str()), (ProcessId(3), 41, "echo"));
        assert_eq!((outcome.status, outcome.ending), (Status::Code(7), Why::Cancelled));
        assert_eq!((outcome.stdout_bytes, outcome.stderr_bytes, outcome.leftovers_total), (10, 6, 1));
        assert_eq!(read(&format!("p 3 {tag} 77 41 1700 = runs")).unwrap().outcome, None);
        assert_eq!(read(&format!("p 3 {tag} 77 41 1700 = gone")).unwrap().outcome, Some(vanished()));
        for line in
            ["p 3 ../x 77 41 1700 = runs", "p x", "", "p 3 0123456789abcdef0123456789abcdef 7;id 4 1 = runs"]
        {
            assert!(read(line).is_none(), "{line}");
        }
    }
}
