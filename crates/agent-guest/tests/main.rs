//! The agent as a host sees it: the built binary on a socket of its own.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod client;
mod container;

mod background;
mod ends;
mod exec;
mod idle;
mod init;
mod life;
mod streams;
mod terminal;
mod usage;
