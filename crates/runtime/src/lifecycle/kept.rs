//! What a program that lives long does for sandboxes: at its start it takes over those that run, and from time to time it
//! ends those that are unused and cannot do so themselves.

use std::time::Duration;

use moltis_config::Config;
use moltis_sandbox::{Network, Result, SessionKey};
use serde::Serialize;

use super::{End, list::Pruned};
use crate::runtime::Runtime;
use crate::store::{Gone, SandboxState, Session, StoreError};

/// Time that one sandbox has to answer while all are looked at.
const ANSWERS: Duration = Duration::from_secs(10);

/// Sandboxes that are looked at at the same time.
const AT_ONCE: usize = 16;

/// What was found at the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// Sandboxes that run and go on as they were.
    pub running: u64,
    /// Sessions whose sandbox does not answer now; nothing was done to it.
    pub silent: u64,
    /// Commands whose caller had died: their outcome is not known.
    pub lost: u64,
    /// What was left of others, and was removed.
    pub pruned: Pruned,
}

/// What a round of keeping did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Sandboxes that were ended because nobody had used them for their time.
    pub idle: u64,
    /// Those of which nothing was left.
    pub gone: u64,
}

enum Found {
    Running,
    Silent,
    None,
}

impl Runtime {
    /// Takes over what runs: for the start of a program that lives long. Commands whose callers have died are told as
    /// lost, the ends of background commands are written down, the proxy stands behind what reaches trusted hosts, and
    /// what belongs to nobody is removed.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn adopt_all(&self) -> Result<Adopted> {
        use futures_util::StreamExt as _;

        let lost = self.store().run(|db| db.sweep_lost()).await?;
        let sessions = self.store().run(|db| db.sandboxes()).await?;
        let looks = sessions.into_iter().map(|session| async move { self.take_over(&session).await });
        let found: Vec<_> = futures_util::stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        let count = |wanted: fn(&Found) -> bool| found.iter().filter(|found| wanted(found)).count() as u64;
        let pruned = self.prune(false).await?;
        self.sweep_snapshots().await?;
        Ok(Adopted {
            running: count(|found| matches!(found, Found::Running)),
            silent: count(|found| matches!(found, Found::Silent)),
            lost: lost as u64,
            pruned,
        })
    }

    async fn take_over(&self, session: &Session) -> Found {
        let looked = tokio::time::timeout(ANSWERS, self.find_of(session)).await;
        let Ok(Ok(found)) = looked else {
            tracing::warn!(id = %session.sandbox_id, "a sandbox does not answer");
            return Found::Silent;
        };
        let Some((_, sandbox)) = found else { return Found::None };
        self.settle_in(session, &*sandbox).await;
        let generation = session.sandbox.as_ref().map_or(0, |row| row.generation);
        if self.is_proxied(session) {
            let behind = self.stand_behind(&session.key, generation, &*sandbox);
            match tokio::time::timeout(ANSWERS, behind).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "nobody stands behind a sandbox's proxy port"),
                Err(_) => tracing::debug!("a sandbox's proxy port does not answer"),
            }
        }
        Found::Running
    }

    /// Whether what runs in the session's sandbox reaches hosts by the proxy.
    fn is_proxied(&self, session: &Session) -> bool {
        let unkept = |row: &crate::store::StoredSandbox| {
            row.judged.not_enforced.iter().any(|listed| listed.key == "network")
        };
        let network = session.overrides.network.unwrap_or(configured_network(self.config()));
        network == Network::Trusted && !session.sandbox.as_ref().is_some_and(unkept)
    }

    /// Ends the sandboxes that nobody has used for their time and that did not end by themselves, and forgets those that
    /// did: for every minute of a program that lives long.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn end_unused(&self) -> Result<Kept> {
        let mut kept = Kept::default();
        for session in self.store().run(|db| db.sandboxes()).await? {
            let round = self.keep_one(&session.key);
            match tokio::time::timeout(4 * ANSWERS, round).await {
                Ok(Ok(Some(Gone::Idle))) => kept.idle += 1,
                Ok(Ok(Some(_))) => kept.gone += 1,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, id = %session.sandbox_id, "a sandbox cannot be kept")
                }
                Err(_) => tracing::debug!(id = %session.sandbox_id, "a sandbox does not answer"),
            }
        }
        Ok(kept)
    }

    async fn keep_one(&self, key: &SessionKey) -> Result<Option<Gone>> {
        let Some(session) = self.session(key).await? else { return Ok(None) };
        // Whoever has the lock starts it or ends it.
        let lock = match self.store().lock_session(session.number, Duration::ZERO).await {
            Ok(lock) => lock,
            Err(StoreError::SessionBusy(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(session) = self.locked(&lock, key).await? else { return Ok(None) };
        let Some(row) = session.sandbox.clone() else { return Ok(None) };
        let Some((_, sandbox)) = self.find_of(&session).await? else {
            if row.state != SandboxState::Running || self.is_stopped(&session).await? {
                return Ok(None);
            }
            return self.end_known(&lock, &session, &row, End::Always(Gone::Stopped)).await.map(Some);
        };
        // Being asked, a machine at a provider goes on with what runs in it.
        let activity = sandbox.activity().await?;
        // One that is stopped where it is keeps its files, which it does not if it is ended from here.
        if self.registry().get(row.backend).is_some_and(|backend| backend.revives()) {
            return Ok(None);
        }
        if activity.operations > 0 || activity.idle < self.idle_ttl(&session) {
            return Ok(None);
        }
        let ended = self.end_idle(&lock, &session, &row, Gone::Idle).await?;
        Ok(ended.then_some(Gone::Idle))
    }
}

fn configured_network(config: &Config) -> Network {
    config.tools.exec.sandbox.network.value
}
