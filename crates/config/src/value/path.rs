//! Paths of the host.

use std::path::{Component, Path, PathBuf};

use super::{Context, Text};
use crate::error::InvalidValue;

/// An absolute path; `~/` stands for the caller's home.
pub struct AbsolutePath;

impl Text for AbsolutePath {
    type Value = PathBuf;

    const NAME: &'static str = "absolute path";
    const EXAMPLE: &'static str = "/path/to/it";

    fn parse(text: &str, context: &Context) -> Result<PathBuf, InvalidValue> {
        let path = expand(text, context)?;
        if path.is_absolute() {
            return Ok(path);
        }
        Err(InvalidValue::malformed(text, "an absolute path", "it must begin with / or ~/"))
    }

    fn text(value: &PathBuf) -> String {
        value.to_string_lossy().into_owned()
    }
}

/// A path that, when relative, lies in the data directory.
pub struct DataPath;

impl Text for DataPath {
    type Value = PathBuf;

    const NAME: &'static str = "path";
    const EXAMPLE: &'static str = "sandbox/home/shared";

    fn parse(text: &str, context: &Context) -> Result<PathBuf, InvalidValue> {
        let path = expand(text, context)?;
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(InvalidValue::malformed(text, "a path", "it must not contain `..`"));
        }
        if path.components().all(|part| part == Component::CurDir) {
            return Err(InvalidValue::malformed(text, "a path", "that is the data directory itself"));
        }
        Ok(path)
    }

    fn text(value: &PathBuf) -> String {
        value.to_string_lossy().into_owned()
    }
}

/// Replaces a leading `~/` and refuses what no file can be named.
fn expand(text: &str, context: &Context) -> Result<PathBuf, InvalidValue> {
    let malformed = |why: &str| InvalidValue::malformed(text, "a path", why);
    if text.is_empty() {
        return Err(malformed("it is empty"));
    }
    if text.contains('\0') {
        return Err(malformed("it contains a NUL byte"));
    }
    let Some(rest) = text.strip_prefix('~') else { return Ok(PathBuf::from(text)) };
    let rest = match rest.strip_prefix('/') {
        Some(rest) => rest.trim_start_matches('/'),
        None if rest.is_empty() => "",
        None => return Err(malformed("only ~/ is understood, not another user's home")),
    };
    match &context.home {
        Some(home) => Ok(join(home, rest)),
        None => Err(malformed("HOME is not set, so ~ means nothing: write the whole path")),
    }
}

fn join(base: &Path, rest: &str) -> PathBuf {
    if rest.is_empty() { base.to_owned() } else { base.join(rest) }
}
