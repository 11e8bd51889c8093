//! Printing what a command writes, and what it leaves running. A terminal gets only what a program may do to it; a file
//! or a pipe gets every byte.

use std::io::{IsTerminal, stderr, stdout};
use std::time::Duration;

use moltis_runtime::Capped;
use moltis_sandbox::exec::{ExecEvent, Outcome};

use crate::failure::Failure;
use crate::output::{Closed, Stream, Writer};
use crate::render;
use crate::screen::Screen;

/// Prints events within a cap: heads as they come, tails at the end.
pub struct Printer {
    writer: Writer,
    caps: Option<[Capped; 2]>,
    /// What stands between each stream and a terminal.
    screens: [Option<Screen>; 2],
}

/// Time that a reader has to take the last of the output once somebody wants us gone.
const HURRY: Duration = Duration::from_secs(1);

impl Printer {
    /// A printer that keeps at most `cap` bytes of each stream.
    pub fn new(cap: Option<u64>) -> Self {
        let caps = cap.map(|cap| {
            let cap = usize::try_from(cap).unwrap_or(usize::MAX);
            [Capped::new(cap), Capped::new(cap)]
        });
        let screens = [stdout().is_terminal(), stderr().is_terminal()].map(|is| is.then(Screen::new));
        Self { writer: Writer::default(), caps, screens }
    }

    /// A printer of what is drawn on our terminal, wherever it goes.
    pub fn on_terminal(cap: Option<u64>) -> Self {
        Self { screens: [Some(Screen::new()), Some(Screen::new())], ..Self::new(cap) }
    }

    /// Prints one event; waits while the reader is behind.
    pub async fn print(&mut self, event: ExecEvent) -> Result<(), Closed> {
        let (stream, mut bytes) = match event {
            ExecEvent::Stdout(bytes) => (Stream::Stdout, bytes),
            ExecEvent::Stderr(bytes) => (Stream::Stderr, bytes),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } | ExecEvent::Exit(_) => return Ok(()),
        };
        if let Some(screen) = &mut self.screens[stream as usize] {
            bytes = screen.pass(bytes);
        }
        if let Some(caps) = &mut self.caps {
            let now = caps[stream as usize].push(&bytes);
            bytes.truncate(now);
        }
        if bytes.is_empty() { Ok(()) } else { self.writer.write(stream, bytes).await }
    }

    /// Prints what the caps held back, and waits until everything is written; whether somebody read it.
    pub async fn finish(mut self) -> Result<bool, Failure> {
        let streams = [Stream::Stdout, Stream::Stderr];
        for (stream, capped) in streams.into_iter().zip(self.caps.into_iter().flatten()) {
            let (_, cut, tail) = capped.finish();
            let marker = cut.map(|cut| cut.marker()).unwrap_or_default();
            if marker.is_empty() && tail.is_empty() {
                continue;
            }
            if self.writer.write(stream, [marker.into_bytes(), tail].concat().into()).await.is_err() {
                break;
            }
        }
        for (stream, screen) in streams.into_iter().zip(self.screens) {
            let left = screen.map(|screen| screen.restore()).unwrap_or_default();
            if !left.is_empty() {
                // A reader that is gone shows below.
                let _ = self.writer.write(stream, left.into()).await;
            }
        }
        match self.writer.finish().await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::output(error)),
        }
    }

    /// The same for somebody who does not wait: a reader that is slow may miss the end.
    pub async fn hurry(self) {
        // Why we leave is told by others.
        let _ = tokio::time::timeout(HURRY, self.finish()).await;
    }
}

/// Names what lives on, and says what becomes of it.
pub fn leftovers(outcome: &Outcome, stays: bool) {
    if outcome.out_of_memory {
        crate::say!(
            "moltis: the sandbox was out of memory, and something in it was killed (--memory sets it)"
        );
    }
    for path in &outcome.newly_dangerous {
        let path = render::one_line(path);
        crate::say!("moltis: made in the workspace, where the host may run it: {path}");
    }
    let told = u32::try_from(outcome.newly_dangerous.len()).unwrap_or(u32::MAX);
    if outcome.newly_dangerous_total > told {
        crate::say!("moltis: and {} more of the kind", outcome.newly_dangerous_total - told);
    }
    for note in &outcome.notes {
        crate::say!("moltis: {}", render::one_line(note));
    }
    let fate = if stays { "still running in the session" } else { "still running, ended with the sandbox" };
    for leftover in &outcome.leftovers {
        crate::say!("moltis: {fate}: {} {}", leftover.pid, render::one_line(&leftover.command));
    }
    let unnamed = (outcome.leftovers_total as usize).saturating_sub(outcome.leftovers.len());
    if unnamed > 0 {
        crate::say!("moltis: and {unnamed} more");
    }
}
