//! What a backend needs to know of the machine it runs on: who calls, which processes live, which folders may be shown,
//! what is written down of running sandboxes, and trees of files beneath a directory handle.
//!
//! Linux only: processes are held by pidfds, and what is mounted where is read from `/proc`.

#![cfg(target_os = "linux")]

pub mod blocking;
pub mod bridge;
pub mod caller;
mod error;
pub mod node_proxy;
pub mod process;
pub mod record;
pub mod remove;
pub mod requested;
pub mod sources;
pub mod target;
pub mod tree;

pub use error::{Error, Problem, Result};
