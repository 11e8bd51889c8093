//! Sessions on sandboxes: the one place that decides what runs where.
//!
//! [`Runtime`] is what every surface uses: it reads the configuration, knows the backends that are usable, turns a
//! session's settings into a [`SandboxSpec`](moltis_sandbox::SandboxSpec), holds that against what a backend
//! promises, and opens the sandbox.
//!
//! ```
//! use moltis_runtime::config::{BackendChoice, Config};
//! use moltis_runtime::sandbox::{BackendName, Command, ExecEvent, ExecRequest};
//! use moltis_runtime::{Overrides, Runtime};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = tempfile::tempdir()?;
//!     let mut config = Config::default();
//!     config.data_dir.value = folder.path().join("data");
//!     config.tools.exec.sandbox.backend.value = BackendChoice::Named(BackendName::Namespaces);
//!     let runtime = Runtime::new(config, None, Vec::new());
//!     let opened = runtime.open(&Overrides::default()).await?;
//!     let request = ExecRequest::new(Command::Shell("echo $((6 * 7)) on $(uname -n)".into()));
//!     let (mut exec, mut printed) = (opened.sandbox.exec(request).await?, Vec::new());
//!     while let Some(event) = exec.events.next().await {
//!         if let ExecEvent::Stdout(bytes) = event? { printed.extend(bytes) }
//!     }
//!     opened.sandbox.close().await?;
//!     assert_eq!(printed, b"42 on sandbox\n");
//!     Ok(())
//! }
//! ```

pub mod answer;
pub mod approvals;
pub mod audit_csv;
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
pub mod link;
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
mod snapshots;
pub mod store;
pub mod time;
mod told;
#[cfg(test)]
mod tree_tests;
pub mod usage;

#[cfg(feature = "wasm")]
pub use moltis_backend_wasm::{Metering, keeper};
pub use moltis_config as config;
use moltis_host::{bridge, tree};
pub use moltis_sandbox as sandbox;

pub use answer::{Answer, Collected};
pub use approvals::{Ruled, SessionApprovals};
pub use capped::{Capped, Cut};
pub use explain::{ExplainRequest, Explained, Explanation};
pub use failover::FailedOver;
pub use file_rules::{FileRules, RuledFiles};
pub use images::{BuildOutcome, BuildRequested, CleanedImages, ImageOf, ImagesListed};
pub use legacy::LegacyContainer;
pub use lifecycle::{Adopted, Kept, OpenSession, Pruned, SandboxInfo, Stopped};
pub use managed_files::ManagedFiles;
pub use pool::PoolStatus;
pub use registry::BackendStatus;
pub use router::PassedOver;
pub use runtime::{Opened, Runtime};
pub use sessions::{Removed, SessionRequest};
pub use settings::{NamedWorkspace, Overrides};
pub use snapshots::Taken;
