//! The tools as a client sees them, over streams in memory and on real backends.

// All of this is test code; the lint knows only functions marked as tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod exec;
mod files;
#[cfg(feature = "http")]
mod http;
mod process;
mod session;
mod support;
mod tools;
