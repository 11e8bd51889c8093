//! Values of command line flags and API calls, read by the same rules and with the same errors as keys.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use moltis_sandbox::{MountMode, Network};

use super::image::{Image, ImageReference};
use super::number::{self, Integer, Size};
use super::{Context, Flaw, Format, Raw, Text};
use crate::error::InvalidValue;
use crate::words::{BackendChoice, Words};

/// Longest time-out of a command.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(1800);

/// A backend's word, or `auto`.
///
/// # Errors
/// [`InvalidValue::UnknownWord`] with the nearest valid word.
pub fn parse_backend(word: &str) -> Result<BackendChoice, InvalidValue> {
    BackendChoice::parse(word)
}

/// A network policy's word.
///
/// # Errors
/// [`InvalidValue::UnknownWord`] with the nearest valid word.
pub fn parse_network(word: &str) -> Result<Network, InvalidValue> {
    Network::parse(word)
}

/// A size in bytes: `512M`, `1G`, or a number of bytes.
///
/// # Errors
/// What is wrong with it.
pub fn parse_size(text: &str) -> Result<u64, InvalidValue> {
    number::size(text)
}

/// A memory limit in bytes, within the bounds of `memory_limit`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_memory(text: &str) -> Result<u64, InvalidValue> {
    one(Size::<{ 1 << 20 }, { u64::MAX }>::read(Raw::Word(text), &Context::default()))
}

/// A duration with its units: `60s`, `30m`, `1h30m`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    number::duration(text)
}

/// A command's time-out: seconds, or a duration with its units; at least 1 second, at most [`MAX_TIMEOUT`].
///
/// # Errors
/// What is wrong with it.
pub fn parse_timeout(text: &str) -> Result<Duration, InvalidValue> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let out_of_range = || InvalidValue::OutOfRange {
        value: text.to_owned(),
        allowed: format!("a time from 1 to {} seconds", MAX_TIMEOUT.as_secs()),
    };
    let span = if plain {
        // A number of digits that does not fit is only too large.
        Duration::from_secs(text.parse().map_err(|_| out_of_range())?)
    } else {
        parse_duration(text)?
    };
    if span < Duration::from_secs(1) || span > MAX_TIMEOUT { Err(out_of_range()) } else { Ok(span) }
}

/// Instructions that a WASI module may execute, within the bounds of `wasm_fuel_limit`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_fuel(text: &str) -> Result<u64, InvalidValue> {
    one(Integer::<1, { i64::MAX as u64 }>::read(Raw::Word(text), &Context::default()))
}

/// Processor time in cores.
///
/// # Errors
/// What is wrong with it.
pub fn parse_cores(text: &str) -> Result<f64, InvalidValue> {
    number::cores(text)
}

/// A number of processes, within the bounds of `pids_max`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_pids(text: &str) -> Result<u64, InvalidValue> {
    one(Integer::<1, 4_194_304>::read(Raw::Word(text), &Context::default()))
}

/// An image reference.
///
/// # Errors
/// What is wrong with it.
pub fn parse_image(text: &str) -> Result<ImageReference, InvalidValue> {
    Image::parse(text, &Context::default())
}

/// The value of `--workspace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceFlag {
    /// The folder as it was written; it may be relative to the current directory.
    pub dir: PathBuf,
    /// The mode, if one was written.
    pub mode: Option<MountMode>,
}

/// Reads `DIR`, `DIR:ro` or `DIR:rw`. Only the last colon counts, and only before these words: every other colon
/// belongs to the folder's name.
///
/// # Errors
/// [`InvalidValue::Malformed`] when no folder is named.
pub fn parse_workspace_flag(text: &OsStr) -> Result<WorkspaceFlag, InvalidValue> {
    let bytes = text.as_bytes();
    let (dir, mode) = if let Some(dir) = bytes.strip_suffix(b":ro") {
        (dir, Some(MountMode::Ro))
    } else if let Some(dir) = bytes.strip_suffix(b":rw") {
        (dir, Some(MountMode::Rw))
    } else {
        (bytes, None)
    };
    let malformed =
        |why| InvalidValue::malformed(&text.to_string_lossy(), "a workspace (DIR, DIR:ro or DIR:rw)", why);
    if dir.is_empty() {
        return Err(malformed("the folder is missing"));
    }
    if dir.contains(&0) {
        return Err(malformed("it contains a NUL byte"));
    }
    Ok(WorkspaceFlag { dir: PathBuf::from(OsStr::from_bytes(dir)), mode })
}

/// A word is one value, so the first flaw is the flaw.
fn one<T>(read: Result<T, Vec<Flaw>>) -> Result<T, InvalidValue> {
    read.map_err(|mut flaws| match flaws.is_empty() {
        false => flaws.swap_remove(0).what,
        true => InvalidValue::malformed("", "a value", "it is not understood"),
    })
}
