//! What Apple's tool says, made fit to be told on, and judged. Only the tool's own words are judged: those of its
//! standard error, where its exit code says that it failed and no command of anybody's could write there.

/// Characters of a message that are told on.
const MESSAGE: usize = 1000;

/// A text of others' in one line without control characters, and without the tool's `Error: `.
pub fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if c == ' ' && out.ends_with(' ') {
            continue;
        }
        out.push(c);
        if out.len() >= MESSAGE {
            break;
        }
    }
    let out = out.trim();
    out.strip_prefix("Error: ").unwrap_or(out).trim().to_owned()
}

/// The tool's words without what it was asked: a name or a path of the caller's says nothing of the engine.
fn without(words: &str, arguments: &[String]) -> String {
    let mut words = words.to_owned();
    // The tool's own words are its to say.
    let is_plain = |part: &str| part.len() <= 10 && part.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut ours: Vec<&str> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .flat_map(|argument| argument.split(','))
        .map(|part| part.split_once('=').map_or(part, |(_, value)| value))
        .filter(|part| part.len() > 2 && !is_plain(part))
        .collect();
    ours.sort_by_key(|part| std::cmp::Reverse(part.len()));
    for part in ours {
        words = words.replace(part, "…");
    }
    words
}

/// The stable code of the way in which the engine is broken, if the tool's words say that it is.
pub fn broken(words: &str, arguments: &[String]) -> Option<&'static str> {
    let words = without(words, arguments).to_lowercase().replace('’', "'");
    let any = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    if let Some((_, rest)) = words.split_once("nsposixerrordomain code=22")
        && !rest.starts_with(|c: char| c.is_ascii_digit())
    {
        return Some("apple-code-22");
    }
    // A directory that the configuration names is another matter.
    let lost = [
        "missing",
        "no such file",
        "not found",
        "notfound",
        "doesn't exist",
        "does not exist",
        "couldn't be",
    ];
    if words.contains("config.json") && !words.contains("set in config.json") && any(&lost) {
        return Some("apple-config-missing");
    }
    if any(&["never booted", "failed to boot", "did not boot", "virtual machine failed to start"]) {
        return Some("apple-vm-never-booted");
    }
    let service = [
        "xpc connection error",
        "apiserver is not running",
        "not registered with launchd",
        "failed to get a response from apiserver",
        "services do not appear to be running",
        "container system start",
    ];
    any(&service).then_some("apple-service")
}

/// Whether a connection to the service broke off while something was done. Some versions say so of a program that
/// cannot be executed, so the service is asked again before it is believed.
pub fn interrupted(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("connection interrupted") && !words.contains("connection invalid")
}

/// Whether the tool says that what it was asked about is not there.
pub fn not_found(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("not found") || words.contains("notfound")
}

/// Whether a disk is full.
pub fn full(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("no space left on device") || words.contains("nsposixerrordomain code=28")
}

/// Seconds since 1970 of a time as the tool writes it: RFC 3339 in UTC, or a number of seconds since 2001.
pub fn secs(time: &serde_json::Value) -> u64 {
    const SINCE_2001: u64 = 978_307_200;
    match time {
        serde_json::Value::Number(number) => {
            let secs = number.as_f64().unwrap_or(0.0);
            if secs > 0.0 && secs < 1e10 { SINCE_2001 + secs as u64 } else { 0 }
        }
        serde_json::Value::String(text) => utc(text).unwrap_or(0),
        _ => 0,
    }
}

fn utc(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let rest = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || rest != "Z" {
        return None;
    }
    // Days since 1970, in years that begin in March.
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second).ok()
}

/// An architecture in Rust's words.
pub fn arch(word: &str) -> String {
    match word {
        "arm64" => "aarch64".to_owned(),
        "amd64" => "x86_64".to_owned(),
        other => clean(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_known_failure_has_its_code_and_nothing_else_has() {
        for (words, code) in [
            (
                "Error: internalError: \"failed to bootstrap container\" (cause: \"unknown: \"Error \
                 Domain=NSPOSIXErrorDomain Code=22 \"Invalid argument\"\"\")",
                Some("apple-code-22"),
            ),
            ("Error Domain=NSPOSIXErrorDomain Code=221 \"x\"", None),
            ("Error Domain=NSPOSIXErrorDomain Code=2 \"No such file or directory\"", None),
            ("Error: config.json missing", Some("apple-config-missing")),
            (
                "Error: The file “config.json” couldn’t be opened because there is no such file.",
                Some("apple-config-missing"),
            ),
            ("chdir to cwd (\"/home/sandbox\") set in config.json failed: no such file or directory", None),
            ("Error: VM never booted", Some("apple-vm-never-booted")),
            (
                "Error: Error Domain=VZErrorDomain Code=1 \"The virtual machine failed to start.\"",
                Some("apple-vm-never-booted"),
            ),
            ("Error: interrupted: \"XPC connection error: Connection invalid\"", Some("apple-service")),
            ("apiserver is not running and not registered with launchd", Some("apple-service")),
            ("Error: notFound: \"container with ID x not found\"", None),
            ("", None),
        ] {
            assert_eq!(broken(words, &[]), code, "{words}");
        }
    }

    #[test]
    fn what_it_was_asked_is_not_judged() {
        let mount = "type=bind,source=/tmp/NSPOSIXErrorDomain Code=22/VM never booted,target=/x";
        let words = "Error: path '/tmp/NSPOSIXErrorDomain Code=22/VM never booted' does not exist";
        assert_eq!(broken(words, &["--mount".to_owned(), mount.to_owned()]), None);
        assert_eq!(broken(words, &[]), Some("apple-code-22"));
        let list = ["list", "--format", "json"].map(str::to_owned);
        assert_eq!(broken("Error: config.json missing", &list), Some("apple-config-missing"));
    }

    #[test]
    fn messages_are_one_short_line() {
        assert_eq!(clean("Error: a\n\tb\u{1b}[31m"), "a b [31m");
        assert!(clean(&"x".repeat(100_000)).len() <= MESSAGE);
    }

    #[test]
    fn both_ways_of_writing_a_time_are_read() {
        assert_eq!(secs(&json!("2026-11-30T01:46:31Z")), 1_796_003_191);
        assert_eq!(secs(&json!("2026-11-30T01:46:31.552Z")), 1_796_003_191);
        assert_eq!(secs(&json!(817_695_991.5)), 1_796_003_191);
        for bad in
            [json!("yesterday"), json!(null), json!(-1), json!("2026-11-30T01:46:31+01:00"), json!("é")]
        {
            assert_eq!(secs(&bad), 0, "{bad}");
        }
    }
}
