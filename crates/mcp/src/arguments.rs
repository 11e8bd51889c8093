//! Arguments of a call, read strictly: a name that is not understood is an error, never left out in silence.

use rmcp::model::{JsonObject, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ToolError;

/// Reads a call's arguments.
///
/// # Errors
/// [`ToolError::Arguments`], which names the nearest argument that there is.
pub(crate) fn read<T: DeserializeOwned>(
    tool: &'static str,
    schema: &Tool,
    arguments: Option<JsonObject>,
) -> Result<T, ToolError> {
    let mut arguments = arguments.unwrap_or_default();
    let known: Vec<&str> = match schema.input_schema.get("properties") {
        Some(Value::Object(properties)) => properties.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let all =
        if known.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", known.join(", ")) };
    if let Some(unknown) = arguments.keys().find(|name| !known.contains(&name.as_str())) {
        let fix = match moltis_config::suggest(unknown, known.iter().copied()) {
            Some(near) => format!("write `{near}`; {all}"),
            None => all,
        };
        let why = format!("there is no argument {unknown:?}");
        return Err(ToolError::Arguments { tool, why, fix });
    }
    // Some clients send null for what the model left out.
    arguments.retain(|_, value| !value.is_null());
    serde_json::from_value(Value::Object(arguments)).map_err(|error| ToolError::Arguments {
        tool,
        why: error.to_string(),
        fix: all,
    })
}
