//! The shapes of Firecracker's API, as version 1.12 documents them. Paths are relative to the machine's working directory,
//! so that a snapshot can be taken up in another one.

use serde::{Deserialize, Serialize};

/// `PUT /machine-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// Processors, 1 to 32.
    pub vcpu_count: u32,
    /// Memory in MiB.
    pub mem_size_mib: u32,
    /// Whether two processors are the threads of one core.
    pub smt: bool,
    /// Whether memory that changes is kept account of, for snapshots of differences.
    pub track_dirty_pages: bool,
}

/// `PUT /boot-source`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// An uncompressed kernel.
    pub kernel_image_path: String,
    /// What the kernel unpacks into its first root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<String>,
    /// The kernel's command line.
    pub boot_args: String,
}

/// So many tokens, refilled within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenBucket {
    /// Tokens: bytes or operations.
    pub size: u64,
    /// Tokens that there are once more at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
    /// Milliseconds in which an empty one fills.
    pub refill_time: u64,
}

/// What a device may do in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RateLimiter {
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// In operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// `PUT /drives/{drive_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drive {
    /// Its name in the API.
    pub drive_id: String,
    /// The file behind it.
    pub path_on_host: String,
    /// Whether the kernel is told that it is its root.
    pub is_root_device: bool,
    /// Whether the guest may only read it.
    pub is_read_only: bool,
    /// `Unsafe`: what the guest flushes may wait in the host's memory. Disks of a machine end with it.
    pub cache_type: &'static str,
    /// What it may do in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// `PUT /network-interfaces/{iface_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkInterface {
    /// Its name in the API.
    pub iface_id: String,
    /// Its address in the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_mac: Option<String>,
    /// The TAP device.
    pub host_dev_name: String,
    /// What it may receive in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_rate_limiter: Option<RateLimiter>,
    /// What it may send in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_rate_limiter: Option<RateLimiter>,
}

/// `PUT /vsock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vsock {
    /// The guest's number, 3 or more.
    pub guest_cid: u32,
    /// The Unix socket by which the host connects to the guest's ports.
    pub uds_path: String,
}

/// `PUT /entropy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entropy {
    /// What it may give in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// `PUT /snapshot/create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotCreate {
    /// Always `Full`: memory in whole.
    pub snapshot_type: &'static str,
    /// Where the state of devices and processors goes.
    pub snapshot_path: String,
    /// Where the memory goes.
    pub mem_file_path: String,
}

impl SnapshotCreate {
    /// A whole one into these files.
    pub fn full(state: &str, memory: &str) -> Self {
        Self { snapshot_type: "Full", snapshot_path: state.to_owned(), mem_file_path: memory.to_owned() }
    }
}

/// Where the memory of a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemBackend {
    /// The file.
    pub backend_path: String,
    /// Always `File`: mapped, each page read when it is first touched, and never written back.
    pub backend_type: &'static str,
}

/// Another TAP device than the one that a snapshot was taken with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkOverride {
    /// The interface's name in the API.
    pub iface_id: String,
    /// The TAP device.
    pub host_dev_name: String,
}

/// `PUT /snapshot/load`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotLoad {
    /// The state of devices and processors.
    pub snapshot_path: String,
    /// The memory.
    pub mem_backend: MemBackend,
    /// Whether the machine goes on at once.
    pub resume_vm: bool,
    /// Other devices than those of the snapshot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_overrides: Vec<NetworkOverride>,
}

impl SnapshotLoad {
    /// From these files.
    pub fn file(state: &str, memory: &str, resume_vm: bool) -> Self {
        Self {
            snapshot_path: state.to_owned(),
            mem_backend: MemBackend { backend_path: memory.to_owned(), backend_type: "File" },
            resume_vm,
            network_overrides: Vec::new(),
        }
    }
}

/// What a machine is doing, as `GET /` says it and `PATCH /vm` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It has not been started.
    #[serde(rename = "Not started")]
    NotStarted,
    /// It runs.
    #[serde(rename = "Running")]
    Running,
    /// Its processors stand still.
    #[serde(rename = "Paused")]
    Paused,
}

/// The answer of `GET /`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Instance {
    /// The name that it was started with.
    pub id: String,
    /// What it is doing.
    pub state: State,
    /// Firecracker's version.
    pub vmm_version: String,
}
