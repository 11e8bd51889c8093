//! What a command of the program and a running gateway say to each other over the private socket: the command asks, the
//! gateway opens the sandbox, runs the command in it and passes everything on as it happens.
//!
//! A link begins as an HTTP request for an upgrade and goes on in the frames of
//! [`moltis_agent_protocol::frame`]: raw frames carry standard input, output and error; control frames carry an
//! [`Ask`] or a [`Tell`] as JSON. One link is one place and at most one command in it. Whoever asks may send
//! [`WINDOW`] bytes of input that the command has not taken yet, so that his orders always pass.

mod client;
mod message;
mod same;
mod wire;

pub use client::{Link, Linked, Listener, Stopper};
pub use message::{Ask, AskedCommand, AskedPlace, Failed, Question, Tell, Where};
pub use same::{Sameness, sameness};
pub use wire::{Broken, Read, Reader, Writer, wire};

/// Name of the private socket in the data directory.
pub const SOCKET: &str = "gateway.sock";

/// Path of the request that becomes a link.
pub const PATH: &str = "/api/v1/link";

/// What it is upgraded to. Another version speaks another.
pub const PROTOCOL: &str = "moltis-link/1";

/// Header with what both sides must agree on, as [`sameness`] gives it.
pub const SAMENESS: &str = "moltis-sameness";

/// Bytes of standard input that may be under way.
pub const WINDOW: usize = 512 << 10;

/// Bytes of one piece of standard input or output.
pub const PIECE: usize = 64 << 10;

/// Bytes of the window that the smallest piece of input takes, so that there are never more pieces than are room for.
pub const LEAST: usize = 512;

/// Bytes of the window that a piece of input of this length takes.
pub fn cost(bytes: usize) -> usize {
    bytes.max(LEAST)
}
