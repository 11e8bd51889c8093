//! The backends of the host through the public traits, with real processes.

// The whole binary is test code: a broken expectation here is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod adopt;
mod common;
mod exec;
mod files;
mod helper;
mod life;
mod limits;
mod neighbours;
mod none;
mod ordinary;
