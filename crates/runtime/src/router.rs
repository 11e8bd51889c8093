//! Which backend a session runs on: the one that was named, or the first in `auto`'s order that is usable and keeps
//! what was demanded.

use std::fmt;
use std::sync::Arc;

use moltis_config::BackendChoice;
use moltis_sandbox::{
    Backend, BackendName, Detection, Diagnosis, Error, Guarantees, NotEnforced, Result, SandboxSpec, judge,
};
use serde::Serialize;

use crate::error::RuntimeError;
use crate::registry::Registry;

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
}

/// Finds the route. `spec` fills in the defaults of the backend that it is given.
///
/// # Errors
/// `Unavailable` when the named backend is not usable or none is; `Refused` when a demand is not kept by the named
/// backend or by any.
pub async fn route(
    registry: &Registry,
    choice: BackendChoice,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Result<Route> {
    survey(registry, choice, spec).await.route
}

/// Finds the route, and says what was on the way.
pub async fn survey(
    registry: &Registry,
    choice: BackendChoice,
    spec: impl Fn(BackendName) -> SandboxSpec,
) -> Survey {
    match choice {
        BackendChoice::Named(name) => {
            Survey { route: named(registry, name, spec).await, passed_over: Vec::new() }
        }
        BackendChoice::Auto => auto(registry, spec).await,
    }
}

async fn named(
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
    let not_enforced = with_isolation(not_enforced, name, &usable.guarantees);
    let isolates = usable.guarantees.filesystem.is_held();
    Ok(Route { backend: Arc::clone(backend), spec, not_enforced, notes: Vec::new(), isolates })
}

/// Puts first, where it is so, that the backend isolates nothing: everything else follows from that.
fn with_isolation(listed: Vec<NotEnforced>, name: BackendName, guarantees: &Guarantees) -> Vec<NotEnforced> {
    if guarantees.filesystem.is_held() {
        return listed;
    }
    let reason = format!("{name} isolates nothing: commands run on this machine, as this user");
    std::iter::once(NotEnforced { key: "sandbox".to_owned(), reason }).chain(listed).collect()
}

async fn auto(registry: &Registry, spec: impl Fn(BackendName) -> SandboxSpec) -> Survey {
    let mut passed_over: Vec<PassedOver> = Vec::new();
    let mut refusal = None;
    for backend in registry.all().iter().filter(|backend| backend.name().in_auto()) {
        let name = backend.name();
        let usable = match backend.detect().await {
            Detection::Usable(usable) => *usable,
            Detection::Unusable(why) => {
                passed_over.push(PassedOver { backend: name, why });
                continue;
            }
            Detection::Failing(why) => {
                passed_over.push(PassedOver { backend: name, why: why.clone() });
                refusal.get_or_insert(Error::Unavailable(why));
                continue;
            }
        };
        let guarantees = usable.guarantees;
        let isolates = guarantees.filesystem.is_held();
        if refusal.is_some() && !isolates {
            // A demand that an isolating backend cannot keep is no reason to run with no isolation at all, where the
            // demand is not kept either; nor is it that such a backend fails at the moment.
            let why = Diagnosis::new("isolates-nothing", "it isolates nothing, which nobody asked for");
            passed_over.push(PassedOver { backend: name, why });
            continue;
        }
        let spec = spec(name);
        match judge(&spec, name, &guarantees, &[]) {
            Ok(not_enforced) => {
                let not_enforced = with_isolation(not_enforced, name, &guarantees);
                let notes = refused_note(&refusal);
                let route = Route { backend: Arc::clone(backend), spec, not_enforced, notes, isolates };
                return Survey { route: Ok(route), passed_over };
            }
            Err(error) => {
                passed_over.push(PassedOver { backend: name, why: error.diagnosis().clone() });
                refusal.get_or_insert(error);
            }
        }
    }
    let told: Vec<_> = passed_over.iter().map(PassedOver::to_string).collect();
    let error = match refusal {
        // Each backend that would have been usable refused: say what each of them said.
        Some(Error::Refused(mut diagnosis)) => {
            diagnosis.cause = Some(told.join("; "));
            Error::Refused(diagnosis)
        }
        Some(other) => other,
        None => RuntimeError::NoneUsable(told.join("; ")).into(),
    };
    Survey { route: Err(error), passed_over }
}

fn refused_note(refusal: &Option<Error>) -> Vec<String> {
    refusal.iter().map(|error| format!("auto passed over a backend: {error}")).collect()
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
    use moltis_sandbox::{
        Lifetime, Origin, Promise, Sandbox, SandboxId, SandboxRecord, SessionKey, Setting, Usable,
    };

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
            Detection::Usable(Box::new(Usable { version: String::new(), guarantees, notes: Vec::new() }))
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
        let route = route(&registry, BackendChoice::Auto, |_| spec(memory)).await?;
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
        let error = route(&registry, BackendChoice::Auto, |_| spec(None)).await.map(drop).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("namespaces-exhausted", "unavailable"));
        // Another that isolates is taken.
        let docker = Arc::new(Fake(BackendName::Docker, keeps(true, true)));
        let registry = Registry::of(vec![Arc::new(Failing), docker]);
        let route = route(&registry, BackendChoice::Auto, |_| spec(None)).await.unwrap();
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
