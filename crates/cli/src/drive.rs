//! Bringing one command to its end: input goes in, events come out, signals to us end it.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use moltis_sandbox::Sandbox;
use moltis_sandbox::exec::{ExecControl, ExecEvent, ExecRequest, Outcome, ProcessId, TerminalSize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::output::Closed;
use crate::place::Place;
use crate::signals::Signals;
use crate::{stdin, terminal};

/// How driving a command ended.
pub enum Driven {
    /// It is over.
    Ended(Outcome),
    /// The reader of our output is gone; the command was ended.
    Closed,
    /// A signal of this number told us to leave before it was over; the sandbox ends with us.
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
            stop(Arc::clone(place.sandbox()), process);
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

/// Ends the descent by a connection of its own: the command's may be full of input that nobody reads.
fn stop(sandbox: Arc<dyn Sandbox>, process: ProcessId) {
    tokio::spawn(async move {
        // If it cannot be reached the event stream says so.
        let _ = sandbox.stop(process).await;
    });
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
