//! The OpenAPI document, made from the table of routes.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::route::{Bound, Carries, Need, Place, Route};
use crate::{problem, routes, schemas};

static DOCUMENT: LazyLock<Value> = LazyLock::new(make);

/// The document.
pub fn document() -> &'static Value {
    &DOCUMENT
}

/// A schema that the document names.
pub fn named(reference: &str) -> Option<&'static Value> {
    DOCUMENT.pointer(reference.strip_prefix('#')?)
}

fn make() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::table() {
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    let mut tags: Vec<&str> = Vec::new();
    for route in routes::table() {
        if !tags.contains(&route.tag) {
            tags.push(route.tag);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Moltis",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs shell commands that a language model wrote, in sandboxes.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": tags.into_iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "responses": { "Problem": {
                "description": "What went wrong, and what to do",
                "content": { problem::KIND: { "schema": { "$ref": "#/components/schemas/Problem" } } },
            } },
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer", "description": "An API key, or the admin token" },
                "login": {
                    "type": "apiKey", "in": "cookie", "name": "moltis_13131",
                    "description": "A login; its name ends with the gateway's port. What is no plain GET needs the \
                                    header `X-Moltis-Secret` too",
                },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut told = json!({
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.summary,
        "description": description(route),
        "parameters": route.params.iter().map(|param| {
            let place = match param.place {
                Place::Path => "path",
                Place::Query => "query",
                Place::Header => "header",
            };
            json!({
                "name": param.name, "in": place, "required": param.required, "description": param.about,
                "schema": param.schema,
            })
        }).collect::<Vec<_>>(),
        "responses": responses(route),
        "security": match route.rule.need {
            Need::Nothing => json!([]),
            _ => json!([{ "key": [] }, { "login": [] }]),
        },
        "x-moltis-needs": match route.rule.need {
            Need::Nothing => "nothing",
            Need::Read => "operator.read",
            Need::Write => "operator.write",
            Need::Admin => "operator.admin",
            Need::Owner => "owner",
        },
    });
    let content = match &route.carries {
        Carries::Nothing => None,
        Carries::Json(schema, _) => Some(json!({ "application/json": { "schema": schema } })),
        Carries::Bytes(kind) => {
            Some(json!({ *kind: { "schema": { "type": "string", "format": "binary" } } }))
        }
    };
    if let Some(content) = content {
        let required = matches!(route.carries, Carries::Json(..)) && !route.may_be_empty;
        told["requestBody"] = json!({ "required": required, "content": content });
    }
    told
}

fn description(route: &Route) -> String {
    let bound = match route.rule.bound {
        Bound::Session => " A key that is bound to other sessions finds nothing here.",
        Bound::Filtered => "",
        Bound::Never => " A key that is bound to some sessions may not use it.",
    };
    let needs = match route.rule.need {
        Need::Nothing => return route.about.to_owned(),
        Need::Read => "Needs `operator.read`.",
        Need::Write => "Needs `operator.write`.",
        Need::Admin => "Needs `operator.admin`.",
        Need::Owner => "Only who runs the gateway may use it, by the private socket.",
    };
    let about = if route.about.is_empty() { String::new() } else { format!("{}\n\n", route.about) };
    format!("{about}{needs}{bound}")
}

fn responses(route: &Route) -> Value {
    let mut all = Map::new();
    for answer in &route.answers {
        let mut told = json!({ "description": answer.about });
        if !answer.forms.is_empty() {
            let content: Map<_, _> = answer
                .forms
                .iter()
                .map(|(kind, schema)| ((*kind).to_owned(), json!({ "schema": schema })))
                .collect();
            told["content"] = content.into();
        }
        if !answer.headers.is_empty() {
            let headers: Map<_, _> = answer
                .headers
                .iter()
                .map(|(name, about)| {
                    ((*name).to_owned(), json!({ "description": about, "schema": { "type": "string" } }))
                })
                .collect();
            told["headers"] = headers.into();
        }
        all.insert(answer.status.as_str().to_owned(), told);
    }
    // Refused before it is known which route it is for, without a body.
    for (status, about) in
        [("414", "The address is too long"), ("431", "The headers are too long, or too many")]
    {
        all.insert(status.to_owned(), json!({ "description": about }));
    }
    let mut fails = route.fails.clone();
    fails.sort_unstable();
    fails.dedup();
    for status in fails {
        all.insert(status.to_string(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str() {
                        Some(target) if name == "$ref" => found.push(target.to_owned()),
                        _ => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn what_is_referred_to_is_there_and_is_used() {
        let document = document();
        let mut found = Vec::new();
        references(document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in schemas::all().keys() {
            let target = format!("#/components/schemas/{name}");
            assert!(found.contains(&target), "{name} is used nowhere");
        }
    }
}
