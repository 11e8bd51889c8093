//! Tier 2: WASI preview1 modules, run by Wasmtime inside the shell's pipelines.

mod host;
mod limiter;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::Room;
use crate::meter::Meter;

pub use host::Setting;
pub use host::State;
pub use run::{Call, End, Streams, call};

/// Largest module that is taken from a sandbox's own files: compiling one costs many times its size.
pub const MAX_OF_SANDBOX: u64 = 64 << 20;

/// The modules of one command, and what they may use.
pub struct Modules {
    /// Where modules are compiled and kept.
    pub room: Arc<Room>,
    /// Those of the configuration.
    pub commands: Arc<BTreeMap<String, PathBuf>>,
    /// Instructions of one run.
    pub fuel: u64,
    /// Memory of the whole sandbox.
    pub meter: Arc<Meter>,
}

impl Modules {
    /// Names that the configuration gives.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.commands.keys().map(String::as_str)
    }
}
