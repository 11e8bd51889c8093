//! What goes over the wire: bodies of requests, and answers as far as they are read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Asks for a sandbox. Memory and disk would be GiB, all intervals are minutes.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Create<'a> {
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_info: Option<Build>,
    pub env: BTreeMap<String, String>,
    pub labels: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<&'a str>,
    pub public: bool,
    pub auto_stop_interval: u64,
    pub auto_delete_interval: i64,
    pub network_block_all: bool,
}

/// How its image comes about.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    pub dockerfile_content: String,
}

/// A sandbox, as the API tells of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub state: Option<String>,
    #[serde(default)]
    pub error_reason: Option<String>,
    #[serde(default)]
    pub public: bool,
    #[serde(default)]
    pub network_block_all: bool,
    #[serde(default)]
    pub domain_allow_list: Option<String>,
    #[serde(default)]
    pub auto_stop_interval: Option<f64>,
    #[serde(default)]
    pub toolbox_proxy_url: Option<String>,
}

impl Told {
    /// Its state, in the provider's words.
    pub fn state(&self) -> &str {
        self.state.as_deref().unwrap_or("unknown")
    }

    /// Minutes without use after which it stops (0: never).
    pub fn stops_after(&self) -> u64 {
        self.auto_stop_interval.unwrap_or(15.0).max(0.0) as u64
    }
}

/// One page of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub items: Vec<Listed>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    pub name: String,
    #[serde(default)]
    pub state: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Where the toolbox of a sandbox answers.
#[derive(Clone, Debug, Deserialize)]
pub struct ProxyUrl {
    pub url: String,
}

/// What a sandbox may reach.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSettings<'a> {
    pub network_block_all: bool,
    /// Names of hosts, between commas; absent: all that the account may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_allow_list: Option<&'a str>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSession<'a> {
    pub session_id: &'a str,
}

/// Asks for a command in a session.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewCommand<'a> {
    pub command: &'a str,
    pub run_async: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    pub cmd_id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    #[serde(default)]
    pub commands: Vec<Command>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    pub id: String,
    #[serde(default)]
    pub exit_code: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Output {
    pub output: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Directory {
    pub dir: String,
}

/// What came of an upload.
#[derive(Clone, Debug, Deserialize)]
pub struct Uploaded {
    #[serde(default)]
    pub files: Vec<UploadedFile>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct UploadedFile {
    pub path: String,
    pub bytes: u64,
}
