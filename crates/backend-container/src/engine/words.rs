//! What engines say, made fit to be passed on: text without control characters, times, architectures.

use serde_json::Value;

/// Characters of a message that is passed on.
const MESSAGE: usize = 2_000;

/// Characters of one line of a log.
pub(super) const LINE: usize = 4_000;

/// An engine's message: one line, shortened, without control characters.
pub(super) fn message(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_prefix("Error: ").unwrap_or(text);
    let mut out = String::new();
    for line in text.split(['\n', '\r']) {
        let line = clean(line, MESSAGE);
        let line = line.trim();
        if line.is_empty() || out.len() >= MESSAGE {
            continue;
        }
        if !out.is_empty() {
            out.push_str("; ");
        }
        out.push_str(line);
    }
    if out.is_empty() {
        out.push_str("no reason given");
    }
    shorten(out, MESSAGE)
}

/// Text without terminal sequences and control characters (tabs stay), at most `limit` characters of it.
pub(super) fn clean(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut count = 0;
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            skip_sequence(&mut chars);
            continue;
        }
        if (c.is_control() && c != '\t') || is_direction(c) {
            continue;
        }
        if count == limit {
            out.push('…');
            break;
        }
        out.push(c);
        count += 1;
    }
    out
}

/// Skips what follows an escape character: `[` with parameters and a final letter, `]` up to its end, or one letter.
fn skip_sequence(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
        Some(']') => {
            while let Some(c) = chars.next() {
                if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Whether a character changes the direction of the text around it.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first `limit` bytes, cut between characters.
fn shorten(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Whether a message says that a disk is full. Engines pass the system's own words on (`ENOSPC`, `EDQUOT`).
pub(super) fn is_full(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("no space left on device") || text.contains("disk quota exceeded")
}

/// An architecture in Rust's words; one that Rust has no other word for stays.
pub(super) fn arch(word: &str) -> String {
    match word {
        "amd64" | "x86_64" => "x86_64",
        "arm64" | "aarch64" => "aarch64",
        "386" | "i386" | "i686" => "x86",
        "arm" | "armv7l" | "armhf" => "arm",
        "ppc64le" => "powerpc64",
        other => return clean(other, 64),
    }
    .to_owned()
}

/// Seconds since 1970 of a time, as engines write them: a number, RFC 3339, or Go's `2006-01-02 15:04:05.9 -0700 MST`;
/// 0 for one that cannot be read or is before 1970.
pub(super) fn secs(time: &Value) -> u64 {
    match time {
        Value::Number(number) => number.as_u64().unwrap_or(0),
        Value::String(text) => text.parse().ok().or_else(|| rfc3339(text)).unwrap_or(0),
        _ => 0,
    }
}

fn rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let rest = text.get(19..)?;
    let zone = rest.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit()).trim_start();
    let offset = match zone.as_bytes().first() {
        None | Some(b'Z' | b'U') => 0,
        Some(sign @ (b'+' | b'-')) => {
            let digits: String = zone[1..]
                .chars()
                .take_while(|c| c.is_ascii_digit() || *c == ':')
                .filter(|c| *c != ':')
                .collect();
            let hours: i64 = digits.get(0..2)?.parse().ok()?;
            let minutes: i64 = digits.get(2..4)?.parse().ok()?;
            let seconds = hours * 3600 + minutes * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        Some(_) => return None,
    };
    let secs = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    u64::try_from(secs).ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, counted in years that begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Where in a Dockerfile a build is.
#[derive(Debug, Default)]
pub(super) struct Steps {
    number: u32,
    total: u32,
}

impl Steps {
    /// Reads a line as the beginning of a step: `Step 2/5 : RUN x` (Docker) or `STEP 2/5: RUN x` (Podman). What a step
    /// prints comes in the same stream, so only a line that goes on where the last one was counts as one.
    pub(super) fn read(&mut self, line: &str) -> Option<(u32, u32, String)> {
        let rest = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP "))?;
        let (numbers, what) = rest.split_once(':')?;
        let (number, total) = numbers.trim_end().split_once('/')?;
        let (number, total): (u32, u32) = (number.parse().ok()?, total.parse().ok()?);
        if number != self.number + 1 || number > total || (self.total != 0 && total != self.total) {
            return None;
        }
        (self.number, self.total) = (number, total);
        Some((number, total, what.trim().to_owned()))
    }
}

/// Cuts pieces of text into lines, which it cleans; a line without an end is cut after [`LINE`] characters.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: String,
}

impl Lines {
    /// Adds a piece, and tells of each line that is whole now.
    pub(super) fn push(&mut self, piece: &str, mut each: impl FnMut(String)) {
        for c in piece.chars() {
            if c == '\n' || c == '\r' {
                self.end(&mut each);
            } else {
                self.rest.push(c);
                if self.rest.len() >= LINE {
                    self.end(&mut each);
                }
            }
        }
    }

    /// Tells of what is left.
    pub(super) fn end(&mut self, mut each: impl FnMut(String)) {
        let line = clean(&self.rest, LINE);
        self.rest.clear();
        if !line.trim().is_empty() {
            each(line.trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_one_clean_short_line() {
        assert_eq!(message("Error: no\x1b[31m such\x1b[0m image\n\n"), "no such image");
        assert_eq!(message("a\r\nb\u{202e}c\x07"), "a; bc");
        assert_eq!(message(" \n"), "no reason given");
        assert_eq!(message("\x1b]0;title\x07x\x1b]0;t\x1b\\y"), "xy");
        let long = message(&"é".repeat(5_000));
        assert!(long.len() <= MESSAGE + 4 && long.ends_with('…'), "{}", long.len());
        assert_eq!(clean("abc\tdef", 4), "abc\t…");
    }

    #[test]
    fn times_of_every_engine_are_read() {
        let cases = [
            (json!(1_796_003_191), 1_796_003_191),
            (json!("1796003191"), 1_796_003_191),
            (json!("2026-11-30T01:46:31.552027451Z"), 1_796_003_191),
            (json!("2026-11-30T02:46:31+01:00"), 1_796_003_191),
            (json!("2026-11-30 01:46:31.552 +0000 UTC"), 1_796_003_191),
            (json!("2026-11-29T20:46:31-05:00"), 1_796_003_191),
            (json!("2000-02-29T00:00:00Z"), 951_782_400),
            (json!("1970-01-01T00:00:00Z"), 0),
            (json!("0001-01-01T00:00:00Z"), 0),
            (json!("yesterday"), 0),
            (json!("2026-13-30T01:46:31Z"), 0),
            (json!("2026-11-30Té1:46:31Z"), 0),
            (json!(-5), 0),
            (json!(null), 0),
        ];
        for (time, want) in cases {
            assert_eq!(secs(&time), want, "{time}");
        }
    }

    #[test]
    fn only_the_next_step_is_one() {
        let mut steps = Steps::default();
        let mut read = |line: &str| steps.read(line);
        assert_eq!(read("Step 1/4 : FROM a"), Some((1, 4, "FROM a".to_owned())));
        assert_eq!(read("Step 9/9 : x"), None);
        assert_eq!(read("Step 1/4 : FROM a"), None);
        assert_eq!(read("STEP 2/4: RUN b: c"), Some((2, 4, "RUN b: c".to_owned())));
        assert_eq!(read("Step 3/99999999999 : x"), None);
        assert_eq!(read("Step 3/5 : x"), None);
        assert_eq!(read("hello"), None);
    }

    #[test]
    fn lines_are_cut_cleaned_and_bounded() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        lines.push("a\x1b[91mb\r\nc", |line| seen.push(line));
        lines.push("d\n\n", |line| seen.push(line));
        lines.push(&"x".repeat(LINE + 1), |line| seen.push(line));
        lines.end(|line| seen.push(line));
        assert_eq!(seen, ["ab".to_owned(), "cd".to_owned(), "x".repeat(LINE), "x".to_owned()]);
    }

    #[test]
    fn a_full_disk_is_known_by_the_systems_words() {
        assert!(is_full("write /x: No space left on device"));
        assert!(is_full("write: disk quota exceeded"));
        assert!(!is_full("no such file"));
    }
}
