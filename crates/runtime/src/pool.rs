//! The warm pool: sandboxes that are opened before a session needs one, so that a new session's first command waits for
//! no start-up.
//!
//! Only a runtime that lives long has one, only for what a session gets that sets nothing of its own, and only where
//! nothing that shows inside belongs to one session. A pooled sandbox is handed to one session and to no other: that it
//! is the session's is written down before anything runs in it, and nothing ran in it before.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use moltis_config::words::HomePersistence;
use moltis_sandbox::{BackendName, BuildSink, Lifetime, Result, SandboxSpec, SessionKey};
use serde::Serialize;
use tokio::sync::Notify;

use crate::Overrides;
use crate::failover::Asks;
use crate::runtime::{Runtime, ephemeral_key, host_memory, off_thread};
use crate::settings;
use crate::{homes, image};

/// Time that a pooled sandbox which is of no use any more has to end.
const ENDS: Duration = Duration::from_secs(30);

/// What the pool holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// How many there should be: `pool` of the configuration.
    pub wanted: u64,
    /// How many wait for a session.
    pub ready: u64,
    /// Why there are fewer than wanted, if there is a reason that stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Sandboxes that wait for a session.
#[derive(Default)]
pub(crate) struct Pool {
    /// Held while it is filled.
    filling: tokio::sync::Mutex<()>,
    ready: Mutex<Vec<Pooled>>,
    why_not: Mutex<Option<String>>,
    /// Told when a session gets one.
    taken: Notify,
}

/// One of them.
#[derive(Clone)]
pub(crate) struct Pooled {
    pub(crate) backend: BackendName,
    /// What it was opened with, under a key of its own.
    pub(crate) spec: SandboxSpec,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// One that is what `spec` asks for, which nobody else gets.
    pub(crate) fn take(&self, backend: BackendName, spec: &SandboxSpec) -> Option<Pooled> {
        let key = spec.pool_key();
        let mut ready = locked(&self.ready);
        let place = ready.iter().position(|it| it.backend == backend && it.spec.pool_key() == key)?;
        let taken = ready.remove(place);
        self.taken.notify_one();
        Some(taken)
    }

    fn take_this(&self, key: &SessionKey) -> Option<Pooled> {
        let mut ready = locked(&self.ready);
        let place = ready.iter().position(|it| it.spec.key == *key)?;
        Some(ready.remove(place))
    }

    /// Any one, to make room.
    pub(crate) fn take_any(&self) -> Option<Pooled> {
        locked(&self.ready).pop()
    }

    pub(crate) fn ready(&self) -> u64 {
        locked(&self.ready).len() as u64
    }
}

impl Runtime {
    /// What the warm pool holds now.
    pub fn pool_status(&self) -> PoolStatus {
        let wanted = self.config().tools.exec.sandbox.pool.value;
        let ready = self.pool().ready();
        PoolStatus { wanted, ready, why_not: locked(&self.pool().why_not).clone() }
    }

    /// Waits until a session has got one of the pool's since this was last asked.
    pub async fn pool_taken(&self) {
        self.pool().taken.notified().await;
    }

    /// Fills the warm pool, and replaces what is of no use any more: for the start of a program that lives long, whenever
    /// one was taken, and once a minute. A runtime that does not live long has no pool.
    ///
    /// # Errors
    /// Those of opening a sandbox.
    pub async fn fill_pool(&self) -> Result<()> {
        let wanted = self.config().tools.exec.sandbox.pool.value;
        if self.failover().is_none() || wanted == 0 {
            return Ok(());
        }
        let _filling = self.pool().filling.lock().await;
        let why_not = self.fill(wanted).await;
        *locked(&self.pool().why_not) = match &why_not {
            Ok(why_not) => why_not.map(str::to_owned),
            Err(error) => Some(error.to_string()),
        };
        why_not.map(drop)
    }

    /// Ends all pooled sandboxes: for the end of the program.
    pub async fn drain_pool(&self) {
        let _filling = self.pool().filling.lock().await;
        while let Some(pooled) = self.pool().take_any() {
            self.end_pooled(&pooled).await;
        }
    }

    async fn fill(&self, wanted: u64) -> Result<Option<&'static str>> {
        let sandbox = &self.config().tools.exec.sandbox;
        if sandbox.home_persistence.value == HomePersistence::Session {
            return Ok(Some(
                "with `home_persistence = \"session\"` each session has a home of its own, which cannot be mounted later",
            ));
        }
        let overrides = Overrides::default();
        let asks = Asks { choice: settings::choice(self.config(), &overrides), key: None };
        let idle = Lifetime::Idle(sandbox.idle_ttl.value);
        let mut settings = self.settings(overrides.clone(), pool_key(), idle).await?;
        settings.unkept()?;
        let memory = host_memory();
        let route = self.route_past(&asks, &[], |name| settings.on(name, memory)).await?;
        if !route.backend.assigns() {
            self.keep(|_| false).await;
            return Ok(Some("the backend that new sessions get starts sandboxes at once and needs no pool"));
        }
        let (backend, what) = (route.backend.name(), route.spec.pool_key());
        self.keep(|pooled| pooled.backend == backend && pooled.spec.pool_key() == what).await;
        let most = sandbox.max_sandboxes.value;
        loop {
            let ready = self.pool().ready();
            let stored = self.store().run(|db| db.sandboxes()).await?.len() as u64;
            if ready >= wanted || stored + ready >= most {
                return Ok(None);
            }
            settings = self.settings(overrides.clone(), pool_key(), idle).await?;
            let spec = settings.on(backend, memory);
            image::make_ready(&route, &BuildSink::ignore()).await?;
            let owned = spec.clone();
            off_thread(move || homes::make(&owned)).await?;
            route.backend.open(&spec).await?;
            locked(&self.pool().ready).push(Pooled { backend, spec });
        }
    }

    /// Keeps those that are as they should be and run; ends the others.
    async fn keep(&self, fits: impl Fn(&Pooled) -> bool) {
        let all = locked(&self.pool().ready).clone();
        for pooled in all {
            let runs = match self.registry().get(pooled.backend) {
                Some(backend) => matches!(backend.find(&pooled.spec.id()).await, Ok(Some(_))),
                None => false,
            };
            if runs && fits(&pooled) && !self.has_failed(pooled.backend) {
                continue;
            }
            // Somebody may have taken it meanwhile.
            let removed = self.pool().take_this(&pooled.spec.key);
            if let Some(pooled) = removed {
                self.end_pooled(&pooled).await;
            }
        }
    }

    /// Ends one that no session got.
    pub(crate) async fn end_pooled(&self, pooled: &Pooled) {
        let Some(backend) = self.registry().get(pooled.backend) else { return };
        let id = pooled.spec.id();
        match tokio::time::timeout(ENDS, backend.remove(&id)).await {
            Ok(Ok(())) => {}
            // It ends itself after its time without use.
            Ok(Err(error)) => tracing::debug!(%error, "a pooled sandbox stays"),
            Err(_) => tracing::debug!("a pooled sandbox stays: its end takes too long"),
        }
    }
}

/// A key that belongs to no session.
fn pool_key() -> SessionKey {
    let key = format!("pool:{}", ephemeral_key().as_str());
    SessionKey::new(key).unwrap_or_else(|| unreachable!("a pooled key is a valid key"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use moltis_config::BackendChoice;
    use moltis_sandbox::BackendName::{Docker, Namespaces};
    use moltis_sandbox::{Network, Origin, Setting};

    use super::*;
    use crate::fakes::{Machine, open, ran, request, run};

    fn machine(pool: u64) -> Machine {
        let mut machine = Machine::new(&[Docker, Namespaces], BackendChoice::Named(Docker));
        machine.config.tools.exec.sandbox.pool = Setting::new(pool, Origin::File);
        machine
    }

    #[tokio::test]
    async fn a_session_gets_one_and_nobody_else_gets_it() {
        let machine = machine(2);
        let (runtime, engine) = (machine.start().await, machine.engine(Docker));
        runtime.fill_pool().await.unwrap();
        assert_eq!(runtime.pool_status(), PoolStatus { wanted: 2, ready: 2, why_not: None });
        let opened = || engine.opened.load(Ordering::SeqCst);
        assert_eq!(opened(), 2);
        let all: Vec<_> = (0..6)
            .map(|number| {
                let runtime = runtime.clone();
                tokio::spawn(async move {
                    open(&runtime, &format!("s{number}")).await.unwrap().sandbox.id().clone()
                })
            })
            .collect();
        let mut ids = Vec::new();
        for task in all {
            ids.push(task.await.unwrap());
        }
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), opened(), runtime.pool_status().ready), (6, 6, 0));
        assert_eq!(engine.assigned.load(Ordering::SeqCst), 2);
        // It is the session's from then on.
        assert_eq!(ran(&runtime, "s0", "one").await.unwrap(), Docker);
        assert_eq!(opened(), 6);
        runtime.fill_pool().await.unwrap();
        assert_eq!(runtime.pool_status().ready, 2);
        runtime.drain_pool().await;
        assert_eq!((runtime.pool_status().ready, engine.live.lock().unwrap().len()), (0, 6));
    }

    #[tokio::test]
    async fn what_differs_gets_none() {
        let machine = machine(1);
        let (runtime, engine) = (machine.start().await, machine.engine(Docker));
        runtime.fill_pool().await.unwrap();
        let mut open_network = request("s");
        open_network.settings.network = Some(Setting::new(Network::Open, Origin::Flag));
        let mut memory = request("t");
        memory.settings.memory = Some(Setting::new(1 << 30, Origin::Flag));
        for request in [open_network, memory] {
            run(&mut runtime.open_session(&request).await.unwrap(), "one").await.unwrap();
        }
        assert_eq!((engine.assigned.load(Ordering::SeqCst), runtime.pool_status().ready), (0, 1));
    }

    #[tokio::test]
    async fn one_that_cannot_be_handed_over_costs_no_session_anything() {
        let machine = machine(1);
        let (runtime, engine) = (machine.start().await, machine.engine(Docker));
        runtime.fill_pool().await.unwrap();
        // It ended itself meanwhile.
        engine.live.lock().unwrap().clear();
        assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
        assert_eq!((engine.opened.load(Ordering::SeqCst), engine.live.lock().unwrap().len()), (2, 1));
        // And is replaced.
        runtime.fill_pool().await.unwrap();
        engine.live.lock().unwrap().retain(|id, _| *id == moltis_sandbox::SandboxId::of(&request("s").key));
        runtime.fill_pool().await.unwrap();
        assert_eq!((runtime.pool_status().ready, engine.live.lock().unwrap().len()), (1, 2));
    }

    #[tokio::test]
    async fn it_takes_no_session_s_place() {
        let mut machine = machine(2);
        machine.config.tools.exec.sandbox.max_sandboxes = Setting::new(3, Origin::File);
        let (runtime, engine) = (machine.start().await, machine.engine(Docker));
        runtime.fill_pool().await.unwrap();
        for name in ["a", "b"] {
            let mut request = request(name);
            request.settings.memory = Some(Setting::new(1 << 30, Origin::Flag));
            runtime.open_session(&request).await.unwrap();
            assert!(engine.live.lock().unwrap().len() <= 3);
        }
        assert_eq!(runtime.pool_status().ready, 1);
        runtime.fill_pool().await.unwrap();
        assert_eq!(runtime.pool_status().ready, 1);
    }

    #[tokio::test]
    async fn who_has_none_is_told_why() {
        let mut one = machine(1);
        one.config.tools.exec.sandbox.home_persistence = Setting::new(HomePersistence::Session, Origin::File);
        let runtime = one.start().await;
        runtime.fill_pool().await.unwrap();
        assert!(runtime.pool_status().why_not.unwrap().contains("home_persistence"));
        let mut machine = machine(1);
        machine.config.tools.exec.sandbox.backend = Setting::built_in(BackendChoice::Named(Namespaces));
        let runtime = machine.start().await;
        runtime.fill_pool().await.unwrap();
        assert!(runtime.pool_status().why_not.unwrap().contains("needs no pool"));
        // A runtime of one command has none.
        machine.command().fill_pool().await.unwrap();
        assert_eq!(machine.engine(Namespaces).opened.load(Ordering::SeqCst), 0);
        // A failed engine's are not handed out.
        machine.config.tools.exec.sandbox.backend = Setting::built_in(BackendChoice::Named(Docker));
        let runtime = machine.start().await;
        runtime.fill_pool().await.unwrap();
        machine.down(Docker, true);
        assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
        runtime.fill_pool().await.unwrap();
        assert_eq!(runtime.pool_status().ready, 0);
    }
}
