//! What a backend promises, and the one place that holds a spec against it (law 1: never weaker than asked).

use serde::{Deserialize, Serialize};

use crate::{BackendName, Diagnosis, Error, Network, Origin, Result, SandboxSpec};

/// Whether a backend keeps one promise, here and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "reason")]
pub enum Promise {
    /// It is kept.
    Held,
    /// It is not kept, for this reason; asked for by name it is refused, as a default it is left off and said.
    NotEnforced(String),
}

impl Promise {
    /// A promise that is not kept.
    pub fn not_enforced(reason: impl Into<String>) -> Self {
        Self::NotEnforced(reason.into())
    }

    /// Whether it is kept.
    pub fn is_held(&self) -> bool {
        *self == Self::Held
    }
}

/// What a backend keeps on this machine, right now. The guarantees table of the docs and of the page is made of this,
/// and the contract suite reads from it what a backend may lack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guarantees {
    /// Nothing of the host's files shows but what was mounted.
    pub filesystem: Promise,
    /// The sandbox has a kernel of its own.
    pub kernel: Promise,
    /// The caller's environment does not reach the sandbox.
    pub environment: Promise,
    /// `network = "blocked"`.
    pub network_blocked: Promise,
    /// `network = "trusted"`.
    pub network_trusted: Promise,
    /// `network = "open"`.
    pub network_open: Promise,
    /// `memory_limit` bounds the whole sandbox.
    pub memory: Promise,
    /// `cpu_quota` bounds the whole sandbox.
    pub cpus: Promise,
    /// `pids_max` bounds the whole sandbox.
    pub pids: Promise,
    /// A terminal can be had.
    pub terminal: Promise,
    /// Background commands outlive their caller.
    pub background: Promise,
    /// Ports inside can be reached and served from outside.
    pub forward: Promise,
    /// A named workspace shows at `/workspace`.
    pub workspace: Promise,
    /// The home outlives the sandbox.
    pub home: Promise,
    /// Managed files show at `/home/sandbox/files`.
    pub managed_files: Promise,
    /// A running sandbox is found again by another process.
    pub adopt: Promise,
    /// Images can be built and chosen.
    pub images: Promise,
}

/// A built-in default that is not kept, as every answer lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotEnforced {
    /// The configuration key, such as `resource_limits.memory_limit`.
    pub key: String,
    /// Why not.
    pub reason: String,
}

/// Holds `spec` against what `backend` keeps: a demand that is not kept is refused, a built-in default that is not
/// kept is listed. Network `blocked` counts as a demand even as the default.
///
/// # Errors
/// [`Error::Refused`] with code `demand-not-kept`, naming the key and which of `others` would keep it.
pub fn judge(
    spec: &SandboxSpec,
    backend: BackendName,
    guarantees: &Guarantees,
    others: &[(BackendName, Guarantees)],
) -> Result<Vec<NotEnforced>> {
    let mut left_off = Vec::new();
    for demand in demands(spec) {
        let Promise::NotEnforced(reason) = (demand.promise)(guarantees) else { continue };
        if !demand.binding {
            left_off.push(NotEnforced { key: demand.key.to_owned(), reason: reason.clone() });
            continue;
        }
        let keepers: Vec<_> =
            others.iter().filter(|(_, g)| (demand.promise)(g).is_held()).map(|(n, _)| n.as_str()).collect();
        let fix = if keepers.is_empty() {
            format!(
                "no usable backend keeps `{}` here: remove it, or see `moltis sandbox status`",
                demand.key
            )
        } else {
            format!("use --backend {}, or remove `{}`", keepers.join(" or "), demand.key)
        };
        let asked = match demand.origin {
            Origin::Default => "the built-in default".to_owned(),
            origin => format!("the {origin}"),
        };
        return Err(Error::Refused(
            Diagnosis::new(
                "demand-not-kept",
                format!("{backend} cannot keep `{}` = {}, which {asked} asks for", demand.key, demand.value),
            )
            .cause(reason)
            .fix(fix),
        ));
    }
    Ok(left_off)
}

/// One thing that a spec asks for.
struct Demand {
    key: &'static str,
    value: String,
    origin: Origin,
    /// Whether it must be kept or refused; otherwise it is left off and listed.
    binding: bool,
    promise: fn(&Guarantees) -> &Promise,
}

fn demands(spec: &SandboxSpec) -> Vec<Demand> {
    let mut all = Vec::with_capacity(8);
    let mut add = |key, value: String, origin: Origin, binding, promise| {
        all.push(Demand { key, value, origin, binding, promise });
    };
    let network = spec.network;
    add(
        "network",
        network.value.to_string(),
        network.origin,
        true,
        match network.value {
            Network::Blocked => |g: &Guarantees| &g.network_blocked,
            Network::Trusted => |g: &Guarantees| &g.network_trusted,
            Network::Open => |g: &Guarantees| &g.network_open,
        },
    );
    let limits = &spec.limits;
    if let Some(m) = limits.memory {
        add("resource_limits.memory_limit", m.value.to_string(), m.origin, m.is_demand(), |g| &g.memory);
    }
    if let Some(c) = limits.cpus {
        add("resource_limits.cpu_quota", c.value.to_string(), c.origin, c.is_demand(), |g| &g.cpus);
    }
    if let Some(p) = limits.pids {
        add("resource_limits.pids_max", p.value.to_string(), p.origin, p.is_demand(), |g| &g.pids);
    }
    if let Some(w) = &spec.workspace {
        add("workspace", w.value.source.display().to_string(), w.origin, true, |g| &g.workspace);
    }
    if let Some(m) = spec.mounts.first() {
        add("mounts", m.value.source.display().to_string(), m.origin, true, |g| &g.workspace);
    }
    if spec.home.is_some() {
        add("home_persistence", "on".to_owned(), Origin::Default, false, |g| &g.home);
    }
    if spec.managed_files.is_some() {
        add("managed_files_mount", "on".to_owned(), Origin::Default, false, |g| &g.managed_files);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lifetime, SessionKey, Setting};

    fn all_held() -> Guarantees {
        Guarantees {
            filesystem: Promise::Held,
            kernel: Promise::Held,
            environment: Promise::Held,
            network_blocked: Promise::Held,
            network_trusted: Promise::Held,
            network_open: Promise::Held,
            memory: Promise::Held,
            cpus: Promise::Held,
            pids: Promise::Held,
            terminal: Promise::Held,
            background: Promise::Held,
            forward: Promise::Held,
            workspace: Promise::Held,
            home: Promise::Held,
            managed_files: Promise::Held,
            adopt: Promise::Held,
            images: Promise::Held,
        }
    }

    fn spec_with_memory(origin: Origin) -> SandboxSpec {
        let mut spec = SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral);
        spec.limits.memory = Some(Setting::new(1 << 20, origin));
        spec
    }

    #[test]
    fn a_default_that_is_not_kept_is_listed() {
        let mut weak = all_held();
        weak.memory = Promise::not_enforced("no cgroup");
        let listed = judge(&spec_with_memory(Origin::Default), BackendName::Namespaces, &weak, &[]).unwrap();
        assert_eq!(
            listed,
            [NotEnforced { key: "resource_limits.memory_limit".into(), reason: "no cgroup".into() }]
        );
    }

    #[test]
    fn a_demand_that_is_not_kept_is_refused_and_names_who_keeps_it() {
        let mut weak = all_held();
        weak.memory = Promise::not_enforced("no cgroup");
        for origin in [Origin::File, Origin::Env, Origin::Session, Origin::Flag, Origin::Api] {
            let others = [(BackendName::Docker, all_held())];
            let error =
                judge(&spec_with_memory(origin), BackendName::Namespaces, &weak, &others).unwrap_err();
            assert_eq!(error.code(), "demand-not-kept");
            assert!(matches!(error, Error::Refused(_)));
            assert!(error.diagnosis().message.contains("resource_limits.memory_limit"));
            assert!(error.diagnosis().fix.as_deref().unwrap().contains("docker"));
        }
    }

    #[test]
    fn blocked_is_binding_even_as_the_default() {
        let mut weak = all_held();
        weak.network_blocked = Promise::not_enforced("none");
        let spec = SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral);
        assert_eq!(judge(&spec, BackendName::Docker, &weak, &[]).unwrap_err().code(), "demand-not-kept");
    }
}
