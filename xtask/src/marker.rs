//! Putting made text between two markers of a document, so that the words around it stay a person's.

use std::path::Path;

/// Replaces what stands between `<!-- NAME -->` and `<!-- /NAME -->`.
pub fn between(document: &str, name: &str, text: &str) -> Result<String, String> {
    let (open, close) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let start = document.find(&open).ok_or_else(|| format!("no {open}"))? + open.len();
    let end = document[start..].find(&close).ok_or_else(|| format!("no {close} after {open}"))? + start;
    Ok(format!("{}\n\n{}\n\n{}", &document[..start], text.trim_end(), &document[end..]))
}

/// The same in a file.
pub fn write(file: &Path, name: &str, text: &str) -> Result<(), String> {
    let say = |e: String| format!("{}: {e}", file.display());
    let document = std::fs::read_to_string(file).map_err(|e| say(e.to_string()))?;
    let document = between(&document, name, text).map_err(say)?;
    std::fs::write(file, document).map_err(|e| say(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_changes() {
        let document = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n";
        assert_eq!(between(document, "t", "new\n"), Ok("a\n<!-- t -->\n\nnew\n\n<!-- /t -->\nb\n".into()));
        assert!(between(document, "u", "new").is_err());
    }
}
