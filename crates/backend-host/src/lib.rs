//! Commands on the host itself: `restricted-host` (cleared environment, rlimits) and `none` (nothing).
//!
//! Both run the guest agent as an ordinary process of the host, so that a command is ended, streamed and kept as in
//! any other sandbox. Nothing isolates it: what is not kept is said by [`guarantees`], and `moltis_sandbox::judge`
//! decides what that means for a demand.
//!
//! ```text
//! <data_dir>/run-host/<id>/host.sock     where the agent listens (the folder is 0700)
//! <data_dir>/run-host/<id>/host.json     who the agent is: process, start time, fingerprint
//! <data_dir>/sandbox/scratch/<id>/       the session's own folder
//! ```
//!
//! Linux only: ending a whole descent needs a subreaper.

#![cfg(target_os = "linux")]

mod backend;
mod closer;
mod environment;
pub mod error;
mod folder;
mod guarantees;
mod opening;
mod process;
mod program;
mod record;
mod rlimits;
mod roots;
mod scratch;

pub use backend::{Config, NoneBackend, RestrictedHostBackend};
pub use error::Error;
