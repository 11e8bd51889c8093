//! What a sandbox may use up.

use serde::{Deserialize, Serialize};

use crate::Setting;

/// Limits of a whole sandbox. Absent means: no limit was set, not even a built-in one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Memory in bytes, swap counted (`resource_limits.memory_limit`).
    pub memory: Option<Setting<u64>>,
    /// Processor time in cores, above 0 (`resource_limits.cpu_quota`).
    pub cpus: Option<Setting<f64>>,
    /// Number of processes and threads (`resource_limits.pids_max`).
    pub pids: Option<Setting<u64>>,
}
