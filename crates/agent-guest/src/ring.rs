//! The output of a background command: its last bytes, and how many there were.

use std::collections::VecDeque;

/// Bytes that are kept of one stream.
pub const RING_BYTES: usize = 1024 * 1024;

/// The end of a stream of bytes. Its memory grows with what it holds.
#[derive(Default)]
pub struct Ring {
    bytes: VecDeque<u8>,
    end: u64,
}

impl Ring {
    /// Adds bytes to the end and lets the oldest go.
    pub fn push(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(RING_BYTES)..];
        let excess = (self.bytes.len() + kept.len()).saturating_sub(RING_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(kept);
    }

    /// Offset of the first byte that is kept.
    pub fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// Offset after the last byte: how many there were.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Appends at most `limit` bytes from `offset` on, which must not lie before [`Ring::start`]; how many.
    pub fn copy(&self, offset: u64, limit: usize, target: &mut Vec<u8>) -> usize {
        let skip = usize::try_from(offset - self.start()).unwrap_or(usize::MAX);
        let (front, back) = self.bytes.as_slices();
        let before = target.len();
        for part in [front.get(skip..), back.get(skip.saturating_sub(front.len())..)].into_iter().flatten() {
            let room = limit - (target.len() - before);
            target.extend_from_slice(&part[..part.len().min(room)]);
        }
        target.len() - before
    }

    /// Gives back the memory that is not used; called when the stream is over.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_stay_and_all_are_counted() {
        let mut ring = Ring::default();
        let mut all = Vec::new();
        for round in 0..40_u32 {
            let part: Vec<u8> = (0..50_021_u32).map(|i| (i ^ round) as u8).collect();
            ring.push(&part);
            all.extend(part);
        }
        assert_eq!(ring.end(), all.len() as u64);
        assert_eq!(ring.start(), (all.len() - RING_BYTES) as u64);
        for offset in
            [ring.start(), ring.start() + 1, ring.end() - 70_000, ring.end() - 1, ring.end(), ring.end() + 9]
        {
            let mut got = Vec::new();
            let count = ring.copy(offset, 65_536, &mut got);
            let from = (offset as usize).min(all.len());
            assert_eq!(got, &all[from..all.len().min(from + 65_536)]);
            assert_eq!(count, got.len());
        }
        ring.push(&vec![7; 3 * RING_BYTES]);
        assert_eq!(ring.start(), ring.end() - RING_BYTES as u64);
        ring.shrink();
    }
}
