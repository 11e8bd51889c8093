//! The in-process shell and WASI modules, from outside.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod background;
mod bounds;
mod commands;
mod common;
mod hostile;
mod life;
mod modules;
// The worker of `cargo xtask suites` reads other people's tests with it; its own test is run from here.
#[allow(dead_code, reason = "shared with an example, which uses more of it")]
#[path = "../examples/suites/rust.rs"]
mod reader;
mod tree;

/// What shells allocate is counted, as in the program.
#[global_allocator]
static ALLOCATOR: moltis_backend_wasm::Metering<std::alloc::System> =
    moltis_backend_wasm::Metering(std::alloc::System);
