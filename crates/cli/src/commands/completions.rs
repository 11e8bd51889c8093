//! `moltis completions`: what makes a shell complete the program's words.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, CompletionShell};
use crate::failure::Failure;
use crate::output;

/// Prints it; gives the exit status.
pub fn run(shell: CompletionShell) -> Result<i32, Failure> {
    let shell = match shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "moltis", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
