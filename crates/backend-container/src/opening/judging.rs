//! A spec held against this machine and this engine, before anything is made.

use moltis_host::sources::Judge;
use moltis_sandbox::{Diagnosis, Error, Result, SandboxSpec};

use crate::apple::arguments::whole_cores;
use crate::backend::{RunDir, State};
use crate::connected::Connected;
use crate::engine::{EngineKind, Place, ProcessLimit};
use crate::hardening::Hatch;
use crate::hatches;
use crate::identity::{Caller, Identity};
use crate::place::HOME;
use crate::record::layout_of;

/// A spec that has been judged on this machine.
pub(super) struct Judged {
    pub(super) run: RunDir,
    pub(super) identity: Identity,
    pub(super) hatch: Hatch,
    pub(super) host_podman: Option<std::path::PathBuf>,
}

impl State {
    /// Judges the spec alone. Blocks.
    pub(crate) fn check(&self, spec: &SandboxSpec, connected: &Connected) -> Result<()> {
        let judged = self.judge(spec, connected)?;
        let judge = Judge::new(&self.config.data_dir, self.config.config_dir.as_deref(), self.caller())?;
        let mut spec = spec.clone();
        // Folders of ours are made before they are judged.
        spec.home.take_if(|home| !home.exists());
        spec.managed_files.take_if(|files| !files.source.exists());
        moltis_host::requested::Sources::judge(&spec, &judge)?;
        drop(judged);
        Ok(())
    }

    pub(super) fn judge(&self, spec: &SandboxSpec, connected: &Connected) -> Result<Judged> {
        let run = RunDir::make(&self.config.data_dir, layout_of(self.config.kind))?;
        if connected.info.place == Place::Remote {
            refuse_mounts(spec, self.config.kind)?;
        }
        if connected.means.without_agent().is_some() {
            refuse_unguarded(spec, self.config.kind)?;
        }
        if connected.info.userns_remap {
            refuse_writable(spec)?;
        }
        let caller_is_root = self.caller().uid == 0 && !connected.info.rootless;
        if spec.sandbox_uid.is_some() && caller_is_root && connected.info.place == Place::Here {
            return Err(no_sandbox_uid(self.config.kind));
        }
        if let Some(runtime) = &spec.runtime {
            let known = &connected.info.runtimes;
            if !known.is_empty() && !known.contains(&runtime.value) {
                return Err(unknown_runtime(&runtime.value, known));
            }
        }
        if let Some(cpus) = spec.limits.cpus.filter(|_| self.config.kind == EngineKind::Apple) {
            whole_cores(cpus.value).map_err(|why| fraction(cpus.value, why))?;
        }
        let hatch = hatches::of(spec, self.config.kind)?;
        let mut identity = Identity::of(self.config.kind, &connected.info, self.who(spec))?;
        if hatch == Hatch::NestedPodman {
            // What runs containers must be root there.
            identity.inside = (0, 0);
            identity.userns = None;
            identity.peer = 0;
            if spec.limits.pids.is_some_and(|pids| pids.is_demand())
                && connected.info.process_limit(self.config.kind) == ProcessLimit::Users
            {
                return Err(hatches::unbounded());
            }
        }
        let host_podman = match hatch {
            Hatch::HostPodman => {
                let candidates = hatches::sockets(&self.config.environment);
                let endpoint = connected.engine.endpoint();
                Some(hatches::host_socket(&endpoint, connected.info.place, &candidates, &identity)?)
            }
            _ => None,
        };
        Ok(Judged { run, identity, hatch, host_podman })
    }

    fn who(&self, spec: &SandboxSpec) -> Caller {
        use std::os::unix::fs::MetadataExt;

        let workspace = spec.workspace.as_ref().and_then(|workspace| {
            let found = std::fs::metadata(&workspace.value.source).ok()?;
            Some(((found.uid(), found.gid()), workspace.value.mode))
        });
        Caller { ids: (self.caller().uid, self.caller().gid), workspace }
    }
}

fn unknown_runtime(wanted: &str, known: &[String]) -> Error {
    Error::Refused(
        Diagnosis::new("runtime-unknown", format!("the engine has no runtime {wanted:?}"))
            .cause(format!("it has {}", known.join(", ")))
            .fix("set `runtime` to one of them, or add it to the engine's configuration"),
    )
}

fn no_sandbox_uid(kind: EngineKind) -> Error {
    Error::Refused(
        Diagnosis::new("demand-not-kept", format!("{kind} cannot keep `sandbox_uid`"))
            .cause("a container's user is the owner of the workspace, or 1000")
            .fix("use --backend namespaces, or remove `sandbox_uid`"),
    )
}

fn fraction(cores: f64, why: String) -> Error {
    Error::Refused(
        Diagnosis::new(
            "demand-not-kept",
            format!("apple-container cannot keep `resource_limits.cpu_quota` = {cores}"),
        )
        .cause(why)
        .fix("set a whole number of cores, or use another backend"),
    )
}

/// The spec without what the engine cannot show and nobody asked for, which is named as not enforced.
pub(super) fn seen_by(spec: &SandboxSpec, connected: &Connected) -> SandboxSpec {
    let info = &connected.info;
    let mut seen = spec.clone();
    let remote = info.place == Place::Remote;
    // With remapped ids nobody inside could write to it.
    seen.home.take_if(|_| remote || info.userns_remap);
    // Nor would anybody see that another sandbox took them away.
    seen.managed_files.take_if(|_| remote || connected.means.without_agent().is_some());
    seen
}

/// Nothing of this machine can be shown by an engine on another one.
fn refuse_mounts(spec: &SandboxSpec, kind: EngineKind) -> Result<()> {
    let named = spec.workspace.as_ref().map(|_| "workspace").or(spec.mounts.first().map(|_| "mounts"));
    match named {
        None => Ok(()),
        Some(key) => Err(Error::Refused(
            Diagnosis::new("demand-not-kept", format!("{kind} cannot keep `{key}`"))
                .cause("the engine is on another machine, of which nothing of this one can be seen")
                .fix(format!("use an engine on this machine, or remove `{key}`")),
        )),
    }
}

/// Without an agent nobody sees whether another sandbox, which shares the home, has taken away what is mounted in it.
fn refuse_unguarded(spec: &SandboxSpec, kind: EngineKind) -> Result<()> {
    let unguarded = spec.mounts.iter().find(|mount| mount.value.target.starts_with(HOME));
    let Some(mount) = unguarded.filter(|_| spec.home.is_some()) else { return Ok(()) };
    let target = mount.value.target.display();
    Err(Error::Refused(
        Diagnosis::new(
            "demand-not-kept",
            format!("{kind} cannot keep `mounts` at {target} without an agent"),
        )
        .cause(
            "the home that lasts is another sandbox's too, and nobody inside sees whether it moved the mount",
        )
        .fix("mount it outside of the home, or set `home_persistence = \"off\"`"),
    ))
}

/// With remapped ids nobody inside owns a folder of this machine.
fn refuse_writable(spec: &SandboxSpec) -> Result<()> {
    use moltis_sandbox::MountMode::Rw;

    let workspace = spec.workspace.iter().any(|w| w.value.mode == Rw);
    let mounts = spec.mounts.iter().any(|m| m.value.mode == Rw);
    let files = spec.managed_files.iter().any(|m| m.mode == Rw);
    let key = match (workspace, mounts, files) {
        (true, ..) => "workspace_mount = \"rw\"",
        (_, true, _) => "mounts",
        (.., true) => "managed_files_mount = \"rw\"",
        _ => return Ok(()),
    };
    Err(Error::Refused(
        Diagnosis::new("userns-remap", format!("this engine cannot keep `{key}`"))
            .cause(
                "it maps every user id inside to another outside (userns-remap), so nobody owns the folder",
            )
            .fix("switch userns-remap off, or show the folder read-only"),
    ))
}
