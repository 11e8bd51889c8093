//! From configuration and overrides to the spec of a sandbox.

use std::path::PathBuf;

use moltis_config::value::image::ImageReference;
use moltis_config::words::{Mode, MountAccess};
use moltis_config::{BackendChoice, Config};
use moltis_sandbox::{
    BackendName, Beginning, Diagnosis, Error, ImageChoice, Lifetime, Mount, MountMode, Network, NotEnforced,
    Origin, Result, SandboxSpec, SessionKey, Setting,
};

use crate::error::RuntimeError;
use crate::homes;
use crate::store::Begins;

/// What a session, a flag or an API call sets over the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Whether there is to be a sandbox at all; overrides `mode`.
    pub enabled: Option<Setting<bool>>,
    /// Backend, or `auto`.
    pub backend: Option<Setting<BackendChoice>>,
    /// A finished image.
    pub image: Option<Setting<ImageReference>>,
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
    /// Instructions that one run of a WASI module may execute.
    pub fuel: Option<Setting<u64>>,
}

impl Overrides {
    /// These, with what `asked` names on top.
    #[must_use]
    pub fn with(self, asked: &Self) -> Self {
        Self {
            enabled: asked.enabled.or(self.enabled),
            backend: asked.backend.or(self.backend),
            image: asked.image.clone().or(self.image),
            network: asked.network.or(self.network),
            memory: asked.memory.or(self.memory),
            cpus: asked.cpus.or(self.cpus),
            pids: asked.pids.or(self.pids),
            workspace: asked.workspace.clone().or(self.workspace),
            fuel: asked.fuel.or(self.fuel),
        }
    }
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
#[derive(Clone)]
pub struct Settings {
    spec: SandboxSpec,
    /// The home on a container engine, which may be another than the spec's.
    engine_home: Option<PathBuf>,
    /// The home of the in-process shell, which has a folder of its own.
    wasm_home: Option<PathBuf>,
    config: Config,
    overrides: Overrides,
}

impl Settings {
    /// Reads them off. A session without a lasting key gets no lasting home. Nothing is made yet. Blocks on a look-up.
    pub fn new(config: &Config, overrides: &Overrides, key: SessionKey, lifetime: Lifetime) -> Self {
        let sandbox = &config.tools.exec.sandbox;
        let mut spec = SandboxSpec::new(key, lifetime);
        spec.network = overrides.network.unwrap_or(sandbox.network);
        if lifetime != Lifetime::Ephemeral {
            spec.home = homes::home(config, &spec.key);
            spec.home_origin = sandbox.home_persistence.origin;
            spec.home_quota = sandbox.home_quota;
        }
        if let Some(Workspace { mount, mode_origin }) = workspace(config, overrides) {
            spec.workspace = Some(mount);
            spec.workspace_mode = mode_origin;
        }
        spec.workspace_protect = sandbox.workspace_protect.value.iter().map(ToString::to_string).collect();
        spec.workspace_protect_origin = sandbox.workspace_protect.origin;
        spec.workspace_upload = sandbox.workspace_upload.value.iter().map(ToString::to_string).collect();
        spec.managed_files_origin = sandbox.managed_files_mount.origin;
        spec.managed_files = mode_of(sandbox.managed_files_mount.value).map(|mode| Mount {
            source: homes::managed_files(config),
            target: PathBuf::from("/home/sandbox/files"),
            mode,
        });
        spec.mounts = sandbox
            .mounts
            .value
            .iter()
            .map(|mount| Setting::new(mount.clone(), sandbox.mounts.origin))
            .collect();
        spec.rootfs.clone_from(&sandbox.rootfs);
        spec.image = Some(image(config, overrides));
        spec.runtime.clone_from(&sandbox.runtime);
        spec.gpus.clone_from(&sandbox.gpus);
        spec.host_podman = sandbox.allow_host_podman;
        spec.nested_podman = sandbox.allow_nested_podman;
        spec.selinux_relabel = sandbox.selinux_relabel.value;
        spec.container_prefix.clone_from(&sandbox.container_prefix.value);
        spec.allow_unenforced = sandbox.allow_unenforced.value;
        spec.switched_off = switched_off(config, overrides);
        spec.sandbox_uid = sandbox.sandbox_uid.as_ref().and_then(|uid| u32::try_from(uid.value).ok());
        let workspace = spec.workspace.as_ref().map(|workspace| &*workspace.value.source);
        let wasm_home = spec.home.is_some().then(|| homes::on_wasm(config, &spec.key)).flatten();
        let engine_home = spec.home.clone().map(|home| homes::on_engine(home, workspace));
        Self { spec, engine_home, wasm_home, config: config.clone(), overrides: overrides.clone() }
    }

    /// From a snapshot, as far as the session begins from one.
    #[must_use]
    pub(crate) fn beginning(mut self, begins: Option<&Begins>) -> Self {
        self.spec.begins =
            begins.map(|begins| Beginning { snapshot: begins.snapshot.clone(), root: begins.root.clone() });
        self
    }

    /// Makes the folder of the managed files, if they are mounted. Blocks.
    ///
    /// # Errors
    /// `data-dir-unusable`.
    pub fn make_folders(&self) -> Result<()> {
        let data = &self.config.data_dir.value;
        let Some(Mount { source, .. }) = &self.spec.managed_files else { return Ok(()) };
        let made = homes::files_folder(source, data).and_then(|()| homes::open_to_owner(source));
        Ok(made.map_err(|e| RuntimeError::data_directory(data, e))?)
    }

    /// Sees that nothing that is mounted holds one of these files, wherever links lead. Blocks.
    ///
    /// # Errors
    /// `workspace-refused`, naming the folder and the file.
    pub fn hides(&self, files: &[PathBuf]) -> Result<()> {
        let files: Vec<_> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
        let workspace = self.spec.workspace.iter().map(|w| &w.value.source);
        let mounts = self.spec.mounts.iter().map(|m| &m.value.source);
        let rootfs = self.spec.rootfs.iter().map(|r| &r.value);
        for source in workspace.chain(mounts).chain(rootfs) {
            // What is missing is the backend's to say.
            let Ok(place) = source.canonicalize() else { continue };
            if let Some(file) = files.iter().find(|file| file.starts_with(&place)) {
                let (source_path, file) = (source.display().to_string(), file.display().to_string());
                return Err(RuntimeError::HoldsConfiguration { source_path, file }.into());
            }
        }
        Ok(())
    }

    /// What no backend can keep as the configuration is: what somebody set is refused, or listed where the sandbox was
    /// switched off by name.
    ///
    /// # Errors
    /// `demand-not-kept`, naming the key.
    pub fn unkept(&self) -> Result<Vec<NotEnforced>> {
        let (key, origin) = ("home_quota", self.quota_without_home());
        if !origin.is_demand() {
            return Ok(Vec::new());
        }
        if self.spec.switched_off && origin == Origin::File {
            return Ok(vec![NotEnforced { key: key.to_owned(), reason: NO_HOME.to_owned() }]);
        }
        Err(Error::Refused(
            Diagnosis::new(
                "demand-not-kept",
                format!("no backend here can keep `{key}`, which the {origin} asks for"),
            )
            .cause(NO_HOME)
            .fix(format!("remove `{key}`")),
        ))
    }

    /// Who set a quota where there is no home that it could bound.
    fn quota_without_home(&self) -> Origin {
        let lasting = self.spec.lifetime != Lifetime::Ephemeral;
        let quota = &self.config.tools.exec.sandbox.home_quota;
        if lasting && self.spec.home.is_none() { origin(quota) } else { Origin::Default }
    }

    /// The spec on a backend, with that backend's own default limits and home.
    pub fn on(&self, backend: BackendName, host_memory: u64) -> SandboxSpec {
        let mut spec = self.spec.clone();
        if homes::is_engine(backend) {
            spec.home.clone_from(&self.engine_home);
        }
        if backend == BackendName::Wasm {
            spec.home.clone_from(&self.wasm_home);
            spec.fuel = Some(self.overrides.fuel.unwrap_or(self.config.tools.exec.sandbox.wasm_fuel_limit));
        }
        spec.limits = self.config.tools.exec.sandbox.resource_limits.on(backend, host_memory);
        let Overrides { memory, cpus, pids, .. } = &self.overrides;
        spec.limits.memory = memory.or(spec.limits.memory);
        spec.limits.cpus = cpus.or(spec.limits.cpus);
        spec.limits.pids = pids.or(spec.limits.pids);
        spec
    }
}

const NO_HOME: &str = "with `home_persistence = \"off\"` there is no home that could be measured";

fn origin<T>(setting: &Option<Setting<T>>) -> Origin {
    setting.as_ref().map_or(Origin::Default, |setting| setting.origin)
}

fn mode_of(access: MountAccess) -> Option<MountMode> {
    match access {
        MountAccess::None => None,
        MountAccess::Ro => Some(MountMode::Ro),
        MountAccess::Rw => Some(MountMode::Rw),
    }
}

/// The backend that is asked for: `none` where the session is switched off, else the override's, `none` where the
/// mode is off and the session is not switched on, else the configuration's.
pub fn choice(config: &Config, overrides: &Overrides) -> Setting<BackendChoice> {
    let sandbox = &config.tools.exec.sandbox;
    let none = BackendChoice::Named(BackendName::None);
    match overrides.enabled {
        Some(enabled) if !enabled.value => return enabled.map(|_| none),
        Some(_) => return overrides.backend.unwrap_or(sandbox.backend),
        None => {}
    }
    let off = (sandbox.mode.value == Mode::Off).then(|| sandbox.mode.map(|_| none));
    overrides.backend.or(off).unwrap_or(sandbox.backend)
}

/// What a container starts from: the finished image that a session, a flag or an API call names, else the
/// configuration's base with its packages.
pub(crate) fn image(config: &Config, overrides: &Overrides) -> ImageChoice {
    let text = |image: &Setting<ImageReference>| image.clone().map(|image| image.to_string());
    match &overrides.image {
        Some(image) => ImageChoice::Finished { reference: text(image) },
        None => {
            let sandbox = &config.tools.exec.sandbox;
            ImageChoice::Base { reference: text(&sandbox.image), packages: sandbox.packages.clone() }
        }
    }
}

/// Whether somebody asked for no sandbox by name.
fn switched_off(config: &Config, overrides: &Overrides) -> bool {
    choice(config, overrides).value == BackendChoice::Named(BackendName::None)
}

/// A workspace that was named, and who said how it is mounted.
pub(crate) struct Workspace {
    pub(crate) mount: Setting<Mount>,
    mode_origin: Origin,
}

/// The workspace, if one was named. `workspace_mount = "none"` switches off one from the file, not one from a flag.
pub(crate) fn workspace(config: &Config, overrides: &Overrides) -> Option<Workspace> {
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
