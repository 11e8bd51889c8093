//! The program as a user runs it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bad_input;
mod bench;
mod completions;
mod config;
#[cfg(feature = "remote")]
mod daytona;
mod deploy;
mod exec;
#[cfg(feature = "serve")]
mod failover;
mod fault;
mod files;
mod forward;
#[cfg(feature = "serve")]
mod gateway;
mod json;
mod lasting;
#[cfg(not(any(feature = "wasm", feature = "serve", feature = "remote")))]
mod lightweight;
#[cfg(feature = "serve")]
mod linked;
#[cfg(feature = "serve")]
mod mcp;
mod network;
mod process;
mod sandbox;
mod session;
mod signals;
mod snapshots;
mod support;
mod terminal;
mod trusted;
#[cfg(feature = "remote")]
mod vercel;
#[cfg(feature = "wasm")]
mod wasm;
