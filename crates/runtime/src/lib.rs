//! Sessions on sandboxes: the one place that decides what runs where.
//!
//! [`Runtime`] is what every surface uses: it reads the configuration, knows the backends that are usable, turns a
//! session's settings into a [`SandboxSpec`](moltis_sandbox::SandboxSpec), holds that against what a backend
//! promises, and opens the sandbox.

pub mod answer;
pub mod capped;
pub mod error;
mod homes;
mod registry;
mod router;
mod runtime;
mod settings;
pub mod store;

pub use answer::{Answer, Collected};
pub use capped::{Capped, Cut};
pub use registry::BackendStatus;
pub use runtime::{Opened, Runtime};
pub use settings::{NamedWorkspace, Overrides};
