//! Taking entries without waiting, and writing them down on a thread of its own.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::broadcast;

use super::file::{Batch, Writer};
use super::line::{Dropped, bounded};
use super::read::{Filter, Snapshot};
use super::{Audit, Entry, now_millis};
use crate::error::EgressError;

/// Bytes that are written at once.
const MAX_BATCH: usize = 256 << 10;

/// Time in which what else happens is written together with the first.
const GATHER: Duration = Duration::from_millis(2);

/// How many times as long the thread looks by itself before it must be woken, which costs whoever wakes it.
const LINGER: u32 = 50;

/// Time that is given to what is not written yet when the log is dropped.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Live entries that a slow subscriber may be behind.
const LIVE: usize = 1024;

/// Bounds of a log. The default is what Moltis uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Size in bytes over which the file is put aside.
    pub max_bytes: u64,
    /// Files put aside that are kept.
    pub kept: u32,
    /// Entries that may wait to be written; what comes then is dropped and counted.
    pub queue: usize,
    /// Latest entries that are held in memory, those of the file among them; 0 for none.
    pub ring: usize,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { max_bytes: 16 << 20, kept: 4, queue: 8192, ring: 0 }
    }
}

impl AuditSettings {
    /// Those of a process that lives long and shows what happens.
    pub fn of_gateway() -> Self {
        Self { ring: 2048, ..Self::default() }
    }
}

/// The log of a data directory, as one process writes it. Nothing is opened, made or started before the first entry.
/// When it is dropped it waits for what is not written yet, for a second at most; [`flush`](Self::flush) does so before
/// a process ends in another way.
#[derive(Debug)]
pub struct AuditLog {
    shared: Arc<Shared>,
    ring: Option<Mutex<VecDeque<Arc<Entry>>>>,
    live: broadcast::Sender<Arc<Entry>>,
}

#[derive(Debug)]
struct Shared {
    data_dir: PathBuf,
    settings: AuditSettings,
    state: Mutex<State>,
    /// There is something to write, or somebody waits for it.
    wake: Condvar,
    /// Everything is written, or given up.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Arc<Entry>>,
    thread: Thread,
    /// Somebody waits until everything is written.
    hurried: bool,
    /// The log is dropped: what is not written by then is given up.
    until: Option<Instant>,
    /// Entries that were dropped and that the file does not tell of yet.
    untold: u64,
    /// Entries that were dropped, from the beginning.
    dropped: u64,
    /// Why the last writing failed.
    trouble: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    None,
    /// Nothing is to be written, and it must be woken.
    Asleep,
    /// Nothing is to be written, and it looks by itself in a moment.
    Lingering,
    Writing,
    Over,
}

impl AuditLog {
    /// The log of this data directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self::with(data_dir, AuditSettings::default()).0
    }

    /// The log of this data directory with a ring of the latest entries, which is filled from the file. Blocks. A file
    /// that cannot be read leaves the ring empty and is the second answer.
    pub fn with_ring(data_dir: impl Into<PathBuf>) -> (Self, Option<EgressError>) {
        Self::with(data_dir, AuditSettings::of_gateway())
    }

    /// The same with other bounds.
    pub fn with(data_dir: impl Into<PathBuf>, settings: AuditSettings) -> (Self, Option<EgressError>) {
        let data_dir = data_dir.into();
        let mut trouble = None;
        let ring = (settings.ring > 0).then(|| {
            let latest = latest(&data_dir, settings.ring).unwrap_or_else(|error| {
                trouble = Some(error);
                Vec::new()
            });
            let mut ring = VecDeque::with_capacity(settings.ring);
            ring.extend(latest.into_iter().map(Arc::new));
            Mutex::new(ring)
        });
        let shared = Shared {
            data_dir,
            settings,
            state: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
        };
        (Self { shared: Arc::new(shared), ring, live: broadcast::channel(LIVE).0 }, trouble)
    }

    /// The latest entries, oldest first: those that the file held at the start, and those of this process.
    pub fn latest(&self) -> Vec<Arc<Entry>> {
        let Some(ring) = &self.ring else { return Vec::new() };
        ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().cloned().collect()
    }

    /// Entries of this process from now on. A subscriber that is slow misses some and is told how many.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Entry>> {
        self.live.subscribe()
    }

    /// Entries of this process that could not be written down.
    pub fn dropped(&self) -> u64 {
        self.shared.state().dropped
    }

    /// Entries that could not be written down and that the file does not tell of.
    pub fn untold(&self) -> u64 {
        self.shared.state().untold
    }

    /// Why the last writing failed, if it did.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state().trouble.clone()
    }

    /// Waits until everything that was recorded is written, or could not be, for `limit` at most; whether it came to
    /// that. Blocks.
    pub fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.shared.state();
        while !state.is_idle() {
            state.hurried = true;
            self.shared.wake.notify_one();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(&self.shared.idle, state, Some(left));
        }
        true
    }
}

impl Audit for AuditLog {
    fn record(&self, entry: Entry) {
        let entry = Arc::new(bounded(entry));
        if let Some(ring) = &self.ring {
            let mut ring = ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if ring.len() >= self.shared.settings.ring {
                ring.pop_front();
            }
            ring.push_back(Arc::clone(&entry));
        }
        if self.live.receiver_count() > 0 {
            // They may all have gone meanwhile.
            let _ = self.live.send(Arc::clone(&entry));
        }
        let mut state = self.shared.state();
        if state.waiting.len() >= self.shared.settings.queue {
            state.drop_entries(1);
            return;
        }
        state.waiting.push(entry);
        match state.thread {
            Thread::None => state.start(&self.shared),
            Thread::Asleep => {
                // Said once: until it sleeps again it takes what is there.
                state.thread = Thread::Writing;
                drop(state);
                self.shared.wake.notify_one();
            }
            Thread::Lingering | Thread::Writing | Thread::Over => {}
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_CHANCE;
        let mut state = self.shared.state();
        state.until = Some(until);
        self.shared.wake.notify_one();
        while !matches!(state.thread, Thread::None | Thread::Over) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.wait(&self.shared.idle, state, Some(left));
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.thread != Thread::Writing
    }

    fn drop_entries(&mut self, count: u64) {
        self.untold = self.untold.saturating_add(count);
        self.dropped = self.dropped.saturating_add(count);
    }

    fn start(&mut self, shared: &Arc<Shared>) {
        let own = Arc::clone(shared);
        let started = std::thread::Builder::new().name("audit".to_owned()).spawn(move || own.write());
        match started {
            Ok(_) => self.thread = Thread::Writing,
            Err(error) => {
                // The next entry tries again.
                self.trouble = Some(error.to_string());
                let lost = self.waiting.drain(..).count() as u64;
                self.drop_entries(lost);
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that is done while it is locked panics half-way.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(
        &self,
        what: &Condvar,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match limit {
            Some(limit) => what.wait_timeout(state, limit).unwrap_or_else(|p| p.into_inner()).0,
            None => what.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }

    /// The thread: writes what waits until the log is dropped.
    fn write(&self) {
        let mut writer = None;
        let mut entries = Vec::new();
        let mut batch = Batch::default();
        while let Some(untold) = self.take(&mut entries) {
            // What could not be told before is told first: it was dropped before these.
            if untold > 0 {
                batch.add(&Dropped { timestamp: now_millis(), dropped: untold });
            }
            let (mut pending, mut told) = (untold, 0);
            for entry in entries.drain(..) {
                batch.add(&*entry);
                if batch.bytes() >= MAX_BATCH.min(self.batch_bound()) {
                    told += self.write_batch(&mut writer, &mut batch, &mut pending);
                }
            }
            told += self.write_batch(&mut writer, &mut batch, &mut pending);
            let mut state = self.state();
            state.untold = state.untold.saturating_sub(told);
        }
        let mut state = self.state();
        let lost = state.waiting.drain(..).count() as u64;
        state.drop_entries(lost);
        state.thread = Thread::Over;
        self.idle.notify_all();
    }

    /// No batch is larger than a file may be.
    fn batch_bound(&self) -> usize {
        usize::try_from(self.settings.max_bytes / 2).unwrap_or(usize::MAX)
    }

    /// Waits for entries and takes them all; says how many dropped ones are to be told of. `None` at the end.
    fn take(&self, entries: &mut Vec<Arc<Entry>>) -> Option<u64> {
        let mut state = self.state();
        let mut lingered = 0;
        loop {
            let is_over = state.until.is_some_and(|until| Instant::now() >= until);
            let is_last = state.until.is_some() && state.waiting.is_empty();
            if is_over || (is_last && (state.untold == 0 || state.trouble.is_some())) {
                return None;
            }
            if is_last || !state.waiting.is_empty() {
                break;
            }
            state.hurried = false;
            let lingers = lingered < LINGER;
            state.thread = if lingers { Thread::Lingering } else { Thread::Asleep };
            self.idle.notify_all();
            state = self.wait(&self.wake, state, lingers.then_some(GATHER));
            lingered += 1;
        }
        state.thread = Thread::Writing;
        if lingered > LINGER
            && !state.hurried
            && state.until.is_none()
            && state.waiting.len() < self.settings.queue / 2
        {
            state = self.wait(&self.wake, state, Some(GATHER));
        }
        std::mem::swap(entries, &mut state.waiting);
        Some(state.untold)
    }

    /// Writes a batch and empties it. The first line is of the dropped ones if `untold` is not 0; says how many were
    /// told of.
    fn write_batch(&self, writer: &mut Option<Writer>, batch: &mut Batch, untold: &mut u64) -> u64 {
        let lines = batch.lines();
        if lines == 0 {
            return 0;
        }
        let opened = match writer.take() {
            Some(open) => Ok(open),
            None => Writer::open(&self.data_dir, self.settings.max_bytes, self.settings.kept),
        };
        let (written, error) = match opened {
            Ok(open) => {
                let open = writer.insert(open);
                open.append(batch, || self.is_given_up())
            }
            Err(error) => (0, Some(error)),
        };
        batch.clear();
        // The note of what was dropped is the first line of the first batch.
        let note = u64::from(*untold > 0);
        let told = if written > 0 { *untold } else { 0 };
        *untold = 0;
        let missing = (lines - note).saturating_sub(written.saturating_sub(note));
        let mut state = self.state();
        state.drop_entries(missing);
        state.trouble = error.map(|error| why(&error));
        told
    }

    /// Whether waiting for other processes must end: the log is dropped and its time is up.
    fn is_given_up(&self) -> bool {
        self.state().until.is_some_and(|until| Instant::now() >= until)
    }
}

fn why(error: &EgressError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn latest(data_dir: &Path, most: usize) -> Result<Vec<Entry>, EgressError> {
    if !data_dir.exists() {
        return Ok(Vec::new());
    }
    Ok(Snapshot::take(data_dir)?.last(&Filter::default(), most)?.0)
}
