//! What Apple's tool says in JSON, in the shapes of its versions: a status that is a word or, from 1.0 on, an object; one
//! object, or a list of them. What has another shape is an error, never a guess.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::version::Version;
use super::{labels, tool, words};
use crate::engine::{Container, ContainerState, Image, Result};

/// Objects of an answer, at most.
const MANY: usize = 10_000;

/// The objects of an answer.
///
/// # Errors
/// When it is neither an object nor a list of them.
pub fn objects(what: &str, answer: &[u8]) -> Result<Vec<Value>> {
    let odd = |why: String| tool::answer(format!("of {what}: {why}"));
    let text = answer.trim_ascii();
    // Some versions print nothing at all for an empty list.
    if text.is_empty() {
        return Ok(Vec::new());
    }
    match serde_json::from_slice(text).map_err(|error| odd(error.to_string()))? {
        Value::Array(list) if list.len() > MANY => Err(odd(format!("more than {MANY} of them"))),
        Value::Array(list) if list.iter().all(Value::is_object) => Ok(list),
        object @ Value::Object(_) => Ok(vec![object]),
        _ => Err(odd("neither an object nor a list of them".to_owned())),
    }
}

/// A container, and what only this driver asks of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// As everybody sees it.
    pub container: Container,
    /// User and group of its first process, if it was made by this driver.
    pub user: Option<(u32, u32)>,
}

/// Reads a container.
///
/// # Errors
/// When it has no id or no status.
pub fn container(value: &Value, version: Version) -> Result<Found> {
    let word = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let id = word("/configuration/id")
        .or_else(|| word("/id"))
        .ok_or_else(|| tool::answer("of a container: it has no id".to_owned()))?;
    let state = word("/status/state")
        .or_else(|| word("/status"))
        .ok_or_else(|| tool::answer(format!("of the container {id}: it has no status that is a word")))?;
    let started = ["/status/startedDate", "/startedDate", "/startedAt"];
    let started = started.iter().any(|at| value.pointer(at).is_some_and(|date| !date.is_null()));
    let labels = strings(value.pointer("/configuration/labels"));
    let created = labels.get(labels::CREATED).and_then(|secs| secs.parse().ok());
    let user = labels.get(labels::USER).and_then(|user| {
        let (uid, gid) = user.split_once(':')?;
        Some((uid.parse().ok()?, gid.parse().ok()?))
    });
    let mounts = value.pointer("/configuration/mounts").and_then(Value::as_array);
    let mounts = mounts.into_iter().flatten().filter_map(|mount| {
        let target = mount.get("destination").or_else(|| mount.get("target"))?.as_str()?.to_owned();
        let source = mount.get("source").and_then(Value::as_str).unwrap_or_default();
        Some((PathBuf::from(source), target))
    });
    let container = Container {
        id: id.to_owned(),
        // The name that it was given is its id.
        name: id.to_owned(),
        state: match state {
            "running" | "stopping" => ContainerState::Running,
            "stopped" | "created" | "unknown" if !started && version.tells_started() => {
                ContainerState::Created
            }
            "created" => ContainerState::Created,
            "stopped" | "exited" | "unknown" => ContainerState::Exited,
            "paused" => ContainerState::Paused,
            other => {
                return Err(tool::answer(format!("of the container {id}: its status is {other:?}")));
            }
        },
        labels,
        image: word("/configuration/image/descriptor/digest").unwrap_or_default().to_owned(),
        created_secs: created.unwrap_or_else(|| {
            words::secs(value.pointer("/configuration/creationDate").unwrap_or(&Value::Null))
        }),
        mounts: mounts.collect(),
        ..Container::default()
    };
    Ok(Found { container, user })
}

/// A name of an image, and what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The reference.
    pub reference: String,
    /// Digest of the index or manifest, which stands for the image.
    pub digest: String,
}

/// Reads an entry of `image list`.
pub fn name(value: &Value) -> Option<Name> {
    let word = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    Some(Name {
        reference: word("/reference").or_else(|| word("/configuration/name"))?,
        digest: word("/descriptor/digest").or_else(|| word("/configuration/descriptor/digest"))?,
    })
}

/// An OCI image's configuration, as far as it is asked about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    architecture: String,
    os: String,
    created: Value,
    config: Option<Inner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Inner {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    volumes: Option<BTreeMap<String, Value>>,
}

/// Reads an object of `image inspect`, in which a variant for each platform lies. That of this machine is told of.
///
/// # Errors
/// When it has no digest, or no variant.
pub fn image(value: &Value, arch: &str) -> Result<Image> {
    let word = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let name = word("/name").or_else(|| word("/configuration/name")).unwrap_or_default();
    let odd = |why: &str| tool::answer(format!("of the image {name}: {why}"));
    let id = word("/index/digest")
        .or_else(|| word("/configuration/descriptor/digest"))
        .or_else(|| word("/descriptor/digest"))
        .ok_or_else(|| odd("it has no digest"))?;
    let variants =
        value.get("variants").and_then(Value::as_array).ok_or_else(|| odd("it has no variants"))?;
    let of = |variant: &Value| {
        let word =
            variant.pointer("/platform/architecture").or_else(|| variant.pointer("/config/architecture"));
        words::arch(word.and_then(Value::as_str).unwrap_or_default())
    };
    let known = |variant: &&Value| !matches!(of(variant).as_str(), "" | "unknown");
    let variant = variants
        .iter()
        .find(|variant| of(variant) == arch)
        .or_else(|| variants.iter().find(known))
        .ok_or_else(|| odd("it has no variant"))?;
    let config: Config = match variant.get("config") {
        None | Some(Value::Null) => Config::default(),
        Some(config) => Config::deserialize(config).map_err(|error| odd(&error.to_string()))?,
    };
    let inner = config.config.unwrap_or_default();
    Ok(Image {
        id: id.to_owned(),
        tags: if name.is_empty() { Vec::new() } else { vec![name.to_owned()] },
        digests: Vec::new(),
        arch: of(variant),
        os: if config.os.is_empty() { "linux".to_owned() } else { config.os },
        size_bytes: variant.get("size").and_then(Value::as_u64).unwrap_or(0),
        created_secs: words::secs(&config.created),
        labels: inner.labels.unwrap_or_default(),
        env: inner.env.unwrap_or_default(),
        directory: inner.working_dir.unwrap_or_default(),
        user: inner.user.unwrap_or_default(),
        volumes: inner.volumes.unwrap_or_default().into_keys().collect(),
    })
}

fn strings(value: Option<&Value>) -> BTreeMap<String, String> {
    let object = value.and_then(Value::as_object);
    let pairs = object.into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OLD: Version = Version { major: 0, minor: 5, patch: 0 };
    const MIDDLE: Version = Version { major: 0, minor: 9, patch: 0 };
    const NEW: Version = Version { major: 1, minor: 1, patch: 0 };

    #[test]
    fn one_object_and_a_list_are_the_same() {
        let one = json!({"a": 1});
        assert_eq!(objects("x", one.to_string().as_bytes()).unwrap(), vec![one.clone()]);
        assert_eq!(objects("x", json!([one]).to_string().as_bytes()).unwrap(), vec![one]);
        assert_eq!(objects("x", b" [] \n").unwrap(), Vec::<Value>::new());
        assert_eq!(objects("x", b"").unwrap(), Vec::<Value>::new());
        for bad in ["nonsense", "3", "[1]", "{\"a\":", "[{}", "\u{1}"] {
            assert!(objects("x", bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_status_is_a_word_or_an_object() {
        let configuration = json!({
            "id": "c1",
            "labels": {"a": "b", "org.moltis.apple.user": "1000:50", "org.moltis.apple.created": "77"},
            "image": {"reference": "r", "descriptor": {"digest": "sha256:1"}},
            "mounts": [{"source": "/s", "destination": "/t"}],
        });
        let old = json!({"configuration": configuration, "status": "running", "networks": []});
        let new = json!({
            "id": "c1",
            "configuration": configuration,
            "status": {"state": "running", "startedDate": "2026-11-30T01:46:31Z", "networks": []},
        });
        let one = container(&old, OLD).unwrap();
        assert_eq!(one, container(&new, NEW).unwrap());
        assert_eq!((one.user, one.container.created_secs), (Some((1000, 50)), 77));
        assert_eq!(one.container.mounts, [(PathBuf::from("/s"), "/t".to_owned())]);
        assert_eq!(one.container.state, ContainerState::Running);
    }

    #[test]
    fn one_that_was_never_started_is_told_apart_where_that_can_be_known() {
        let state = |value: Value, version| container(&value, version).map(|found| found.container.state);
        let stopped = json!({"configuration": {"id": "c"}, "status": "stopped"});
        assert_eq!(state(stopped.clone(), OLD), Ok(ContainerState::Exited));
        assert_eq!(state(stopped, MIDDLE), Ok(ContainerState::Created));
        let over = json!({"configuration": {"id": "c"}, "status": "stopped", "startedDate": 817_695_991.0});
        assert_eq!(state(over, MIDDLE), Ok(ContainerState::Exited));
    }

    #[test]
    fn what_has_another_shape_is_no_container() {
        for bad in [
            json!({}),
            json!({"id": "c"}),
            json!({"id": "c", "status": 3}),
            json!({"id": "c", "status": {"phase": "running"}}),
            json!({"id": "c", "status": "dancing"}),
            json!({"id": 3, "status": "running"}),
        ] {
            assert!(container(&bad, NEW).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_are_read_in_both_shapes() {
        let config = json!({
            "architecture": "arm64", "os": "linux", "created": "2026-11-30T01:46:31Z",
            "config": {"Env": ["A=b"], "WorkingDir": "/w", "User": "u", "Labels": {"l": "m"}, "Volumes": {"/v": {}}},
        });
        let variants = json!([
            {"platform": {"os": "unknown", "architecture": "unknown"}, "size": 1},
            {"platform": {"os": "linux", "architecture": "amd64"}, "size": 2, "config": {}},
            {"platform": {"os": "linux", "architecture": "arm64"}, "size": 3, "config": config},
        ]);
        let old = json!({"name": "r:1", "index": {"digest": "sha256:1"}, "variants": variants});
        let new = json!({
            "id": "x", "configuration": {"name": "r:1", "descriptor": {"digest": "sha256:1"}}, "variants": variants,
        });
        let one = image(&old, "aarch64").unwrap();
        assert_eq!(one, image(&new, "aarch64").unwrap());
        let expected = Image {
            id: "sha256:1".to_owned(),
            tags: vec!["r:1".to_owned()],
            arch: "aarch64".to_owned(),
            os: "linux".to_owned(),
            size_bytes: 3,
            created_secs: 1_796_003_191,
            labels: [("l".to_owned(), "m".to_owned())].into(),
            env: vec!["A=b".to_owned()],
            directory: "/w".to_owned(),
            user: "u".to_owned(),
            volumes: vec!["/v".to_owned()],
            ..Image::default()
        };
        assert_eq!(one, expected);
        assert_eq!(image(&old, "x86_64").unwrap().size_bytes, 2);
        assert!(image(&json!({"name": "r", "variants": []}), "x86_64").is_err());
        assert!(image(&json!({"name": "r", "index": {"digest": "d"}, "variants": []}), "x86_64").is_err());
    }
}
