//! The built-in Linux sandbox of Moltis.

pub mod detect;
pub mod diagnose;
pub mod limits;
pub mod open;
pub mod seccomp;
