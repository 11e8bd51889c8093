//! Faults that a test asks for: a line `STAGE KIND` in the state's file `faults`. The stage is a subcommand, or `*`.

use std::io::Write;

use super::say::{Failed, error};
use super::state::State;

/// What the known failures say, by the name that a test uses. `{id}` stands for the container.
pub const WORDS: [(&str, &str); 7] = [
    ("config-missing", "internalError: \"config.json missing\" (container {id})"),
    (
        "config-lost",
        "internalError: \"failed to load container\" (cause: \"The file “config.json” couldn’t be opened because there \
         is no such file.\")",
    ),
    ("vm-never-booted", "internalError: \"VM never booted\" (container {id})"),
    (
        "code-22",
        "internalError: \"failed to bootstrap container\" (cause: \"unknown: \"Error Domain=NSPOSIXErrorDomain Code=22 \
         \"Invalid argument\"\"\")",
    ),
    (
        "service",
        "interrupted: \"XPC connection error: Connection invalid\"\nEnsure container system service has been started \
         with `container system start`.",
    ),
    (
        "interrupted",
        "interrupted: \"internalError: \"failed to start container\" (cause: \"interrupted: \"XPC connection error: \
         Connection interrupted\"\")\nEnsure container system service has been started with `container system \
         start`.\"",
    ),
    ("odd", "internalError: \"something else\""),
];

/// Fails as it was told to, if this subcommand is to fail.
pub fn strike(state: &State, command: &str, id: &str) -> Result<(), Failed> {
    let told = std::fs::read_to_string(state.path("faults")).unwrap_or_default();
    let kinds = told.lines().filter_map(|line| line.rsplit_once(' '));
    let Some((_, kind)) = kinds.into_iter().find(|(stage, _)| *stage == command || *stage == "*") else {
        return Ok(());
    };
    if let Some((_, words)) = WORDS.iter().find(|(name, _)| *name == kind) {
        return Err(error(words.replace("{id}", id)));
    }
    let mut out = std::io::stdout();
    match kind {
        "hang" => loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        },
        "garbage" => {
            let _ = out.write_all(b"\xff\xfe{]garbage\x1b[31m");
            std::process::exit(0)
        }
        "huge" => loop {
            if out.write_all(&[b'x'; 1 << 16]).is_err() {
                std::process::exit(0)
            }
        },
        "silent" => std::process::exit(1),
        "killed" => {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::process::exit(1)
        }
        // Told elsewhere: `never-boots`.
        _ => Ok(()),
    }
}

/// Whether a start is to succeed without a machine that runs.
pub fn never_boots(state: &State) -> bool {
    std::fs::read_to_string(state.path("faults"))
        .is_ok_and(|told| told.lines().any(|line| line == "start never-boots"))
}
