//! Settings: the configuration as it holds, and changes of it in moltis.toml and secrets.toml.

use std::collections::BTreeMap;

use axum::http::Method;
use moltis_config::{schema, show};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{Call, ok};
use crate::reload::{self, Reloaded};
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::{has, list, map, named, object, text_of};
use crate::settings;

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/api/v1/settings", "listSettings", Rule::admin(Bound::Never), show_all)
            .about("Settings", "Every key with its value, who set it and where; secrets as `set` or `not set`")
            .answers(
                200,
                "All of them",
                object("", [
                    has("settings", "", list(named("Setting"))),
                    has("warnings", "", list(named("Diagnosis"))),
                ]),
            ),
        Route::new(Method::PATCH, "/api/v1/settings", "changeSettings", Rule::admin(Bound::Never), change)
            .about("Settings", "Change keys in moltis.toml: what is absent stays, `null` takes a key out")
            .more(
                "Comments stay. Nothing is written unless the whole file is right then. Keys that name \
                 programs of the host or set up the gateway, or open hatches to the host, only who runs the gateway may \
                 change; folders that show inside lie beneath `workspace_roots`.",
            )
            .json(object("", [has("changes", "Keys by their paths", map(Value::Bool(true)))]))
            .fails(&[404, 409, 422, 507])
            .answers(200, "It was written", named("Reloaded")),
        Route::new(Method::PATCH, "/api/v1/settings/secrets", "changeSecrets", Rule::admin(Bound::Never), secrets)
            .about("Settings", "Set or remove tokens of remote backends, which are never shown again")
            .json(object("", [has(
                "secrets",
                "Keys by their paths; `null` removes one",
                map(crate::schema::or_null(text_of(1, 16_384))),
            )]))
            .fails(&[404, 409, 422, 507])
            .answers(200, "It was written", named("Reloaded")),
        Route::new(Method::POST, "/api/v1/settings/reload", "reloadSettings", Rule::admin(Bound::Never), again)
            .about("Settings", "Read the configuration anew, as on a change of its file")
            .fails(&[409, 422])
            .answers(200, "It holds", named("Reloaded")),
    ]
}

async fn show_all(call: Call) -> Answered {
    let loaded = call.state.loaded();
    let mut rows = Vec::new();
    for (row, key) in show::rows(&loaded).into_iter().zip(schema::keys()) {
        let mut told = json!(row);
        told["live"] = reload::is_live(row.key).into();
        told["writable"] = settings::is_writable(row.key, &call.who).into();
        let kind = (key.kind)();
        told["secret"] = key.secret.into();
        let words = words_of(&kind);
        if !words.is_empty() {
            told["words"] = json!(words);
        }
        if !key.secret {
            told["form"] = form(&(key.example)()).into();
            if let Some(now) = row.value.as_deref().and_then(settings::from_toml) {
                told["now"] = now;
            }
        }
        told["kind"] = kind.into();
        rows.push(told);
    }
    ok(&json!({ "settings": rows, "warnings": call.state.warnings() }))
}

/// The words that a value may be, where what it looks like is nothing but words. Those of a flag are no text.
fn words_of(kind: &str) -> Vec<&str> {
    if kind == "`true`, `false`" {
        return Vec::new();
    }
    let word = |part: &'_ str| part.strip_prefix('`').and_then(|part| part.strip_suffix('`')).map(str::len);
    let parts: Vec<_> = kind.split(", ").collect();
    match parts.iter().all(|part| word(part).is_some_and(|length| length + 2 == part.len())) {
        true => parts.into_iter().map(|part| part.trim_matches('`')).collect(),
        false => Vec::new(),
    }
}

/// What an example of a value is made of.
fn form(example: &str) -> &'static str {
    match settings::from_toml(example) {
        Some(Value::Bool(_)) => "flag",
        Some(Value::Number(_)) => "number",
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => "list",
        Some(Value::Array(_) | Value::Object(_)) => "table",
        _ => "text",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Change {
    changes: BTreeMap<String, Value>,
}

fn told(reloaded: &Reloaded) -> Answered {
    ok(reloaded)
}

async fn change(mut call: Call) -> Answered {
    let Change { changes } = call.json().await?;
    told(&settings::change(&call.state, &call.who, changes).await?)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Secrets {
    secrets: BTreeMap<String, Option<moltis_runtime::store::EnvValue>>,
}

async fn secrets(mut call: Call) -> Answered {
    let Secrets { secrets } = call.json().await?;
    told(&settings::change_secrets(&call.state, secrets).await?)
}

async fn again(call: Call) -> Answered {
    let _changing = call.state.changing.lock().await;
    told(&reload::reload(&call.state).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_form_and_the_words_that_it_may_be() {
        let of = |path: &str| schema::keys().find(|key| key.path == path).unwrap();
        for (path, is, words) in [
            ("tools.exec.sandbox.network", "text", vec!["blocked", "trusted", "open"]),
            ("tools.exec.default_timeout_secs", "number", vec![]),
            ("tools.exec.sandbox.selinux_relabel", "flag", vec![]),
            ("tools.exec.sandbox.packages", "list", vec![]),
            ("tools.exec.sandbox.mounts", "table", vec![]),
            ("tools.exec.sandbox.wasm_commands", "table", vec![]),
            ("tools.exec.sandbox.idle_ttl", "text", vec![]),
        ] {
            let key = of(path);
            let kind = (key.kind)();
            assert_eq!((form(&(key.example)()), words_of(&kind)), (is, words), "{path}: {kind}");
        }
        for key in schema::keys().filter(|key| !key.secret) {
            assert!(settings::from_toml(&(key.example)()).is_some(), "{}", key.path);
        }
    }
}
