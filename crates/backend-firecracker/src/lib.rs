//! Local microVMs by Firecracker: a kernel of its own for every sandbox.
//!
//! ```text
//! detect     what of Firecracker's needs is here, and what to do about what is not
//! api        its HTTP API over a Unix socket: shapes, limits, deadlines
//! machine    one process of it in a working directory of its own, started, found again and ended
//! jail       the same by `jailer`, where Moltis runs as root
//! disk       what a machine writes to, without copying what it reads
//! tap        its network device, for the network `open`
//! initrd     what its kernel starts: our agent and modules, made anew from this program
//! vsock      the way to the agent in it
//! snapshot   one that was booted once, to begin others from
//! rootfs     a root file system made of Debian's packages
//! backend    sandboxes of all that
//! ```
//!
//! Linux only.

#![cfg(target_os = "linux")]

pub mod api;
mod error;
pub mod machine;
mod program;

pub use error::{Error, Result};
