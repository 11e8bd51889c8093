//! What is known of an agent that was brought into a machine by SSH.

use serde::{Deserialize, Serialize};

/// The user whose commands they are.
pub const USER: &str = "sandbox";

/// Where the machine's SSH server listens.
pub const PORT: u16 = 22;

/// How the agent serves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether it ends with the connection that holds it.
    pub held: bool,
    /// Whether it keeps a proxy port on the machine's loopback.
    pub egress: bool,
    /// Processes that commands may have.
    pub pids: Option<u64>,
}

/// Where an agent was brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// The server's key in OpenSSH's form, as it was shown first.
    pub host_key: String,
    /// The agent's socket inside.
    pub socket: String,
    /// Its user's home.
    pub home: String,
}
