//! What a person is told when something is wrong: a stable code, what happened, why, and what to do.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One problem, in the form that every surface shows: terminal, JSON and page print the same four fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Stable, kebab-case name of the problem, such as `workspace-missing`. Programs match on it; it never changes.
    pub code: Cow<'static, str>,
    /// What happened, naming the thing it happened to. One sentence without a full stop.
    pub message: String,
    /// Why, as far as it is known: usually what the kernel or an engine answered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
    /// What to do about it: a command to run, a key to set, a value to use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<String>,
}

impl Diagnosis {
    /// A diagnosis with a code and a message; add [`cause`](Self::cause) and [`fix`](Self::fix) where known.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Cow::Borrowed(code), message: message.into(), cause: None, fix: None }
    }

    /// Whether its code is of an engine's own failure.
    pub fn is_engine_failure(&self) -> bool {
        crate::error::ENGINE_FAILURES.contains(&&*self.code)
    }

    /// Adds why it happened.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}
