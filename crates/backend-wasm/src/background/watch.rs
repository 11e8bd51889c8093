//! Watching a background command: by its files, which are there whoever holds it. Nothing of it is held up by that.

use std::time::Duration;

use futures_util::stream;
use moltis_sandbox::exec::{Exec, ExecEvents, ProcessId};
use moltis_sandbox::{ExecEvent, Outcome, Result as SandboxResult};

use super::control::Remote;
use super::kept::Kept;
use super::lost;
use super::spool::{Found, STREAMS, look};
use crate::error::blocking;

/// How long nothing is looked for after nothing was found, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(80)];

/// What one look found.
enum Seen {
    Event(usize, Found),
    Over(Outcome),
    Nothing { held: bool },
}

struct Watch {
    kept: Kept,
    offsets: [u64; 2],
    follow: bool,
    begun: bool,
    pause: Duration,
}

/// A watcher, from these offsets on.
pub fn exec(kept: Kept, offsets: [u64; 2], follow: bool) -> Exec {
    let control = Box::new(Remote::new(kept.clone()));
    let watch = Watch { kept, offsets, follow, begun: false, pause: PAUSE[0] };
    Exec { events: ExecEvents::new(stream::unfold(Some(watch), next)), control }
}

type Next = Option<(SandboxResult<ExecEvent>, Option<Watch>)>;

async fn next(watch: Option<Watch>) -> Next {
    let mut watch = watch?;
    if !watch.begun {
        watch.begun = true;
        let started = ExecEvent::Started(ProcessId(watch.kept.number));
        return Some((Ok(started), Some(watch)));
    }
    loop {
        let (kept, offsets) = (watch.kept.clone(), watch.offsets);
        let seen = match blocking(move || Ok(see(&kept, offsets))).await {
            Ok(seen) => seen,
            Err(error) => return Some((Err(error.into()), None)),
        };
        match seen {
            Seen::Event(which, found) => {
                watch.pause = PAUSE[0];
                let event = watch.event(which, found);
                return Some((Ok(event), Some(watch)));
            }
            Seen::Over(outcome) => return Some((Ok(ExecEvent::Exit(outcome)), None)),
            Seen::Nothing { held: false } => return Some((Err(lost()), None)),
            Seen::Nothing { held: true } if !watch.follow => return None,
            Seen::Nothing { held: true } => {
                tokio::time::sleep(watch.pause).await;
                watch.pause = (watch.pause * 2).min(PAUSE[1]);
            }
        }
    }
}

fn see(kept: &Kept, offsets: [u64; 2]) -> Seen {
    // Looked for first: what was said before its end is there by then.
    let held = kept.is_held();
    let over = kept.outcome();
    for (which, stream) in STREAMS.into_iter().enumerate() {
        let found = look(&kept.path, stream, offsets[which]);
        if found != Found::Nothing {
            return Seen::Event(which, found);
        }
    }
    match over {
        Some(outcome) => Seen::Over(outcome),
        None => Seen::Nothing { held },
    }
}

impl Watch {
    fn event(&mut self, which: usize, found: Found) -> ExecEvent {
        let before = self.offsets[which];
        match found {
            Found::Piece(piece) => {
                self.offsets[which] += piece.len() as u64;
                if which == 0 { ExecEvent::Stdout(piece.into()) } else { ExecEvent::Stderr(piece.into()) }
            }
            Found::Missed(begin) => {
                self.offsets[which] = begin;
                let missed = begin.saturating_sub(before);
                let [stdout, stderr] = if which == 0 { [missed, 0] } else { [0, missed] };
                ExecEvent::Missed { stdout, stderr }
            }
            Found::Nothing => ExecEvent::Missed { stdout: 0, stderr: 0 },
        }
    }
}
