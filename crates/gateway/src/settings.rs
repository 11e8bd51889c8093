//! Changes of the configuration by the API: written into moltis.toml with its comments kept, and into secrets.toml, each
//! only if the whole configuration is right then.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use moltis_config::{Key, schema};
use moltis_runtime::store::EnvValue;
use moltis_sandbox::Diagnosis;
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use crate::error::GatewayError;
use crate::identity::Identity;
use crate::problem::Problem;
use crate::reload::{self, Reloaded};
use crate::state::State;

/// Keys that no API call changes: those that weaken what is promised may stand in the file alone.
const FILE_ONLY: &[&str] = &["data_dir", "tools.exec.sandbox.allow_unenforced"];

/// Keys that name what is the host's, or let a sandbox reach it: whoever could change them could reach all of the host.
/// One that ends with `*` stands for all that begin so.
const OWNER_ONLY: &[&str] = &[
    "gateway.*",
    "tools.exec.sandbox.runtime",
    "tools.exec.sandbox.allow_host_podman",
    "tools.exec.sandbox.allow_nested_podman",
    "tools.exec.sandbox.host_data_dir",
    "tools.exec.sandbox.selinux_relabel",
    "tools.exec.sandbox.shared_home_dir",
    "tools.exec.sandbox.workspace_protect",
    "tools.exec.sandbox.workspace_upload",
    "tools.exec.sandbox.rootfs",
    "tools.exec.sandbox.sandbox_uid",
    "tools.exec.sandbox.wasm_commands",
    "tools.exec.sandbox.vercel_api_url",
    "tools.exec.sandbox.daytona_api_url",
    "tools.exec.sandbox.firecracker_*",
];

fn is_among(path: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == *pattern,
    })
}

/// Whether a caller may change a key.
pub fn is_writable(path: &str, who: &Identity) -> bool {
    let secret = schema::keys().any(|key| key.path == path && key.secret);
    !secret && !is_among(path, FILE_ONLY) && (who.is_owner() || !is_among(path, OWNER_ONLY))
}

fn key(path: &str) -> Result<&'static Key, Problem> {
    schema::keys().find(|key| key.path == path).ok_or_else(|| {
        let problem = Problem::missing("setting-missing", format!("there is no key {path:?}"));
        match moltis_config::suggest(path, schema::keys().map(|key| key.path)) {
            Some(near) => problem.fix(format!("did you mean `{near}`?")),
            None => problem.fix("GET /api/v1/settings lists those that there are"),
        }
    })
}

/// Folders of the host that a change names. A form that is none of a folder's is refused when it is read.
fn folders<'a>(path: &str, value: &'a Value) -> Vec<&'a str> {
    match path {
        "tools.exec.sandbox.workspace" => value.as_str().into_iter().collect(),
        "tools.exec.sandbox.mounts" => {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(|mount| mount.get("source").and_then(Value::as_str)).collect()
        }
        _ => Vec::new(),
    }
}

/// Changes keys in moltis.toml, and lets them hold.
///
/// # Errors
/// `setting-missing`, `setting-file-only`, `setting-owner-only`, `setting-secret`; `workspace-not-allowed` for a folder of
/// the host that callers of the API may not name; every problem of the configuration as it would be.
pub async fn change(
    state: &State,
    who: &Identity,
    changes: BTreeMap<String, Value>,
) -> Result<Reloaded, Problem> {
    let _changing = state.changing.lock().await;
    for path in changes.keys() {
        let key = key(path)?;
        if key.secret {
            return Err(Problem::forbidden("setting-secret", format!("`{path}` is a secret"))
                .fix("PATCH /api/v1/settings/secrets keeps it out of moltis.toml"));
        }
        if is_among(path, FILE_ONLY) {
            return Err(Problem::forbidden(
                "setting-file-only",
                format!("`{path}` is set in moltis.toml alone"),
            )
            .fix("write it there"));
        }
        if !is_writable(path, who) {
            let message = format!("only who runs the gateway may change `{path}`");
            return Err(Problem::forbidden("setting-owner-only", message).fix("write it into moltis.toml"));
        }
    }
    if !who.is_owner() {
        for folder in changes.iter().flat_map(|(path, value)| folders(path, value)) {
            crate::grants::see_folder(&state.runtime(), Path::new(folder)).await?;
        }
    }
    let load = state.options.load.clone();
    let file = moltis_config::paths::config_file(load.config_path.as_deref(), &load.env)
        .ok_or_else(|| Problem::invalid("config-no-home", "there is no place for moltis.toml"))?;
    let place = file.path;
    let work = move || -> Result<(), Problem> {
        let old = read(&place)?;
        let mut document: DocumentMut = old.parse().map_err(|_| not_toml(&place))?;
        for (path, value) in changes {
            put(&mut document, &path, value)?;
        }
        let new = document.to_string();
        let mode = fs::metadata(&place).map_or(0o600, |meta| meta.mode() & 0o777);
        replace(&place, new.as_bytes(), mode, |part| {
            let options = moltis_config::Options { config_path: Some(part.to_owned()), ..load };
            // A part that stands for the file is named as what it stands for.
            moltis_config::load(&options).map(drop).map_err(|error| wrong(&error, part, &place))
        })
    };
    blocking(work).await?;
    reload::reload(state).await
}

/// Sets and removes secrets, and lets them hold.
///
/// # Errors
/// `setting-missing`, `setting-no-secret`; every problem of the configuration as it would be.
pub async fn change_secrets(
    state: &State,
    secrets: BTreeMap<String, Option<EnvValue>>,
) -> Result<Reloaded, Problem> {
    let _changing = state.changing.lock().await;
    for path in secrets.keys() {
        if !key(path)?.secret {
            let problem = Problem::invalid("setting-no-secret", format!("`{path}` is no secret"));
            return Err(problem.fix("PATCH /api/v1/settings changes it"));
        }
    }
    let place = state.loaded().config.data_dir.value.join("secrets.toml");
    let work = move || -> Result<(), Problem> {
        let old = read(&place)?;
        let mut document: DocumentMut = old.parse().map_err(|_| not_toml(&place))?;
        for (path, secret) in &secrets {
            if let Some(secret) = secret {
                let text = secret.expose();
                if text.is_empty() || text.len() > 16_384 || !text.bytes().all(|byte| byte.is_ascii_graphic())
                {
                    return Err(Problem::invalid(
                        "config-malformed",
                        format!("`{path}` is no usable secret"),
                    )
                    .fix("a secret is printable ASCII without spaces, and not empty"));
                }
            }
            put(&mut document, path, secret.as_ref().map_or(Value::Null, |secret| secret.expose().into()))?;
        }
        replace(&place, document.to_string().as_bytes(), 0o600, |_| Ok(()))
    };
    blocking(work).await?;
    reload::reload(state).await
}

async fn blocking(work: impl FnOnce() -> Result<(), Problem> + Send + 'static) -> Result<(), Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(crate::call::failed("writing-broke", "writing the configuration broke off")))
}

fn not_toml(place: &Path) -> Problem {
    let told = Diagnosis::new("config-syntax", format!("{} is no TOML", place.display()));
    Problem::new(StatusCode::CONFLICT, "invalid", told.fix("mend it by hand first"))
}

fn wrong(error: &moltis_config::Error, part: &Path, place: &Path) -> Problem {
    let mut diagnosis = error.diagnosis();
    let (part, place) = (part.display().to_string(), place.display().to_string());
    diagnosis.message = diagnosis.message.replace(&part, &place);
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", diagnosis)
}

fn read(place: &Path) -> Result<String, Problem> {
    match fs::read_to_string(place) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            let told =
                Diagnosis::new("config-unreadable", format!("cannot read {}", place.display())).cause(error);
            Err(Problem::new(StatusCode::CONFLICT, "unavailable", told.fix("see who may read it")))
        }
    }
}

/// Puts a value at a path, or takes it out. What stands around it stays as it is.
fn put(document: &mut DocumentMut, path: &str, value: Value) -> Result<(), Problem> {
    let (tables, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut table: &mut Table = document.as_table_mut();
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        if value.is_null() && !table.contains_key(part) {
            return Ok(());
        }
        let item = table.entry(part).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        table = match item {
            Item::Table(table) => table,
            _ => {
                let message = format!("`{tables}` is written in a form that is not changed here");
                return Err(Problem::invalid("config-form", message)
                    .fix("write it as a table of its own, as in [tools.exec.sandbox]")
                    .status(StatusCode::CONFLICT));
            }
        };
    }
    match value {
        Value::Null => drop(table.remove(name)),
        value => {
            let mut new = to_toml(&value)?;
            if let Some(old) = table.get(name).and_then(Item::as_value) {
                *new.decor_mut() = old.decor().clone();
            }
            match table.get_mut(name) {
                Some(item) => *item = Item::Value(new),
                None => drop(table.insert(name, Item::Value(new))),
            }
            if table.is_implicit() && !tables.is_empty() {
                // One that had no head gets it at the end, so that what stands before the first one stays there.
                table.set_implicit(false);
                table.set_position(Some(isize::MAX));
                table.decor_mut().set_prefix("\n");
            }
        }
    }
    Ok(())
}

/// A value as it is written in moltis.toml, in the form in which a change takes it.
pub fn from_toml(text: &str) -> Option<Value> {
    Some(to_json(&text.parse().ok()?))
}

fn to_json(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Float(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(yes) => (*yes.value()).into(),
        toml_edit::Value::Datetime(time) => time.value().to_string().into(),
        toml_edit::Value::Array(items) => items.iter().map(to_json).collect(),
        toml_edit::Value::InlineTable(fields) => {
            fields.iter().map(|(name, value)| (name.to_owned(), to_json(value))).collect()
        }
    }
}

fn to_toml(value: &Value) -> Result<toml_edit::Value, Problem> {
    let none = || Problem::invalid("config-wrong-type", "a value inside another one is `null`");
    Ok(match value {
        Value::Null => return Err(none()),
        Value::Bool(yes) => (*yes).into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => return Err(none()),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => {
            let items = items.iter().map(to_toml).collect::<Result<Vec<_>, _>>()?;
            toml_edit::Value::Array(items.into_iter().collect())
        }
        Value::Object(fields) => {
            let mut table = toml_edit::InlineTable::new();
            for (name, value) in fields {
                table.insert(name, to_toml(value)?);
            }
            toml_edit::Value::InlineTable(table)
        }
    })
}

/// Replaces a file at once with what is judged to be right. A link is followed: the file that it leads to is replaced.
fn replace(
    place: &Path,
    content: &[u8],
    mode: u32,
    judge: impl FnOnce(&Path) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let place = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    let failed = |error| Problem::from(GatewayError::write(&place, error));
    let folder = place.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
    fs::create_dir_all(&folder).map_err(failed)?;
    let name = place.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let part = folder.join(format!(".{name}.{}.part", crate::secrets::name()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(content)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    })();
    let done = written.map_err(failed).and_then(|()| judge(&part)).and_then(|()| {
        fs::rename(&part, &place).map_err(failed)?;
        // What was renamed is found after a power cut too.
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed)
    });
    if done.is_err() {
        let _ = fs::remove_file(&part);
    }
    done
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_stands_around_a_value_stays() {
        let text =
            "# mine\n[tools.exec.sandbox]\n# why\nnetwork = \"blocked\" # for now\nidle_ttl = \"5m\"\n";
        let mut document: DocumentMut = text.parse().unwrap();
        put(&mut document, "tools.exec.sandbox.network", json!("trusted")).unwrap();
        put(&mut document, "tools.exec.sandbox.idle_ttl", Value::Null).unwrap();
        put(&mut document, "tools.exec.sandbox.trusted_domains", json!(["a.example"])).unwrap();
        put(&mut document, "tools.exec.default_timeout_secs", json!(60)).unwrap();
        put(&mut document, "gateway.port", Value::Null).unwrap();
        assert_eq!(
            document.to_string(),
            "# mine\n[tools.exec.sandbox]\n# why\nnetwork = \"trusted\" # for now\ntrusted_domains = \
             [\"a.example\"]\n\n[tools.exec]\ndefault_timeout_secs = 60\n"
        );
    }

    #[test]
    fn every_listed_key_is_one() {
        for pattern in FILE_ONLY.iter().chain(OWNER_ONLY) {
            let start = pattern.strip_suffix('*').unwrap_or(pattern);
            assert!(schema::keys().any(|key| key.path.starts_with(start)), "{pattern}");
        }
    }
}
