//! `config show`: every key with its value and where that came from.

use moltis_sandbox::Origin;
use serde::Serialize;

use crate::key::{Fallback, Key};
use crate::load::Loaded;
use crate::schema;

/// One key as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its path.
    pub key: &'static str,
    /// Its value as it would be written in moltis.toml; absent when it has none. A secret shows as `set` or
    /// `not set`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Who set it.
    pub origin: Origin,
    /// Where exactly: file, line and column, or the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What holds when nobody sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// What it is for.
    pub help: &'static str,
}

/// Every key, in the order of the reference. Secrets are not in it.
pub fn rows(loaded: &Loaded) -> Vec<Row> {
    schema::keys().map(|key| row(key, loaded)).collect()
}

fn row(key: &'static Key, loaded: &Loaded) -> Row {
    let (value, origin) = match (key.get)(&loaded.config) {
        Some((value, origin)) => (Some(value), origin),
        None => (key.secret.then(|| "not set".to_owned()), Origin::Default),
    };
    let default = match key.default {
        Fallback::Value(text) => Some(text()),
        Fallback::Words("") => None,
        Fallback::Words(words) => Some(words.to_owned()),
    };
    let place = loaded.places.get(key.path).map(ToString::to_string);
    Row { key: key.path, value, origin, place, default, help: key.help }
}

/// The rows as text: for each key a line `key = value` with its origin, below it what the key is for.
pub fn text(loaded: &Loaded) -> String {
    let mut text = String::new();
    for row in rows(loaded) {
        let value = row.value.as_deref().unwrap_or("-");
        let from = match (&row.place, row.origin) {
            (Some(place), _) => place.clone(),
            (None, origin) => origin.to_string(),
        };
        let default = match &row.default {
            Some(default) if row.origin != Origin::Default || row.value.is_none() => {
                format!("; default: {default}")
            }
            _ => String::new(),
        };
        text.push_str(&format!("{} = {value}  ({from}{default})\n    {}\n", row.key, row.help));
    }
    text
}
