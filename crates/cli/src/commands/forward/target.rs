//! The sandbox that connections go to: the one that the session has at the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moltis_runtime::Runtime;
use moltis_sandbox::{Duplex, Error, Result, Sandbox, SessionKey};

use crate::render;

/// No server is ever there: whoever asks for it is told so by a sandbox that has ports.
const NO_PORT: u16 = 0;

/// How often the sandbox is told that it is in use.
const OFTEN: Duration = Duration::from_millis(300);
pub const SELDOM: Duration = Duration::from_secs(20);

/// A session's sandbox, found anew when the session has got another one.
pub struct Target {
    runtime: Runtime,
    key: SessionKey,
    sandbox: Mutex<Arc<dyn Sandbox>>,
    /// What was said last of each port; of none while all is well.
    said: Mutex<BTreeMap<Option<u16>, String>>,
}

impl Target {
    pub fn new(runtime: Runtime, key: SessionKey, sandbox: Arc<dyn Sandbox>) -> Self {
        Self { runtime, key, sandbox: Mutex::new(sandbox), said: Mutex::default() }
    }

    /// Connects to one of its ports. Nothing is started for it.
    ///
    /// # Errors
    /// `port-closed`, `session-missing`, `sandbox-not-running`, those of the backend.
    pub async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        let sandbox = Arc::clone(&*self.sandbox.lock().unwrap_or_else(PoisonError::into_inner));
        match sandbox.connect(port).await {
            Err(error) if is_about_the_sandbox(&error) => self.found().await?.connect(port).await,
            answered => answered,
        }
    }

    /// The sandbox that the session has now.
    async fn found(&self) -> Result<Arc<dyn Sandbox>> {
        let (_, sandbox) = self.runtime.running_sandbox(&self.key).await?;
        *self.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&sandbox);
        Ok(sandbox)
    }

    /// Sees that it has ports, and begins its idle time anew.
    ///
    /// # Errors
    /// `Refused` where it has none, and those of [`connect`](Self::connect).
    pub async fn touch(&self) -> Result<()> {
        match self.connect(NO_PORT).await {
            Err(error) if error.code() == "request-invalid" => Ok(()),
            answered => answered.map(drop),
        }
    }

    /// Time until the next [`touch`](Self::touch), by which its idle time never runs out.
    ///
    /// # Errors
    /// `session-missing`, those of the store.
    pub async fn pause(&self) -> Result<Duration> {
        let session = self.runtime.existing_session(&self.key).await?;
        let idle = match session.overrides.idle_ttl_secs {
            Some(secs) => Duration::from_secs(secs),
            None => self.runtime.config().tools.exec.sandbox.idle_ttl.value,
        };
        Ok((idle / 4).clamp(OFTEN, SELDOM))
    }

    /// Says on standard error why a port, or the sandbox, cannot be reached, unless that was said last.
    pub fn say(&self, port: Option<u16>, error: &Error) {
        let diagnosis = error.diagnosis();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(port, diagnosis.code.to_string()).is_some_and(|last| *last == *diagnosis.code) {
            return;
        }
        let diagnosis = diagnosis.clone();
        // Whoever reads it may be slow, and connections go on meanwhile.
        tokio::task::spawn_blocking(move || render::warning(&diagnosis));
    }

    /// All is well again.
    pub fn is_well(&self, port: Option<u16>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
    }
}

/// Whether an error says something of the sandbox as a whole, so that another one may be there by now.
fn is_about_the_sandbox(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_) | Error::Lost(_)) && error.code() != "port-closed"
}
