//! The vocabulary of Moltis: what a sandbox is, what a command is, what is promised and what can go wrong.
//!
//! Everything above this crate speaks in these words. It holds traits and plain data, no mechanism: a backend
//! implements [`Backend`] and [`Sandbox`], the runtime decides with [`Guarantees`], and every surface prints the
//! same [`Diagnosis`].

pub mod backend;
pub mod blocking;
pub mod container;
pub mod diagnosis;
pub mod domain;
pub mod error;
pub mod exec;
pub mod files;
pub mod guarantee;
pub mod image;
pub mod limits;
pub mod network;
pub mod sandbox;
pub mod session;
pub mod setting;
pub mod snapshot;
pub mod spec;

pub use backend::{Backend, BackendName, Detection, Legacy, Provided, SandboxRecord, Usable};
pub use container::{Gpus, ImageChoice};
pub use diagnosis::Diagnosis;
pub use domain::{DomainPattern, HostPattern};
pub use error::{Error, Result};
pub use exec::{Command, Ending, Exec, ExecControl, ExecEvent, ExecRequest, Leftover, Outcome, Status};
pub use files::{ByteStream, Entry, EntryKind, Files, GuestPath, Metadata};
pub use guarantee::{Guarantees, NotEnforced, Promise, judge};
pub use image::{BuildProgress, BuildRequest, BuildSink, BuiltImage, Cleaned, ImageInfo, Images, Prepared};
pub use limits::Limits;
pub use network::Network;
pub use sandbox::{Activity, Duplex, Forwarder, ProcessInfo, Sandbox, Usage};
pub use session::{SandboxId, SessionKey};
pub use setting::{Origin, Setting};
pub use snapshot::{Beginning, SnapshotId, SnapshotKind};
pub use spec::{Lifetime, Mount, MountMode, SandboxSpec};
