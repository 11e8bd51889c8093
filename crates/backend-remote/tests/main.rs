//! Providers, by stand-ins that really run commands.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod background;
mod contract;
mod daytona;
mod daytona_contract;
mod faults;
mod last;
mod listed;
mod rig;
mod terms;
mod workspace;
