//! The output of a background command, as files of a few MiB that follow each other; the last two of each stream are
//! kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes of one file.
const PART: u64 = 4 << 20;

/// Bytes that are read at once.
const PIECE: u64 = 64 * 1024;

/// Names of the two streams' files.
pub const STREAMS: [&str; 2] = ["out", "err"];

/// Writes a stream.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    stream: &'static str,
    offset: u64,
    part: Option<File>,
}

impl Writer {
    /// Of a new command.
    pub fn new(folder: &Path, stream: &'static str) -> Self {
        Self { folder: folder.to_owned(), stream, offset: 0, part: None }
    }

    fn name(&self, part: u64) -> PathBuf {
        self.folder.join(format!("{}.{part}", self.stream))
    }

    /// Adds to it.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (number, at) = (self.offset / PART, self.offset % PART);
            let part = match &mut self.part {
                Some(part) if at > 0 => part,
                _ => {
                    let made = OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(0o600)
                        .open(self.name(number))?;
                    if let Some(old) = number.checked_sub(2) {
                        let _ = fs::remove_file(self.name(old));
                    }
                    self.part.insert(made)
                }
            };
            let fits = usize::try_from(PART - at).unwrap_or(usize::MAX).min(bytes.len());
            part.write_all(&bytes[..fits])?;
            self.offset += fits as u64;
            bytes = &bytes[fits..];
        }
        Ok(())
    }
}

/// What there is of a stream from an offset on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// These bytes.
    Piece(Vec<u8>),
    /// Nothing is kept before this offset.
    Missed(u64),
    /// Nothing yet.
    Nothing,
}

/// Looks for a piece of a stream. Blocks for a moment.
pub fn look(folder: &Path, stream: &str, offset: u64) -> Found {
    let (number, at) = (offset / PART, offset % PART);
    let path = folder.join(format!("{stream}.{number}"));
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(mut part) => {
            let mut piece = Vec::new();
            let read = part.seek(SeekFrom::Start(at)).and_then(|_| part.take(PIECE).read_to_end(&mut piece));
            if read.is_ok() && !piece.is_empty() { Found::Piece(piece) } else { Found::Nothing }
        }
        Err(_) => match first(folder, stream) {
            Some(first) if first > number => Found::Missed(first * PART),
            _ => Found::Nothing,
        },
    }
}

/// Number of the first file that is kept.
fn first(folder: &Path, stream: &str) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix(stream)?.strip_prefix('.')?.parse().ok()
    });
    numbers.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_was_written_is_kept_and_the_rest_is_said_to_be_missed() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(folder.path(), "out");
        let piece: Vec<u8> = (0..=255).cycle().take(100_003).collect();
        let mut all = Vec::new();
        for _ in 0..130 {
            writer.write(&piece).unwrap();
            all.extend_from_slice(&piece);
        }
        let begin = match look(folder.path(), "out", 5) {
            Found::Missed(begin) => begin,
            other => panic!("{other:?}"),
        };
        assert_eq!(begin, 2 * PART);
        let mut read = Vec::new();
        while let Found::Piece(piece) = look(folder.path(), "out", begin + read.len() as u64) {
            read.extend_from_slice(&piece);
        }
        assert!(read == all[begin as usize..]);
        assert_eq!(look(folder.path(), "out", all.len() as u64 + 99), Found::Nothing);
        assert_eq!(look(folder.path(), "err", 0), Found::Nothing);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
