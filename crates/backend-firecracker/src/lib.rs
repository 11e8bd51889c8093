//! Local microVMs by Firecracker: a kernel of its own for every sandbox.
//!
//! ```text
//! detect     what of Firecracker's needs is here, and what to do about what is not
//! api        its HTTP API over a Unix socket: shapes, limits, deadlines
//! machine    one process of it in a working directory of its own: started, as root by `jailer`; found again; ended
//! disk       what machines read, shared by all, and what each one writes
//! tap        a machine's network device, for the network `open`
//! initrd     what its kernel starts: our agent and modules, made anew from this program
//! vsock      the way to the agent in it; ssh: the same for a root file system and kernel of somebody's own
//! rootfs     a kernel and a root file system made of Debian's packages
//! blueprint  what a machine is made of; snapshot: one that was booted once, to begin others from
//! claims     numbers that one machine has at a time; record: what is written down of each
//! backend    sandboxes of all that
//! ```
//!
//! Linux only.

#![cfg(target_os = "linux")]

pub mod api;
mod backend;
pub mod blueprint;
mod claims;
pub mod detect;
pub mod disk;
mod error;
mod guarantees;
mod initrd;
pub mod machine;
mod place;
mod program;
mod reach;
mod record;
mod rootfs;
pub mod snapshot;
#[cfg(feature = "ssh")]
pub mod ssh;
#[cfg(not(feature = "ssh"))]
#[path = "ssh_absent.rs"]
pub mod ssh;
pub mod tap;
pub mod vsock;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use backend::FirecrackerBackend;
pub use error::{Error, Result};

/// How the backend is set up.
#[derive(Clone)]
pub struct Config {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Where files lie that machines share: copies of the kernel and the root file system, snapshots. On the file system of
    /// the data directory, since machines have them by hard links; by default `<data_dir>/cache/firecracker`. Several data
    /// directories of one user may have the same.
    pub cache_dir: PathBuf,
    /// Firecracker itself; its jailer lies beside it.
    pub firecracker: PathBuf,
    /// An uncompressed kernel. `<kernel>.modules`, if it is there, is a cpio archive of modules that it needs.
    pub kernel: PathBuf,
    /// The root file system, ext4. It is only read.
    pub rootfs: PathBuf,
    /// The private key with which `sandbox` is let in by SSH: the root file system and the kernel are then booted as they
    /// are. Absent: an initrd brings our agent.
    pub ssh_key: Option<PathBuf>,
    /// Processors of a machine.
    pub vcpus: u32,
    /// Memory of a machine in MiB, where no limit asks for another.
    pub memory_mb: u32,
    /// How long a machine may take until it serves.
    pub serves_within: Duration,
    /// Whether machines are begun from a snapshot of one that was booted.
    pub snapshots: bool,
    /// Told of every step of an opening, so that tests can end the program between any two.
    pub watch: Option<Watch>,
}

/// Who is told of steps.
pub type Watch = Arc<dyn Fn(Step) + Send + Sync>;

/// What an opening has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The sandbox's folder is its own.
    Locked,
    /// Its numbers are taken.
    Claimed,
    /// What is about to be done is written down.
    Recorded,
    /// Its network device is there.
    Connected,
    /// Its files are there.
    Furnished,
    /// Its process has been started.
    Spawned,
    /// The process's number is written down.
    Numbered,
    /// The process listens.
    Listening,
    /// The machine runs.
    Started,
    /// Its agent serves.
    Served,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Locked,
        Self::Claimed,
        Self::Recorded,
        Self::Connected,
        Self::Furnished,
        Self::Spawned,
        Self::Numbered,
        Self::Listening,
        Self::Started,
        Self::Served,
    ];
}

impl Config {
    /// With what is built in.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            cache_dir: data_dir.join("cache/firecracker"),
            data_dir,
            firecracker: "/usr/local/bin/firecracker".into(),
            kernel: "/opt/moltis/vmlinux".into(),
            rootfs: "/opt/moltis/rootfs.ext4".into(),
            ssh_key: None,
            vcpus: 2,
            memory_mb: 512,
            serves_within: Duration::from_secs(60),
            snapshots: true,
            watch: None,
        }
    }

    fn tell(&self, step: Step) {
        if let Some(watch) = &self.watch {
            watch(step);
        }
    }
}
