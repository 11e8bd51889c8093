//! Printing what a command writes.

use moltis_runtime::Capped;
use moltis_sandbox::exec::ExecEvent;

use crate::failure::Failure;
use crate::output::{Closed, Stream, Writer};

/// Prints events within a cap: heads as they come, tails at the end.
pub struct Printer {
    writer: Writer,
    caps: Option<[Capped; 2]>,
}

impl Printer {
    /// A printer that keeps at most `cap` bytes of each stream.
    pub fn new(cap: Option<u64>) -> Self {
        let caps = cap.map(|cap| {
            let cap = usize::try_from(cap).unwrap_or(usize::MAX);
            [Capped::new(cap), Capped::new(cap)]
        });
        Self { writer: Writer::start(), caps }
    }

    /// Prints one event; waits while the reader is behind.
    pub async fn print(&mut self, event: ExecEvent) -> Result<(), Closed> {
        let (stream, mut bytes) = match event {
            ExecEvent::Stdout(bytes) => (Stream::Stdout, bytes),
            ExecEvent::Stderr(bytes) => (Stream::Stderr, bytes),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } | ExecEvent::Exit(_) => return Ok(()),
        };
        if let Some(caps) = &mut self.caps {
            let now = caps[stream as usize].push(&bytes);
            bytes.truncate(now);
        }
        if bytes.is_empty() { Ok(()) } else { self.writer.write(stream, bytes).await }
    }

    /// Prints what the caps held back, and waits until everything is written; whether somebody read it.
    pub async fn finish(self) -> Result<bool, Failure> {
        let streams = [Stream::Stdout, Stream::Stderr];
        for (stream, capped) in streams.into_iter().zip(self.caps.into_iter().flatten()) {
            let (_, cut, tail) = capped.finish();
            let marker = cut.map(|cut| cut.marker()).unwrap_or_default();
            if self.writer.write(stream, [marker.into_bytes(), tail].concat().into()).await.is_err() {
                break;
            }
        }
        match self.writer.finish().await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::output(error)),
        }
    }
}
