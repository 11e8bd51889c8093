//! Commands that are remembered: written down before they start, and how they ended when they have.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use moltis_sandbox::exec::ExecEvents;
use moltis_sandbox::{
    BackendName, Command, Diagnosis, Error, Exec, ExecEvent, ExecRequest, Outcome, Result, Sandbox,
};

use crate::runtime::Runtime;
use crate::store::{Caller, CommandId, Ended, Kept, NewCommand, SessionNumber, Store, now_millis};

/// Bytes that are remembered of each end of each stream.
const KEPT: usize = crate::store::history::KEPT_BYTES;

/// Whose commands, and where they run.
pub struct Runs {
    pub runtime: Runtime,
    pub session: SessionNumber,
    /// Which opening of the session's sandbox.
    pub generation: u64,
    pub backend: BackendName,
    pub caller: Caller,
}

/// Starts a command that is written down first. Its events bring its end into the store before they tell it.
pub async fn exec(runs: Runs, sandbox: &dyn Sandbox, request: ExecRequest) -> Result<Exec> {
    let Runs { runtime, session, generation, backend, caller } = runs;
    let store = runtime.store().clone();
    let background = request.background;
    let command = line(&request.command);
    let new = NewCommand { command, caller, backend, background, started_millis: now_millis() };
    let place = (runtime.clone(), backend);
    // Files can be reached without room for commands, so that something can be removed.
    let begun = store.run(move |db| match runtime.see_room_here() {
        Ok(()) => db.begin_command(session, &new).map(Ok),
        Err(error) => Ok(Err(error)),
    });
    let id = begun.await??;
    let (stdout, stderr) = (Ends::default(), Ends::default());
    let mut record = Record { store, place, session, generation, id, background, open: true, stdout, stderr };
    match sandbox.exec(request).await {
        Ok(Exec { events, control }) => {
            let events = stream::unfold(Some((record, events)), next);
            Ok(Exec { events: ExecEvents::new(events), control })
        }
        Err(error) => {
            record.open = false;
            let lost = matches!(error, Error::Lost(_));
            let written = record
                .store
                .run(move |db| if lost { db.lose_command(id).map(drop) } else { db.forget_command(id) });
            // What went wrong with the command is more worth telling.
            let _ = written.await;
            if lost {
                record.suspect().await;
            }
            Err(error)
        }
    }
}

type Pulled = Option<(Record, ExecEvents)>;

async fn next(state: Pulled) -> Option<(Result<ExecEvent>, Pulled)> {
    let (mut record, mut events) = state?;
    let mut event = match events.next().await {
        Some(Ok(event)) => event,
        Some(Err(error)) => {
            let lost = if record.background { Ok(()) } else { record.lose().await };
            if matches!(error, Error::Lost(_)) {
                record.suspect().await;
            }
            let error = record.why(error).await;
            return Some((lost.and(Err(error)), None));
        }
        None => return None,
    };
    let written = match &event {
        ExecEvent::Stdout(bytes) => {
            record.stdout.push(bytes);
            Ok(())
        }
        ExecEvent::Stderr(bytes) => {
            record.stderr.push(bytes);
            Ok(())
        }
        ExecEvent::Missed { .. } => Ok(()),
        ExecEvent::Started(process) if record.background => {
            let (id, process) = (record.id, *process);
            // From here on its sandbox keeps it, whatever becomes of this stream.
            record.open = false;
            record.store.run(move |db| db.command_started(id, process)).await
        }
        ExecEvent::Started(_) => Ok(()),
        ExecEvent::Exit(outcome) => {
            record.open = false;
            let ended = ended(outcome, record.stdout.take(), record.stderr.take());
            let id = record.id;
            record.store.run(move |db| db.end_command(id, &ended)).await.map(drop)
        }
    };
    // That it could not be written down is no reason to keep what happened from the caller.
    if let (Err(error), ExecEvent::Exit(outcome)) = (written, &mut event) {
        outcome.notes.push(format!("the history cannot be written: {error}"));
    }
    let over = matches!(event, ExecEvent::Exit(_));
    Some((Ok(event), (!over).then_some((record, events))))
}

/// A command as far as it is known. Dropping it before its end is the loss of its caller.
struct Record {
    store: Store,
    place: (Runtime, BackendName),
    session: SessionNumber,
    generation: u64,
    id: CommandId,
    background: bool,
    /// Whether its end is not written down yet and is this value's to write.
    open: bool,
    stdout: Ends,
    stderr: Ends,
}

impl Record {
    /// A command that is lost because somebody ended its sandbox says so.
    async fn why(&self, error: Error) -> Error {
        let Error::Lost(diagnosis) = error else { return error };
        let (session, generation) = (self.session, self.generation);
        let ended = self.store.run(move |db| db.was_ended(session, generation)).await;
        if !ended.unwrap_or(false) {
            return Error::Lost(diagnosis);
        }
        let fix = diagnosis.fix.unwrap_or_default();
        Error::Lost(
            Diagnosis::new("sandbox-ended", "the session's sandbox was ended while the command ran")
                .cause("somebody stopped it, removed the session, or asked for a new one")
                .fix(fix),
        )
    }

    /// Finds out whether it was lost because the engine failed.
    async fn suspect(&self) {
        let (runtime, backend) = &self.place;
        runtime.suspect(*backend).await;
    }

    async fn lose(&mut self) -> Result<()> {
        self.open = false;
        let id = self.id;
        Ok(self.store.run(move |db| db.lose_command(id)).await.map(drop)?)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (store, id) = (self.store.clone(), self.id);
        // If there is nothing to run it on the process ends, and the next one finds that it has.
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(async move { drop(store.run(move |db| db.lose_command(id)).await) });
        }
    }
}

/// The first and the last bytes of a stream.
#[derive(Default)]
struct Ends {
    bytes: u64,
    head: Vec<u8>,
    tail: VecDeque<u8>,
}

impl Ends {
    fn push(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(KEPT - self.head.len()));
        self.head.extend_from_slice(head);
        let last = &rest[rest.len().saturating_sub(KEPT)..];
        let over = (self.tail.len() + last.len()).saturating_sub(KEPT);
        self.tail.drain(..over);
        self.tail.extend(last);
    }

    fn take(&mut self) -> Kept {
        let Self { bytes, head, tail } = std::mem::take(self);
        Kept { bytes, head, tail: tail.into() }
    }
}

fn ended(outcome: &Outcome, stdout: Kept, stderr: Kept) -> Ended {
    let micros = u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX);
    let stdout = Kept { bytes: outcome.stdout_bytes.max(stdout.bytes), ..stdout };
    let stderr = Kept { bytes: outcome.stderr_bytes.max(stderr.bytes), ..stderr };
    Ended { status: outcome.status, ending: outcome.ending, micros, stdout, stderr }
}

/// Writes down how the background commands of a session ended that are over.
pub async fn settle(store: &Store, session: SessionNumber, sandbox: &dyn Sandbox) -> Result<()> {
    let running = store.run(move |db| db.background_commands(session)).await?;
    if running.is_empty() {
        return Ok(());
    }
    let known = sandbox.processes().await?;
    for command in running {
        let id = command.id;
        match known.iter().find(|process| process.id == command.process) {
            // The sandbox remembers the latest of those that are over.
            None => drop(store.run(move |db| db.lose_command(id)).await?),
            Some(process) => {
                let Some(outcome) = &process.outcome else { continue };
                let (mut stdout, mut stderr) = (Ends::default(), Ends::default());
                // Without its output the end is worth remembering still.
                if let Ok(mut watched) = sandbox.attach(process.id, 0, 0, false).await {
                    while let Some(Ok(event)) = watched.events.next().await {
                        match event {
                            ExecEvent::Stdout(bytes) => stdout.push(&bytes),
                            ExecEvent::Stderr(bytes) => stderr.push(&bytes),
                            _ => {}
                        }
                    }
                }
                let ended = ended(outcome, stdout.take(), stderr.take());
                store.run(move |db| db.end_command(id, &ended)).await?;
            }
        }
    }
    Ok(())
}

/// A command as one line to show.
fn line(command: &Command) -> String {
    match command {
        Command::Shell(line) => line.to_string_lossy().into_owned(),
        Command::Argv(words) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_stream_are_kept() {
        let mut ends = Ends::default();
        for piece in 0..100u8 {
            ends.push(&Bytes::from(vec![piece; 1000]));
        }
        let all: Vec<u8> = (0..100u8).flat_map(|piece| vec![piece; 1000]).collect();
        let kept = ends.take();
        assert_eq!(kept.bytes, 100_000);
        assert_eq!(kept.head, all[..KEPT]);
        assert_eq!(kept.tail, all[all.len() - KEPT..]);
        ends.push(&Bytes::from_static(b"ab"));
        assert_eq!(ends.take(), Kept { bytes: 2, head: b"ab".to_vec(), tail: Vec::new() });
        ends.push(&Bytes::from(all.clone()));
        let kept = ends.take();
        assert_eq!((kept.head.as_slice(), kept.tail.as_slice()), (&all[..KEPT], &all[all.len() - KEPT..]));
    }
}
