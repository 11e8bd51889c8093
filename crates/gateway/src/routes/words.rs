//! Parameters and fields that several routes have.

use serde_json::{Value, json};

use crate::route::{Param, query};
use crate::schema::{number, text_of};

/// What the part `session` of a path is.
pub const SESSION: &str = "The session's key, percent-encoded; `.` and `..`, which browsers fold away, are `~.` and `~..`, and a key that is written so itself has one more `~` in front";

/// A session's key.
pub fn session() -> Value {
    text_of(1, 512)
}

/// Most entries of one page.
pub const MOST: u64 = 1000;

/// Entries of a page where nobody says how many.
pub const SHOWN: u64 = 100;

/// How many entries, and from where on.
pub fn page() -> [Param; 2] {
    [
        query("limit", "How many at most; 100 where it is absent", number(1, MOST as i64)),
        query("cursor", "Where to go on: `next` of the page before", text_of(1, 2048)),
    ]
}

/// A path inside a sandbox, or of managed files. Its bytes need not be UTF-8.
pub fn path() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 4095, "pattern": "^/", "format": "path" })
}

/// The number of a background command.
pub fn process() -> Value {
    number(0, i64::from(u32::MAX))
}
