//! The program as a user runs it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bad_input;
mod bench;
mod completions;
mod config;
mod deploy;
mod exec;
mod fault;
mod files;
mod forward;
mod gateway;
mod json;
mod lasting;
#[cfg(not(feature = "wasm"))]
mod lightweight;
mod mcp;
mod network;
mod process;
mod sandbox;
mod session;
mod signals;
mod support;
mod terminal;
mod trusted;
mod vercel;
#[cfg(feature = "wasm")]
mod wasm;
