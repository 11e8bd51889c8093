//! How the tool says that it failed: one sentence on standard error, and an exit code.

use std::fmt::Display;

/// Why the tool ends without having done what it was asked.
#[derive(Debug)]
pub struct Failed {
    /// Its exit code.
    pub code: i32,
    /// What it prints on standard error.
    pub words: String,
}

/// Result of a subcommand: the exit code.
pub type Result<T = i32> = std::result::Result<T, Failed>;

/// Any failure but that of the arguments.
pub fn error(words: impl Display) -> Failed {
    Failed { code: 1, words: format!("Error: {words}") }
}

/// Arguments that it does not know (`EX_USAGE`).
pub fn usage(command: &str, words: impl Display) -> Failed {
    let more = format!(
        "Usage: container {command} [<options>]\n  See 'container {command} --help' for more information."
    );
    Failed { code: 64, words: format!("Error: {words}\n{more}") }
}

/// A container that is not there.
pub fn no_container(id: &str) -> Failed {
    error(format!("notFound: \"container with ID {id} not found\""))
}

impl From<std::io::Error> for Failed {
    fn from(cause: std::io::Error) -> Self {
        error(format!("unknown: \"{cause}\""))
    }
}

/// A program of this machine's. One that is run with variables of its own would be looked for by them.
pub fn program(name: &str) -> Result<std::path::PathBuf> {
    crate::need::program(name).ok_or_else(|| error(format!("unknown: \"this machine has no {name}\"")))
}
