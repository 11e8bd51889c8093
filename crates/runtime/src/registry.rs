//! The backends of this program. The only place that names them by type.

use std::path::PathBuf;
use std::sync::Arc;

use moltis_backend_container::ContainerBackend;
use moltis_backend_container::engine::{EngineKind, Environment};
use moltis_backend_firecracker::FirecrackerBackend;
use moltis_backend_host::{NoneBackend, RestrictedHostBackend};
use moltis_backend_namespaces::NamespacesBackend;
use moltis_config::{BackendChoice, Config};
use moltis_sandbox::{Backend, BackendName, Detection, Diagnosis, Result, SnapshotKind, Usable};
use serde::Serialize;

use crate::error::RuntimeError;
use crate::failover::FailedOver;

/// Every backend that this program holds, in the order in which `auto` tries them.
pub struct Registry {
    backends: Vec<Arc<dyn Backend>>,
    /// The folder of the user's configuration.
    config_dir: Option<PathBuf>,
}

/// What `moltis sandbox status` says of one backend.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendStatus {
    /// Which one.
    pub backend: BackendName,
    /// Whether it can open a sandbox now.
    pub usable: bool,
    /// What it is and what it keeps, if it is usable.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub details: Option<Usable>,
    /// What a snapshot of its sandboxes holds; absent where none can be taken, however usable it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotKind>,
    /// Why it is not usable and how to mend that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Diagnosis>,
    /// That it was given up, and what took over: whether or not it is usable again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_over: Option<FailedOver>,
}

impl BackendStatus {
    pub(crate) fn new(backend: BackendName, detection: Detection, snapshots: Option<SnapshotKind>) -> Self {
        let (details, reason) = match detection {
            Detection::Usable(usable) => (Some(*usable), None),
            Detection::Unusable(reason) | Detection::Failing(reason) => (None, Some(reason)),
        };
        Self { backend, usable: details.is_some(), details, snapshots, reason, failed_over: None }
    }
}

impl Registry {
    /// The backends, set up for this configuration. `config_dir` is the folder of the user's configuration, which no
    /// sandbox may see.
    pub fn new(config: &Config, config_dir: Option<PathBuf>) -> Self {
        let data_dir = &config.data_dir.value;
        let namespaces =
            moltis_backend_namespaces::Config { data_dir: data_dir.clone(), config_dir: config_dir.clone() };
        let host = moltis_backend_host::Config { data_dir: data_dir.clone(), config_dir: config_dir.clone() };
        let sandbox = &config.tools.exec.sandbox;
        let environment = Environment::of_process();
        let container = |kind| {
            Arc::new(ContainerBackend::new(moltis_backend_container::Config {
                kind,
                data_dir: data_dir.clone(),
                config_dir: config_dir.clone(),
                host_data_dir: sandbox.host_data_dir.as_ref().map(|folder| folder.value.clone()),
                prefix: sandbox.container_prefix.value.clone(),
                environment: environment.clone(),
            }))
        };
        let mut backends: Vec<Arc<dyn Backend>> =
            vec![container(EngineKind::Apple), container(EngineKind::Podman), container(EngineKind::Docker)];
        backends.extend(remote(config, config_dir.as_deref()));
        backends.push(Arc::new(NamespacesBackend::new(namespaces)));
        backends.push(Arc::new(RestrictedHostBackend::new(host.clone())));
        backends.push(Arc::new(NoneBackend::new(host)));
        backends.push(Arc::new(firecracker(config)));
        backends.extend(wasm(config, config_dir.clone()));
        Self { backends, config_dir }
    }

    /// The same backends under another configuration. Those at providers are made anew where their settings have changed:
    /// what they know is on disk, and what runs of them is held by who uses it.
    pub fn renewed(self: &Arc<Self>, old: &Config, new: &Config) -> Arc<Self> {
        if settings_of_remote(old) == settings_of_remote(new) {
            return Arc::clone(self);
        }
        let fresh = remote(new, self.config_dir.as_deref());
        let backends = self.backends.iter().map(|backend| {
            let fresh = fresh.iter().find(|fresh| fresh.name() == backend.name());
            Arc::clone(fresh.unwrap_or(backend))
        });
        Arc::new(Self { backends: backends.collect(), config_dir: self.config_dir.clone() })
    }

    /// These backends, in this order.
    #[cfg(test)]
    pub fn of(backends: Vec<Arc<dyn Backend>>) -> Self {
        Self { backends, config_dir: None }
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Whether a choice can be made at all by this program.
    ///
    /// # Errors
    /// `backend-not-built`.
    pub fn known(&self, choice: BackendChoice) -> Result<()> {
        match choice {
            BackendChoice::Named(name) if self.get(name).is_none() => {
                Err(RuntimeError::NotBuilt(name).into())
            }
            BackendChoice::Named(_) | BackendChoice::Auto => Ok(()),
        }
    }

    /// One by name.
    pub fn get(&self, name: BackendName) -> Option<&Arc<dyn Backend>> {
        self.backends.iter().find(|backend| backend.name() == name)
    }
}

/// Local microVMs.
fn firecracker(config: &Config) -> FirecrackerBackend {
    let sandbox = &config.tools.exec.sandbox;
    let mut machines = moltis_backend_firecracker::Config::new(config.data_dir.value.clone());
    machines.firecracker.clone_from(&sandbox.firecracker_bin.value);
    machines.kernel.clone_from(&sandbox.firecracker_kernel.value);
    machines.rootfs.clone_from(&sandbox.firecracker_rootfs.value);
    // The built-in path is where the key would be: SSH is what somebody asks for by naming one.
    let key = &sandbox.firecracker_ssh_key;
    machines.ssh_key = key.origin.is_demand().then(|| key.value.clone());
    // Both are bounded where they are read.
    machines.vcpus = u32::try_from(sandbox.firecracker_vcpus.value).unwrap_or(2);
    machines.memory_mb = u32::try_from(sandbox.firecracker_memory_mb.value).unwrap_or(512);
    FirecrackerBackend::new(machines)
}

/// Sandboxes at providers, if this program was built with them. One without a token says what is missing, and asks
/// nobody.
#[cfg(feature = "remote")]
fn remote(config: &Config, config_dir: Option<&std::path::Path>) -> Vec<Arc<dyn Backend>> {
    use moltis_backend_remote::{DaytonaConfig, VercelConfig, daytona, vercel};

    let sandbox = &config.tools.exec.sandbox;
    let word =
        |setting: &Option<moltis_sandbox::Setting<String>>| setting.as_ref().map(|word| word.value.clone());
    vec![
        Arc::new(vercel::backend(VercelConfig {
            data_dir: config.data_dir.value.clone(),
            config_dir: config_dir.map(std::path::Path::to_owned),
            api_url: sandbox.vercel_api_url.value.clone(),
            token: sandbox.vercel_token.as_ref().map(|token| token.value.clone()),
            project: word(&sandbox.vercel_project_id),
            team: word(&sandbox.vercel_team_id),
            runtime: sandbox.vercel_runtime.value.to_string(),
            timeout: std::time::Duration::from_millis(sandbox.vercel_timeout_ms.value),
            vcpus: u32::try_from(sandbox.vercel_vcpus.value).unwrap_or(2),
            snapshot: word(&sandbox.vercel_snapshot_id),
        })),
        Arc::new(daytona::backend(DaytonaConfig {
            data_dir: config.data_dir.value.clone(),
            config_dir: config_dir.map(std::path::Path::to_owned),
            api_url: sandbox.daytona_api_url.value.clone(),
            key: sandbox.daytona_api_key.as_ref().map(|key| key.value.clone()),
            target: word(&sandbox.daytona_target),
            image: word(&sandbox.daytona_image),
        })),
    ]
}

/// Every setting that a backend at a provider is made with.
fn settings_of_remote(config: &Config) -> impl PartialEq + use<> {
    let sandbox = config.tools.exec.sandbox.clone();
    let vercel = (
        sandbox.vercel_token,
        sandbox.vercel_project_id,
        sandbox.vercel_team_id,
        sandbox.vercel_api_url,
        sandbox.vercel_runtime,
        sandbox.vercel_timeout_ms,
        sandbox.vercel_vcpus,
        sandbox.vercel_snapshot_id,
    );
    let daytona =
        (sandbox.daytona_api_key, sandbox.daytona_api_url, sandbox.daytona_target, sandbox.daytona_image);
    (vercel, daytona)
}

/// Sandboxes at providers, if this program was built with them.
#[cfg(not(feature = "remote"))]
fn remote(_: &Config, _: Option<&std::path::Path>) -> Vec<Arc<dyn Backend>> {
    Vec::new()
}

/// The in-process shell, if this program was built with it.
#[cfg(feature = "wasm")]
fn wasm(config: &Config, config_dir: Option<PathBuf>) -> Option<Arc<dyn Backend>> {
    let sandbox = &config.tools.exec.sandbox;
    Some(Arc::new(moltis_backend_wasm::WasmBackend::new(moltis_backend_wasm::Config {
        data_dir: config.data_dir.value.clone(),
        config_dir,
        commands: sandbox.wasm_commands.value.clone().into_iter().collect(),
        epoch_interval: std::time::Duration::from_millis(sandbox.wasm_epoch_interval_ms.value),
        fuel: sandbox.wasm_fuel_limit.value,
    })))
}

/// The in-process shell, if this program was built with it.
#[cfg(not(feature = "wasm"))]
fn wasm(_: &Config, _: Option<PathBuf>) -> Option<Arc<dyn Backend>> {
    None
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use moltis_config::Config;
    use moltis_sandbox::{Origin, Setting};

    use super::*;

    #[test]
    fn another_token_makes_that_provider_s_backend_anew_and_no_other() {
        let old = Config::default();
        let registry = Arc::new(Registry::new(&old, None));
        let mut new = old.clone();
        new.tools.exec.sandbox.idle_ttl.value += std::time::Duration::from_secs(1);
        assert!(Arc::ptr_eq(&registry, &registry.renewed(&old, &new)));
        new.tools.exec.sandbox.vercel_project_id = Some(Setting::new("prj".to_owned(), Origin::File));
        let renewed = registry.renewed(&old, &new);
        let names = |registry: &Registry| registry.all().iter().map(|one| one.name()).collect::<Vec<_>>();
        assert_eq!(names(&renewed), names(&registry));
        for (before, after) in registry.all().iter().zip(renewed.all()) {
            let is_remote = matches!(before.name(), BackendName::Vercel | BackendName::Daytona);
            assert_eq!(Arc::ptr_eq(before, after), !is_remote, "{}", before.name());
        }
    }
}
