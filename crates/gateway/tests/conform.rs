//! Whether an answer is what the OpenAPI document says it is.

use serde_json::Value;

use moltis_gateway::openapi;

/// The operation of a method and a path, and its path in the document.
pub fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap();
    let parts: Vec<_> = path.split('/').collect();
    let paths = openapi::document()["paths"].as_object().unwrap();
    // A plain path comes before one with a part that stands for anything.
    let mut found: Vec<_> = paths
        .iter()
        .filter(|(known, _)| {
            let known: Vec<_> = known.split('/').collect();
            known.len() == parts.len()
                && known.iter().zip(&parts).all(|(known, part)| known == part || known.starts_with('{'))
        })
        .collect();
    found.sort_by_key(|(known, _)| known.matches('{').count());
    found.first().map(|(_, methods)| &methods[method.to_ascii_lowercase()]).filter(|found| !found.is_null())
}

/// Sees that an answer is one that is written down.
#[track_caller]
pub fn see(method: &str, path: &str, status: u16, kind: Option<&str>, body: &[u8]) {
    let Some(operation) = operation(method, path) else {
        assert!(matches!(status, 403..=405), "{method} {path} is in no document, and answers {status}");
        return;
    };
    let at = format!("{method} {path}: {status}");
    let mut told = &operation["responses"][status.to_string()];
    assert!(!told.is_null(), "{at} is not written down: {}", String::from_utf8_lossy(body));
    if let Some(target) = told["$ref"].as_str() {
        told = resolve(target);
    }
    let Some(content) = told["content"].as_object() else {
        assert!(body.is_empty(), "{at} has a body");
        return;
    };
    let kind = kind.unwrap_or_default().split(';').next().unwrap();
    let schema = content.get(kind).unwrap_or_else(|| panic!("{at} is {kind}, which is not written down"));
    if kind.ends_with("json") && !kind.contains("ndjson") {
        let value = serde_json::from_slice(body).unwrap_or_else(|error| panic!("{at}: {error}"));
        let mut wrong = Vec::new();
        judge(&schema["schema"], &value, "$", &mut wrong);
        assert!(wrong.is_empty(), "{at}: {wrong:?}\n{value:#}");
    }
}

fn resolve(target: &str) -> &'static Value {
    openapi::document().pointer(target.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{target}"))
}

/// Why a value is none of this schema.
pub fn judge(schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(target) = schema["$ref"].as_str() {
        return judge(resolve(target), value, at, wrong);
    }
    for name in ["oneOf", "anyOf"] {
        if let Some(all) = schema[name].as_array() {
            let fits = all.iter().any(|one| {
                let mut wrong = Vec::new();
                judge(one, value, at, &mut wrong);
                wrong.is_empty()
            });
            if !fits {
                wrong.push(format!("{at} is none of {name}"));
            }
            return;
        }
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        wrong.push(format!("{at} is {value}, none of {words:?}"));
    }
    let is = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        _ => true,
    };
    if !is {
        wrong.push(format!("{at} is {value}, not {}", schema["type"]));
        return;
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < least
    {
        wrong.push(format!("{at} is {number}, below {least}"));
    }
    if let Some(items) = value.as_array() {
        for (nth, item) in items.iter().enumerate() {
            judge(&schema["items"], item, &format!("{at}[{nth}]"), wrong);
        }
    }
    let Some(fields) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            wrong.push(format!("{at} has no {name}"));
        }
    }
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        match &schema["properties"][name] {
            Value::Null => match &schema["additionalProperties"] {
                Value::Bool(false) => wrong.push(format!("{at} is not written down")),
                Value::Object(_) => judge(&schema["additionalProperties"], value, &at, wrong),
                _ => {}
            },
            schema => judge(schema, value, &at, wrong),
        }
    }
}
