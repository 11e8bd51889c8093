//! The built-in Linux sandbox of Moltis.

mod backend;
pub mod detect;
pub mod diagnose;
mod error;
mod landlock;
mod launch;
pub mod limits;
pub mod open;
mod place;
mod record;
mod root;
pub mod seccomp;

pub use backend::{Config, NamespacesBackend};
pub use error::Error;
