//! The backends of the host through the public traits, with real processes.

mod adopt;
mod common;
mod exec;
mod files;
mod helper;
mod life;
mod limits;
mod none;
mod ordinary;
