//! What engines answer, read generously: unknown words and missing keys are no errors, other types are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::engine::words::{arch, message, secs};
use crate::engine::{Container, ContainerState, Image};

/// `null` stands for nothing, as Go writes an empty list or map.
pub(in crate::engine) fn or_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The id of something that was made.
#[derive(Deserialize)]
pub(super) struct Made {
    #[serde(rename = "Id")]
    pub id: String,
}

/// A container, as `inspect` of either engine tells it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(in crate::engine) struct Inspected {
    id: String,
    #[serde(deserialize_with = "or_empty")]
    name: String,
    created: Value,
    image: String,
    state: State,
    #[serde(deserialize_with = "or_empty")]
    config: Config,
    #[serde(deserialize_with = "or_empty")]
    host_config: HostConfig,
    #[serde(deserialize_with = "or_empty")]
    mounts: Vec<Mount>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct State {
    status: String,
    pid: i64,
    exit_code: i32,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(deserialize_with = "or_empty")]
    error: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Config {
    #[serde(deserialize_with = "or_empty")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_empty")]
    env: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    working_dir: String,
    #[serde(deserialize_with = "or_empty")]
    user: String,
    #[serde(deserialize_with = "or_empty")]
    volumes: BTreeMap<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct HostConfig {
    #[serde(deserialize_with = "or_empty")]
    log_config: LogConfig,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LogConfig {
    #[serde(rename = "Type")]
    kind: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Mount {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(deserialize_with = "or_empty")]
    source: String,
    destination: String,
}

impl Inspected {
    pub(super) fn has_id(&self) -> bool {
        !self.id.is_empty()
    }

    /// Whether nothing is kept of what it prints.
    pub(in crate::engine) fn keeps_no_logs(&self) -> bool {
        self.host_config.log_config.kind == "none"
    }

    pub(in crate::engine) fn into_container(self) -> Container {
        let state = state(&self.state.status);
        let over = matches!(state, ContainerState::Exited | ContainerState::Removing);
        Container {
            id: self.id,
            name: self.name.trim_start_matches('/').to_owned(),
            state,
            pid: u32::try_from(self.state.pid).unwrap_or(0),
            exit_code: over.then_some(self.state.exit_code),
            oom_killed: self.state.oom_killed,
            error: if self.state.error.is_empty() { String::new() } else { message(&self.state.error) },
            labels: self.config.labels,
            image: image_id(&self.image),
            created_secs: secs(&self.created),
            mounts: self
                .mounts
                .into_iter()
                .map(|mount| {
                    let source =
                        if mount.kind == "bind" { PathBuf::from(mount.source) } else { PathBuf::new() };
                    (source, mount.destination)
                })
                .collect(),
        }
    }
}

/// A state in our words. Docker's are created, running, paused, restarting, removing, exited, dead; Podman has others.
pub(in crate::engine) fn state(word: &str) -> ContainerState {
    match word.to_ascii_lowercase().as_str() {
        "created" | "configured" | "initialized" => ContainerState::Created,
        "running" | "restarting" | "stopping" => ContainerState::Running,
        "paused" => ContainerState::Paused,
        "removing" => ContainerState::Removing,
        _ => ContainerState::Exited,
    }
}

/// An id of an image with the algorithm, which Podman leaves out.
pub(in crate::engine) fn image_id(id: &str) -> String {
    if id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
        format!("sha256:{id}")
    } else {
        id.to_owned()
    }
}

/// A container, as a list of either engine tells it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(in crate::engine) struct Listed {
    #[serde(alias = "ID")]
    id: String,
    names: Value,
    #[serde(deserialize_with = "or_empty")]
    image: String,
    #[serde(rename = "ImageID", deserialize_with = "or_empty")]
    image_id: String,
    created: Value,
    #[serde(deserialize_with = "or_empty")]
    labels: BTreeMap<String, String>,
    state: String,
    pid: i64,
    exit_code: Option<i32>,
}

impl Listed {
    pub(in crate::engine) fn into_container(self) -> Container {
        let state = state(&self.state);
        let running = matches!(state, ContainerState::Running | ContainerState::Paused);
        // Old versions of Podman name one, not a list.
        let name = self.names.as_str().or(self.names.get(0).and_then(Value::as_str)).unwrap_or_default();
        Container {
            id: self.id,
            name: name.trim_start_matches('/').to_owned(),
            state,
            pid: if running { u32::try_from(self.pid).unwrap_or(0) } else { 0 },
            exit_code: self.exit_code.filter(|_| state == ContainerState::Exited),
            labels: self.labels,
            image: image_id(if self.image_id.is_empty() { &self.image } else { &self.image_id }),
            created_secs: secs(&self.created),
            ..Container::default()
        }
    }
}

/// Whether all these labels are among them. An empty value stands for any.
pub(in crate::engine) fn carries(labels: &BTreeMap<String, String>, wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(name, value)| labels.get(*name).is_some_and(|has| value.is_empty() || has == value))
}

/// An image, as `inspect` of either engine tells it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(in crate::engine) struct InspectedImage {
    id: String,
    #[serde(deserialize_with = "or_empty")]
    repo_tags: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    repo_digests: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    architecture: String,
    #[serde(deserialize_with = "or_empty")]
    os: String,
    size: Value,
    created: Value,
    #[serde(deserialize_with = "or_empty")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_empty")]
    config: Config,
}

impl InspectedImage {
    pub(super) fn has_id(&self) -> bool {
        !self.id.is_empty()
    }

    pub(in crate::engine) fn into_image(self) -> Image {
        let mut labels = self.labels;
        labels.extend(self.config.labels);
        Image {
            id: image_id(&self.id),
            tags: self.repo_tags.into_iter().filter(|tag| tag != "<none>:<none>").collect(),
            digests: self.repo_digests.into_iter().filter(|digest| digest != "<none>@<none>").collect(),
            arch: arch(&self.architecture),
            os: self.os,
            size_bytes: self.size.as_u64().unwrap_or(0),
            created_secs: secs(&self.created),
            labels,
            env: self.config.env,
            directory: self.config.working_dir,
            user: self.config.user,
            volumes: self.config.volumes.into_keys().collect(),
        }
    }
}

/// An image in a list: what is needed to ask for more.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(in crate::engine) struct ListedImage {
    #[serde(alias = "ID", alias = "id")]
    pub id: String,
    #[serde(deserialize_with = "or_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What a removal did, by Podman.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Removed {
    #[serde(deserialize_with = "or_empty")]
    pub err: Value,
}

/// How a program that was run is doing.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct InspectedExec {
    pub running: bool,
    pub exit_code: Option<i32>,
    #[serde(rename = "ContainerID")]
    pub container: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_engines_inspections_are_read() {
        let docker = json!({
            "Id": "ab", "Name": "/n", "Created": "2026-11-30T01:46:31.5Z", "Image": "sha256:12",
            "State": {"Status": "exited", "Pid": 0, "ExitCode": 137, "OOMKilled": true, "Error": ""},
            "Config": {"Labels": {"a": "b"}}, "HostConfig": {"LogConfig": {"Type": "none"}},
            "Mounts": [{"Type": "bind", "Source": "/s", "Destination": "/d"},
                       {"Type": "volume", "Source": "/x", "Destination": "/v"}],
        });
        let read: Inspected = serde_json::from_value(docker).unwrap();
        assert!(read.keeps_no_logs());
        let want = Container {
            id: "ab".to_owned(),
            name: "n".to_owned(),
            state: ContainerState::Exited,
            exit_code: Some(137),
            oom_killed: true,
            labels: [("a".to_owned(), "b".to_owned())].into(),
            image: "sha256:12".to_owned(),
            created_secs: 1_796_003_191,
            mounts: vec![("/s".into(), "/d".to_owned()), (PathBuf::new(), "/v".to_owned())],
            ..Container::default()
        };
        assert_eq!(read.into_container(), want);
        let podman = json!({
            "Id": "ab", "Name": "n", "Created": "2026-11-30T01:46:31.5Z", "Image": "0".repeat(64),
            "State": {"Status": "stopping", "Pid": 7, "ExitCode": 0}, "Config": {"Labels": null},
            "HostConfig": null, "Mounts": null,
        });
        let read: Inspected = serde_json::from_value(podman).unwrap();
        let want = Container {
            id: "ab".to_owned(),
            name: "n".to_owned(),
            state: ContainerState::Running,
            pid: 7,
            image: format!("sha256:{}", "0".repeat(64)),
            created_secs: 1_796_003_191,
            ..Container::default()
        };
        assert_eq!(read.into_container(), want);
    }

    #[test]
    fn labels_are_compared_whole() {
        let has: BTreeMap<String, String> = [("a".to_owned(), "b".to_owned())].into();
        assert!(carries(&has, &[("a", "b")]));
        assert!(carries(&has, &[("a", "")]));
        assert!(!carries(&has, &[("a", "c")]));
        assert!(!carries(&has, &[("a", "b"), ("c", "")]));
    }
}
