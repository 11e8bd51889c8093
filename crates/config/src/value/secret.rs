//! Secrets: values that no output, error or debug print ever shows.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use toml_edit::{Item, Value};

use super::{Context, Flaw, Format, Raw, quote, wrong_type};
use crate::error::InvalidValue;

/// A token or key. It is wiped from memory when dropped and prints as `set`.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Takes a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into().into())
    }

    /// The secret itself, for the request that needs it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("set")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("set")
    }
}

/// A secret in one line.
pub struct SecretText;

impl Format for SecretText {
    type Value = Secret;

    const SECRET: bool = true;

    fn name() -> String {
        "secret".to_owned()
    }

    fn example() -> String {
        quote("token")
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<Secret, Vec<Flaw>> {
        let text = match raw {
            Raw::Item(Item::Value(Value::String(text))) => text.value().as_str(),
            Raw::Word(word) => word,
            other => return Err(wrong_type(other, "a string (secret)")),
        };
        // It travels in an HTTP header, and errors of the HTTP client would print it.
        if text.is_empty() || text.len() > 16_384 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(InvalidValue::Secret.into());
        }
        Ok(Secret::new(text))
    }

    fn write(_: &Secret) -> String {
        "set".to_owned()
    }
}
