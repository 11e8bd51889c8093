//! Memory of a sandbox. Modules ask before they grow. What the shell allocates is counted as it happens, on the threads
//! that run it, by the program's allocator; a shell that goes beyond the limit is ended at its next step.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::page::Page;

/// An allocator that counts what is allocated on threads that run a sandbox's shell. A program that wants `memory_limit`
/// to bound shells makes it the global one:
///
/// ```
/// use std::alloc::System;
///
/// #[global_allocator]
/// static ALLOCATOR: moltis_backend_wasm::Metering<System> = moltis_backend_wasm::Metering(System);
/// ```
pub struct Metering<A>(pub A);

thread_local! {
    /// The count of the command that runs on this thread.
    static COUNT: Cell<*const Count> = const { Cell::new(ptr::null()) };
}

fn count(bytes: i64) {
    // A thread that is going away counts nothing any more.
    let _ = COUNT.try_with(|current| {
        // SAFETY: it is null, or points to what the `Entered` of this thread holds until it has set it back.
        if let Some(current) = unsafe { current.get().as_ref() } {
            current.add(bytes);
        }
    });
}

fn size(layout: Layout) -> i64 {
    i64::try_from(layout.size()).unwrap_or(i64::MAX)
}

// SAFETY: everything is passed on as it is; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Metering<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as the caller promises.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count(i64::try_from(new).unwrap_or(i64::MAX).saturating_sub(size(layout)));
        // SAFETY: as the caller promises.
        unsafe { self.0.realloc(at, layout, new) }
    }
}

/// Memory of one sandbox, in all processes that are at it.
#[derive(Debug)]
pub struct Meter {
    limit: u64,
    counted: Counted,
}

/// Where it is counted.
#[derive(Debug)]
enum Counted {
    /// By this process alone.
    Here(AtomicI64),
    /// By all of them.
    Shared(Page),
}

/// What one command has allocated and not given back.
#[derive(Debug)]
struct Count {
    meter: Arc<Meter>,
    own: AtomicI64,
    over: AtomicBool,
    stop: OnceLock<Arc<AtomicBool>>,
}

impl Count {
    fn add(&self, bytes: i64) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        let used = self.meter.add(bytes);
        if bytes > 0 && used > signed(self.meter.limit) && self.meter.is_beyond() {
            self.over.store(true, Ordering::Relaxed);
            if let Some(stop) = self.stop.get() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Meter {
    /// So many bytes, for this process alone.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, counted: Counted::Here(AtomicI64::new(0)) })
    }

    /// So many bytes for all processes that have this page.
    pub fn shared(limit: u64, page: Page) -> Arc<Self> {
        Arc::new(Self { limit, counted: Counted::Shared(page) })
    }

    /// The page, where it is shared.
    pub fn page(&self) -> Option<&Page> {
        match &self.counted {
            Counted::Here(_) => None,
            Counted::Shared(page) => Some(page),
        }
    }

    /// Counts; what is in use then.
    fn add(&self, bytes: i64) -> i64 {
        let total = match &self.counted {
            Counted::Here(total) => total,
            Counted::Shared(page) => {
                page.own().fetch_add(bytes, Ordering::Relaxed);
                page.total()
            }
        };
        total.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes)
    }

    /// Whether more is in use than may be, once what dead processes had is taken back. Allocates nothing.
    fn is_beyond(&self) -> bool {
        if let Counted::Shared(page) = &self.counted {
            page.settle();
        }
        self.used() > self.limit
    }

    /// So many bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are in use.
    pub fn used(&self) -> u64 {
        let total = match &self.counted {
            Counted::Here(total) => total,
            Counted::Shared(page) => page.total(),
        };
        u64::try_from(total.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Asks for memory that no allocator sees. What is given is to be given back by [`free`](Self::free).
    pub fn take(&self, bytes: u64) -> bool {
        let bytes = signed(bytes);
        if self.add(bytes) <= signed(self.limit) || !self.is_beyond() {
            return true;
        }
        self.add(-bytes);
        false
    }

    /// Gives back what [`take`](Self::take) gave.
    pub fn free(&self, bytes: u64) {
        self.add(-signed(bytes));
    }

    /// Counts what this thread allocates from now on.
    pub fn enter(self: &Arc<Self>) -> Entered {
        let count = Arc::new(Count {
            meter: Arc::clone(self),
            own: AtomicI64::new(0),
            over: AtomicBool::new(false),
            stop: OnceLock::new(),
        });
        let before = COUNT.replace(Arc::as_ptr(&count));
        Entered { count, before }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)
}

/// Counting, on the thread that it was begun on, until this is dropped there.
#[derive(Debug)]
pub struct Entered {
    count: Arc<Count>,
    before: *const Count,
}

impl Entered {
    /// Sets this when the limit is passed.
    pub fn stop_by(&self, stop: Arc<AtomicBool>) {
        if self.is_over() {
            stop.store(true, Ordering::Relaxed);
        }
        let _ = self.count.stop.set(stop);
    }

    /// Whether the limit was passed.
    pub fn is_over(&self) -> bool {
        self.count.over.load(Ordering::Relaxed)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        COUNT.set(self.before);
        // What lives on, as the pieces of output that nobody has taken yet, is not the sandbox's any more.
        let own = self.count.own.swap(0, Ordering::Relaxed);
        self.count.meter.add(-own);
    }
}

/// This thread hands bytes over to another one, which will free them.
pub fn handed_over(bytes: usize) {
    count(-i64::try_from(bytes).unwrap_or(i64::MAX));
}

/// This thread takes bytes over that another one has allocated.
pub fn taken_over(bytes: usize) {
    count(i64::try_from(bytes).unwrap_or(i64::MAX));
}

/// Whether this program's allocator counts.
pub fn is_counting() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let meter = Meter::new(u64::MAX >> 2);
        let entered = meter.enter();
        let before = meter.used();
        let probe = std::hint::black_box(vec![1_u8; 4096]);
        let counted = meter.used() >= before + 4096;
        drop(probe);
        drop(entered);
        counted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_bounded_and_comes_back() {
        let meter = Meter::new(100);
        assert!(meter.take(60));
        assert!(!meter.take(41));
        assert!(meter.take(40));
        meter.free(100);
        assert_eq!(meter.used(), 0);
        assert!(!meter.take(u64::MAX));
        assert_eq!(meter.used(), 0);
    }

    #[test]
    fn a_thread_is_counted_while_it_is_in_and_stopped_beyond_the_limit() {
        assert!(is_counting());
        let meter = Meter::new(1 << 20);
        let stop = Arc::new(AtomicBool::new(false));
        let entered = meter.enter();
        entered.stop_by(Arc::clone(&stop));
        let some = std::hint::black_box(vec![1_u8; 100_000]);
        assert!(meter.used() >= 100_000 && !entered.is_over());
        drop(some);
        assert!(meter.used() < 100_000);
        let given = std::hint::black_box(vec![1_u8; 900_000]);
        handed_over(given.len());
        assert!(meter.used() < 100_000);
        let more = std::hint::black_box(vec![1_u8; 2 << 20]);
        assert!(entered.is_over() && stop.load(Ordering::Relaxed));
        drop(entered);
        assert_eq!(meter.used(), 0);
        drop((given, more));
    }
}
