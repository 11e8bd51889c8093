//! What a backend promises, and the one place that holds a spec against it: a
//! sandbox is never weaker than asked.

use serde::{Deserialize, Serialize};

use crate::{BackendName, Diagnosis, Error, ImageChoice, MountMode, Network, Origin, Result, SandboxSpec};

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
    /// `packages` are installed in what it starts from.
    pub packages: Promise,
    /// `rootfs` is the sandbox's root.
    pub rootfs: Promise,
    /// `runtime` picks the OCI runtime.
    pub runtime: Promise,
    /// `gpus` gives it GPUs of the host.
    pub gpus: Promise,
    /// `allow_host_podman` gives it the host's Podman socket.
    pub host_podman: Promise,
    /// `allow_nested_podman` lets Podman run inside it.
    pub nested_podman: Promise,
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
/// `restricted-host` and `none`, which isolate nothing, are the exception: there the default `blocked`, `open` and the
/// place of the workspace are listed. On `restricted-host` demanded limits, which bind each process there, are listed
/// too, and a demanded `blocked` or `trusted` is refused unless the spec says `allow_unenforced`. Where the sandbox was
/// switched off by name, all that the configuration file demands is listed.
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
        if matches!(demand.subject, Subject::Unlisted) && !demand.origin.is_demand() {
            continue;
        }
        if !demand.binds(spec, backend) {
            left_off.push(NotEnforced { key: demand.key.to_owned(), reason: reason.clone() });
            continue;
        }
        return Err(refusal(&demand, backend, reason, others));
    }
    Ok(left_off)
}

fn refusal(
    demand: &Demand,
    backend: BackendName,
    reason: &str,
    others: &[(BackendName, Guarantees)],
) -> Error {
    let keepers: Vec<_> =
        others.iter().filter(|(_, g)| (demand.promise)(g).is_held()).map(|(n, _)| n.as_str()).collect();
    let mut fix = if keepers.is_empty() {
        format!("no usable backend keeps `{}` here: remove it, or see `moltis sandbox status`", demand.key)
    } else {
        format!("use --backend {}, or remove `{}`", keepers.join(" or "), demand.key)
    };
    if backend == BackendName::RestrictedHost && matches!(demand.subject, Subject::Network(_)) {
        fix.push_str(
            ", or set `allow_unenforced = true` in the configuration file to have it listed as not enforced",
        );
    }
    let asked = match demand.origin {
        Origin::Default => "the built-in default".to_owned(),
        origin => format!("the {origin}"),
    };
    Error::Refused(
        Diagnosis::new(
            "demand-not-kept",
            format!("{backend} cannot keep `{}` = {}, which {asked} asks for", demand.key, demand.value),
        )
        .cause(reason)
        .fix(fix),
    )
}

/// Whether commands run on the host itself, with nothing around them.
fn on_host(backend: BackendName) -> bool {
    matches!(backend, BackendName::RestrictedHost | BackendName::None)
}

/// What a demand is about, as far as the exceptions of `restricted-host` and `none` tell demands apart.
#[derive(Clone, Copy)]
enum Subject {
    Network(Network),
    Limit,
    Workspace,
    /// As a built-in default it asks for nothing.
    Unlisted,
    Other,
}

/// One thing that a spec asks for.
struct Demand {
    key: &'static str,
    value: String,
    origin: Origin,
    subject: Subject,
    promise: fn(&Guarantees) -> &Promise,
}

impl Demand {
    /// Whether it is kept or refused on this backend; otherwise it may be left off and is listed.
    fn binds(&self, spec: &SandboxSpec, backend: BackendName) -> bool {
        if !on_host(backend) {
            return self.origin.is_demand() || matches!(self.subject, Subject::Network(_));
        }
        if !self.origin.is_demand() || (spec.switched_off && self.origin == Origin::File) {
            return false;
        }
        let rlimits = backend == BackendName::RestrictedHost;
        match self.subject {
            Subject::Network(Network::Open) | Subject::Workspace => false,
            // There each process is bound, though not all together.
            Subject::Limit => !rlimits,
            Subject::Network(Network::Blocked | Network::Trusted) => !(rlimits && spec.allow_unenforced),
            Subject::Unlisted | Subject::Other => true,
        }
    }
}

fn demands(spec: &SandboxSpec) -> Vec<Demand> {
    let mut all = Vec::with_capacity(16);
    let mut add = |key, value: String, origin: Origin, subject, promise| {
        all.push(Demand { key, value, origin, subject, promise });
    };
    let network = spec.network;
    add(
        "network",
        network.value.to_string(),
        network.origin,
        Subject::Network(network.value),
        match network.value {
            Network::Blocked => |g: &Guarantees| &g.network_blocked,
            Network::Trusted => |g: &Guarantees| &g.network_trusted,
            Network::Open => |g: &Guarantees| &g.network_open,
        },
    );
    let limits = &spec.limits;
    if let Some(m) = limits.memory {
        add("resource_limits.memory_limit", m.value.to_string(), m.origin, Subject::Limit, |g| &g.memory);
    }
    if let Some(c) = limits.cpus {
        add("resource_limits.cpu_quota", c.value.to_string(), c.origin, Subject::Limit, |g| &g.cpus);
    }
    if let Some(p) = limits.pids {
        add("resource_limits.pids_max", p.value.to_string(), p.origin, Subject::Limit, |g| &g.pids);
    }
    if let Some(w) = &spec.workspace {
        // It is there only because somebody named it.
        let source = w.value.source.display().to_string();
        add("workspace", source, w.origin.max(Origin::File), Subject::Workspace, |g| &g.workspace);
        match w.value.mode {
            MountMode::Ro => {
                add("workspace_mount", "ro".to_owned(), spec.workspace_mode, Subject::Other, |g| {
                    &g.filesystem
                });
            }
            MountMode::Rw if !spec.workspace_protect.is_empty() => {
                add(
                    "workspace_protect",
                    "on".to_owned(),
                    spec.workspace_protect_origin,
                    Subject::Other,
                    |g| &g.filesystem,
                );
            }
            MountMode::Rw => {}
        }
    }
    if let Some(m) = spec.mounts.first() {
        let source = m.value.source.display().to_string();
        add("mounts", source, m.origin.max(Origin::File), Subject::Other, |g| &g.workspace);
    }
    if let Some(r) = &spec.rootfs {
        add("rootfs", r.value.display().to_string(), r.origin, Subject::Other, |g| &g.rootfs);
    }
    if let Some(image) = &spec.image {
        let reference = image.reference();
        add("image", reference.value.clone(), reference.origin, Subject::Unlisted, |g| &g.images);
        // None to add is kept by everybody.
        if let ImageChoice::Base { packages, .. } = image
            && !packages.value.is_empty()
        {
            let names = packages.value.join(", ");
            add("packages", names, packages.origin, Subject::Unlisted, |g| &g.packages);
        }
    }
    if let Some(r) = &spec.runtime {
        add("runtime", r.value.clone(), r.origin, Subject::Other, |g| &g.runtime);
    }
    if let Some(gpus) = &spec.gpus {
        add("gpus", gpus.value.to_string(), gpus.origin, Subject::Other, |g| &g.gpus);
    }
    if spec.host_podman.value {
        let origin = spec.host_podman.origin;
        add("allow_host_podman", "true".to_owned(), origin, Subject::Other, |g| &g.host_podman);
    }
    if spec.nested_podman.value {
        let origin = spec.nested_podman.origin;
        add("allow_nested_podman", "true".to_owned(), origin, Subject::Other, |g| &g.nested_podman);
    }
    if spec.home.is_some() {
        add("home_persistence", "on".to_owned(), spec.home_origin, Subject::Other, |g| &g.home);
    }
    if let Some(q) = spec.home_quota {
        add("home_quota", q.value.to_string(), q.origin, Subject::Other, |g| &g.home);
    }
    if spec.managed_files.is_some() {
        add("managed_files_mount", "on".to_owned(), spec.managed_files_origin, Subject::Other, |g| {
            &g.managed_files
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lifetime, Mount, SessionKey, Setting};

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
            packages: Promise::Held,
            rootfs: Promise::Held,
            runtime: Promise::Held,
            gpus: Promise::Held,
            host_podman: Promise::Held,
            nested_podman: Promise::Held,
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

    const HOST: [BackendName; 2] = [BackendName::RestrictedHost, BackendName::None];

    fn bare() -> SandboxSpec {
        SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral)
    }

    /// What the host keeps: nothing but a clean environment.
    fn host_keeps() -> Guarantees {
        let not = || Promise::not_enforced("runs on the host");
        Guarantees {
            filesystem: not(),
            kernel: not(),
            network_blocked: not(),
            network_trusted: not(),
            network_open: not(),
            memory: not(),
            cpus: not(),
            pids: not(),
            workspace: not(),
            home: not(),
            managed_files: not(),
            images: not(),
            packages: not(),
            rootfs: not(),
            runtime: not(),
            gpus: not(),
            host_podman: not(),
            nested_podman: not(),
            ..all_held()
        }
    }

    fn keys(spec: &SandboxSpec, backend: BackendName) -> std::result::Result<Vec<String>, String> {
        match judge(spec, backend, &host_keeps(), &[]) {
            Ok(listed) => Ok(listed.into_iter().map(|left| left.key).collect()),
            Err(Error::Refused(d)) => Err(d.message),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn on_the_host_limits_open_and_the_default_blocked_are_listed() {
        let mut spec = bare();
        spec.limits.memory = Some(Setting::new(1 << 30, Origin::Flag));
        spec.limits.cpus = Some(Setting::new(1.0, Origin::File));
        spec.limits.pids = Some(Setting::built_in(256));
        let limits =
            ["resource_limits.memory_limit", "resource_limits.cpu_quota", "resource_limits.pids_max"];
        let listed = keys(&spec, BackendName::RestrictedHost).unwrap();
        assert_eq!(listed[0], "network");
        assert_eq!(listed[1..], limits);
        // Without rlimits a demanded limit is worth nothing at all.
        assert!(keys(&spec, BackendName::None).unwrap_err().contains("resource_limits.memory_limit"));
        spec.limits.memory = None;
        spec.switched_off = true;
        assert_eq!(keys(&spec, BackendName::None).unwrap(), ["network", limits[1], limits[2]]);
        for backend in HOST {
            let mut open = bare();
            open.network = Setting::new(Network::Open, Origin::Flag);
            assert_eq!(keys(&open, backend).unwrap(), ["network"]);
        }
    }

    #[test]
    fn on_the_host_a_demanded_policy_needs_the_word_of_the_file() {
        for backend in HOST {
            for policy in [Network::Blocked, Network::Trusted] {
                for origin in [Origin::File, Origin::Env, Origin::Session, Origin::Flag, Origin::Api] {
                    let mut spec = bare();
                    spec.network = Setting::new(policy, origin);
                    let error = judge(&spec, backend, &host_keeps(), &[]).unwrap_err();
                    assert_eq!(error.code(), "demand-not-kept");
                    let word = error.diagnosis().fix.as_deref().unwrap().contains("allow_unenforced");
                    spec.allow_unenforced = true;
                    let listed = keys(&spec, backend);
                    if backend == BackendName::RestrictedHost {
                        assert!(word);
                        assert_eq!(listed.unwrap(), ["network"]);
                    } else {
                        assert!(!word && listed.is_err());
                    }
                    // It is no word for anybody else.
                    let docker = judge(&spec, BackendName::Docker, &host_keeps(), &[]).unwrap_err();
                    assert!(!docker.diagnosis().fix.as_deref().unwrap().contains("allow_unenforced"));
                }
            }
        }
    }

    #[test]
    fn switched_off_by_name_lists_what_the_file_demands_and_only_that() {
        let mut spec = bare();
        spec.switched_off = true;
        spec.network = Setting::new(Network::Trusted, Origin::File);
        spec.rootfs = Some(Setting::new("/r".into(), Origin::File));
        assert_eq!(keys(&spec, BackendName::None).unwrap(), ["network", "rootfs"]);
        assert!(keys(&spec, BackendName::Docker).is_err());
        spec.network.origin = Origin::Flag;
        assert!(keys(&spec, BackendName::None).unwrap_err().contains("network"));
        spec.switched_off = false;
        spec.network = Setting::built_in(Network::Blocked);
        assert!(keys(&spec, BackendName::RestrictedHost).unwrap_err().contains("rootfs"));
    }

    #[test]
    fn what_the_file_asks_for_is_no_default() {
        let mut spec = bare();
        spec.managed_files =
            Some(Mount { source: "/f".into(), target: "/home/sandbox/files".into(), mode: MountMode::Ro });
        spec.home = Some("/h".into());
        let listed = ["network", "home_persistence", "managed_files_mount"];
        assert_eq!(keys(&spec, BackendName::RestrictedHost).unwrap(), listed);
        spec.home_origin = Origin::File;
        assert!(keys(&spec, BackendName::RestrictedHost).unwrap_err().contains("home_persistence"));
        spec.home_origin = Origin::Default;
        spec.managed_files_origin = Origin::File;
        assert!(keys(&spec, BackendName::RestrictedHost).unwrap_err().contains("managed_files_mount"));
    }

    #[test]
    fn a_workspace_on_the_host_is_listed_but_not_a_read_only_one_that_was_asked_for() {
        let mount = Mount { source: "/w".into(), target: "/workspace".into(), mode: MountMode::Ro };
        let mut spec = bare();
        spec.workspace = Some(Setting::new(mount, Origin::Flag));
        let listed = ["network", "workspace", "workspace_mount"];
        assert_eq!(keys(&spec, BackendName::RestrictedHost).unwrap(), listed);
        spec.workspace_mode = Origin::Flag;
        assert!(keys(&spec, BackendName::RestrictedHost).unwrap_err().contains("workspace_mount"));
        spec.workspace.as_mut().unwrap().value.mode = MountMode::Rw;
        assert_eq!(keys(&spec, BackendName::RestrictedHost).unwrap(), ["network", "workspace"]);
        spec.workspace_protect = vec![".git/hooks".into()];
        assert_eq!(
            keys(&spec, BackendName::RestrictedHost).unwrap(),
            ["network", "workspace", "workspace_protect"]
        );
        assert!(keys(&spec, BackendName::Docker).is_err(), "elsewhere a workspace is kept or refused");
    }

    #[test]
    fn the_default_image_is_no_demand_and_a_named_one_is() {
        let base = |image, packages| ImageChoice::Base {
            reference: Setting::new("debian:12".to_owned(), image),
            packages: Setting::new(vec!["jq".to_owned()], packages),
        };
        let with = |image| SandboxSpec { image: Some(image), ..bare() };
        let mut weak = all_held();
        weak.images = Promise::not_enforced("it has none");
        weak.packages = Promise::not_enforced("it has none");
        let asked = |spec: &SandboxSpec| match judge(spec, BackendName::Namespaces, &weak, &[]) {
            Ok(listed) => assert_eq!(listed, []),
            Err(error) => panic!("{error}"),
        };
        asked(&with(base(Origin::Default, Origin::Default)));
        for (image, key) in [
            (base(Origin::File, Origin::Default), "`image` = debian:12"),
            (base(Origin::Default, Origin::File), "`packages` = jq"),
            (
                ImageChoice::Finished { reference: Setting::new("x".to_owned(), Origin::Session) },
                "`image` = x",
            ),
        ] {
            let error = judge(&with(image), BackendName::Namespaces, &weak, &[]).unwrap_err();
            assert_eq!(error.code(), "demand-not-kept");
            assert!(error.diagnosis().message.contains(key), "{error}");
        }
        // To add none is no demand that anybody could fail.
        let none = ImageChoice::Base {
            reference: Setting::built_in("x".to_owned()),
            packages: Setting::new(Vec::new(), Origin::File),
        };
        asked(&with(none));
        // Where the sandbox was switched off by name, what the configuration file asks for is listed.
        let mut off = with(base(Origin::File, Origin::File));
        off.switched_off = true;
        assert_eq!(keys(&off, BackendName::None).unwrap(), ["network", "image", "packages"]);
    }

    #[test]
    fn runtime_gpus_and_hatches_are_demands() {
        type Set = fn(&mut SandboxSpec);
        let set: [(&str, Set); 4] = [
            ("runtime", |spec| spec.runtime = Some(Setting::new("runsc".into(), Origin::File))),
            ("gpus", |spec| spec.gpus = Some(Setting::new(crate::Gpus::All, Origin::File))),
            ("allow_host_podman", |spec| spec.host_podman = Setting::new(true, Origin::File)),
            ("allow_nested_podman", |spec| spec.nested_podman = Setting::new(true, Origin::File)),
        ];
        for (key, set) in set {
            let mut spec = bare();
            set(&mut spec);
            assert_eq!(judge(&spec, BackendName::Docker, &all_held(), &[]).unwrap(), [], "{key}");
            let mut weak = host_keeps();
            weak.network_blocked = Promise::Held;
            let others = [(BackendName::Podman, all_held())];
            let error = judge(&spec, BackendName::Namespaces, &weak, &others).unwrap_err();
            assert!(error.diagnosis().message.contains(&format!("`{key}`")), "{error}");
            assert!(error.diagnosis().fix.as_deref().unwrap().contains("podman"), "{error:?}");
        }
    }
}
