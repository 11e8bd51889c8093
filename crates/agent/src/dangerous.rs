//! Names that make the host run code: hooks, editor settings, environment files. Which of them a folder holds before a
//! sandbox may write to it, and which were made since.
//!
//! All of it goes by a handle of the folder, never through a link, and is bounded: the folder is as hostile as what
//! writes to it. It blocks on the file system; call it off the async threads.

mod pattern;
pub mod protect;
mod survey;
#[cfg(test)]
mod tests;
mod walk;
mod watched;

pub use pattern::{Patterns, name_matches};
pub use survey::{Found, Kind, Made, Survey};
pub use watched::{Watched, decode, encode, tell};
