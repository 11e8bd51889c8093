//! What a copy leaves out, so that a person can be told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::failure::shown;

/// Names that are kept.
const MAX_NAMES: usize = 5;

/// Entries that were left out: how many, and the first few. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeftOut(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    count: u64,
    names: Vec<String>,
}

impl LeftOut {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an entry by its path below the top.
    pub fn note(&self, path: &[u8]) {
        let mut told = self.told();
        told.count += 1;
        if told.names.len() < MAX_NAMES {
            told.names.push(shown(path));
        }
    }

    /// How many they are.
    pub fn count(&self) -> u64 {
        self.told().count
    }

    /// Paths of the first few, each of bounded length. Who named them is not trusted.
    pub fn names(&self) -> Vec<String> {
        self.told().names.clone()
    }
}
