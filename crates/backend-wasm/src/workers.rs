//! Threads on which shells run, one command each. What a shell computes may not pause for long, so it is kept from the
//! threads on which others wait. A thread that is done is kept for the next command.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};

/// Stack of a worker: shell code nests, and each level costs. Only what is used of it is memory.
const STACK: usize = 16 << 20;

/// How long a thread waits for its next command.
const KEPT: Duration = Duration::from_secs(10);

/// Most threads that wait.
const MAX_WAITING: usize = 32;

/// Most commands that run at once in this process.
pub const MAX_RUNNING: usize = 512;

type Work = Box<dyn FnOnce(&Runtime) + Send>;

/// The threads of this process.
#[derive(Default)]
pub struct Workers {
    waiting: Mutex<Vec<(usize, Sender<Work>)>>,
    started: AtomicUsize,
    running: AtomicUsize,
}

impl Workers {
    /// Those of this process.
    pub fn of_process() -> &'static Self {
        static WORKERS: OnceLock<Workers> = OnceLock::new();
        WORKERS.get_or_init(Self::default)
    }

    /// Runs work on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Thread`].
    pub fn run(&'static self, work: impl FnOnce(&Runtime) + Send + 'static) -> Result<()> {
        if self.running.fetch_add(1, Ordering::SeqCst) >= MAX_RUNNING {
            self.running.fetch_sub(1, Ordering::SeqCst);
            return Err(Error::Full(format!("{MAX_RUNNING} commands run in this process already")));
        }
        let mut work: Work = Box::new(work);
        loop {
            let next = self.waiting().pop();
            let Some((_, thread)) = next else { break };
            match thread.send(work) {
                Ok(()) => return Ok(()),
                // It has gone since.
                Err(back) => work = back.0,
            }
        }
        let started = self.start(work);
        if started.is_err() {
            self.running.fetch_sub(1, Ordering::SeqCst);
        }
        started
    }

    fn start(&'static self, first: Work) -> Result<()> {
        let runtime = Builder::new_current_thread().enable_time().build().map_err(Error::Thread)?;
        let (send, receive) = channel();
        let id = self.started.fetch_add(1, Ordering::Relaxed);
        thread::Builder::new()
            .name("moltis-wasm".to_owned())
            .stack_size(STACK)
            .spawn(move || self.work(&runtime, first, id, &send, &receive))
            .map(drop)
            .map_err(Error::Thread)
    }

    fn work(&self, runtime: &Runtime, first: Work, id: usize, send: &Sender<Work>, receive: &Receiver<Work>) {
        let mut work = first;
        loop {
            // What it has to say it has said by then, or its streams break off.
            let _ = catch_unwind(AssertUnwindSafe(|| work(runtime)));
            self.running.fetch_sub(1, Ordering::SeqCst);
            {
                let mut waiting = self.waiting();
                if waiting.len() >= MAX_WAITING {
                    return;
                }
                waiting.push((id, send.clone()));
            }
            work = match receive.recv_timeout(KEPT) {
                Ok(next) => next,
                Err(_) => {
                    let mut waiting = self.waiting();
                    if let Some(at) = waiting.iter().position(|(other, _)| *other == id) {
                        waiting.swap_remove(at);
                        return;
                    }
                    drop(waiting);
                    // Whoever took it from the list is handing work over at this very moment.
                    match receive.recv() {
                        Ok(next) => next,
                        Err(_) => return,
                    }
                }
            };
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(usize, Sender<Work>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_done_takes_the_next_command_even_after_a_panic() {
        let workers = Workers::of_process();
        let (send, receive) = channel();
        let ask = |panics: bool| {
            let send = send.clone();
            workers
                .run(move |_| {
                    let _ = send.send(thread::current().id());
                    assert!(!panics, "on purpose");
                })
                .unwrap();
            receive.recv().unwrap()
        };
        let first = ask(true);
        let again = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            ask(false) == first
        });
        assert!(again);
    }
}
