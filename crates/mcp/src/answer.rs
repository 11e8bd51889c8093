//! What a tool answers: text for a model, the same as data, and errors with code, cause and fix.

use moltis_sandbox::{Diagnosis, Error};
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Value, json};

/// What a tool that did its work says.
pub(crate) struct Answered {
    /// What a model reads.
    pub text: String,
    /// The same as data, as the tool's output schema describes it.
    pub data: Value,
    /// A picture to look at: base64 and its type.
    pub image: Option<(String, &'static str)>,
    /// Whether it is bad news all the same, such as a command whose time was up.
    pub is_error: bool,
}

impl Answered {
    pub(crate) fn new(text: impl Into<String>, data: Value) -> Self {
        Self { text: text.into(), data, image: None, is_error: false }
    }
}

impl From<Answered> for CallToolResult {
    fn from(answered: Answered) -> Self {
        let Answered { text, data, image, is_error } = answered;
        let mut content = vec![ContentBlock::text(text)];
        content.extend(image.map(|(data, kind)| ContentBlock::image(data, kind)));
        let mut result = Self::success(content);
        result.structured_content = Some(data);
        result.is_error = Some(is_error);
        result
    }
}

/// A call that failed: the same three fields as everywhere, as text and, for programs, as `error` in `_meta`. No
/// structured content: it would have to fit the tool's output schema.
pub(crate) fn failed(error: &Error, told: &[String]) -> CallToolResult {
    let diagnosis = error.diagnosis();
    let mut text = lines(diagnosis);
    for line in told {
        text.push('\n');
        text.push_str(line);
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    let mut meta = MetaObject::new();
    meta.0.insert("error".to_owned(), json!(diagnosis));
    meta.0.insert("kind".to_owned(), error.kind().into());
    result.meta = Some(meta);
    result
}

fn lines(diagnosis: &Diagnosis) -> String {
    let Diagnosis { code, message, cause, fix } = diagnosis;
    let mut text = format!("error[{code}]: {message}");
    for (name, line) in [("cause", cause), ("fix", fix)] {
        if let Some(line) = line {
            text.push_str(&format!("\n{name}: {line}"));
        }
    }
    text
}
