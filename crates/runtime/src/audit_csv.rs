//! The network's log as comma-separated values: one row for each entry, in which nothing is a formula or a second cell.

use std::fmt::Write;

use moltis_egress::Entry;

use crate::time;

/// The first row.
pub const COLUMNS: &str = "time,timestamp,session,id,event,domain,port,protocol,action,source,reason,sentBytes,\
                           receivedBytes,durationMs\r\n";

/// An entry's row, with its end of line.
pub fn row(entry: &Entry) -> String {
    let at = time::utc(i64::try_from(entry.timestamp / 1000).unwrap_or(i64::MAX));
    [
        at,
        entry.timestamp.to_string(),
        cell(&entry.session),
        entry.id.to_string(),
        entry.event.as_str().to_owned(),
        cell(&entry.domain),
        entry.port.to_string(),
        entry.protocol.as_str().to_owned(),
        entry.action.as_str().to_owned(),
        entry.source.as_str().to_owned(),
        cell(entry.reason.as_deref().unwrap_or_default()),
        entry.bytes_sent.to_string(),
        entry.bytes_received.to_string(),
        entry.duration_millis.to_string(),
    ]
    .join(",")
        + "\r\n"
}

/// A text as one cell, with control characters shown. What a spreadsheet would take for a formula is made a text by an
/// apostrophe.
fn cell(text: &str) -> String {
    let text = printable(text).replace('\n', "\\n");
    let first = text.trim_start().chars().next();
    let is_formula =
        first.is_some_and(|c| matches!(c, '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠' | '|' | '%'));
    let guard = if is_formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// Text with control characters shown instead of obeyed, those that turn the direction of writing among them; line breaks
/// stay.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() && c != '\n') || is_bidi_control(c) {
            let _ = write!(safe, "{}", c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Characters that reorder what is shown around them.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn no_cell_is_a_formula_or_two_cells() {
        for (text, expected) in [
            ("a.example", "\"a.example\""),
            ("", "\"\""),
            ("=1+1", "\"'=1+1\""),
            ("  @SUM(A1)", "\"'  @SUM(A1)\""),
            ("-1", "\"'-1\""),
            ("a\u{202e}b", "\"a\\u{202e}b\""),
            ("\t=1", "\"\\u{9}=1\""),
            ("a\",\"=1\r\nb", "\"a\"\",\"\"=1\\u{d}\\nb\""),
        ] {
            assert_eq!(cell(text), expected);
        }
    }
}
