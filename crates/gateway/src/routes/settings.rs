//! Settings: the configuration as it holds, and changes of it in moltis.toml and secrets.toml.

use std::collections::BTreeMap;

use axum::http::Method;
use moltis_config::show;
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
                "Comments stay. Nothing is written unless the whole file is right then. Keys that name folders and \
                 programs of the host, or open hatches to it, only who runs the gateway may change.",
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
    for row in show::rows(&loaded) {
        let mut told = json!(row);
        told["live"] = reload::is_live(row.key).into();
        told["writable"] = settings::is_writable(row.key, &call.who).into();
        rows.push(told);
    }
    ok(&json!({ "settings": rows, "warnings": call.state.warnings() }))
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
