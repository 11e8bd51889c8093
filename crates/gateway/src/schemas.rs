//! The schemas of what the API takes and gives, by their names.

mod commands;
mod common;
mod files;
mod gateway;
mod network;
mod sandboxes;
mod sessions;

use serde_json::{Map, Value};

use crate::schema::{named, word};

/// All of them.
pub fn all() -> Map<String, Value> {
    [
        common::all(),
        commands::all(),
        sessions::all(),
        sandboxes::all(),
        files::all(),
        network::all(),
        gateway::all(),
    ]
    .into_iter()
    .flatten()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect()
}

type Named = Vec<(&'static str, Value)>;

fn backend() -> Value {
    named("BackendName")
}

/// Who set a value.
const ORIGINS: [&str; 8] = ["default", "alias", "secrets", "file", "env", "session", "flag", "api"];

fn encoding() -> Value {
    word(&["base64"])
}
