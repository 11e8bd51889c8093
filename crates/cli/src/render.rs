//! Text for people: diagnoses, tables, and the escaping of text that something hostile may have written.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moltis_sandbox::Diagnosis;

/// Whether to colour what goes to `stream`: a terminal, and `NO_COLOR` unset or empty.
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Appends a diagnosis: the message with its code, then cause and fix on lines of their own.
pub fn diagnosis(text: &mut String, diagnosis: &Diagnosis, colour: bool) {
    let (red, bold, reset) = if colour { ("\x1b[31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    let message = one_line(&diagnosis.message);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{red}error{reset}[{}]: {bold}{message}{reset}", diagnosis.code);
    for (label, line) in [("cause", &diagnosis.cause), ("fix", &diagnosis.fix)] {
        if let Some(line) = line {
            let _ = writeln!(text, "  {label}: {}", one_line(line));
        }
    }
}

/// Prints a diagnosis that is only a warning, in one line, to standard error.
pub fn warning(diagnosis: &Diagnosis) {
    let fix = diagnosis.fix.as_ref().map(|fix| format!(" ({fix})")).unwrap_or_default();
    crate::say!("moltis: {}", one_line(&format!("{diagnosis}{fix}")));
}

pub use moltis_runtime::audit_csv::printable;

/// Text with control characters shown instead of obeyed, line breaks among them: it cannot pose as a line of ours.
pub fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// A key, id or path that may hold anything, quoted where it could be mistaken for words around it.
pub fn name(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@+,=~".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { one_line(&format!("{text:?}")) }
}

/// How long ago a time in milliseconds since 1970 is, by its largest unit.
pub fn age(millis: u64) -> String {
    let then = Duration::from_millis(millis);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} ago", span(now.saturating_sub(then)))
}

/// A length of time by its largest unit.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long something took.
pub fn took(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        _ => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

/// A size in bytes, to three digits.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 {
            let tenths = (bytes >> (shift - 10)).saturating_mul(10) >> 10;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// Columns of text, each as wide as its widest cell, two spaces apart.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_are_shown() {
        assert_eq!(printable("a\x1b[2J\rb\n\u{202E}c"), "a\\u{1b}[2J\\u{d}b\n\\u{202e}c");
        assert_eq!(printable("ж é 漢"), "ж é 漢");
        assert_eq!(one_line("a\nmoltis: b"), "a\\nmoltis: b");
    }

    #[test]
    fn times_and_sizes_are_short() {
        assert_eq!(
            [0, 59, 60, 3600, 86_400 * 3].map(|s| span(Duration::from_secs(s))),
            ["0s", "59s", "1m", "1h", "3d"]
        );
        assert_eq!([9, 1500, 61_000].map(|ms| took(Duration::from_millis(ms))), ["9ms", "1.5s", "1m1s"]);
        assert_eq!(
            [0, 1023, 1024, 1536, 5 << 30, u64::MAX].map(size),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "16777215.9 TiB"]
        );
    }

    #[test]
    fn names_are_quoted_where_they_are_no_plain_word() {
        assert_eq!(
            ["a-b", "ж", "a b", "", "x\ny\u{202E}"].map(name),
            ["a-b", "ж", "\"a b\"", "\"\"", "\"x\\ny\\u{202e}\""]
        );
    }

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["a".to_owned(), "bb".into()], vec!["ccc".to_owned(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }
}
