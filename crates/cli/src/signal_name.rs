//! Signals by name or number.

use moltis_sandbox::Diagnosis;

use crate::failure::Failure;

/// Names without `SIG`, by number from 1 on, as on Linux.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Reads `INT`, `SIGINT`, `int` or `2`.
pub fn parse(word: &str) -> Result<i32, Failure> {
    let upper = word.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = NAMES.iter().position(|name| *name == bare).and_then(|at| i32::try_from(at + 1).ok());
    let number = by_name.or_else(|| bare.parse().ok().filter(|number| (1..=64).contains(number)));
    number.ok_or_else(|| {
        let fix = match moltis_config::suggest(bare, NAMES) {
            Some(near) => format!("did you mean {near}?"),
            None => "use a name as in TERM, or a number from 1 to 64".to_owned(),
        };
        let message = format!("--signal: {word:?} is no signal");
        Failure::usage(Diagnosis::new("signal-unknown", message).fix(fix))
    })
}

/// What a person calls a signal.
pub fn show(number: i32) -> String {
    let name = usize::try_from(number - 1).ok().and_then(|at| NAMES.get(at));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read() {
        for word in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(parse(word).ok(), Some(15));
        }
        assert_eq!(parse("64").ok(), Some(64));
        for word in ["", "0", "65", "-1", "TERMX", "SIG"] {
            assert!(parse(word).is_err(), "{word}");
        }
        assert_eq!([show(9), show(31), show(34), show(0)], ["KILL", "SYS", "34", "0"]);
    }
}
