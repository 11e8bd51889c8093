//! What goes over the wire: bodies of requests, answers as far as they are read, and lines of output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a machine may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Policy {
    /// Everything, or nothing.
    Whole(Whole),
    /// These hosts.
    These {
        /// Names, `*.` before those of which only what is below is meant.
        allow: Vec<String>,
    },
}

/// Everything, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum Whole {
    /// Everything.
    AllowAll,
    /// Nothing.
    DenyAll,
}

impl Policy {
    /// Everything.
    pub const ALL: Self = Self::Whole(Whole::AllowAll);
    /// Nothing.
    pub const NONE: Self = Self::Whole(Whole::DenyAll);
}

/// What a machine may reach, as it is told: in other words than it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToldPolicy {
    pub mode: String,
    #[serde(default)]
    pub allowed_domains: Vec<String>,
    #[serde(default, rename = "allowedCIDRs")]
    pub allowed_cidrs: Vec<String>,
}

impl ToldPolicy {
    /// Whether it is what was asked for.
    pub fn is(&self, asked: &Policy) -> bool {
        match asked {
            Policy::Whole(Whole::AllowAll) => self.mode == "allow-all",
            Policy::Whole(Whole::DenyAll) => self.mode == "deny-all",
            Policy::These { allow } => {
                let mut told = self.allowed_domains.clone();
                told.sort();
                self.mode == "custom" && told == *allow && self.allowed_cidrs.is_empty()
            }
        }
    }
}

/// Asks for a machine.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Create<'a> {
    pub project_id: &'a str,
    pub ports: [u16; 0],
    pub timeout: u64,
    pub resources: Resources,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source<'a>>,
    pub name: &'a str,
    pub persistent: bool,
    pub network_policy: Policy,
    pub env: BTreeMap<String, String>,
    pub tags: BTreeMap<&'static str, String>,
}

/// How large it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Resources {
    pub vcpus: u32,
}

/// What it starts from.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Source<'a> {
    #[serde(rename_all = "camelCase")]
    Snapshot { snapshot_id: &'a str },
}

/// The record of a machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub name: String,
    pub persistent: bool,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub created_at: u64,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// One run of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub id: String,
    pub status: String,
    pub cwd: String,
    pub timeout: u64,
    pub created_at: u64,
    pub started_at: Option<u64>,
    pub network_policy: Option<ToldPolicy>,
}

impl Session {
    /// When the provider ends it, in milliseconds since 1970 by its clock.
    pub fn ends_at(&self) -> u64 {
        self.started_at.unwrap_or(self.created_at).saturating_add(self.timeout)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Created {
    pub sandbox: Record,
    pub session: Session,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Told {
    pub session: Session,
}

/// What was kept of a machine's disk.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub id: String,
    pub status: String,
    pub expires_at: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Snapped {
    pub snapshot: Snapshot,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Page {
    pub sandboxes: Vec<Record>,
    pub pagination: Pagination,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Pagination {
    pub next: Option<String>,
}

/// Asks for a command.
#[derive(Clone, Debug, Serialize)]
pub struct Command<'a> {
    pub command: &'a str,
    pub args: &'a [String],
    pub env: BTreeMap<&'a str, &'a str>,
    pub sudo: bool,
    /// Absent: nobody waits for it, and it goes on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<bool>,
    /// Milliseconds after which it is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// A command.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ran {
    pub id: String,
    pub exit_code: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Running {
    pub command: Ran,
}

/// One line of a stream.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Line {
    Command { command: Ran },
    Log { stream: String, data: serde_json::Value },
}
