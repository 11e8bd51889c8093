//! `wasm`: a shell and WASI programs inside this process, with files of their own, no network and no process of the host.
//!
//! A sandbox is a folder ([`place`]) and the handles that a command opens of it ([`tree`]). Tier 1 is a shell on that tree
//! ([`shell`]), tier 2 are WASI modules in its pipelines ([`module`]), compiled once ([`engine`], [`cache`]).

#![cfg(target_os = "linux")]

mod backend;
mod background;
mod cache;
mod commands;
mod engine;
mod error;
mod files;
mod guarantees;
mod meter;
mod module;
mod page;
mod place;
mod sandbox;
mod shell;
mod shown;
mod tree;
mod workers;

pub use backend::{Config, WasmBackend};
pub use background::keeper;
pub use error::{Error, Result};
pub use meter::Metering;

/// The tests' own programs count, too.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Metering<std::alloc::System> = Metering(std::alloc::System);
