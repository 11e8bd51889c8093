//! The configuration read anew while the gateway runs: what can change at once does, and what cannot is said.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use moltis_config::{Loaded, schema, show};
use moltis_sandbox::{Diagnosis, Error};
use serde::Serialize;

use crate::problem::Problem;
use crate::state::State;

/// How often it is looked whether a file has changed.
const LOOK: Duration = Duration::from_secs(2);

/// Keys that hold from the next start on: what they set up stands. One that ends with `*` stands for all that begin so.
const AT_START: &[&str] = &[
    "data_dir",
    "gateway.bind",
    "gateway.port",
    "gateway.tls_cert",
    "gateway.tls_key",
    "gateway.log",
    "tools.exec.sandbox.failover",
    "tools.exec.sandbox.container_prefix",
    "tools.exec.sandbox.host_data_dir",
    "tools.exec.sandbox.wasm_commands",
    "tools.exec.sandbox.wasm_epoch_interval_ms",
    "tools.exec.sandbox.firecracker_*",
];

/// Whether a change of this key holds at once.
pub fn is_live(path: &str) -> bool {
    !AT_START.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == *pattern,
    })
}

/// What came of reading the configuration anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reloaded {
    /// Keys that have changed and hold.
    pub changed: Vec<&'static str>,
    /// Keys that have changed and hold from the next start on.
    pub at_next_start: Vec<&'static str>,
    /// What a person should know.
    pub warnings: Vec<Diagnosis>,
}

/// Reads the configuration and the files of TLS anew. Sessions, sandboxes and connections stay. The caller holds
/// `changing`.
///
/// # Errors
/// Every problem of the configuration: then the one before goes on to hold. Files of TLS that are wrong are a warning.
pub async fn reload(state: &State) -> Result<Reloaded, Problem> {
    let options = state.options.clone();
    let read = tokio::task::spawn_blocking(move || options.read()).await;
    let read =
        read.map_err(|_| crate::call::failed("reading-broke", "reading the configuration broke off"))?;
    let new =
        read.map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error.diagnosis()))?;
    let old = state.loaded();
    let mut reloaded = compare(&old, &new);
    let mut now = new;
    keep_at_start(&old, &mut now);
    reloaded.warnings = warnings(&now);
    for key in &reloaded.at_next_start {
        reloaded.warnings.push(
            Diagnosis::new(
                "setting-at-next-start",
                format!("`{key}` has changed, which holds from the next start on"),
            )
            .fix("restart the gateway; sandboxes and background commands go on meanwhile"),
        );
    }
    reloaded.warnings.extend(certificates(state, &now).await);
    if !reloaded.changed.is_empty() {
        tracing::info!(keys = reloaded.changed.join(", "), "the configuration has changed");
    }
    if !reloaded.at_next_start.is_empty() {
        tracing::warn!(keys = reloaded.at_next_start.join(", "), "these hold from the next start on");
    }
    state.warn(reloaded.warnings.clone());
    let files = now.files_read.clone();
    state.now_by(now, files);
    Ok(reloaded)
}

/// Reads the files of TLS anew. What is wrong with them is told, and those before go on to hold.
async fn certificates(state: &State, loaded: &Loaded) -> Option<Diagnosis> {
    let (tls, gateway) = (state.tls.clone()?, loaded.config.gateway.clone());
    let error = tokio::task::spawn_blocking(move || tls.again(&gateway)).await.ok()?.err()?;
    tracing::error!(%error, "the files of TLS are wrong, and those before go on to hold");
    Some(Error::from(error).diagnosis().clone())
}

/// What a configuration is warned of.
pub fn warnings(loaded: &Loaded) -> Vec<Diagnosis> {
    loaded.warnings.iter().cloned().chain(loaded.unused()).collect()
}

fn compare(old: &Loaded, new: &Loaded) -> Reloaded {
    let mut reloaded = Reloaded::default();
    let secrets = |loaded: &Loaded| {
        let sandbox = &loaded.config.tools.exec.sandbox;
        (sandbox.vercel_token.clone(), sandbox.daytona_api_key.clone())
    };
    let (old_secrets, new_secrets) = (secrets(old), secrets(new));
    for (before, after) in show::rows(old).into_iter().zip(show::rows(new)) {
        let same_secret = match after.key {
            "tools.exec.sandbox.vercel_token" => old_secrets.0 == new_secrets.0,
            "tools.exec.sandbox.daytona_api_key" => old_secrets.1 == new_secrets.1,
            _ => true,
        };
        if before.value == after.value && before.origin == after.origin && same_secret {
            continue;
        }
        let list = if is_live(after.key) { &mut reloaded.changed } else { &mut reloaded.at_next_start };
        list.push(after.key);
    }
    reloaded
}

/// Leaves as it was what holds from the next start on.
fn keep_at_start(old: &Loaded, new: &mut Loaded) {
    new.config.data_dir = old.config.data_dir.clone();
    let (was, gateway) = (&old.config.gateway, &mut new.config.gateway);
    gateway.bind = was.bind;
    gateway.port = was.port;
    gateway.tls_cert.clone_from(&was.tls_cert);
    gateway.tls_key.clone_from(&was.tls_key);
    gateway.log.clone_from(&was.log);
    let (was, sandbox) = (&old.config.tools.exec.sandbox, &mut new.config.tools.exec.sandbox);
    sandbox.failover = was.failover;
    sandbox.container_prefix.clone_from(&was.container_prefix);
    sandbox.host_data_dir.clone_from(&was.host_data_dir);
    sandbox.wasm_commands.clone_from(&was.wasm_commands);
    sandbox.wasm_epoch_interval_ms = was.wasm_epoch_interval_ms;
    debug_assert!(schema::keys().count() > 0);
}

/// When the files of the configuration and of TLS were last changed, as far as they are there.
fn stamps(state: &State) -> Vec<(PathBuf, Option<(SystemTime, u64)>)> {
    let load = &state.options.load;
    let file =
        moltis_config::paths::config_file(load.config_path.as_deref(), &load.env).map(|file| file.path);
    let loaded = state.loaded();
    let gateway = &loaded.config.gateway;
    let tls = [&gateway.tls_cert, &gateway.tls_key].into_iter().flatten().map(|file| file.value.clone());
    let secrets = loaded.config.data_dir.value.join("secrets.toml");
    let all = file.into_iter().chain([secrets]).chain(tls);
    all.map(|path| {
        let stamp = std::fs::metadata(&path).ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())));
        (path, stamp)
    })
    .collect()
}

/// Reads the configuration anew whenever a file of it changes, for as long as this is polled.
pub async fn watch(state: Arc<State>) {
    let look = |state: Arc<State>| async move {
        tokio::task::spawn_blocking(move || stamps(&state)).await.unwrap_or_default()
    };
    let mut before = look(Arc::clone(&state)).await;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = look(Arc::clone(&state)).await;
        if now == before {
            continue;
        }
        before = now;
        again(&state).await;
    }
}

/// Reads the configuration anew, and says in the log what came of it.
pub async fn again(state: &State) {
    let _changing = state.changing.lock().await;
    if let Err(problem) = reload(state).await {
        let document = problem.document();
        let detail = document["detail"].as_str().unwrap_or_default();
        tracing::error!(
            code = problem.code(),
            detail,
            "the configuration is wrong, and the one before goes on to hold"
        );
        let mut warnings = warnings(&state.loaded());
        warnings.push(
            Diagnosis::new(
                "config-not-reloaded",
                "the configuration has changed and is wrong: the one before holds",
            )
            .cause(detail)
            .fix("`moltis config check` says what is wrong"),
        );
        state.warn(warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_key_is_one() {
        for pattern in AT_START {
            let start = pattern.strip_suffix('*').unwrap_or(pattern);
            assert!(schema::keys().any(|key| key.path.starts_with(start)), "{pattern}");
        }
        assert!(is_live("tools.exec.sandbox.network") && !is_live("gateway.port"));
    }
}
