//! What the script around a program prints: its output in base64, and how it ended.

use std::time::Duration;

use base64::Engine as _;

/// Longest line of base64 that the script writes, with room to spare.
const MAX_LINE: usize = 128 << 10;
/// Longest word with which a command's end is told.
const MAX_END: usize = 4 << 10;

/// How it ended, as the script tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The shell's number for it.
    pub code: i32,
    /// Why: `-` by itself, `t` its time was up, `c` it was to end.
    pub why: char,
    /// From start to end, by the machine's clock.
    pub duration: Duration,
    /// How many of its descent live on.
    pub living: u32,
    /// The first of them.
    pub pids: Vec<u32>,
}

/// Reads one stream: lines of base64, and in their bytes the word for the end.
pub(super) struct Decoder {
    start: Vec<u8>,
    line: Vec<u8>,
    held: Vec<u8>,
    /// How the program ended, once this stream has said so.
    pub(super) end: Option<End>,
}

impl Decoder {
    /// For a program of this name.
    pub(super) fn new(tag: &str) -> Self {
        let start = format!("\u{1e}{tag} ").into_bytes();
        Self { start, line: Vec::new(), held: Vec::new(), end: None }
    }

    /// The output in what was printed.
    pub(super) fn take(&mut self, text: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
        let mut pieces = Vec::new();
        for part in text.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_LINE {
                return Err("a line of output is longer than it can be");
            }
            if self.line.last() != Some(&b'\n') {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if self.end.is_some() {
                continue;
            }
            if line.starts_with(b"!room") {
                return Err(
                    "there is no room for the command inside: its /tmp cannot be written to, or is full",
                );
            }
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(&line[..line.len() - 1])
                .map_err(|_| "a line of output is not what the script writes")?;
            self.held.extend_from_slice(&bytes);
            if let Some(piece) = self.split()? {
                pieces.push(piece);
            }
        }
        Ok(pieces)
    }

    /// What of the held bytes is output for certain.
    fn split(&mut self) -> Result<Option<Vec<u8>>, &'static str> {
        let at = memchr::memmem::find(&self.held, &self.start);
        let Some(at) = at else {
            let most = self.start.len().min(self.held.len() + 1);
            let kept = (1..most).rev().find(|n| self.held.ends_with(&self.start[..*n])).unwrap_or(0);
            let piece = self.held[..self.held.len() - kept].to_vec();
            self.held.drain(..piece.len());
            return Ok((!piece.is_empty()).then_some(piece));
        };
        let word = &self.held[at + self.start.len()..];
        match word.iter().position(|byte| *byte == 0x1e) {
            Some(close) => {
                let end = std::str::from_utf8(&word[..close]).ok().and_then(end);
                self.end =
                    Some(end.ok_or("the end of the command is told in other words than the script's")?);
                let mut piece = std::mem::take(&mut self.held);
                piece.truncate(at);
                Ok((!piece.is_empty()).then_some(piece))
            }
            None if word.len() > MAX_END => Err("the end of the command is told in too many words"),
            None => {
                let piece: Vec<u8> = self.held.drain(..at).collect();
                Ok((!piece.is_empty()).then_some(piece))
            }
        }
    }
}

/// Reads how a command ended.
pub fn end(text: &str) -> Option<End> {
    let mut words = text.split(' ');
    let code = words.next()?.parse().ok()?;
    let why = words.next()?.chars().next()?;
    let mut seconds = || words.next()?.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
    let (up, down) = (seconds()?, seconds()?);
    let living = words.next()?.parse().ok()?;
    let pids = words.next()?.split(',').filter_map(|pid| pid.parse().ok()).take(64).collect();
    Some(End { code, why, duration: Duration::try_from_secs_f64((down - up).max(0.0)).ok()?, living, pids })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes) + "\n"
    }

    #[test]
    fn the_end_is_found_wherever_lines_are_cut() {
        let told = b"out\xff\x1e\x1etag 7 t 1.50 3.25 2 11,12,,\x1e...";
        for cut in 0..told.len() {
            let mut decoder = Decoder::new("tag");
            let text = line(&told[..cut]) + &line(&told[cut..]);
            let mut out = Vec::new();
            for byte in text.as_bytes() {
                out.extend(decoder.take(&[*byte]).unwrap().concat());
            }
            assert_eq!(out, b"out\xff\x1e", "{cut}");
            let end = End {
                code: 7,
                why: 't',
                duration: Duration::from_millis(1750),
                living: 2,
                pids: vec![11, 12],
            };
            assert_eq!(decoder.end, Some(end));
        }
    }

    #[test]
    fn what_no_script_wrote_is_told_apart() {
        for text in ["!!!\n", "!room\n"] {
            assert!(Decoder::new("tag").take(text.as_bytes()).is_err(), "{text}");
        }
        let mut decoder = Decoder::new("tag");
        assert!(decoder.take(line(b"\x1etag junk\x1e").as_bytes()).is_err());
        assert!(Decoder::new("tag").take(&vec![b'a'; MAX_LINE + 1]).is_err());
    }
}
