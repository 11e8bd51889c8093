//! Sandboxes in which no agent of ours runs: what is the same whoever starts programs there, an engine or a provider.
//!
//! The backend says how one program is run ([`Runs`]); files, whole trees and the caller's side of a command are made of
//! that alone.

mod answers;
mod command;
mod control;
mod escape;
mod files;
mod random;
mod runs;
mod said;
mod tree;

pub use command::{is_name, not_text, status, too_long, until, variables, words};
pub use control::{Control, Steers, handed};
pub use files::ScriptFiles;
pub use random::{bytes as random_bytes, hex};
pub use runs::{Running, Runs, Sink, Stream};
pub use said::{NotStarted, leftovers, mark, plain, started};
