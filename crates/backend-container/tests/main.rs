//! The engine drivers against the engines of this machine, and against ones that lie.

// Clippy knows the functions marked as tests, and not those that they share.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agentless;
mod apple;
mod confinement;
mod containers;
mod daemon;
mod dind;
mod execs;
mod faults;
mod hatches;
mod hostile;
mod identity;
mod image_store;
mod images;
mod lifecycle;
mod loss;
mod relay;
mod rig;
mod snapshots;
mod support;
