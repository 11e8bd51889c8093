//! Which backend a session runs on: the one that was named, or the first in `auto`'s order that is usable and keeps
//! what was demanded.

use std::fmt;
use std::sync::Arc;

use moltis_config::BackendChoice;
use moltis_sandbox::{
    Backend, BackendName, Detection, Diagnosis, Error, Guarantees, NotEnforced, Result, SandboxSpec, Usable,
    judge,
};
use serde::Serialize;

use crate::error::RuntimeError;
use crate::registry::Registry;

/// How the note begins that a backend was passed over.
pub const PASSED_OVER: &str = "auto passed over a backend: ";

/// How the note begins that nobody named the provider at which commands run.
pub const REMOTE: &str =
    "auto picked a provider, where commands and what they are given are carried, and which costs money: ";

/// A backend that keeps what a session demands.
pub struct Route {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The spec, with the backend's own defaults filled in.
    pub spec: SandboxSpec,
    /// Built-in defaults that it does not keep.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// Whether nothing of the host's files shows but what was mounted.
    pub isolates: bool,
    /// Backends that have failed and that this one stands in for.
    pub without: Vec<BackendName>,
}

/// What is known of backends beside what they say of themselves.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// Those that are not asked.
    pub barred: Vec<Barred>,
    /// Those that were usable before under this runtime, which lives long: an engine of theirs that fails now is told
    /// apart from one that never was there.
    pub proven: Vec<BackendName>,
}

/// A backend that is not asked.
#[derive(Clone, Debug)]
pub struct Barred {
    /// Which one.
    pub backend: BackendName,
    /// Why not.
    pub why: Diagnosis,
    /// Whether what isolates nothing may follow, as where the backend was never there.
    pub host_may_follow: bool,
    /// Those that stand in for it, in this order.
    pub instead: &'static [BackendName],
}

/// A backend that was asked and not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// Which one.
    pub backend: BackendName,
    /// Why not.
    pub why: Diagnosis,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, why } = self;
        // A refusal names the backend itself.
        if why.message.starts_with(backend.as_str()) { why.fmt(f) } else { write!(f, "{backend}: {why}") }
    }
}

/// What came of asking backends.
pub struct Survey {
    /// The backend, or why there is none.
    pub route: Result<Route>,
    /// Those that were asked before it, in that order.
    pub passed_over: Vec<PassedOver>,
    /// Those of them whose engine fails now and did not before.
    pub failing: Vec<(BackendName, Diagnosis)>,
}

/// Finds the route, and says what was on the way. `spec` fills in the defaults of the backend that it is given.
///
/// # Errors
/// Of the route: `Unavailable` when the named backend is not usable or none is; `Refused` when a demand is not kept by the
/// named backend or by any.
pub async fn survey(
    registry: &Registry,
    choice: BackendChoice,
    ways: &Ways,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Survey {
    match choice {
        BackendChoice::Named(name) => match ways.barred.iter().find(|barred| barred.backend == name) {
            Some(barred) => {
                let names = std::iter::once(name).chain(barred.instead.iter().copied()).collect();
                first(registry, names, ways, spec).await
            }
            None => named(registry, name, ways, spec).await,
        },
        BackendChoice::Auto => {
            let names = registry.all().iter().map(|backend| backend.name()).filter(|name| name.in_auto());
            first(registry, names.collect(), ways, spec).await
        }
    }
}

async fn named(
    registry: &Registry,
    name: BackendName,
    ways: &Ways,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Survey {
    let mut failing = Vec::new();
    let route = named_route(registry, name, spec).await;
    if let Err(Error::Unavailable(why)) = &route
        && why.is_engine_failure()
        && ways.proven.contains(&name)
    {
        failing.push((name, why.clone()));
    }
    Survey { route, passed_over: Vec::new(), failing }
}

/// The route to one backend and no other.
///
/// # Errors
/// Those of [`survey`].
pub async fn named_route(
    registry: &Registry,
    name: BackendName,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Result<Route> {
    let backend = registry.get(name).ok_or(RuntimeError::NotBuilt(name))?;
    let usable = match backend.detect().await {
        Detection::Usable(usable) => usable,
        Detection::Unusable(reason) | Detection::Failing(reason) => return Err(Error::Unavailable(reason)),
    };
    let spec = spec(name);
    let not_enforced = match judge(&spec, name, &usable.guarantees, &[]) {
        Ok(not_enforced) => not_enforced,
        // Only now is it worth asking the others, to say who would keep it.
        Err(_) => judge(&spec, name, &usable.guarantees, &others(registry, name).await)?,
    };
    let not_enforced = [with_isolation(not_enforced, name, &usable.guarantees), usable.left_off].concat();
    let isolates = usable.guarantees.filesystem.is_held();
    let (backend, notes, without) = (Arc::clone(backend), Vec::new(), Vec::new());
    Ok(Route { backend, spec, not_enforced, notes, isolates, without })
}

/// Puts first, where it is so, that the backend isolates nothing: everything else follows from that.
fn with_isolation(listed: Vec<NotEnforced>, name: BackendName, guarantees: &Guarantees) -> Vec<NotEnforced> {
    if guarantees.filesystem.is_held() {
        return listed;
    }
    let reason = format!("{name} isolates nothing: commands run on this machine, as this user");
    std::iter::once(NotEnforced { key: "sandbox".to_owned(), reason }).chain(listed).collect()
}

/// Asks backends in this order, and at the place of one that is barred those that stand in for it.
struct Asking<'a, F> {
    registry: &'a Registry,
    ways: &'a Ways,
    spec: F,
    asked: Vec<BackendName>,
    passed_over: Vec<PassedOver>,
    failing: Vec<(BackendName, Diagnosis)>,
    /// Why those were passed over that isolate: with one of these nothing that isolates nothing is taken.
    refusals: Vec<Error>,
}

async fn first(
    registry: &Registry,
    names: Vec<BackendName>,
    ways: &Ways,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Survey {
    let mut asking = Asking {
        registry,
        ways,
        spec,
        asked: Vec::new(),
        passed_over: Vec::new(),
        failing: Vec::new(),
        refusals: Vec::new(),
    };
    let mut found = None;
    'names: for name in names {
        if let Some(route) = asking.ask(name, false).await {
            found = Some(route);
            break;
        }
        let barred = ways.barred.iter().find(|barred| barred.backend == name);
        for stand_in in barred.map_or(&[][..], |barred| barred.instead) {
            if let Some(route) = asking.ask(*stand_in, true).await {
                found = Some(route);
                break 'names;
            }
        }
    }
    let Asking { passed_over, failing, mut refusals, .. } = asking;
    if let Some(mut route) = found {
        // What a stand-in says of its own accord is not said twice.
        let stood_for = |error: &&Error| {
            ways.barred.iter().any(|barred| !barred.instead.is_empty() && barred.why == *error.diagnosis())
        };
        let told = refusals.iter().filter(|error| !stood_for(error));
        route.notes = told.map(|error| format!("{PASSED_OVER}{error}")).collect();
        let name = route.backend.name();
        if matches!(name, BackendName::Vercel | BackendName::Daytona) {
            route.notes.push(format!("{REMOTE}{name}"));
        }
        return Survey { route: Ok(route), passed_over, failing };
    }
    let told: Vec<_> = passed_over.iter().map(PassedOver::to_string).collect();
    let error = match refusals.is_empty() {
        false => match refusals.swap_remove(0) {
            // Each backend that would have been usable refused: say what each of them said.
            Error::Refused(mut diagnosis) => {
                diagnosis.cause = Some(told.join("; "));
                Error::Refused(diagnosis)
            }
            other => other,
        },
        true => RuntimeError::NoneUsable(told.join("; ")).into(),
    };
    Survey { route: Err(error), passed_over, failing }
}

impl<F: Fn(BackendName) -> SandboxSpec> Asking<'_, F> {
    /// Whether this one is to be taken. A stand-in that isolates nothing is asked in its own place only.
    async fn ask(&mut self, name: BackendName, stand_in: bool) -> Option<Route> {
        if self.asked.contains(&name) {
            return None;
        }
        let backend = self.registry.get(name)?;
        if let Some(barred) = self.ways.barred.iter().find(|barred| barred.backend == name) {
            self.asked.push(name);
            self.pass(name, barred.why.clone());
            if !barred.host_may_follow {
                self.refusals.push(Error::Unavailable(barred.why.clone()));
            }
            return None;
        }
        let usable = match backend.detect().await {
            Detection::Usable(usable) => *usable,
            Detection::Unusable(why) | Detection::Failing(why)
                if why.is_engine_failure() && self.ways.proven.contains(&name) =>
            {
                self.asked.push(name);
                self.failing.push((name, why.clone()));
                self.pass(name, why.clone());
                self.refusals.push(Error::Unavailable(why));
                return None;
            }
            Detection::Unusable(why) => {
                self.asked.push(name);
                self.pass(name, why);
                return None;
            }
            Detection::Failing(why) => {
                self.asked.push(name);
                self.pass(name, why.clone());
                self.refusals.push(Error::Unavailable(why));
                return None;
            }
        };
        let Usable { guarantees, left_off, .. } = usable;
        let isolates = guarantees.filesystem.is_held();
        if stand_in && !isolates {
            return None;
        }
        self.asked.push(name);
        if !self.refusals.is_empty() && !isolates {
            // A demand that an isolating backend cannot keep is no reason to run with no isolation at all, where the
            // demand is not kept either; nor is it that such a backend fails at the moment.
            let why = Diagnosis::new("isolates-nothing", "it isolates nothing, which nobody asked for");
            self.pass(name, why);
            return None;
        }
        let spec = (self.spec)(name);
        let judged = match judge(&spec, name, &guarantees, &[]) {
            // What depends on more than the engine is known to those alone that ask one.
            Ok(kept) if backend.images().is_some() => match backend.check(&spec).await {
                Err(error) if error.is_own_refusal() => Err(error),
                // Whatever else is wrong is told when it is opened.
                _ => Ok(kept),
            },
            judged => judged,
        };
        match judged {
            Ok(not_enforced) => {
                let not_enforced = [with_isolation(not_enforced, name, &guarantees), left_off].concat();
                let (backend, notes, without) = (Arc::clone(backend), Vec::new(), Vec::new());
                Some(Route { backend, spec, not_enforced, notes, isolates, without })
            }
            Err(error) => {
                self.pass(name, error.diagnosis().clone());
                self.refusals.push(error);
                None
            }
        }
    }

    fn pass(&mut self, backend: BackendName, why: Diagnosis) {
        self.passed_over.push(PassedOver { backend, why });
    }
}

/// What the other usable backends keep.
async fn others(registry: &Registry, but: BackendName) -> Vec<(BackendName, Guarantees)> {
    let mut others = Vec::new();
    for backend in registry.all().iter().filter(|backend| backend.name() != but) {
        if let Detection::Usable(usable) = backend.detect().await {
            others.push((backend.name(), usable.guarantees));
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use moltis_sandbox::{Lifetime, Origin, Promise, Sandbox, SandboxId, SandboxRecord, SessionKey, Setting};

    use super::*;

    /// A backend that keeps everything, or isolates nothing, or all but a memory limit.
    struct Fake(BackendName, Guarantees);

    #[async_trait]
    impl Backend for Fake {
        fn name(&self) -> BackendName {
            self.0
        }

        async fn detect(&self) -> Detection {
            let guarantees = self.1.clone();
            Detection::Usable(Box::new(Usable {
                version: String::new(),
                guarantees,
                left_off: Vec::new(),
                notes: Vec::new(),
            }))
        }

        async fn open(&self, _: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
            unreachable!("routing opens nothing")
        }

        async fn adopt(&self, _: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
            Ok(None)
        }

        async fn find(&self, _: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
            Ok(None)
        }

        async fn list(&self) -> Result<Vec<SandboxRecord>> {
            Ok(Vec::new())
        }

        async fn remove(&self, _: &SandboxId) -> Result<()> {
            Ok(())
        }
    }

    fn keeps(isolation: bool, memory: bool) -> Guarantees {
        let promise = |held: bool| if held { Promise::Held } else { Promise::not_enforced("not here") };
        Guarantees {
            filesystem: promise(isolation),
            kernel: promise(false),
            environment: promise(true),
            network_blocked: promise(isolation),
            network_trusted: promise(false),
            network_open: promise(isolation),
            memory: promise(memory),
            cpus: promise(isolation),
            pids: promise(isolation),
            terminal: promise(true),
            background: promise(true),
            forward: promise(true),
            workspace: promise(isolation),
            home: promise(isolation),
            managed_files: promise(isolation),
            adopt: promise(true),
            images: promise(false),
            packages: promise(false),
            rootfs: promise(isolation),
            runtime: promise(false),
            gpus: promise(false),
            host_podman: promise(false),
            nested_podman: promise(false),
        }
    }

    fn spec(memory: Option<Origin>) -> SandboxSpec {
        let key = SessionKey::new("s").unwrap();
        let mut spec = SandboxSpec::new(key, Lifetime::Ephemeral);
        spec.limits.memory = memory.map(|origin| Setting::new(1 << 30, origin));
        spec
    }

    async fn auto(backends: Vec<Fake>, memory: Option<Origin>) -> Result<(BackendName, Vec<String>)> {
        let registry =
            Registry::of(backends.into_iter().map(|fake| Arc::new(fake) as Arc<dyn Backend>).collect());
        let route = survey(&registry, BackendChoice::Auto, &Ways::default(), |_| spec(memory)).await.route?;
        Ok((route.backend.name(), route.not_enforced.into_iter().map(|left| left.key).collect()))
    }

    #[tokio::test]
    async fn a_demand_that_is_not_kept_never_costs_the_isolation() {
        let weak = || Fake(BackendName::Namespaces, keeps(true, false));
        let host = || Fake(BackendName::RestrictedHost, keeps(false, false));
        let error = auto(vec![weak(), host()], Some(Origin::Flag)).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), ("demand-not-kept", "refused"));
        // Another that isolates may keep it.
        let strong = Fake(BackendName::Docker, keeps(true, true));
        assert_eq!(
            auto(vec![weak(), strong, host()], Some(Origin::Flag)).await.unwrap().0,
            BackendName::Docker
        );
        // A default is left off where it is not kept, and that is said.
        let (name, listed) = auto(vec![weak(), host()], Some(Origin::Default)).await.unwrap();
        assert_eq!(
            (name, listed),
            (BackendName::Namespaces, vec!["resource_limits.memory_limit".to_owned()])
        );
    }

    /// A backend that isolates and fails at the moment.
    struct Failing;

    #[async_trait]
    impl Backend for Failing {
        fn name(&self) -> BackendName {
            BackendName::Namespaces
        }

        async fn detect(&self) -> Detection {
            Detection::Failing(Diagnosis::new("namespaces-exhausted", "there are too many"))
        }

        async fn open(&self, _: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
            unreachable!("routing opens nothing")
        }

        async fn adopt(&self, _: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
            Ok(None)
        }

        async fn find(&self, _: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>> {
            Ok(None)
        }

        async fn list(&self) -> Result<Vec<SandboxRecord>> {
            Ok(Vec::new())
        }

        async fn remove(&self, _: &SandboxId) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_fails_at_the_moment_is_no_reason_to_run_on_the_host() {
        let host = Arc::new(Fake(BackendName::RestrictedHost, keeps(false, false)));
        let registry = Registry::of(vec![Arc::new(Failing), host]);
        let (auto, ways) = (BackendChoice::Auto, Ways::default());
        let error = survey(&registry, auto, &ways, |_| spec(None)).await.route.map(drop).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("namespaces-exhausted", "unavailable"));
        // Another that isolates is taken.
        let docker = Arc::new(Fake(BackendName::Docker, keeps(true, true)));
        let registry = Registry::of(vec![Arc::new(Failing), docker]);
        let route = survey(&registry, auto, &ways, |_| spec(None)).await.route.unwrap();
        assert_eq!(route.backend.name(), BackendName::Docker);
    }

    #[tokio::test]
    async fn with_nothing_that_isolates_the_host_is_used_and_says_so_first() {
        let host = Fake(BackendName::RestrictedHost, keeps(false, false));
        let (name, listed) = auto(vec![host], Some(Origin::Flag)).await.unwrap();
        assert_eq!(name, BackendName::RestrictedHost);
        assert_eq!(listed, ["sandbox", "network", "resource_limits.memory_limit"]);
        assert_eq!(auto(vec![], None).await.unwrap_err().code(), "no-backend-usable");
    }
}
