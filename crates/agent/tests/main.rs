//! The host side against a real agent, run as a plain process, and against agents that lie.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod agent;
mod container;
mod docker;
mod egress;
mod exec;
mod files;
mod forward;
mod hostile;
mod relay;
