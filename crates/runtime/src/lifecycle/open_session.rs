//! Commands in a session whose sandbox runs.

use moltis_sandbox::{BuildSink, Error, Exec, ExecRequest, Result, SandboxSpec, SessionKey};

use super::OpenSession;
use crate::error::DISK_LOW;
use crate::network::is_carried;
use crate::store::Gone;
use crate::{recorded, usage};

/// Code of the agent's refusal when the Managed Files mount is not where it was.
const FILES_MOUNT_LOST: &str = "files-mount-lost";

const WITHOUT_PROXY: &str = "network `trusted`: what runs in the background reaches it only while another command of this \
                             session runs, since the proxy is in the program that ran the command";

impl OpenSession {
    /// Starts a command and remembers it. If the sandbox turns out to be gone before anything ran, or its Managed Files
    /// were tampered with, it is made anew, once, which [`restarted`](Self::restarted) then says.
    ///
    /// # Errors
    /// Those of the sandbox; `home-over-quota`; `disk-low`; those of the store. `Lost` means that it may have run.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec> {
        self.see_quota().await?;
        if self.runtime.has_failed(self.backend) {
            // It may still answer; but what was given up is given up for all.
            self.runtime.see_room().await?;
            self.reopen(None).await?;
        }
        let error = match self.start(request.clone()).await {
            // Another sandbox has no more room.
            Err(error @ Error::Unavailable(_)) if error.code() != DISK_LOW => error,
            other => return other,
        };
        let tampered = error.code() == FILES_MOUNT_LOST;
        let moves = self.runtime.fail_over(self.backend, error.diagnosis()).await;
        if !tampered && !moves && self.sandbox.activity().await.is_ok() {
            return Err(error);
        }
        self.reopen(tampered.then_some(self.generation)).await?;
        if tampered && self.restarted == Some(Gone::Recreated) {
            self.restarted = Some(Gone::FilesMount);
        }
        self.start(request).await
    }

    /// Opens the session's sandbox once more, but never the one of this opening.
    async fn reopen(&mut self, without: Option<u64>) -> Result<()> {
        // What the request asked for is asked for still: a demand that was kept may not be where it goes now.
        let mut again = self.request.clone();
        (again.must_exist, again.recreate) = (true, false);
        let lost = std::mem::take(&mut self.lost);
        let opening = self.runtime.clone();
        *self = Box::pin(opening.open_without(&again, without, &BuildSink::ignore())).await?;
        self.lost.extend(lost);
        Ok(())
    }

    async fn start(&mut self, mut request: ExecRequest) -> Result<Exec> {
        let has_proxy = is_carried(&self.spec, &self.not_enforced);
        if request.background && has_proxy && self.runtime.failover().is_none() {
            self.notes.push(WITHOUT_PROXY.to_owned());
        }
        let own = self.env.iter().map(|(name, value)| (name.into(), value.expose().into()));
        request.env = own.chain(request.env).collect();
        let runs = recorded::Runs {
            runtime: self.runtime.clone(),
            session: self.session.number,
            generation: self.generation,
            backend: self.backend,
            caller: self.request.caller.clone(),
        };
        recorded::exec(runs, &*self.sandbox, request).await
    }

    async fn see_quota(&self) -> Result<()> {
        usage::see_quota(&self.spec).await
    }

    /// Which session.
    pub fn key(&self) -> &SessionKey {
        &self.session.key
    }

    /// What its sandbox is.
    pub fn spec(&self) -> &SandboxSpec {
        &self.spec
    }
}
