//! Writing whole lines to the log's file, together with other processes that do the same.
//!
//! Whoever writes holds the lock, so that the end of the file is where it was found, and a file is given another name
//! only between two writes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::place::{Hold, Place, identity_of};
use crate::error::EgressError;

/// The log's file, and the lines that wait to be written to it at once.
#[derive(Debug)]
pub(super) struct Writer {
    place: Place,
    file: Option<File>,
    max_bytes: u64,
    kept: u32,
}

/// Whole lines. The first byte is an end of a line, written only where the file does not end with one.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { bytes: vec![b'\n'], lines: 0 }
    }
}

impl Batch {
    /// Adds a line.
    pub fn add(&mut self, line: &impl serde::Serialize) {
        super::line::write(&mut self.bytes, line);
        self.lines += 1;
    }

    /// How many lines it has.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.bytes.len() - 1
    }

    /// Takes all lines away.
    pub fn clear(&mut self) {
        self.bytes.truncate(1);
        self.lines = 0;
    }
}

impl Writer {
    /// Opens the data directory; the file is opened with the first write. A file that would become larger than
    /// `max_bytes` is put aside first, and `kept` of those are kept.
    ///
    /// # Errors
    /// `Audit`.
    pub fn open(data_dir: &Path, max_bytes: u64, kept: u32) -> Result<Self, EgressError> {
        Ok(Self { place: Place::open(data_dir)?, file: None, max_bytes, kept })
    }

    /// Appends the lines; says how many whole ones were written, and why not all.
    pub fn append(&mut self, batch: &Batch, give_up: impl FnMut() -> bool) -> (u64, Option<EgressError>) {
        let lock = match self.place.lock(Hold::Exclusive, give_up) {
            Ok(Some(lock)) => lock,
            Ok(None) => return (0, Some(self.place.failed(std::io::ErrorKind::TimedOut))),
            Err(error) => return (0, Some(error)),
        };
        let done = self.append_locked(batch);
        drop(lock);
        match done {
            Ok((written, None)) => (written, None),
            Ok((written, Some(error))) => (written, Some(self.place.failed(error))),
            Err(error) => {
                self.file = None;
                (0, Some(error))
            }
        }
    }

    fn append_locked(&mut self, batch: &Batch) -> Result<(u64, Option<std::io::Error>), EgressError> {
        // Another process may have put our file aside.
        let there = self.place.identity(0);
        let mut file = match self.file.take() {
            Some(file) if there.is_some() && identity_of(&file) == there => file,
            _ => self.place.for_writing()?,
        };
        let failed = |place: &Place, error| place.failed(error);
        let mut end = file.metadata().map_err(|e| failed(&self.place, e))?.len();
        if end > 0 && end.saturating_add(batch.bytes.len() as u64) > self.max_bytes {
            self.place.rotate(self.kept).map_err(|e| failed(&self.place, e))?;
            file = self.place.for_writing()?;
            end = file.metadata().map_err(|e| failed(&self.place, e))?.len();
        }
        // What a writer that was killed has left of a line is ended, so that ours is one of its own.
        let is_torn = end > 0 && last_byte(&mut file).map_err(|e| failed(&self.place, e))? != b'\n';
        let lines = &batch.bytes[usize::from(!is_torn)..];
        let (written, error) = write_all(&mut file, lines);
        let whole = lines[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < written {
            // The end of a half line is kept off where that can be done; a reader counts it otherwise.
            let _ = file.set_len(end + whole as u64);
        }
        let ended = lines[..whole].iter().filter(|byte| **byte == b'\n').count() as u64;
        let ended = ended.saturating_sub(u64::from(is_torn));
        self.file = Some(file);
        Ok((ended, error))
    }
}

fn last_byte(file: &mut File) -> std::io::Result<u8> {
    let mut byte = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Writes, in one call unless the kernel takes only a part.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<std::io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Some(std::io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}
