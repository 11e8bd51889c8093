//! How much a folder may hold. What was there is counted when something is first added; what is added is counted as it
//! comes, and everything anew from time to time, since others add to it and take from it as well.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use moltis_host::tree::object;
use moltis_sandbox::EntryKind;
use rustix::fs::Dir;
use rustix::io::Errno;

/// How long a count is believed, apart from what is added here.
const FRESH: Duration = Duration::from_secs(2);

/// Deepest directory that is counted, and most entries: what lies beyond counts as more than is allowed.
const MAX_DEPTH: usize = 200;
const MAX_ENTRIES: u64 = 1_000_000;

/// A bound and what is known of what is there.
#[derive(Debug)]
pub struct Quota {
    limit: u64,
    counted: Mutex<Option<(u64, Instant)>>,
}

impl Quota {
    /// So many bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, counted: Mutex::new(None) }
    }

    /// So many bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is there now, by the last count.
    pub fn used(&self, top: impl AsFd) -> u64 {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        match *counted {
            Some((used, at)) if at.elapsed() < FRESH => used,
            _ => {
                let used = measure(top);
                *counted = Some((used, Instant::now()));
                used
            }
        }
    }

    /// What is there beyond the bound, counted now.
    pub fn excess(&self, top: impl AsFd) -> u64 {
        let used = measure(top);
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some((used, Instant::now()));
        used.saturating_sub(self.limit)
    }

    /// Asks whether so many bytes may be added.
    ///
    /// # Errors
    /// `NOSPC`.
    pub fn add(&self, top: impl AsFd, bytes: u64) -> Result<(), Errno> {
        if self.used(&top).saturating_add(bytes) > self.limit {
            // What was taken away since the last count makes room at once.
            *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if self.used(&top).saturating_add(bytes) > self.limit {
                return Err(Errno::NOSPC);
            }
        }
        if let Some((used, _)) = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner) {
            *used = used.saturating_add(bytes);
        }
        Ok(())
    }
}

/// Bytes that the files below a directory take up, each entry counting for 4 KiB at least.
pub fn measure(top: impl AsFd) -> u64 {
    let mut entries = 0;
    below(top, 0, &mut entries)
}

fn below(directory: impl AsFd, depth: usize, entries: &mut u64) -> u64 {
    let Ok(opened) = object::directory(&directory, c".") else { return 0 };
    let Ok(listed) = Dir::read_from(&opened) else { return 0 };
    if depth > MAX_DEPTH {
        return u64::MAX;
    }
    let mut total: u64 = 0;
    for entry in listed.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *entries += 1;
        if *entries > MAX_ENTRIES {
            return u64::MAX;
        }
        let Ok(stat) = object::stat(&opened, name) else { continue };
        let size = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512).max(4096);
        total = total.saturating_add(size);
        if object::kind(&stat) == EntryKind::Directory
            && let Ok(inner) = object::directory(&opened, name)
        {
            total = total.saturating_add(below(inner, depth + 1, entries));
        }
    }
    total
}
