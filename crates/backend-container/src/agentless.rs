//! Sandboxes without an agent: where none can be the first process of a container, a shell of the image waits there, and
//! the engine runs what is asked for beside it.
//!
//! What an agent knows by being everybody's parent is known here by a mark: each command has a limit of file locks of
//! its own, which no kernel looks at any more, which every descendant inherits, whatever it does to its environment, its
//! session or its parents, which nobody can raise again, and which anybody can read in `/proc`.

mod exec;
mod failure;
mod means;
mod program;
mod sandbox;
mod scripts;
mod steward;
mod tools;

use std::time::Duration;

pub use means::{Guest, Guests, Means, means};
pub use sandbox::{Agentless, AgentlessSandbox, NO_BACKGROUND, NO_FORWARD};
pub use scripts::first_process;

/// How long a sandbox outlives the process that held it, where that could not end it itself.
pub const FORSAKEN: Duration = Duration::from_secs(60);

/// Whether an image has what it takes.
///
/// # Errors
/// `image-unsuitable`, which names what is missing.
pub fn suits(facts: &crate::image::ImageFacts, why: &str) -> moltis_sandbox::Result<()> {
    if facts.has_shell {
        return Ok(());
    }
    let needed =
        "something of the image must wait as the first process of the container, and run what is asked for";
    Err(failure::image("/bin/sh", &format!("{needed}, since {why}")))
}

/// What it costs, for people.
pub fn cost(why: &str) -> String {
    format!(
        "without an agent: {why}; each command and file operation costs two or three round trips to the engine, what a \
         command left behind is found by a mark, and the deadline ends with the program that set it"
    )
}
