//! Docker, Podman and Apple Container as backends of Moltis: one driver shape, three engines.

mod accounts;
mod agentless;
pub mod apple;
mod backend;
mod closer;
mod connected;
mod dind;
pub mod engine;
mod guarantees;
mod hardening;
mod hatches;
mod identity;
pub mod image;
mod images;
mod labels;
mod legacy;
mod memory;
mod oom;
mod opening;
mod place;
mod points;
mod reach;
mod record;
mod selinux;
mod served;
mod shown;
mod snapshots;
mod sweep;

pub use agentless::Guests;
pub use backend::{Config, ContainerBackend};
pub use identity::home_owner;
