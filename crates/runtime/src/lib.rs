//! Sessions on sandboxes: the one place that decides what runs where.
//!
//! [`Runtime`] is what every surface uses: it reads the configuration, knows the backends that are usable, turns a
//! session's settings into a [`SandboxSpec`](moltis_sandbox::SandboxSpec), holds that against what a backend
//! promises, and opens the sandbox.

pub mod answer;
pub mod approvals;
pub mod capped;
pub mod error;
pub mod explain;
mod failover;
#[cfg(test)]
mod fakes;
pub mod file_rules;
mod homes;
mod image;
mod image_failures;
mod images;
pub mod json;
mod legacy;
mod lifecycle;
pub mod local_files;
pub mod managed_files;
mod network;
mod pool;
mod proxy_env;
mod recorded;
mod registry;
mod router;
mod runtime;
mod sessions;
mod settings;
mod shared_home;
pub mod store;
pub mod time;
mod told;
#[cfg(test)]
mod tree_tests;
pub mod usage;

#[cfg(feature = "wasm")]
pub use moltis_backend_wasm::{Metering, keeper};
use moltis_host::{bridge, tree};

pub use answer::{Answer, Collected};
pub use approvals::{Ruled, SessionApprovals};
pub use capped::{Capped, Cut};
pub use explain::{ExplainRequest, Explanation};
pub use failover::FailedOver;
pub use file_rules::{FileRules, RuledFiles};
pub use images::{BuildOutcome, BuildRequested, CleanedImages, ImageOf, ImagesListed};
pub use legacy::LegacyContainer;
pub use lifecycle::{OpenSession, Pruned, SandboxInfo, Stopped};
pub use managed_files::ManagedFiles;
pub use pool::PoolStatus;
pub use registry::BackendStatus;
pub use router::PassedOver;
pub use runtime::{Opened, Runtime};
pub use sessions::{Removed, SessionRequest};
pub use settings::{NamedWorkspace, Overrides};
