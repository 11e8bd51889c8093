//! What the host finds out about a command by itself, for backends whose sandboxes run on its own kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use moltis_sandbox::Outcome;

use crate::dangerous::{Watched, tell};
use crate::sandbox::Inspect;

/// How many processes of the sandbox the kernel has killed for memory so far; a read of a file of the kernel's.
pub type OomKills = Box<dyn Fn() -> u64 + Send + Sync>;

/// Reads what was kept of the folders that the sandbox may write to; blocks.
pub type Load = Box<dyn Fn() -> Option<Vec<Watched>> + Send + Sync>;

/// Looks at the memory limit, and at the folders that a sandbox may write to.
pub struct HostInspector {
    oom_kills: Option<OomKills>,
    folders: Option<Arc<Folders>>,
    /// Nothing has been told yet of what is to be told once.
    is_first: AtomicBool,
}

struct Folders {
    load: Load,
    watched: OnceLock<Vec<Watched>>,
}

impl HostInspector {
    /// Looks at these, or at nothing: then there is no inspector. Of a new sandbox it also tells, with the first outcome,
    /// how well its folders are watched.
    pub fn new(is_new: bool, oom_kills: Option<OomKills>, folders: Option<Load>) -> Option<Self> {
        if oom_kills.is_none() && folders.is_none() {
            return None;
        }
        let folders = folders.map(|load| Arc::new(Folders { load, watched: OnceLock::new() }));
        Some(Self { oom_kills, folders, is_first: AtomicBool::new(is_new) })
    }
}

#[async_trait]
impl Inspect for HostInspector {
    fn before(&self) -> u64 {
        self.oom_kills.as_ref().map_or(0, |count| count())
    }

    async fn after(&self, before: u64, outcome: Outcome) -> Outcome {
        let mut outcome = outcome;
        outcome.out_of_memory = self.oom_kills.as_ref().is_some_and(|count| count() > before);
        let Some(folders) = self.folders.clone() else { return outcome };
        let is_first = self.is_first.swap(false, Ordering::Relaxed);
        let mut looked = outcome.clone();
        let look = move || {
            match folders.watched.get() {
                Some(watched) => tell(watched, is_first, &mut looked),
                None => match (folders.load)() {
                    Some(watched) => tell(folders.watched.get_or_init(|| watched), is_first, &mut looked),
                    None => looked.notes.push(UNWATCHED.to_owned()),
                },
            }
            looked
        };
        // A thread that breaks off leaves the outcome as the agent told it.
        moltis_sandbox::blocking::short(look).await.unwrap_or_else(|_| {
            outcome.notes.push(UNWATCHED.to_owned());
            outcome
        })
    }
}

const UNWATCHED: &str = "it is not known what was made in writable folders that the host runs code by";
