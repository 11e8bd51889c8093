//! Daytona: one sandbox of its cloud, or of a server of one's own, for each sandbox.

mod backend;
mod client;
mod logs;
mod machine;
mod provision;
mod toolbox;
mod wire;

pub use backend::{DaytonaConfig, backend};
