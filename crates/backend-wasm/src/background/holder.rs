//! Whoever holds a background command: runs it, keeps its output, does what it is told about it, writes down its end.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Ending, ExecEvent, Outcome, Status};
use tokio::net::UnixListener;

use super::control::{Ear, serve};
use super::kept::{Held, Kept};
use super::spool::{STREAMS, Writer};
use crate::commands::{self, Asked, Started};
use crate::error::{Error, Result, blocking};
use crate::sandbox::Inner;

/// One that runs.
pub struct Running {
    held: Held,
    started: Started,
    listener: UnixListener,
}

/// Starts one, and holds it in this process.
///
/// # Errors
/// Those of starting.
pub async fn start(inner: &Arc<Inner>, number: u32, asked: Asked) -> Result<()> {
    let running = begin(inner, number, asked).await?;
    tokio::spawn(running.hold());
    Ok(())
}

/// Starts one. What is left of one that does not start is taken away.
///
/// # Errors
/// Those of starting.
pub async fn begin(inner: &Arc<Inner>, number: u32, asked: Asked) -> Result<Running> {
    let (place, line) = (inner.place(), asked.line());
    let (held, listener) = blocking(move || {
        let held = Kept::make(&place, number, line)?;
        let bound = held.kept.socket().and_then(|(_folder, path)| {
            let listener = std::os::unix::net::UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match bound {
            Ok(listener) => Ok((held, listener)),
            Err(error) => {
                let _ = held.kept.remove();
                Err(Error::Folder(held.kept.path.clone(), error))
            }
        }
    })
    .await?;
    let path = held.kept.path.clone();
    let listener = UnixListener::from_std(listener).map_err(|error| Error::Folder(path, error))?;
    match commands::start(inner, asked, Some(ProcessId(number))).await {
        Ok(started) => Ok(Running { held, started, listener }),
        Err(error) => {
            let _ = held.kept.remove();
            Err(error)
        }
    }
}

impl Running {
    /// Holds it until it is over.
    pub async fn hold(self) {
        let Self { held, started, listener } = self;
        let Started { mut events, feed, fate } = started;
        let ear = Ear { feed: Arc::new(Mutex::new(feed)), fate: Arc::clone(&fate) };
        let hearing = tokio::spawn(serve(listener, ear));
        let mut writers = Some(STREAMS.map(|stream| Writer::new(&held.kept.path, stream)));
        let mut end = None;
        while let Some(event) = events.next().await {
            let (which, bytes) = match event {
                Ok(ExecEvent::Stdout(bytes)) => (0, bytes),
                Ok(ExecEvent::Stderr(bytes)) => (1, bytes),
                Ok(ExecEvent::Exit(outcome)) => {
                    end = Some(outcome);
                    continue;
                }
                Ok(_) => continue,
                Err(_) => break,
            };
            let Some(mut all) = writers.take() else { continue };
            let written = blocking(move || Ok(all[which].write(&bytes).map(|()| all))).await;
            // Where its output cannot be kept any more it ends.
            match written {
                Ok(Ok(all)) => writers = Some(all),
                Ok(Err(_)) | Err(_) => fate.close(),
            }
        }
        hearing.abort();
        let mut outcome = end.unwrap_or_else(broke_off);
        if writers.is_none() {
            outcome.notes.push("output-not-kept: what it printed could not be written down".to_owned());
        }
        let _ = blocking(move || {
            // A sandbox that is gone takes it along.
            let _ = held.kept.end(&outcome);
            drop(held);
            Ok(())
        })
        .await;
    }
}

/// The end of one that did not say how it ended.
fn broke_off() -> Outcome {
    Outcome {
        status: Status::Code(134),
        ending: Ending::Cancelled,
        duration: std::time::Duration::ZERO,
        stdout_bytes: 0,
        stderr_bytes: 0,
        leftovers: Vec::new(),
        leftovers_total: 0,
        out_of_memory: false,
        newly_dangerous: Vec::new(),
        newly_dangerous_total: 0,
        notes: vec!["wasm-shell-broke: the shell inside broke off".to_owned()],
    }
}
