//! How much is carried at most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use moltis_sandbox::{Diagnosis, Error, Result};

use super::scan::named;

/// Largest files that an error names.
const OFFENDERS: usize = 5;
/// How far beyond its bounds a tree is measured, in multiples of them, so that an error can name what is large.
const BEYOND: u64 = 4;

/// What a workspace may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 2 << 30 }
    }
}

/// Measures a tree as it is walked through.
pub struct Measure {
    bounds: Bounds,
    entries: u64,
    bytes: u64,
    largest: BinaryHeap<Reverse<(u64, Vec<u8>)>>,
}

impl Measure {
    /// Nothing yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, entries: 0, bytes: 0, largest: BinaryHeap::new() }
    }

    /// One more.
    ///
    /// # Errors
    /// `workspace-too-large`, once it is certain and looking further is of no use.
    pub fn add(&mut self, path: &[u8], size: u64) -> Result<()> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(size);
        self.largest.push(Reverse((size, path.to_vec())));
        if self.largest.len() > OFFENDERS {
            self.largest.pop();
        }
        let far = |have: u64, bound: u64| have / BEYOND > bound;
        if far(self.entries, self.bounds.entries) || far(self.bytes, self.bounds.bytes) {
            return self.finish();
        }
        Ok(())
    }

    /// Whether it is within the bounds.
    ///
    /// # Errors
    /// `workspace-too-large`.
    pub fn finish(&self) -> Result<()> {
        let Self { bounds, entries, bytes, .. } = self;
        let what = if entries > &bounds.entries {
            format!("{entries} files and directories or more, above {}", bounds.entries)
        } else if bytes > &bounds.bytes {
            format!("{} MiB or more, above {} MiB", bytes >> 20, bounds.bytes >> 20)
        } else {
            return Ok(());
        };
        let mut largest: Vec<_> = self.largest.iter().map(|Reverse(file)| file.clone()).collect();
        largest.sort_by(|one, other| other.cmp(one));
        let largest: Vec<Vec<u8>> = largest
            .into_iter()
            .map(|(size, path)| [&path[..], format!(" ({} KiB)", size.div_ceil(1024)).as_bytes()].concat())
            .collect();
        Err(Error::Refused(
            Diagnosis::new("workspace-too-large", format!("the workspace would carry {what}"))
                .cause(format!("the largest: {}", named(largest.iter())))
                .fix("name what is not needed in `.moltisignore`, or name a smaller folder as `workspace`"),
        ))
    }
}
