//! What every provider can do, in nobody's words: start a program, carry its output, take small files.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use moltis_sandbox::Lifetime;

use crate::http::Failure;

/// A program that a provider starts.
pub struct Run {
    /// Program and arguments, never empty.
    pub argv: Vec<String>,
    /// Its variables.
    pub env: Vec<(String, String)>,
    /// When the provider is to kill it, should nobody else have done so.
    pub within: Duration,
    /// Whether it is only a look at the machine, and no use of it.
    pub quiet: bool,
}

/// Output, in the order in which each stream has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of standard output.
    Stdout(String),
    /// Of standard error.
    Stderr(String),
}

/// What a program prints. Dropping it ends nothing.
#[async_trait]
pub trait Output: Send {
    /// The next piece; `None` once it is over.
    async fn next(&mut self) -> Result<Option<Piece>, Failure>;
}

/// One rented machine.
#[async_trait]
pub trait Machine: Send + Sync {
    /// Starts a program. It goes on if its output is not read.
    async fn run(&self, run: Run) -> Result<Box<dyn Output>, Failure>;

    /// Starts a program that goes on by itself, under this name; what it prints is nobody's. It has no time of the
    /// provider's.
    async fn detach(&self, name: &str, run: Run) -> Result<(), Failure>;

    /// What is left at the provider of a program of this name that is over goes.
    async fn let_go(&self, _name: &str) {}

    /// Puts these files there, in this order, by absolute path.
    async fn put(&self, files: Vec<(String, Bytes)>) -> Result<(), Failure>;

    /// Whether it takes a list of hosts that programs may reach.
    fn takes_list(&self) -> bool {
        false
    }

    /// Lets programs reach these hosts and nothing else.
    async fn allow(&self, _hosts: &[String]) -> Result<(), Failure> {
        Err(Failure::Unlike("there is no list of hosts".to_owned()))
    }

    /// Sees to it that it ends after as much time without use as this asks for, where the provider keeps that time.
    async fn ends_after(&self, _lifetime: Lifetime) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether it runs.
    async fn lives(&self) -> Result<bool, Failure>;

    /// Sees to it that it runs for at least this long from now, for a use that the provider hears of by itself as it begins.
    async fn keep(&self, time: Duration) -> Result<(), Failure>;

    /// The same for what runs there by itself, of which the provider hears nothing.
    async fn remind(&self, time: Duration) -> Result<(), Failure> {
        self.keep(time).await
    }
}
