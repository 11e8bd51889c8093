//! The end of a sandbox on the host, and what is cleaned up after it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::client::Patience;
use moltis_agent::{Closer, UnixTransport};
use moltis_sandbox::SandboxId;

use crate::error::{Error, Result, blocking, long};
use crate::folder::{RunFolder, SOCKET};
use crate::process::Agent;
use crate::record::Record;
use crate::scratch;

/// How long an agent is waited for when all it has to do is answer.
pub const ANSWER: Patience = Patience {
    hello: Duration::from_secs(2),
    answer: Duration::from_secs(2),
    work: Duration::from_secs(2),
    grace: Duration::from_secs(2),
};

/// How long an agent may take to end all that it started; it gives up after 5 s itself.
const ENDING: Duration = Duration::from_secs(8);

/// How long supervisors may take that have lost their agent.
const ORPHANED: Duration = Duration::from_secs(8);

/// One sandbox as this process knows it.
#[derive(Clone, Debug)]
pub struct Held {
    pub data_dir: PathBuf,
    pub id: SandboxId,
    pub record: Record,
    pub agent: Agent,
}

impl Held {
    /// Ends the agent and all that it started. The folder's lock is held.
    pub async fn end(&self, folder: &RunFolder) -> Result<()> {
        if self.agent.is_alive() {
            self.agent.wake();
            if let Ok(transport) = UnixTransport::open(folder.directory(), SOCKET, self.agent.pid()) {
                let _ = moltis_agent::sandbox::shutdown(&transport, ANSWER).await;
            }
            end(&self.agent, &self.id).await?;
        }
        self.agent.reap();
        Ok(())
    }

    /// Removes what is left of the sandbox once its agent is over: the run folder's content, and the scratch folder of
    /// an ephemeral one. Does nothing when another sandbox has taken its place.
    pub async fn clean(&self) -> Result<()> {
        match RunFolder::find(&self.data_dir, &self.id).await? {
            Some(folder) => self.clean_locked(folder).await,
            None => Ok(()),
        }
    }

    async fn clean_locked(&self, folder: RunFolder) -> Result<()> {
        let this = self.clone();
        // A scratch folder may hold very much.
        long(move || this.clean_in(folder)).await
    }

    /// Blocks.
    fn clean_in(&self, folder: RunFolder) -> Result<()> {
        match folder.record() {
            Some(record) if record.process == self.record.process => {
                if record.ephemeral {
                    scratch::remove(&self.data_dir, &self.id)?;
                }
                folder.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits for the end of an agent that lost its lifeline, kills it if that does not come, and cleans up: all without
    /// any runtime. Blocks.
    fn clean_after_end(&self) {
        if !self.agent.wait(ENDING) {
            self.agent.kill();
            if !self.agent.wait(ORPHANED) {
                return;
            }
        }
        self.agent.reap();
        // Whoever holds the lock may have taken its place, or may be the watching task of a runtime that ends before it
        // has removed anything: only the folder tells.
        let Some(folder) = RunFolder::find_blocking(&self.data_dir, &self.id) else { return };
        if let Err(error) = self.clean_in(folder) {
            tracing::warn!(sandbox = %self.id, %error, "a sandbox that ended was not cleaned up");
        }
    }

    /// Cleans up by itself once the agent ends, for as long as this process lives.
    pub fn watch(self) {
        tokio::spawn(async move {
            if self.agent.ended().await.is_err() {
                return;
            }
            self.agent.reap();
            if let Err(error) = self.clean().await {
                tracing::warn!(sandbox = %self.id, %error, "a sandbox that ended was not cleaned up");
            }
        });
    }
}

/// Waits for the end of an agent that was told to end, and helps where it does not come.
///
/// # Errors
/// [`Error::NotEnded`].
pub async fn end(agent: &Agent, id: &SandboxId) -> Result<()> {
    if agent.ends_within(ENDING).await {
        return Ok(());
    }
    let supervisors = {
        let agent = agent.clone();
        blocking(move || Ok(agent.supervisors())).await?
    };
    agent.kill();
    let mut ended = agent.ends_within(ORPHANED).await;
    for supervisor in supervisors {
        supervisor.wake();
        ended &= supervisor.ends_within(ORPHANED).await;
    }
    if ended { Ok(()) } else { Err(Error::NotEnded(id.clone())) }
}

/// Ends a sandbox when its handle says so; without a word, an ephemeral one ends with the handle.
pub struct HostCloser {
    held: Held,
    /// Our end of the pipe whose end the agent waits for.
    lifeline: Option<OwnedFd>,
    closed: AtomicBool,
}

impl HostCloser {
    /// For a sandbox, with its lifeline if this process holds it.
    pub fn new(held: Held, lifeline: Option<OwnedFd>) -> Self {
        Self { held, lifeline, closed: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Closer for HostCloser {
    async fn close(&self) -> moltis_sandbox::Result<()> {
        match RunFolder::find(&self.held.data_dir, &self.held.id).await? {
            Some(folder) => {
                self.held.end(&folder).await?;
                self.held.clean_locked(folder).await?;
            }
            // Somebody removed the folder: there is no socket by which to tell the agent.
            None => {
                self.held.agent.kill();
                end(&self.held.agent, &self.held.id).await?;
                self.held.agent.reap();
            }
        }
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for HostCloser {
    fn drop(&mut self) {
        if self.closed.load(Ordering::Relaxed) || self.lifeline.take().is_none() {
            return;
        }
        // The task that watches does this as well, but not when this is dropped because the runtime ends. If the process
        // ends too, the next opening sweeps.
        let held = self.held.clone();
        let _ = std::thread::Builder::new().spawn(move || held.clean_after_end());
    }
}
