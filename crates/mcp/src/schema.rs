//! JSON schemas of what tools take and give, in few words.

use std::sync::Arc;

use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

/// One property: its name, its schema, and whether it is always there.
pub(crate) struct Property {
    name: &'static str,
    schema: Value,
    is_required: bool,
}

/// A property that is always there.
pub(crate) fn needs(name: &'static str, schema: Value) -> Property {
    Property { name, schema, is_required: true }
}

/// A property that may be absent.
pub(crate) fn may(name: &'static str, schema: Value) -> Property {
    Property { name, schema, is_required: false }
}

/// Arguments of a tool: nothing else is understood.
pub(crate) fn input(properties: Vec<Property>) -> Arc<JsonObject> {
    let mut schema = map(properties);
    schema.insert("additionalProperties".to_owned(), false.into());
    Arc::new(schema)
}

/// An answer, to which fields may be added over time.
pub(crate) fn output(properties: Vec<Property>) -> Arc<JsonObject> {
    Arc::new(map(properties))
}

/// An object within another one.
pub(crate) fn object(description: &str, properties: Vec<Property>) -> Value {
    let mut schema = map(properties);
    schema.insert("description".to_owned(), description.into());
    Value::Object(schema)
}

fn map(properties: Vec<Property>) -> Map<String, Value> {
    let required: Vec<_> = properties.iter().filter(|p| p.is_required).map(|p| p.name).collect();
    let required = json!(required);
    let properties: Map<_, _> = properties.into_iter().map(|p| (p.name.to_owned(), p.schema)).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties.into());
    schema.insert("required".to_owned(), required);
    schema
}

/// Text.
pub(crate) fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// One of these words.
pub(crate) fn word(description: &str, words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words, "description": description })
}

/// A whole number from `least` on, to `most` if there is one.
pub(crate) fn integer(description: &str, least: u64, most: Option<u64>) -> Value {
    let mut schema = json!({ "type": "integer", "minimum": least, "description": description });
    if let Some(most) = most {
        schema["maximum"] = most.into();
    }
    schema
}

/// Any number.
pub(crate) fn number(description: &str) -> Value {
    json!({ "type": "number", "description": description })
}

/// Yes or no.
pub(crate) fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

/// A list.
pub(crate) fn array(description: &str, items: Value) -> Value {
    json!({ "type": "array", "items": items, "description": description })
}

/// Names with a text each.
pub(crate) fn texts(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": description })
}
