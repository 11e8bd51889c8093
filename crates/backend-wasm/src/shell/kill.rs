//! A shell that sends itself a signal. It ends with 128 and the signal's number; that it was one is seen here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use bashkit::hooks::{HookAction, Interceptor, ToolEvent};

/// The number of every shell, `$$`.
const ITSELF: &str = "1";

/// Names of signals that end a program, beside their numbers.
const NAMES: [(&str, i32); 13] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("SEGV", 11),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
];

/// What one shell sent itself last.
#[derive(Clone, Default)]
pub struct Kill(Arc<AtomicI32>);

impl Kill {
    /// Sees the shell's commands.
    pub fn hook(&self) -> Interceptor<ToolEvent> {
        let last = Arc::clone(&self.0);
        Box::new(move |event| {
            if event.name == "kill" {
                last.store(to_itself(&event.args).unwrap_or(0), Ordering::Relaxed);
            }
            HookAction::Continue(event)
        })
    }

    /// The signal, if there was one.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal > 0)
    }
}

fn to_itself(words: &[String]) -> Option<i32> {
    let (mut signal, mut words) = (15, words.iter().map(String::as_str));
    let mut itself = false;
    while let Some(word) = words.next() {
        match word.strip_prefix('-') {
            None => itself |= word == ITSELF,
            Some("-") => {}
            Some("s" | "n") => signal = number(words.next()?)?,
            Some(name) => signal = number(name)?,
        }
    }
    itself.then_some(signal)
}

fn number(name: &str) -> Option<i32> {
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    named.or_else(|| name.parse().ok().filter(|number| (1..=31).contains(number)))
}

#[cfg(test)]
mod tests {
    use super::to_itself;

    #[test]
    fn signals_to_itself() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, expected) in [
            ("1", Some(15)),
            ("-9 1", Some(9)),
            ("-SIGKILL 1", Some(9)),
            ("-s term 1001 1", Some(15)),
            ("-KILL 1001", None),
            ("-9 -1", None),
            ("-l", None),
        ] {
            assert_eq!(to_itself(&words(line)), expected, "{line}");
        }
    }
}
