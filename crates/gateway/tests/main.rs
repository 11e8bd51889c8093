//! The gateway as its callers see it. Every answer that a test gets is held against the OpenAPI document.
#![allow(clippy::unwrap_used, reason = "tests")]

mod auth;
mod conform;
mod document;
mod exec;
mod files;
mod lasting;
mod mcp;
mod network;
mod page;
mod sessions;
mod settings;
mod support;
mod system;
mod terminal;
mod tls;
