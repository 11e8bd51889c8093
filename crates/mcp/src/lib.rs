//! The tools that a model sees: commands, files and background commands of one sandbox, over MCP.
//!
//! A [`Server`] answers for one place, which no argument of a tool can change: a sandbox of its own, a session that
//! whoever starts it names, or, over HTTP, the session that the gateway writes into each request ([`Access`]).
//!
//! [`stdio`] serves one client over a pair of streams. With the feature `http`, [`http_service`] is a tower service
//! for a router.

mod answer;
mod arguments;
mod error;
#[cfg(feature = "http")]
mod http;
mod place;
mod progress;
mod schema;
mod server;
pub mod stdio;
mod tools;

pub use error::ToolError;
#[cfg(feature = "http")]
pub use http::{HttpService, http_service};
pub use place::{Access, Place};
pub use server::Server;
