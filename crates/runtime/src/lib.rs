//! Sessions on sandboxes: the one place that decides what runs where.
//!
//! [`Runtime`] is what every surface uses: it reads the configuration, knows the backends that are usable, turns a
//! session's settings into a [`SandboxSpec`](moltis_sandbox::SandboxSpec), holds that against what a backend
//! promises, and opens the sandbox.

pub mod answer;
mod bridge;
pub mod capped;
pub mod error;
pub mod explain;
pub mod file_rules;
mod homes;
pub mod json;
mod lifecycle;
pub mod local_files;
pub mod managed_files;
mod recorded;
mod registry;
mod router;
mod runtime;
mod sessions;
mod settings;
mod shared_home;
pub mod store;
pub mod time;
mod tree;
pub mod usage;

pub use answer::{Answer, Collected};
pub use capped::{Capped, Cut};
pub use explain::{ExplainRequest, Explanation};
pub use file_rules::{FileRules, RuledFiles};
pub use lifecycle::{OpenSession, Pruned, SandboxInfo, Stopped};
pub use managed_files::ManagedFiles;
pub use registry::BackendStatus;
pub use router::PassedOver;
pub use runtime::{Opened, Runtime};
pub use sessions::{Removed, SessionRequest};
pub use settings::{NamedWorkspace, Overrides};
