//! How things are shown to a model: paths, sizes, counts, output that is cut.

use moltis_runtime::Collected;

/// A path as text. What is no UTF-8 cannot be named by a model anyway.
pub(crate) fn path(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A number of things, with the right word.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    }
}

/// Output as a model reads it, with a word on what is no text.
pub(crate) fn output(stream: &Collected) -> String {
    match std::str::from_utf8(&stream.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let text = String::from_utf8_lossy(&stream.bytes);
            format!("{text}\n[not all of this is UTF-8: what is not shows as \u{fffd}]\n")
        }
    }
}

/// The text up to so many bytes, cut between characters, and how many bytes are left away.
pub(crate) fn shortened(text: &str, most: usize) -> (&str, usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], text.len() - end)
}

/// Appends text, with a line end after it if it has none.
pub(crate) fn append(to: &mut String, text: &str) {
    to.push_str(text);
    if !text.is_empty() && !text.ends_with('\n') {
        to.push('\n');
    }
}
