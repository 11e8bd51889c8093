//! Images: what is in one, how ours are built, and which of them are still needed.

mod archive;
mod build;
mod error;
mod facts;
mod foreign;
mod label;
mod lock;
mod look;
mod markers;
mod ours;
mod pending;
mod progress;
mod recipe;
mod reference;
mod shared;
mod store;
#[cfg(test)]
mod tests;

pub use build::{Ready, Resolved};
pub use facts::{ImageFacts, OsRelease};
use moltis_config::packages;
pub use moltis_config::packages::Manager;
pub use store::{ImageStore, Place, Work};
