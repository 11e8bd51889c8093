//! What shells say: that a program runs, what it was marked with, and what lives on of it.

use moltis_sandbox::exec::Leftover;
use moltis_sandbox::{Diagnosis, Error, Result};

use crate::random;

/// Bytes of a command line that are named.
const MAX_COMMAND: usize = 256;

/// Why a program does not run.
#[derive(Debug)]
pub enum NotStarted {
    /// The shell cannot mark it.
    Mark,
    /// The directory is not one to run in.
    Directory(Error),
    /// It said something else than expected.
    Unlike,
}

impl NotStarted {
    /// What is missing for a mark, and why that matters.
    pub const MARK: (&'static str, &'static str) = (
        "shell that can limit file locks",
        "its `ulimit` knows neither `-w` nor `-x`, by which the processes of a command are found",
    );
}

/// Reads the line with which a program says that it runs: its process id.
///
/// # Errors
/// Why it does not.
pub fn started(line: &str) -> Result<u32, NotStarted> {
    match line.trim_end().split_once(' ') {
        Some(("ok", pid)) => pid.parse().map_err(|_| NotStarted::Unlike),
        Some(("no", "mark")) => Err(NotStarted::Mark),
        Some(("no", why)) => Err(NotStarted::Directory(Error::Invalid(
            Diagnosis::new(
                "cwd-missing",
                match why {
                    "enter" => "the directory to run in may not be entered",
                    "directory" => "what was named to run in is no directory",
                    _ => "the directory to run in does not exist",
                },
            )
            .fix("name a directory that exists inside the sandbox, or make it first"),
        ))),
        _ => Err(NotStarted::Unlike),
    }
}

/// A limit of file locks that no other command of the sandbox has: as large as shells can count, and far below what
/// means "none".
///
/// # Errors
/// When the kernel has no random numbers.
pub fn mark() -> Result<u64> {
    Ok((u64::from_le_bytes(random::bytes()?) & ((1 << 60) - 1)) | (1 << 40))
}

/// What lives on, by name: lines say `n <pid> <command line>`.
pub fn leftovers<'a>(pids: &[u32], lines: impl Iterator<Item = &'a str> + Clone) -> Vec<Leftover> {
    let name = |pid: u32| {
        let line = lines.clone().find_map(|line| {
            let (number, name) = line.strip_prefix("n ")?.split_once(' ')?;
            (number.parse() == Ok(pid)).then_some(name)
        });
        let name = line.unwrap_or_default().trim_end().chars().scan(0, |length, c| {
            *length += c.len_utf8();
            (*length <= MAX_COMMAND).then_some(c)
        });
        name.collect()
    };
    pids.iter().map(|pid| Leftover { pid: *pid, command: name(*pid) }).collect()
}

/// Something that a program printed, in one short line.
pub fn plain(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(400)]);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_tells_whether_it_runs() {
        assert!(matches!(started("ok 12\n"), Ok(12)));
        assert!(matches!(started("no mark\n"), Err(NotStarted::Mark)));
        assert!(matches!(started("no there\n"), Err(NotStarted::Directory(_))));
        for line in ["ok x", "", "junk"] {
            assert!(matches!(started(line), Err(NotStarted::Unlike)), "{line}");
        }
    }

    #[test]
    fn what_lives_on_is_named_by_its_number() {
        let found = leftovers(&[3, 4], ["n 4 sleep 9 ", "n 33 x"].into_iter());
        let found: Vec<_> = found.into_iter().map(|one| (one.pid, one.command)).collect();
        assert_eq!(found, [(3, String::new()), (4, "sleep 9".to_owned())]);
        let long = format!("n 3 {}", "ж".repeat(200));
        assert_eq!(leftovers(&[3], [long.as_str()].into_iter())[0].command.len(), MAX_COMMAND);
    }
}
