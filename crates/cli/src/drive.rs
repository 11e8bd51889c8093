//! Bringing one command to its end: input goes in, events come out, signals to us end it.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::exec::{Ending, ExecControl, ExecEvent, ExecRequest, Outcome, TerminalSize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::output::Closed;
use crate::place::Place;
use crate::printer::Printer;
use crate::signals::Signals;
use crate::{stdin, terminal};

/// How driving a command ended.
pub enum Driven {
    /// It is over.
    Ended(Outcome),
    /// The reader of our output is gone; the command was ended.
    Closed,
    /// A signal of this number told us to leave before it was over. Its command ends with us, and so does a sandbox of
    /// its own; a session's stays.
    Told(i32),
}

/// Starts the command and brings it to its end: input goes in, events go to `take`, the first signal that we get ends
/// the whole descent.
pub async fn drive(
    place: &mut Place,
    request: ExecRequest,
    signals: &mut Signals,
    mut take: impl AsyncFnMut(&Place, ExecEvent) -> Result<(), Closed>,
) -> Result<Driven, Failure> {
    let input = request.stdin;
    let on_terminal = request.terminal.is_some();
    let mut exec = match signals.race(place.exec(request), || false).await {
        Ok(exec) => exec?,
        Err(number) => return Ok(Driven::Told(number)),
    };
    let place = &*place;
    let feeder = tokio::spawn(feed(exec.control, input, on_terminal));
    let process = Cell::new(None);
    let work = async {
        while let Some(event) = exec.events.next().await {
            match event? {
                ExecEvent::Exit(outcome) => return Ok(Driven::Ended(outcome)),
                event => {
                    if let ExecEvent::Started(id) = event {
                        process.set(Some(id));
                    }
                    if take(place, event).await.is_err() {
                        return Ok(Driven::Closed);
                    }
                }
            }
        }
        Err(moltis_runtime::error::ended_without_exit())
    };
    let driven = signals.race(work, || match process.get() {
        Some(process) => {
            let stop = place.stop();
            tokio::spawn(async move { stop.command(process).await });
            true
        }
        None => false,
    });
    let driven = driven.await;
    feeder.abort();
    match driven {
        Ok(driven) => Ok(driven?),
        Err(number) => Ok(Driven::Told(number)),
    }
}

/// Runs a command on our terminal, which is put back however it ends. What is to be said comes once it has started: a
/// session's sandbox may have to be made anew for it. Nothing else is printed meanwhile.
///
/// # Errors
/// When it does not start, or how it ended is not known.
pub async fn on_terminal(
    place: &mut Place,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<Driven, Failure> {
    let raw = terminal::RawMode::enter()?;
    let mut printer = Printer::on_terminal(cap);
    let driven = tokio::select! {
        driven = drive(place, request, signals, async |place, event| {
            if let ExecEvent::Started(_) = event {
                place.warn_raw();
            }
            printer.print(event).await
        }) => driven,
        never = raw.keep() => match never {},
    };
    // What it drew comes first, and then what puts the screen back; a terminal that takes no more is not waited for.
    let finished = match driven {
        Ok(Driven::Ended(_) | Driven::Closed) => {
            tokio::time::timeout(PATIENCE, signals.race(printer.finish(), || true)).await.ok()
        }
        // Somebody wants us gone.
        Ok(Driven::Told(_)) | Err(_) => {
            printer.hurry().await;
            None
        }
    };
    drop(raw);
    match (driven?, finished) {
        (Driven::Ended(_), Some(Ok(Ok(false)))) => Ok(Driven::Closed),
        (Driven::Ended(_), Some(Ok(Err(failure)))) => Err(failure),
        (driven, _) => Ok(driven),
    }
}

/// Time that our terminal has to take the last of the output.
const PATIENCE: Duration = Duration::from_secs(10);

/// The command's status; ours when a signal to us ended it.
pub fn exit_status(outcome: &Outcome, signals: &Signals) -> i32 {
    match (outcome.ending, signals.ended_by) {
        (Ending::Cancelled, Some(number)) => 128 + number,
        _ => outcome.exit_code(),
    }
}

/// Passes our input, and changes of our terminal's size, on to the command.
async fn feed(mut control: Box<dyn ExecControl>, input: bool, on_terminal: bool) {
    let mut pieces = input.then(stdin::pieces);
    let mut resized = if on_terminal { signal(SignalKind::window_change()).ok() } else { None };
    loop {
        let done = tokio::select! {
            piece = next_piece(&mut pieces) => match piece {
                Some(piece) => control.stdin(piece).await,
                None => {
                    pieces = None;
                    control.close_stdin().await
                }
            },
            size = next_size(&mut resized) => control.resize(size).await,
        };
        if done.is_err() {
            // The event stream tells why.
            return;
        }
    }
}

async fn next_piece(pieces: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match pieces {
        Some(pieces) => pieces.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_size(resized: &mut Option<Signal>) -> TerminalSize {
    match resized {
        Some(resized) => {
            resized.recv().await;
            terminal::size()
        }
        None => std::future::pending().await,
    }
}
