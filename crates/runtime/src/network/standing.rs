//! This process behind the proxy port of one sandbox.

use std::sync::Arc;
use std::time::Duration;

use moltis_egress::Policy;
use moltis_sandbox::{Network, Result, Sandbox, SessionKey};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{Counted, policy};
use crate::approvals::SessionApprovals;
use crate::runtime::Runtime;

/// How often what other processes have changed is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// How often in a row that may fail before nothing is let through any more.
const PATIENCE: u32 = 10;

/// Whose sandbox, and by which runtime.
#[derive(Clone)]
pub struct Behind {
    pub runtime: Runtime,
    pub session: SessionKey,
}

impl Behind {
    /// Stands behind the sandbox's proxy port, unless the session's network is another by now.
    ///
    /// # Errors
    /// Those of the sandbox and of the store; the proxy in front of ours is none.
    pub async fn stand(&self, sandbox: &dyn Sandbox) -> Result<Option<Standing>> {
        let made = self.runtime.made_road()?;
        let changes = self.runtime.network_changes();
        let rules = self.runtime.store().network_rules(&self.session).await?;
        let generation = rules.generation;
        // After the rules: what changes from here on is seen as a change.
        if self.is_of_another_network().await? {
            return Ok(None);
        }
        let (tell, policy) = watch::channel(policy(&self.runtime.network_config(), rules));
        let forwarder = sandbox.egress().await?;
        let port = forwarder.port();
        let mut approvals = SessionApprovals::new(self.runtime.store().clone(), self.session.clone());
        if let Some(listener) = self.runtime.road().questions.get() {
            approvals = approvals.telling(Arc::clone(listener));
        }
        let session = made.proxy.session(self.session.as_str(), policy, Arc::new(approvals));
        let behind = self.clone();
        let counted = Counted::new(&made.standing);
        let task = tokio::spawn(async move {
            // The session goes before it: its connections are cut first.
            let (_counted, session) = (counted, session);
            tokio::select! {
                why = session.run(forwarder) => tracing::debug!(%why, "nobody stands behind a proxy port any more"),
                () = behind.follow(Seen { generation, changes }, tell) => {}
            }
        });
        Ok(Some(Standing { port, task: task.abort_handle() }))
    }

    /// Tells of every change of what the session may reach, until its network is something else than `trusted`.
    async fn follow(&self, mut seen: Seen, tell: watch::Sender<Policy>) {
        let mut failed = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            match self.changed(&mut seen).await {
                Ok(Change::None) => failed = 0,
                Ok(Change::Policy(policy)) => {
                    failed = 0;
                    tell.send_if_modified(|now| std::mem::replace(now, policy.clone()) != policy);
                }
                Ok(Change::NotTrusted) => {
                    // What is open is cut, and that is written down as what it is, before nobody stands there any more.
                    tell.send_replace(Policy::nothing());
                    tokio::time::sleep(LOOK).await;
                    return;
                }
                Err(error) => {
                    failed += 1;
                    // What cannot be read may have been taken back.
                    if failed == PATIENCE {
                        tracing::warn!(%error, "what a session may reach cannot be read: it reaches nothing");
                        tell.send_replace(Policy::nothing());
                        seen = Seen::default();
                    }
                }
            }
        }
    }

    /// A sandbox of one command, which is not stored, keeps the network that it was opened with.
    pub(super) async fn is_of_another_network(&self) -> Result<bool> {
        let Some(session) = self.runtime.session(&self.session).await? else { return Ok(false) };
        let configured = self.runtime.network_config().tools.exec.sandbox.network.value;
        Ok(session.overrides.network.unwrap_or(configured) != Network::Trusted)
    }

    async fn changed(&self, seen: &mut Seen) -> Result<Change> {
        let store = self.runtime.store();
        let changes = self.runtime.network_changes();
        if store.network_generation().await? == seen.generation && changes == seen.changes {
            return Ok(Change::None);
        }
        let rules = store.network_rules(&self.session).await?;
        if self.is_of_another_network().await? {
            return Ok(Change::NotTrusted);
        }
        // Only now: what could not be read is a change still.
        *seen = Seen { generation: rules.generation, changes };
        Ok(Change::Policy(policy(&self.runtime.network_config(), rules)))
    }
}

/// Which state of the rules, and of the configuration, the policy was made of.
#[derive(Clone, Copy, Default)]
struct Seen {
    generation: u64,
    changes: u64,
}

enum Change {
    None,
    Policy(Policy),
    NotTrusted,
}

/// Until this is dropped this process stands behind the port.
pub struct Standing {
    port: u16,
    task: AbortHandle,
}

impl Standing {
    /// The port inside.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it still does: not once the sandbox has ended, or its network is another.
    pub fn stands(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.task.abort();
    }
}
