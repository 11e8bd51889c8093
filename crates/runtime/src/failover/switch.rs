//! The switch from a backend whose engine failed to the next of its chain, and the routes that go by it.

use std::time::Duration;

use moltis_config::BackendChoice;
use moltis_config::words::Failover as Policy;
use moltis_sandbox::{BackendName, Detection, Diagnosis, Error, Result, SandboxSpec, SessionKey, Setting};

use super::{FailedOver, Failover, by_the_session, chain, notes};
use crate::error::RuntimeError;
use crate::image_failures::ImageFailures;
use crate::registry::Registry;
use crate::router::{self, Barred, PASSED_OVER, Route, Survey, Ways};
use crate::runtime::Runtime;
use crate::store::now_millis;
use crate::told::Told;

/// Time that an engine has to say whether it is there, after a command was lost.
const SUSPECT: Duration = Duration::from_secs(10);

impl Failover {
    /// Asks every backend once; those that are usable may fail over later.
    ///
    /// # Errors
    /// `Unavailable` when the backend that the configuration names is not usable.
    pub(crate) async fn start(registry: &Registry, policy: Policy, named: BackendChoice) -> Result<Self> {
        registry.known(named)?;
        let asked =
            registry.all().iter().map(|backend| async move { (backend.name(), backend.detect().await) });
        let mut proven = Vec::new();
        for (name, detection) in futures_util::future::join_all(asked).await {
            match detection {
                Detection::Usable(_) => proven.push(name),
                Detection::Unusable(why) | Detection::Failing(why) if named == BackendChoice::Named(name) => {
                    return Err(RuntimeError::NamedUnusable { backend: name, why }.into());
                }
                Detection::Unusable(_) | Detection::Failing(_) => {}
            }
        }
        Ok(Self::new(policy, proven))
    }

    /// Gives up a backend whose engine failed. Every call for one backend gets the same answer; `None` where it may not
    /// fail over, or has nowhere to go now.
    async fn switch(&self, registry: &Registry, from: BackendName, why: &Diagnosis) -> Option<FailedOver> {
        let _deciding = self.deciding.lock().await;
        if let Some(failed) = self.failed_from(from) {
            return Some(failed);
        }
        let state = self.state();
        if self.policy == Policy::Off || !state.proven.contains(&from) {
            return None;
        }
        // It is for good, so it is asked once more.
        if let Some(backend) = registry.get(from) {
            backend.forget_detection().await;
            match backend.detect().await {
                Detection::Unusable(why) | Detection::Failing(why) if why.is_engine_failure() => {}
                _ => return None,
            }
        }
        for to in chain(from).iter().copied().filter(|to| self.failed_from(*to).is_none()) {
            let Some(backend) = registry.get(to) else { continue };
            let usable = match backend.detect().await {
                Detection::Usable(usable) => usable,
                Detection::Unusable(_) => continue,
                // What merely fails at the moment is no reason to make do with less for as long as this runs.
                Detection::Failing(_) => return None,
            };
            let isolates = usable.guarantees.filesystem.is_held();
            if !isolates && self.policy != Policy::Any {
                continue;
            }
            let failed = FailedOver { from, to, why: why.clone(), since_millis: now_millis() };
            if isolates {
                tracing::warn!(%from, %to, %why, "a backend failed, and another took over");
            } else {
                tracing::error!(%from, %to, %why, "a backend failed, and commands run WITHOUT ISOLATION now");
            }
            let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            state.failed.push(failed.clone());
            if !state.proven.contains(&to) {
                state.proven.push(to);
            }
            return Some(failed);
        }
        None
    }
}

/// Who asks for a route.
pub(crate) struct Asks<'a> {
    /// The backend that is asked for.
    pub choice: Setting<BackendChoice>,
    /// For which session.
    pub key: Option<&'a SessionKey>,
}

impl Runtime {
    /// Backends that were given up since this runtime started, in that order. Only one that lives long does so.
    pub fn failed_over(&self) -> Vec<FailedOver> {
        self.failover().map(Failover::failed).unwrap_or_default()
    }

    /// Whether a backend was given up.
    pub(crate) fn has_failed(&self, name: BackendName) -> bool {
        self.failover().is_some_and(|failover| failover.failed_from(name).is_some())
    }

    /// Notes that an engine failed, by an error that says so; whether another backend takes over.
    pub(crate) async fn fail_over(&self, from: BackendName, why: &Diagnosis) -> bool {
        match self.failover() {
            Some(failover) if why.is_engine_failure() => {
                failover.switch(self.registry(), from, why).await.is_some()
            }
            _ => false,
        }
    }

    /// Asks a backend's engine whether it is there, after a command was lost on it.
    pub(crate) async fn suspect(&self, name: BackendName) {
        if self.failover().is_none() || self.has_failed(name) || chain(name).is_empty() {
            return;
        }
        let Some(backend) = self.registry().get(name) else { return };
        backend.forget_detection().await;
        match tokio::time::timeout(SUSPECT, backend.detect()).await {
            Ok(Detection::Unusable(why) | Detection::Failing(why)) => drop(self.fail_over(name, &why).await),
            Ok(Detection::Usable(_)) => {}
            Err(_) => tracing::warn!(backend = %name, "an engine does not say whether it is there"),
        }
    }

    /// What routing has to go by beside what backends say of themselves.
    pub(crate) fn ways(&self) -> Ways {
        self.failover().map(Failover::ways).unwrap_or_default()
    }

    /// Sees that a session does not name, by itself, a backend that has failed.
    ///
    /// # Errors
    /// `backend-failed`.
    pub(crate) fn see_named(&self, asks: &Asks<'_>) -> Result<()> {
        let BackendChoice::Named(name) = asks.choice.value else { return Ok(()) };
        match self.failed_over().iter().find(|failed| failed.from == name) {
            Some(failed) if by_the_session(asks.choice.origin) => {
                Err(notes::named_by_session(asks.key, failed))
            }
            _ => Ok(()),
        }
    }

    /// Finds the route, past backends that have failed and those that are barred for this call.
    ///
    /// # Errors
    /// Those of [`router::route`]; `backend-failed` where a session asked by name for one that has failed.
    pub(crate) async fn route_past(
        &self,
        asks: &Asks<'_>,
        barred: &[Barred],
        spec: impl Fn(BackendName) -> SandboxSpec,
    ) -> Result<Route> {
        let choice = asks.choice.value;
        let mut known = self.image_failures(choice, &spec).await?;
        known.retain(|known| !barred.iter().any(|barred| barred.backend == known.backend));
        loop {
            let failed = self.failed_over();
            self.see_named(asks)?;
            let mut ways = self.ways();
            ways.barred.extend(barred.iter().chain(&known).cloned());
            let Survey { route, failing, .. } = router::survey(self.registry(), choice, &ways, &spec).await;
            let mut switched = false;
            for (name, why) in &failing {
                switched |= self.fail_over(*name, why).await;
            }
            if switched {
                continue;
            }
            if let (Some(failover), Some((_, why))) = (self.failover(), failing.first())
                && failover.policy == Policy::Off
            {
                return Err(Error::Unavailable(why.clone()));
            }
            let of_choice = |failed: &&FailedOver| match choice {
                BackendChoice::Named(name) => name == failed.from || chain(name).contains(&failed.from),
                BackendChoice::Auto => true,
            };
            let mut concerned: Vec<_> = failed.iter().filter(of_choice).cloned().collect();
            if let BackendChoice::Named(name) = choice
                && !concerned.iter().any(|failed| failed.from == name)
            {
                concerned.clear();
            }
            let mut route = match route {
                Ok(route) => route,
                Err(error) => {
                    return Err(match concerned.first() {
                        Some(failed) => notes::cannot_follow(failed, error),
                        None => error,
                    });
                }
            };
            let on = route.backend.name();
            let place = |name| BackendName::ALL.iter().position(|other| *other == name);
            // Only what would have been asked before it.
            concerned.retain(|failed| place(failed.from) < place(on));
            if !concerned.is_empty() {
                route.notes.insert(0, notes::note(&concerned, on, route.isolates));
                route.without = concerned.iter().map(|failed| failed.from).collect();
            }
            return Ok(route);
        }
    }

    /// Whether an opening that failed goes on elsewhere. Nothing ran.
    pub(crate) async fn goes_on(
        &self,
        choice: BackendChoice,
        route: &Route,
        error: &Error,
        barred: &mut Vec<Barred>,
    ) -> bool {
        let Error::Unavailable(why) = error else { return false };
        let name = route.backend.name();
        route.backend.forget_detection().await;
        if self.fail_over(name, why).await {
            return true;
        }
        let off = self.failover().is_some_and(|failover| failover.policy == Policy::Off);
        let absent = error.is_image_failure();
        let elsewhere = absent || (error.is_engine_failure() && !off);
        if choice != BackendChoice::Auto || !elsewhere || barred.iter().any(|barred| barred.backend == name) {
            return false;
        }
        if absent {
            self.remember_image_failure(name, &route.spec, why).await;
        }
        // Never to less isolation: a machine without the image, or one command whose engine has just failed, is no
        // reason for that.
        barred.push(Barred { backend: name, why: why.clone(), host_may_follow: false, instead: &[] });
        true
    }

    /// Backends whose image is known to be absent, as far as `auto` may pass over them.
    async fn image_failures(
        &self,
        choice: BackendChoice,
        spec: impl Fn(BackendName) -> SandboxSpec,
    ) -> Result<Vec<Barred>> {
        let with_images = self.registry().all().iter().filter(|backend| backend.images().is_some());
        let specs: Vec<_> = with_images.map(|backend| (backend.name(), spec(backend.name()))).collect();
        if choice != BackendChoice::Auto || specs.is_empty() {
            return Ok(Vec::new());
        }
        let failures = ImageFailures::new(&self.config().data_dir.value);
        self.in_short(move || {
            let known = specs.iter().filter_map(|(backend, spec)| {
                let why = failures.recall(*backend, spec.image.as_ref())?;
                Some(Barred { backend: *backend, why, host_may_follow: false, instead: &[] })
            });
            Ok(known.collect())
        })
        .await
    }

    async fn remember_image_failure(&self, backend: BackendName, spec: &SandboxSpec, why: &Diagnosis) {
        let failures = ImageFailures::new(&self.config().data_dir.value);
        let (image, why) = (spec.image.clone(), why.clone());
        let remembered = self.in_short(move || {
            failures.remember(backend, image.as_ref(), &why);
            Ok(())
        });
        // Without it the next command tries again, which is all that can be lost.
        let _ = remembered.await;
    }

    /// These notes without those of backends that were passed over which have been told before: they stay true for as
    /// long as an engine is stopped or a registry out of reach, and `moltis sandbox explain` says them always.
    pub(crate) async fn news(&self, notes: Vec<String>) -> Vec<String> {
        if !notes.iter().any(|note| note.starts_with(PASSED_OVER)) {
            return notes;
        }
        let (told, all) = (Told::new(&self.config().data_dir.value), notes.clone());
        let chosen = self.in_short(move || {
            let is_news = |note: &String| !note.starts_with(PASSED_OVER) || told.is_news(note);
            Ok(all.into_iter().filter(is_news).collect())
        });
        chosen.await.unwrap_or(notes)
    }

    /// Forgets which images were absent, so that the next command tries them again.
    ///
    /// # Errors
    /// Only when the work broke off.
    pub async fn forget_image_failures(&self) -> Result<()> {
        let failures = ImageFailures::new(&self.config().data_dir.value);
        self.in_short(move || {
            failures.forget();
            Ok(())
        })
        .await
    }
}
