//! Output that is kept within a cap: its head and its tail, with the bytes between them counted and dropped.

use std::collections::VecDeque;

/// What was dropped between head and tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of output before the cut.
    pub after: usize,
    /// Bytes dropped.
    pub bytes: u64,
}

impl Cut {
    /// The line that stands where the bytes were.
    pub fn marker(&self) -> String {
        format!("\n[… {} bytes cut …]\n", self.bytes)
    }
}

/// Collects a stream within a cap: the first half of the cap as it comes, and a ring of the last half.
///
/// Memory is at most the cap, whatever is pushed.
#[derive(Debug)]
pub struct Capped {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_room: usize,
    tail_room: usize,
    seen: u64,
}

impl Capped {
    /// Keeps at most `cap` bytes; a cap of 0 keeps nothing and counts.
    pub fn new(cap: usize) -> Self {
        let head_room = cap.div_ceil(2);
        Self { head: Vec::new(), tail: VecDeque::new(), head_room, tail_room: cap - head_room, seen: 0 }
    }

    /// Takes bytes in. Returns how many of them, from their start, went into the head: a caller that prints as it
    /// collects prints those now and the rest with [`finish`](Self::finish).
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        self.seen += bytes.len() as u64;
        let into_head = bytes.len().min(self.head_room - self.head.len());
        self.head.extend_from_slice(&bytes[..into_head]);
        let rest = &bytes[into_head..];
        // Only the last `tail_room` bytes can matter.
        let rest = &rest[rest.len().saturating_sub(self.tail_room)..];
        let overflow = (self.tail.len() + rest.len()).saturating_sub(self.tail_room);
        self.tail.drain(..overflow);
        self.tail.extend(rest);
        into_head
    }

    /// Bytes pushed in all.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Head, tail, and what was dropped between them. Where bytes were dropped the edges are moved to character
    /// boundaries, so that cut UTF-8 stays UTF-8; what that costs is counted as dropped.
    pub fn finish(self) -> (Vec<u8>, Option<Cut>, Vec<u8>) {
        let mut head = self.head;
        let mut tail = Vec::from(self.tail);
        if self.seen == (head.len() + tail.len()) as u64 {
            return (head, None, tail);
        }
        head.truncate(head.len() - unfinished_suffix(&head));
        tail.drain(..continuation_prefix(&tail));
        let cut = Cut { after: head.len(), bytes: self.seen - (head.len() + tail.len()) as u64 };
        (head, Some(cut), tail)
    }
}

/// Length of a character that begins at the end of `bytes` and is not whole, 0 if there is none.
fn unfinished_suffix(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let needs = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if needs > back { back } else { 0 };
    }
    0
}

/// Number of bytes at the start that continue a character which is not there.
fn continuation_prefix(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|b| (0x80..=0xBF).contains(*b)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(cap: usize, pieces: &[&[u8]]) -> (Vec<u8>, Option<Cut>, Vec<u8>) {
        let mut capped = Capped::new(cap);
        for piece in pieces {
            capped.push(piece);
        }
        capped.finish()
    }

    #[test]
    fn what_fits_is_whole() {
        let (head, cut, tail) = collect(10, &[b"01234", b"56789"]);
        assert_eq!(([head, tail].concat().as_slice(), cut), (&b"0123456789"[..], None));
    }

    #[test]
    fn what_does_not_fit_keeps_head_and_tail() {
        for pieces in
            [&[&b"0123456789abc"[..]][..], &[b"0", b"123456", b"789abc"], &[b"01234", b"5", b"6789abc"]]
        {
            let (head, cut, tail) = collect(10, pieces);
            assert_eq!(head, b"01234");
            assert_eq!(tail, b"89abc");
            assert_eq!(cut, Some(Cut { after: 5, bytes: 3 }));
        }
    }

    #[test]
    fn small_caps_hold() {
        assert_eq!(collect(0, &[b"xyz"]), (vec![], Some(Cut { after: 0, bytes: 3 }), vec![]));
        assert_eq!(collect(1, &[b"xyz"]), (b"x".to_vec(), Some(Cut { after: 1, bytes: 2 }), vec![]));
    }

    #[test]
    fn cuts_respect_characters() {
        let text = "ééééééé".as_bytes(); // 14 bytes
        let (head, cut, tail) = collect(10, &[text]);
        assert_eq!(String::from_utf8(head).unwrap(), "éé");
        assert_eq!(String::from_utf8(tail).unwrap(), "éé");
        assert_eq!(cut.unwrap().bytes, 6);
    }

    #[test]
    fn memory_is_bounded() {
        let mut capped = Capped::new(1000);
        for _ in 0..1000 {
            capped.push(&[7; 5000]);
        }
        assert!(capped.head.capacity() + capped.tail.capacity() < 8192);
        assert_eq!(capped.seen(), 5_000_000);
    }
}
