//! From configuration and overrides to the spec of a sandbox.

use std::path::PathBuf;

use moltis_config::words::{Mode, MountAccess};
use moltis_config::{BackendChoice, Config};
use moltis_sandbox::{
    BackendName, Lifetime, Mount, MountMode, Network, Origin, Result, SandboxSpec, SessionKey, Setting,
};

use crate::homes;

/// What a session, a flag or an API call sets over the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Backend, or `auto`.
    pub backend: Option<Setting<BackendChoice>>,
    /// Network policy.
    pub network: Option<Setting<Network>>,
    /// Memory in bytes.
    pub memory: Option<Setting<u64>>,
    /// Processor cores.
    pub cpus: Option<Setting<f64>>,
    /// Processes and threads.
    pub pids: Option<Setting<u64>>,
    /// Named workspace.
    pub workspace: Option<Setting<NamedWorkspace>>,
}

/// A host folder to show at `/workspace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedWorkspace {
    /// Absolute host path.
    pub source: PathBuf,
    /// Read-only or writable; absent: what `workspace_mount` says, read-only if that is `none`.
    pub mode: Option<MountMode>,
}

/// Everything about a session's sandbox but what depends on the backend that will hold it.
pub struct Settings {
    spec: SandboxSpec,
    config: Config,
    overrides: Overrides,
}

impl Settings {
    /// Reads them off. A session without a lasting key gets no lasting home.
    pub fn new(config: &Config, overrides: &Overrides, key: SessionKey, lifetime: Lifetime) -> Result<Self> {
        let sandbox = &config.tools.exec.sandbox;
        let mut spec = SandboxSpec::new(key, lifetime);
        spec.network = overrides.network.unwrap_or(sandbox.network);
        if lifetime != Lifetime::Ephemeral {
            spec.home = homes::home(config, &spec.key)?;
        }
        if let Some(Workspace { mount, mode_origin }) = workspace(config, overrides) {
            spec.workspace = Some(mount);
            spec.workspace_mode = mode_origin;
        }
        spec.workspace_protect = sandbox.workspace_protect.value.iter().map(ToString::to_string).collect();
        spec.managed_files = match mode_of(sandbox.managed_files_mount.value) {
            Some(mode) => Some(Mount {
                source: homes::managed_files(config)?,
                target: PathBuf::from("/home/sandbox/files"),
                mode,
            }),
            None => None,
        };
        spec.mounts = sandbox
            .mounts
            .value
            .iter()
            .map(|mount| Setting::new(mount.clone(), sandbox.mounts.origin))
            .collect();
        spec.rootfs.clone_from(&sandbox.rootfs);
        spec.allow_unenforced = sandbox.allow_unenforced.value;
        spec.switched_off = switched_off(config, overrides);
        spec.sandbox_uid = sandbox.sandbox_uid.as_ref().and_then(|uid| u32::try_from(uid.value).ok());
        Ok(Self { spec, config: config.clone(), overrides: overrides.clone() })
    }

    /// The spec on a backend, with that backend's own default limits.
    pub fn on(&self, backend: BackendName, host_memory: u64) -> SandboxSpec {
        let mut spec = self.spec.clone();
        spec.limits = self.config.tools.exec.sandbox.resource_limits.on(backend, host_memory);
        let Overrides { memory, cpus, pids, .. } = &self.overrides;
        spec.limits.memory = memory.or(spec.limits.memory);
        spec.limits.cpus = cpus.or(spec.limits.cpus);
        spec.limits.pids = pids.or(spec.limits.pids);
        spec
    }
}

fn mode_of(access: MountAccess) -> Option<MountMode> {
    match access {
        MountAccess::None => None,
        MountAccess::Ro => Some(MountMode::Ro),
        MountAccess::Rw => Some(MountMode::Rw),
    }
}

/// Whether somebody asked for no sandbox by name.
fn switched_off(config: &Config, overrides: &Overrides) -> bool {
    let sandbox = &config.tools.exec.sandbox;
    let choice = overrides.backend.unwrap_or(sandbox.backend);
    choice.value == BackendChoice::Named(BackendName::None) || sandbox.mode.value == Mode::Off
}

/// A workspace that was named, and who said how it is mounted.
struct Workspace {
    mount: Setting<Mount>,
    mode_origin: Origin,
}

/// The workspace, if one was named. `workspace_mount = "none"` switches off one from the file, not one from a flag.
fn workspace(config: &Config, overrides: &Overrides) -> Option<Workspace> {
    let sandbox = &config.tools.exec.sandbox;
    let access = sandbox.workspace_mount;
    let by_file = mode_of(access.value);
    let (source, mode, origin, mode_origin) = match &overrides.workspace {
        Some(named) => {
            let NamedWorkspace { source, mode } = &named.value;
            let mode_origin = if mode.is_some() { named.origin } else { access.origin };
            (source.clone(), mode.or(by_file).unwrap_or(MountMode::Ro), named.origin, mode_origin)
        }
        None => {
            let named = sandbox.workspace.as_ref()?;
            (named.value.clone(), by_file?, named.origin, access.origin)
        }
    };
    let mount = Mount { source, target: PathBuf::from("/workspace"), mode };
    Some(Workspace { mount: Setting::new(mount, origin), mode_origin })
}
