//! How one program is run where no agent is: what a backend has to bring.

use async_trait::async_trait;
use moltis_sandbox::{Error, Result};
use tokio::io::AsyncWrite;

/// A program's input.
pub type Sink = Box<dyn AsyncWrite + Send + Unpin>;

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Where programs run: a container of an engine, a machine at a provider.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Starts a tool, in the C locale, as the sandbox's user, in any directory, and waits until it runs. The sandbox counts
    /// as used until what is returned is dropped, and dropping it ends the tool with its descent.
    ///
    /// # Errors
    /// `Unavailable` when nothing ran, `Lost` when it may have.
    async fn start(&self, argv: &[&[u8]], input: bool) -> Result<Box<dyn Running>>;

    /// The error for a sandbox that has not what it takes.
    fn unsuitable(&self, what: &str, why: &str) -> Error;
}

/// A tool that runs.
#[async_trait]
pub trait Running: Send {
    /// Its input, once, if it has one.
    fn input(&mut self) -> Option<Sink>;

    /// The next piece of output; `None` when there is no more.
    ///
    /// # Errors
    /// `Lost` when it breaks off.
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>>;

    /// Waits for its end, after its output: the shell's number for it. What lives on of it is let go.
    ///
    /// # Errors
    /// `Lost` when that cannot be known.
    async fn end(&mut self) -> Result<i32>;
}
