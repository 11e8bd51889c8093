//! Words for JSON schemas, of which the OpenAPI document is made.

use serde_json::{Map, Value, json};

/// A text.
pub fn text() -> Value {
    json!({ "type": "string" })
}

/// A text of so many characters.
pub fn text_of(least: u64, most: u64) -> Value {
    json!({ "type": "string", "minLength": least, "maxLength": most })
}

/// One of these words.
pub fn word(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// A whole number of zero or more.
pub fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// A whole number within bounds.
pub fn number(least: i64, most: i64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

/// A whole number.
pub fn integer() -> Value {
    json!({ "type": "integer" })
}

/// Any number of zero or more.
pub fn amount() -> Value {
    json!({ "type": "number", "minimum": 0 })
}

/// Yes or no.
pub fn flag() -> Value {
    json!({ "type": "boolean" })
}

/// A list.
pub fn list(of: Value) -> Value {
    json!({ "type": "array", "items": of })
}

/// A map of texts to these.
pub fn map(of: Value) -> Value {
    json!({ "type": "object", "additionalProperties": of })
}

/// A schema by its name.
pub fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// This, or `null`.
pub fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

/// A field of an object.
pub struct Field {
    name: &'static str,
    schema: Value,
    required: bool,
}

/// A field that is always there.
pub fn has(name: &'static str, about: &'static str, schema: Value) -> Field {
    Field { name, schema: described(schema, about), required: true }
}

/// A field that may be absent.
pub fn may(name: &'static str, about: &'static str, schema: Value) -> Field {
    Field { required: false, ..has(name, about, schema) }
}

fn described(mut schema: Value, about: &str) -> Value {
    if let Value::Object(fields) = &mut schema
        && !about.is_empty()
    {
        fields.insert("description".to_owned(), about.into());
    }
    schema
}

/// An object with these fields and no others.
pub fn object(about: &str, fields: impl IntoIterator<Item = Field>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for Field { name, schema, required: is_required } in fields {
        if is_required {
            required.push(name);
        }
        properties.insert(name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": "object", "properties": properties, "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    described(schema, about)
}

/// Why a text is none of these, if it is none. What is no text there is read from one: parameters are texts.
pub fn read_param(schema: &Value, text: &str) -> Result<Value, String> {
    let bound = |name: &str| schema.get(name).and_then(Value::as_i64);
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => match text {
            "true" => Ok(true.into()),
            "false" => Ok(false.into()),
            _ => Err("write `true` or `false`".to_owned()),
        },
        Some("integer") => {
            let plain = !text.is_empty() && text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit());
            let number: i64 =
                text.parse().ok().filter(|_| plain).ok_or_else(|| "write a whole number".to_owned())?;
            let (least, most) = (bound("minimum"), bound("maximum"));
            if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
                let least = least.map_or("any".to_owned(), |least| least.to_string());
                return Err(match most {
                    Some(most) => format!("use {least} to {most}"),
                    None => format!("use {least} or more"),
                });
            }
            Ok(number.into())
        }
        _ => {
            if let Some(words) = schema.get("enum").and_then(Value::as_array)
                && !words.iter().any(|word| word == text)
            {
                let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
                return Err(format!("use one of `{}`", words.join("`, `")));
            }
            let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
            if bound("minLength").is_some_and(|least| length < least)
                || bound("maxLength").is_some_and(|most| length > most)
            {
                return Err(format!(
                    "use {} to {} characters",
                    bound("minLength").unwrap_or(0),
                    bound("maxLength").unwrap_or(i64::MAX)
                ));
            }
            Ok(text.into())
        }
    }
}

/// Where a value has another form than its schema says, as `/settings/limits`, and which form that is. Only forms are
/// looked at: serde takes a list for an object's fields in their order, and an object for a word.
pub fn misshapen<'a>(
    schema: &'a Value,
    value: &Value,
    named: &impl Fn(&str) -> Option<&'a Value>,
) -> Option<(String, &'static str)> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return misshapen(named(reference)?, value, named);
    }
    if let Some(any) = ["anyOf", "oneOf"].iter().find_map(|word| schema.get(word)?.as_array()) {
        let mut first = None;
        for one in any {
            let found = misshapen(one, value, named)?;
            first.get_or_insert(found);
        }
        return first;
    }
    let below = |name: &str, schema, value| {
        let (place, form) = misshapen(schema, value, named)?;
        Some((format!("/{name}{place}"), form))
    };
    let here = |form| Some((String::new(), form));
    match (schema.get("type").and_then(Value::as_str), value) {
        (Some("object"), Value::Array(_)) => here("an object"),
        (Some("object"), Value::Object(fields)) => fields.iter().find_map(|(name, value)| {
            let known = schema.get("properties").and_then(|all| all.get(name));
            let schema =
                known.or_else(|| schema.get("additionalProperties").filter(|rest| rest.is_object()))?;
            below(name, schema, value)
        }),
        (Some("array"), Value::Array(items)) => {
            let schema = schema.get("items")?;
            items.iter().enumerate().find_map(|(nth, item)| below(&nth.to_string(), schema, item))
        }
        (Some("string"), Value::Array(_) | Value::Object(_)) => here("a text"),
        // The only form that tells the alternatives apart where one of them is `null`.
        (Some("null"), value) if !value.is_null() => here("null"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_another_form_is_named_with_its_place() {
        let limits = object("", [may("memory", "", count())]);
        let body = object(
            "",
            [
                may("settings", "", named("Settings")),
                may("argv", "", list(text())),
                may("env", "", map(text())),
                may("encoding", "", or_null(word(&["utf8"]))),
            ],
        );
        let settings = object("", [may("limits", "", or_null(limits))]);
        let find = |reference: &str| (reference == "#/components/schemas/Settings").then_some(&settings);
        let told = |value: Value| misshapen(&body, &value, &find);
        let at = |place: &str, form| Some((place.to_owned(), form));

        assert_eq!(told(json!([])), at("", "an object"));
        assert_eq!(told(json!({ "settings": [] })), at("/settings", "an object"));
        assert_eq!(told(json!({ "settings": { "limits": [1] } })), at("/settings/limits", "an object"));
        assert_eq!(told(json!({ "argv": ["a", ["b"]] })), at("/argv/1", "a text"));
        assert_eq!(told(json!({ "env": { "A": {} } })), at("/env/A", "a text"));
        assert_eq!(told(json!({ "encoding": { "utf8": null } })), at("/encoding", "a text"));
        let good = [
            json!({}),
            json!({ "settings": { "limits": null } }),
            json!({ "settings": { "limits": { "memory": 1 } }, "argv": ["a"], "env": { "A": "1" } }),
            json!({ "encoding": null, "unknown": [] }),
        ];
        for value in good {
            assert_eq!(told(value.clone()), None, "{value}");
        }
    }
}
