//! `config init`: a moltis.toml that holds every key as a comment.

use crate::key::{Fallback, Key};
use crate::schema::SECTIONS;
use crate::unused;

/// The file. Every key is commented out, because a key that stands in the file is a demand, even with the value that
/// is the default anyway. Reading it gives the defaults.
pub fn text() -> String {
    let mut text = String::from(
        "# Configuration of Moltis. Every key stands here as a comment with its default: remove the # to set one.\n\
         # A value that is set is kept or refused, never left off silently; a default may be left off where a\n\
         # backend cannot keep it, and every answer then says so. Check with: moltis config check\n",
    );
    for section in SECTIONS {
        text.push_str(&format!("\n# {}.\n", section.help));
        if !section.path.is_empty() {
            text.push_str(&format!("[{}]\n", section.path));
        }
        for key in section.keys {
            text.push_str(&entry(key));
        }
    }
    text
}

fn entry(key: &Key) -> String {
    let (name, mut help) = (key.name(), key.help.to_owned());
    if !unused::is_used(key.path) {
        help.push_str(". Not used by this version");
    }
    match key.default {
        Fallback::Value(value) => format!("# {help}.\n#{name} = {}\n", value()),
        Fallback::Words(words) => {
            let words = if words.is_empty() { "none" } else { words };
            format!("# {help}. Default: {words}. For example:\n#{name} = {}\n", (key.example)())
        }
    }
}
