//! What values look like: reading them from moltis.toml or from a word, and writing them back.

pub mod domain;
pub mod flag;
pub mod glob;
pub mod image;
pub mod number;
pub mod path;
pub mod secret;
pub mod structure;
pub mod text;

use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;

use toml_edit::{Item, Value};

use crate::error::InvalidValue;
use crate::words::Words;

/// A value as it stands in its source.
#[derive(Clone, Copy)]
pub enum Raw<'a> {
    /// In a TOML file.
    Item(&'a Item),
    /// In an environment variable.
    Word(&'a str),
}

/// What reading a value may depend on besides the value.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The caller's home, for paths that begin with `~/`.
    pub home: Option<PathBuf>,
}

/// One thing that is wrong with a value.
#[derive(Debug)]
pub struct Flaw {
    /// What.
    pub what: InvalidValue,
    /// The bytes of the file that it is about, when they are not the whole value.
    pub span: Option<Range<usize>>,
}

impl From<InvalidValue> for Flaw {
    fn from(what: InvalidValue) -> Self {
        Self { what, span: None }
    }
}

/// How the values of a key are written.
pub trait Format {
    /// What they become.
    type Value: Clone;

    /// Whether they must never be shown.
    const SECRET: bool = false;

    /// What they look like, for people, such as `size (512M, 1G)`.
    fn name() -> String;

    /// One of them as it would stand in moltis.toml, to show the form.
    fn example() -> String;

    /// Reads one.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    fn read(raw: Raw<'_>, context: &Context) -> Result<Self::Value, Vec<Flaw>>;

    /// Writes one as it would stand in moltis.toml; a secret as `set`.
    fn write(value: &Self::Value) -> String;
}

/// Values that are one string.
pub trait Text {
    /// What they become.
    type Value: Clone;

    /// What they look like, for people.
    const NAME: &'static str;

    /// One of them, to show the form.
    const EXAMPLE: &'static str;

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    fn parse(text: &str, context: &Context) -> Result<Self::Value, InvalidValue>;

    /// The string that [`parse`](Self::parse) would read as this value.
    fn text(value: &Self::Value) -> String;
}

impl<T: Text> Format for T {
    type Value = T::Value;

    fn name() -> String {
        T::NAME.to_owned()
    }

    fn example() -> String {
        quote(T::EXAMPLE)
    }

    fn read(raw: Raw<'_>, context: &Context) -> Result<Self::Value, Vec<Flaw>> {
        Ok(T::parse(string(raw, T::NAME)?, context)?)
    }

    fn write(value: &Self::Value) -> String {
        quote(&T::text(value))
    }
}

/// One of a few words.
pub struct OneOf<T>(PhantomData<T>);

impl<T: Words> Format for OneOf<T> {
    type Value = T;

    fn name() -> String {
        let words: Vec<_> = T::all().into_iter().map(|(word, _)| format!("`{word}`")).collect();
        words.join(", ")
    }

    fn example() -> String {
        quote(T::all().first().map_or("", |(word, _)| word))
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<T, Vec<Flaw>> {
        let words: Vec<_> = T::all().into_iter().map(|(word, _)| format!("\"{word}\"")).collect();
        Ok(T::parse(string(raw, &format!("one of {}", words.join(", ")))?)?)
    }

    fn write(value: &T) -> String {
        quote(value.word())
    }
}

/// An array of strings.
pub struct List<T>(PhantomData<T>);

impl<T: Text> Format for List<T> {
    type Value = Vec<T::Value>;

    fn name() -> String {
        format!("list of {}s", T::NAME)
    }

    fn example() -> String {
        format!("[{}]", quote(T::EXAMPLE))
    }

    fn read(raw: Raw<'_>, context: &Context) -> Result<Self::Value, Vec<Flaw>> {
        let array = match raw {
            Raw::Item(Item::Value(Value::Array(array))) => array,
            other => {
                return Err(wrong_type(other, format!("a list of {}s, such as [\"a\", \"b\"]", T::NAME)));
            }
        };
        let mut values = Vec::with_capacity(array.len());
        let mut flaws = Vec::new();
        for element in array {
            let read = match element {
                Value::String(text) => T::parse(text.value(), context),
                other => Err(InvalidValue::WrongType {
                    expected: format!("a string ({})", T::NAME),
                    found: found(other.type_name()),
                }),
            };
            match read {
                Ok(value) => values.push(value),
                Err(what) => flaws.push(Flaw { what, span: element.span() }),
            }
        }
        if flaws.is_empty() { Ok(values) } else { Err(flaws) }
    }

    fn write(values: &Self::Value) -> String {
        let quoted: Vec<_> = values.iter().map(|value| quote(&T::text(value))).collect();
        format!("[{}]", quoted.join(", "))
    }
}

impl From<InvalidValue> for Vec<Flaw> {
    fn from(what: InvalidValue) -> Self {
        vec![what.into()]
    }
}

/// The string in `raw`.
fn string<'a>(raw: Raw<'a>, expected: &str) -> Result<&'a str, Vec<Flaw>> {
    match raw {
        Raw::Word(word) => Ok(word),
        Raw::Item(Item::Value(Value::String(text))) => Ok(text.value()),
        other => Err(wrong_type(other, format!("a string ({expected})"))),
    }
}

/// The error for a value of another TOML type.
fn wrong_type(raw: Raw<'_>, expected: impl Into<String>) -> Vec<Flaw> {
    let found = match raw {
        Raw::Word(_) => "a word".to_owned(),
        Raw::Item(item) => found(item.type_name()),
    };
    vec![InvalidValue::WrongType { expected: expected.into(), found }.into()]
}

/// A TOML type with its article.
fn found(type_name: &str) -> String {
    match type_name {
        "integer" | "array" | "inline table" | "array of tables" => format!("an {type_name}"),
        other => format!("a {other}"),
    }
}

/// A TOML basic string.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// `text` for an error message: control characters escaped, at most 80 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown.replace("\\'", "'").replace("\\\"", "\"")
}
