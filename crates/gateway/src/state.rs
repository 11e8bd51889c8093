//! What all requests share.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use moltis_config::Loaded;
use moltis_runtime::store::{Approval, KeyScope, now_millis};
use moltis_runtime::{Adopted, ExplainRequest, Explanation, Runtime};
use moltis_sandbox::{BackendName, Diagnosis};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::auth::Hosts;
use crate::limits::{self, Limits};
use crate::metrics::{Gauges, Metrics};
use crate::options::Options;
use crate::tls::Tls;

/// What all requests share.
pub struct State {
    /// How it was started.
    pub options: Options,
    runtime: RwLock<Runtime>,
    loaded: RwLock<Arc<Loaded>>,
    /// Held while the configuration is written or read anew.
    pub changing: tokio::sync::Mutex<()>,
    /// What is counted.
    pub metrics: Metrics,
    /// Requests of each caller.
    pub requests: Limits,
    /// Wrong credentials from each address.
    pub failures: Limits,
    hosts: RwLock<Arc<Hosts>>,
    /// What it listens on.
    pub bind: IpAddr,
    /// The port that it listens on.
    pub port: u16,
    /// Whether what goes over the network is encrypted.
    pub encrypted: bool,
    /// What encrypts it.
    pub tls: Option<Arc<Tls>>,
    /// When it started, in milliseconds since 1970.
    pub started_millis: u64,
    adopted: Mutex<Option<Adopted>>,
    warnings: Mutex<Vec<Diagnosis>>,
    /// Whether it is about to end.
    pub ending: watch::Sender<bool>,
    /// Cancelled at the end, for those who wait for that.
    pub stop: CancellationToken,
    /// Whether what ran before was taken over.
    pub ready: watch::Sender<bool>,
    /// Counts connections that are open, for the end to wait for.
    pub open: watch::Sender<usize>,
    /// Questions about hosts that no rule names, as they are put.
    pub questions: broadcast::Sender<Arc<Approval>>,
}

/// Questions that wait at most for somebody who is slow to pass them on.
const QUESTIONS: usize = 64;

impl State {
    /// That of a gateway that listens here.
    pub fn new(
        options: Options,
        runtime: Runtime,
        loaded: Loaded,
        bind: IpAddr,
        port: u16,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let hosts = Hosts::new(bind, port, &loaded.config.gateway.hosts.value);
        let questions = broadcast::Sender::new(QUESTIONS);
        let asks = questions.clone();
        runtime.on_question(Arc::new(move |question| {
            // Nobody may listen.
            let _ = asks.send(Arc::new(question.clone()));
        }));
        Self {
            options,
            runtime: RwLock::new(runtime),
            loaded: RwLock::new(Arc::new(loaded)),
            changing: tokio::sync::Mutex::default(),
            metrics: Metrics::new(crate::routes::table().iter().map(|route| route.id).collect()),
            requests: Limits::new(limits::REQUESTS),
            failures: Limits::new(limits::FAILURES),
            hosts: RwLock::new(Arc::new(hosts)),
            bind,
            port,
            encrypted: tls.is_some(),
            tls,
            started_millis: now_millis(),
            adopted: Mutex::default(),
            warnings: Mutex::default(),
            ending: watch::Sender::new(false),
            stop: CancellationToken::new(),
            ready: watch::Sender::new(false),
            open: watch::Sender::new(0),
            questions,
        }
    }

    /// The runtime, under the configuration that holds now.
    pub fn runtime(&self) -> Runtime {
        self.runtime.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration that holds now, and where it came from.
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The names by which it is reached.
    pub fn hosts(&self) -> Arc<Hosts> {
        Arc::clone(&self.hosts.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another configuration holds from now on.
    pub fn now_by(&self, loaded: Loaded, files: Vec<PathBuf>) {
        let runtime = self.runtime().reconfigured(loaded.config.clone(), files);
        let hosts = Hosts::new(self.bind, self.port, &loaded.config.gateway.hosts.value);
        *self.runtime.write().unwrap_or_else(PoisonError::into_inner) = runtime;
        *self.hosts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hosts);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    /// What was found at the start, once that is known.
    pub fn adopted(&self) -> Option<Adopted> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what was found at the start.
    pub fn has_adopted(&self, adopted: Option<Adopted>) {
        *self.adopted.lock().unwrap_or_else(PoisonError::into_inner) = adopted;
        self.ready.send_replace(true);
    }

    /// What a person should know.
    pub fn warnings(&self) -> Vec<Diagnosis> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what a person should know, in the place of what was noted before.
    pub fn warn(&self, warnings: Vec<Diagnosis>) {
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    /// Waits until the gateway is about to end.
    pub async fn until_end(&self) {
        // The sender lives as long as this does.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// What would hold the sandbox of a session that sets nothing.
    pub async fn backend(&self) -> Option<BackendName> {
        self.next().await?.backend
    }

    /// What would become of a command of a session that sets nothing.
    pub async fn next(&self) -> Option<Explanation> {
        self.runtime().explain(&ExplainRequest::default()).await.ok()
    }

    /// What is counted at the moment that somebody looks.
    pub async fn gauges(&self) -> Gauges {
        let runtime = self.runtime();
        let counted = runtime.store().run(|db| Ok((db.count_sessions()?, db.sandboxes()?)));
        let (sessions, stored) = counted.await.unwrap_or_default();
        let rows = || stored.iter().filter_map(|session| session.sandbox.as_ref());
        let count = |name| rows().filter(|row| row.backend == name).count() as u64;
        let sandboxes = BackendName::ALL.into_iter().map(|name| (name, count(name)));
        Gauges {
            sessions,
            sandboxes: sandboxes.filter(|(_, number)| *number > 0).collect(),
            pool: runtime.pool_status().ready,
            failed_over: runtime.failed_over().len() as u64,
        }
    }
}

/// The words of the scopes.
pub fn scopes() -> [&'static str; 3] {
    KeyScope::ALL.map(KeyScope::as_str)
}
