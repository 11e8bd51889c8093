//! The built-in Linux sandbox of Moltis.

mod backend;
mod caller;
pub mod detect;
pub mod diagnose;
mod error;
mod landlock;
mod launch;
pub mod limits;
pub mod open;
mod place;
mod process;
mod protect;
mod record;
mod root;
pub mod seccomp;
mod sources;

pub use backend::{Config, NamespacesBackend};
pub use error::Error;
