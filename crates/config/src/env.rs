//! Environment variables: overrides (`MOLTIS_…__…`), plain variables that are aliases of keys, and the one place
//! that looks at the process.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::error::{InvalidValue, Place, Problem};
use crate::key::Key;
use crate::schema;
use crate::suggest::suggest;

/// Variables by name. A map, so that reading it twice gives the same answer and tests need no process.
pub type Env = BTreeMap<OsString, OsString>;

/// The variables of this process.
pub fn of_process() -> Env {
    std::env::vars_os().collect()
}

/// The variable that overrides a key.
pub(crate) fn variable(path: &str) -> String {
    format!("MOLTIS_{}", path.replace('.', "__").to_ascii_uppercase())
}

/// A variable that is set and not empty.
pub(crate) fn get<'a>(env: &'a Env, name: &str) -> Option<&'a OsStr> {
    env.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
}

/// One value from the environment.
pub(crate) struct Variable<'a> {
    pub(crate) key: &'static Key,
    pub(crate) value: &'a str,
    pub(crate) place: Place,
}

/// The overrides: every variable `MOLTIS_…` with `__` in its name.
pub(crate) fn overrides<'a>(env: &'a Env, problems: &mut Vec<Problem>) -> Vec<Variable<'a>> {
    let mut found = Vec::new();
    for (name, value) in env {
        // Every override is ASCII, so a name that is not UTF-8 is looked at only to be refused.
        let name = name.to_string_lossy();
        if !name.starts_with("MOLTIS_") || !name.contains("__") {
            continue;
        }
        let Some(key) = schema::keys().find(|key| variable(key.path) == name) else {
            let upper = name.to_ascii_uppercase();
            let names: Vec<_> = schema::keys().filter_map(Key::variable).collect();
            let nearest = suggest(&upper, names.iter().map(String::as_str)).map(str::to_owned);
            problems.push(Problem::UnknownOverride { name: name.into_owned(), nearest });
            continue;
        };
        if !key.over.env {
            problems.push(Problem::NotOverridable {
                name: name.into_owned(),
                key: key.path,
                fix: match key.name() {
                    "no_network" => format!("set {}", variable("tools.exec.sandbox.network")),
                    _ => "set it in moltis.toml, and unset the variable".to_owned(),
                },
            });
            continue;
        }
        push(key, &name, value, &mut found, problems);
    }
    found
}

/// The plain variables that set a key when nothing stronger does. An empty one counts as unset.
pub(crate) fn aliases<'a>(env: &'a Env, problems: &mut Vec<Problem>) -> Vec<Variable<'a>> {
    let mut found = Vec::new();
    for key in schema::keys() {
        let first = key.aliases.iter().find_map(|name| Some((*name, get(env, name)?)));
        if let Some((name, value)) = first {
            push(key, name, value, &mut found, problems);
        }
    }
    found
}

fn push<'a>(
    key: &'static Key,
    name: &str,
    value: &'a OsStr,
    found: &mut Vec<Variable<'a>>,
    problems: &mut Vec<Problem>,
) {
    let place = Place::Variable(name.to_owned());
    match value.to_str() {
        Some(value) => found.push(Variable { key, value, place }),
        None => problems.push(Problem::Value { place, key: key.path, what: InvalidValue::NotUtf8 }),
    }
}
