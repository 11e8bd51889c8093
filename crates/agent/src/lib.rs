//! Host side of the guest agent of Moltis.
//!
//! A backend brings a [`Transport`] that reaches the agent in its sandbox and gets an
//! [`AgentSandbox`], which runs commands, serves files and forwards ports through it. Every
//! operation has a connection of its own, so that the kernel does the flow control. Every byte that comes from the
//! agent is treated as hostile: frames, lists and names are bounded and checked, and what does not fit ends the
//! operation.

pub mod binary;
pub mod client;
pub mod container;
#[cfg(target_os = "linux")]
pub mod dangerous;
pub mod egress;
pub mod error;
pub mod exec;
pub mod files;
pub mod forward;
#[cfg(target_os = "linux")]
pub mod inspect;
pub mod presence;
pub mod sandbox;
pub mod transport;

pub use error::Error;
#[cfg(target_os = "linux")]
pub use inspect::HostInspector;
pub use sandbox::{AgentSandbox, Closer, Held, Inspect, Place};
#[cfg(target_os = "linux")]
pub use transport::UnixTransport;
pub use transport::{Channel, RelaySecret, RelayTransport, Transport};
