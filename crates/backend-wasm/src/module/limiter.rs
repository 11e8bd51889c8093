//! Memory of a running module: every page comes out of the sandbox's own.

use std::sync::Arc;

use wasmtime::{ResourceLimiter, Result, bail};

use crate::meter::Meter;

/// Bytes that an entry of a table takes.
const ENTRY: u64 = 16;

/// Said when a module asks for more than there is.
#[derive(Debug)]
pub struct OutOfMemory;

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sandbox's memory limit was reached")
    }
}

impl std::error::Error for OutOfMemory {}

/// What a module has.
pub struct Limiter {
    meter: Arc<Meter>,
    taken: u64,
}

impl Limiter {
    /// It has nothing yet.
    pub fn new(meter: Arc<Meter>) -> Self {
        Self { meter, taken: 0 }
    }

    fn grow(&mut self, current: u64, desired: u64) -> Result<bool> {
        let more = desired.saturating_sub(current);
        if !self.meter.take(more) {
            // A module that is told would go on with what it has, and nobody would know why it does less.
            bail!(OutOfMemory);
        }
        self.taken += more;
        Ok(true)
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.meter.free(self.taken);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.grow(current as u64, desired as u64)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.grow((current as u64).saturating_mul(ENTRY), (desired as u64).saturating_mul(ENTRY))
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        4
    }
}
