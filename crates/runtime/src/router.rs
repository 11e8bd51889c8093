//! Which backend a session runs on: the one that was named, or the first in `auto`'s order that is usable and keeps
//! what was demanded.

use std::sync::Arc;

use moltis_config::BackendChoice;
use moltis_sandbox::{
    Backend, BackendName, Detection, Error, Guarantees, NotEnforced, Result, SandboxSpec, Usable, judge,
};

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
    match choice {
        BackendChoice::Named(name) => named(registry, name, spec).await,
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
        Detection::Unusable(reason) => return Err(Error::Unavailable(reason)),
    };
    let spec = spec(name);
    let not_enforced = match judge(&spec, name, &usable.guarantees, &[]) {
        Ok(not_enforced) => not_enforced,
        // Only now is it worth asking the others, to say who would keep it.
        Err(_) => judge(&spec, name, &usable.guarantees, &others(registry, name).await)?,
    };
    let not_enforced = with_isolation(not_enforced, name, &usable.guarantees);
    Ok(Route { backend: Arc::clone(backend), spec, not_enforced, notes: Vec::new() })
}

/// Puts first, where it is so, that the backend isolates nothing: everything else follows from that.
fn with_isolation(listed: Vec<NotEnforced>, name: BackendName, guarantees: &Guarantees) -> Vec<NotEnforced> {
    if guarantees.filesystem.is_held() {
        return listed;
    }
    let reason = format!("{name} isolates nothing: commands run on this machine, as this user");
    std::iter::once(NotEnforced { key: "sandbox".to_owned(), reason }).chain(listed).collect()
}

async fn auto(registry: &Registry, spec: impl Fn(BackendName) -> SandboxSpec) -> Result<Route> {
    let mut passed_over = Vec::new();
    let mut refusal = None;
    for backend in registry.all().iter().filter(|backend| backend.name().in_auto()) {
        let name = backend.name();
        match backend.detect().await {
            Detection::Unusable(reason) => passed_over.push(format!("{name}: {reason}")),
            Detection::Usable(usable) => {
                let Usable { guarantees, .. } = *usable;
                let spec = spec(name);
                match judge(&spec, name, &guarantees, &[]) {
                    Ok(not_enforced) => {
                        let not_enforced = with_isolation(not_enforced, name, &guarantees);
                        let notes = refused_note(&refusal);
                        return Ok(Route { backend: Arc::clone(backend), spec, not_enforced, notes });
                    }
                    Err(error) => {
                        passed_over.push(error.to_string());
                        refusal.get_or_insert(error);
                    }
                }
            }
        }
    }
    match refusal {
        // Each backend that would have been usable refused: say what each of them said.
        Some(Error::Refused(mut diagnosis)) => {
            diagnosis.cause = Some(passed_over.join("; "));
            Err(Error::Refused(diagnosis))
        }
        Some(other) => Err(other),
        None => Err(RuntimeError::NoneUsable(passed_over.join("; ")).into()),
    }
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
