//! Containers and images in JSON, as each version prints them.

use serde_json::{Value, json};

use super::Version;
use super::state::{Kept, State};

/// Whether one object is printed for one container, and not a list.
pub fn is_single(version: Version) -> bool {
    version < Version(0, 8)
}

/// A container.
pub fn container(state: &State, kept: &Kept) -> Value {
    let version = state.version();
    let mounts = kept.binds.iter().map(|(source, target, read_only)| {
        json!({
            "type": {"virtiofs": {}}, "source": source, "destination": target,
            "options": if *read_only { vec!["ro"] } else { Vec::new() },
        })
    });
    let mut configuration = json!({
        "id": kept.id,
        "image": {
            "reference": kept.image.0,
            "descriptor": {
                "digest": kept.image.1, "mediaType": "application/vnd.oci.image.index.v1+json", "size": 300,
            },
        },
        "labels": kept.labels,
        "mounts": mounts.collect::<Vec<_>>(),
        "initProcess": {
            "executable": kept.argv.first(), "arguments": kept.argv.get(1..), "environment": kept.env,
            "workingDirectory": kept.directory, "terminal": false,
            "user": {"id": {"uid": kept.user.0, "gid": kept.user.1}},
        },
        "resources": {"cpus": kept.cpus, "memoryInBytes": kept.memory},
        "platform": {"os": "linux", "architecture": arch()},
        "rosetta": false,
    });
    let status = if state.process(&kept.id).is_some() { "running" } else { "stopped" };
    let networks: Vec<Value> = match status {
        "running" => {
            kept.networks.iter().filter(|network| *network != "none").map(|n| json!({"network": n})).collect()
        }
        _ => Vec::new(),
    };
    if version >= Version(1, 0) {
        configuration["creationDate"] = json!(date(kept.created));
        let mut about = json!({"state": status, "networks": networks});
        if let Some(started) = kept.started {
            about["startedDate"] = json!(date(started));
        }
        return json!({"id": kept.id, "configuration": configuration, "status": about});
    }
    let mut all = json!({"configuration": configuration, "status": status, "networks": networks});
    if let Some(started) = kept.started.filter(|_| version >= Version(0, 8)) {
        // Seconds since 2001.
        all["startedDate"] = json!(started.saturating_sub(978_307_200) as f64);
    }
    all
}

/// An image in a list.
pub fn listed(version: Version, reference: &str, descriptor: &Value, variants: &Value) -> Value {
    if version >= Version(1, 0) {
        return json!({
            "id": descriptor["digest"], "configuration": {"name": reference, "descriptor": descriptor},
            "variants": variants,
        });
    }
    json!({"reference": reference, "descriptor": descriptor})
}

/// An image that was asked about.
pub fn inspected(version: Version, reference: &str, descriptor: &Value, variants: &Value) -> Value {
    if version >= Version(1, 0) {
        return listed(version, reference, descriptor, variants);
    }
    json!({"name": reference, "index": descriptor, "variants": variants})
}

/// This machine's architecture in the words of images.
pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A time in RFC 3339.
pub fn date(secs: u64) -> String {
    let (mut days, rest) = (secs / 86_400, secs % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z", days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(super::date(1_796_003_191), "2026-11-30T01:46:31Z");
        assert_eq!(super::date(951_782_399), "2000-02-28T23:59:59Z");
    }
}
