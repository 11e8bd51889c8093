//! What lets an engine into a registry: what `docker login` left behind. Docker's clients send it with each pull.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::engine::endpoint::{Environment, blocking, config_directory};
use crate::engine::{EngineKind, Result};

/// How long a program that keeps credentials may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest answer of such a program, and largest configuration file.
const LIMIT: u64 = 1 << 20;

/// Docker Hub's name in those files.
const HUB: &str = "https://index.docker.io/v1/";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Config {
    auths: std::collections::BTreeMap<String, Auth>,
    #[serde(rename = "credsStore")]
    store: String,
    #[serde(rename = "credHelpers")]
    helpers: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Auth {
    auth: String,
    #[serde(rename = "identitytoken")]
    token: String,
}

#[derive(Deserialize)]
struct Kept {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// The value of `X-Registry-Auth` for an image; `None` where nobody logged in. Podman's service has files of its own.
pub(super) async fn header(
    engine: EngineKind,
    environment: &Environment,
    reference: &str,
) -> Result<Option<String>> {
    if engine != EngineKind::Docker {
        return Ok(None);
    }
    let Some(path) = config_directory(environment).map(|dir| dir.join("config.json")) else {
        return Ok(None);
    };
    let text = blocking(engine, move || {
        use std::io::Read;
        let Ok(file) = std::fs::File::open(path) else { return Ok(None) };
        let mut text = String::new();
        Ok(file.take(LIMIT).read_to_string(&mut text).ok().map(|_| text))
    })
    .await?;
    // A file that cannot be read lets nobody in; the registry will say so.
    let Some(config) = text.and_then(|text| serde_json::from_str::<Config>(&text).ok()) else {
        return Ok(None);
    };
    let registry = registry(reference);
    let helper = config.helpers.get(registry).unwrap_or(&config.store);
    if !helper.is_empty() {
        return Ok(ask(environment, helper, registry).await);
    }
    let entry = config.auths.iter().find(|(name, _)| is_for(name, registry));
    Ok(entry.and_then(|(name, auth)| from_file(name, auth)))
}

/// The registry of an image.
fn registry(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => {
            if matches!(host, "docker.io" | "index.docker.io") { HUB } else { host }
        }
        _ => HUB,
    }
}

/// Whether an entry of a file, which may be an address, is one for a registry.
fn is_for(entry: &str, registry: &str) -> bool {
    let bare = |name: &str| {
        let name = name.trim_start_matches("https://").trim_start_matches("http://");
        name.split('/').next().unwrap_or_default().to_owned()
    };
    entry == registry || bare(entry) == bare(registry)
}

fn from_file(server: &str, auth: &Auth) -> Option<String> {
    let decoded = STANDARD.decode(auth.auth.trim()).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (user, secret) = decoded.trim_end_matches('\0').split_once(':')?;
    Some(packed(server, user, secret, &auth.token))
}

/// Asks a program that keeps credentials, as Docker does: the name goes to its input, the secret comes from its output.
async fn ask(environment: &Environment, helper: &str, registry: &str) -> Option<String> {
    if !helper.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return None;
    }
    let program = environment.program(&format!("docker-credential-{helper}"))?;
    let mut child = Command::new(program)
        .arg("get")
        .env_clear()
        .envs(&environment.vars)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let (mut stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    let work = async {
        stdin.write_all(registry.as_bytes()).await.ok()?;
        drop(stdin);
        let mut answer = Vec::new();
        stdout.take(LIMIT).read_to_end(&mut answer).await.ok()?;
        child.wait().await.ok()?.success().then_some(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, work).await.ok()??;
    let kept: Kept = serde_json::from_slice(&answer).ok()?;
    Some(if kept.user == "<token>" {
        packed(registry, "", "", &kept.secret)
    } else {
        packed(registry, &kept.user, &kept.secret, "")
    })
}

fn packed(server: &str, user: &str, secret: &str, token: &str) -> String {
    let mut value = serde_json::json!({"serveraddress": server});
    if token.is_empty() {
        value["username"] = user.into();
        value["password"] = secret.into();
    } else {
        value["identitytoken"] = token.into();
    }
    URL_SAFE.encode(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_found_in_references() {
        assert_eq!(registry("ubuntu:24.04"), HUB);
        assert_eq!(registry("docker.io/library/ubuntu"), HUB);
        assert_eq!(registry("me/x"), HUB);
        assert_eq!(registry("ghcr.io/a/b"), "ghcr.io");
        assert_eq!(registry("localhost:5000/a"), "localhost:5000");
        assert!(is_for("https://ghcr.io", "ghcr.io"));
        assert!(is_for("https://index.docker.io/v1/", HUB));
        assert!(!is_for("https://evil.io/ghcr.io", "ghcr.io"));
    }

    #[test]
    fn what_is_in_the_file_is_passed_on() {
        let auth = Auth { auth: STANDARD.encode("me:a:b"), token: String::new() };
        let value = URL_SAFE.decode(from_file("box", &auth).unwrap()).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&value).unwrap();
        assert_eq!(value, serde_json::json!({"serveraddress": "box", "username": "me", "password": "a:b"}));
    }
}
