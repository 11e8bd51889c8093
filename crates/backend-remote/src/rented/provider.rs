//! What differs between providers.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_sandbox::{Result, SandboxId, SandboxSpec};

use crate::http::Failure;
use crate::journal::{Entry, Ready};
use crate::machine::Machine;

/// A machine, as its provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name there.
    pub name: String,
    /// Whose it is, if it says so in a way that we do.
    pub id: Option<SandboxId>,
    /// Its state, in the provider's word.
    pub state: String,
    /// Whether it runs, or is about to.
    pub runs: bool,
    /// When it was made, in seconds since 1970; 0 if that is not known.
    pub created_secs: u64,
}

/// One account at a provider.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The provider's name, for people.
    fn title(&self) -> &'static str;

    /// Where its API answers.
    fn api(&self) -> &str;

    /// The account or project in which machines are looked for by name.
    fn account(&self) -> &str;

    /// What its answers are asked with; for nothing but to tell one from another.
    fn secret(&self) -> &str;

    /// What is spoken there.
    fn version(&self) -> String;

    /// What whoever uses it ought to know.
    fn notes(&self) -> Vec<String>;

    /// Whether the token may be used.
    async fn try_out(&self) -> Result<(), Failure>;

    /// The machines that carry this word for a data directory.
    async fn labelled(&self, instance: &str) -> Result<Vec<Listed>, Failure>;

    /// Whether this spec can be kept at all, before anything is made.
    ///
    /// # Errors
    /// `Refused`.
    fn judge(&self, spec: &SandboxSpec) -> Result<()>;

    /// Makes the machine that the entry names, once, and looks at it.
    ///
    /// # Errors
    /// Those of the provider. What there may be of the machine by then is removed by whoever called.
    async fn make(
        &self,
        entry: &Entry,
        spec: &SandboxSpec,
        instance: String,
    ) -> Result<(Arc<dyn Machine>, Ready)>;

    /// The machine, if it runs.
    async fn running(&self, ready: &Ready) -> Result<Option<Arc<dyn Machine>>, Failure>;

    /// Whether it stops machines that are not used and can start them again.
    fn stops(&self) -> bool {
        false
    }

    /// Whether the machine was stopped and can be made to run again with what is on its disk.
    async fn is_stopped(&self, _: &Ready) -> Result<bool, Failure> {
        Ok(false)
    }

    /// The machine, if it runs or can be made to run again with what is on its disk.
    async fn woken(&self, ready: &Ready) -> Result<Option<Arc<dyn Machine>>, Failure> {
        self.running(ready).await
    }

    /// Ends it, before it is removed, where that is a call of its own. One that is over is no error.
    async fn stop(&self, ready: &Ready) -> Result<(), Failure>;

    /// Removes it by name.
    async fn delete(&self, name: &str) -> Result<(), Failure>;
}
