//! The runtime: what every surface holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moltis_config::Config;
use moltis_sandbox::{
    BackendName, BuildSink, Detection, Error, Lifetime, NotEnforced, Result, Sandbox, SandboxSpec,
    SessionKey, blocking,
};

use crate::error::RuntimeError;
use crate::failover::{Asks, Failover};
use crate::homes;
use crate::image;
use crate::network::Road;
use crate::pool::Pool;
use crate::registry::{BackendStatus, Registry};
use crate::router::Route;
use crate::settings::{self, Overrides, Settings};
use crate::store::Store;

/// Free space in the data directory below which no new command starts, in bytes.
pub(crate) const FREE_FLOOR: u64 = 1 << 30;

/// Sessions on sandboxes, for one data directory. Clones share it.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

struct Shared {
    config: Config,
    config_files: Vec<PathBuf>,
    registry: Arc<Registry>,
    store: Store,
    /// Present in a runtime that lives long.
    failover: Option<Arc<Failover>>,
    pool: Arc<Pool>,
    road: Arc<Road>,
}

/// A sandbox that was opened for commands.
pub struct Opened {
    /// The sandbox.
    pub sandbox: Arc<dyn Sandbox>,
    /// What holds it.
    pub backend: BackendName,
    /// Built-in defaults that are not kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// What it is.
    pub spec: Box<SandboxSpec>,
}

impl Runtime {
    /// A runtime with this configuration. `config_dir` is the folder of the user's configuration and `config_files` are
    /// the files that were read: no sandbox may see them. Nothing is touched yet.
    pub fn new(config: Config, config_dir: Option<PathBuf>, config_files: Vec<PathBuf>) -> Self {
        let registry = Registry::new(&config, config_dir);
        Self::made(config, config_files, registry, None)
    }

    /// A runtime that lives long, as in a gateway: it asks every backend once at its start, and when the engine of one
    /// that was usable then fails, the sessions on it go on elsewhere as `failover` in the configuration says. A runtime
    /// of [`new`](Self::new), such as that of one command, never does so.
    ///
    /// # Errors
    /// `Unavailable` when the backend that the configuration names is not usable.
    pub async fn long_lived(
        config: Config,
        config_dir: Option<PathBuf>,
        config_files: Vec<PathBuf>,
    ) -> Result<Self> {
        let registry = Registry::new(&config, config_dir);
        Self::start(config, config_files, registry).await
    }

    pub(crate) async fn start(
        config: Config,
        config_files: Vec<PathBuf>,
        registry: Registry,
    ) -> Result<Self> {
        let sandbox = &config.tools.exec.sandbox;
        let failover = Failover::start(&registry, sandbox.failover.value, sandbox.backend.value).await?;
        Ok(Self::made(config, config_files, registry, Some(failover)))
    }

    fn made(
        config: Config,
        config_files: Vec<PathBuf>,
        registry: Registry,
        failover: Option<Failover>,
    ) -> Self {
        let store = Store::new(&config.data_dir.value);
        Self(Arc::new(Shared {
            config,
            config_files,
            registry: Arc::new(registry),
            store,
            failover: failover.map(Arc::new),
            pool: Arc::default(),
            road: Arc::default(),
        }))
    }

    /// The same runtime under another configuration, for what is asked of it from now on: sandboxes, sessions, what has
    /// failed, the pool and the proxy are shared. Sandboxes that run reach what the new configuration says at once. The
    /// data directory and what the backends were set up with stay as they were: `config` must not differ there, but for
    /// those at providers.
    #[must_use]
    pub fn reconfigured(&self, config: Config, config_files: Vec<PathBuf>) -> Self {
        self.road().now_by(config.clone());
        let registry = self.0.registry.renewed(&self.0.config, &config);
        Self(Arc::new(Shared {
            config,
            config_files,
            registry,
            store: self.0.store.clone(),
            failover: self.0.failover.clone(),
            pool: Arc::clone(&self.0.pool),
            road: Arc::clone(&self.0.road),
        }))
    }

    pub(crate) fn road(&self) -> &Road {
        &self.0.road
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    #[cfg(test)]
    pub(crate) fn of_one_command(config: Config, config_files: Vec<PathBuf>, registry: Registry) -> Self {
        Self::made(config, config_files, registry, None)
    }

    pub(crate) fn failover(&self) -> Option<&Failover> {
        self.0.failover.as_deref()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// What survives: sessions, their sandboxes, their history.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn config_files(&self) -> &[PathBuf] {
        &self.0.config_files
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Time that a command may take when its caller names none.
    pub fn default_timeout(&self) -> Duration {
        self.0.config.tools.exec.default_timeout().value
    }

    /// Bytes kept of each stream of a collected answer.
    pub fn max_output_bytes(&self) -> u64 {
        self.0.config.tools.exec.max_output_bytes.value
    }

    /// What each backend is and whether it is usable, in `auto`'s order.
    pub async fn backends(&self) -> Vec<BackendStatus> {
        let mut all = Vec::new();
        for name in BackendName::ALL {
            let backend = self.registry().get(name);
            let detection = match backend {
                Some(backend) => backend.detect().await,
                None => Detection::Unusable(Error::from(RuntimeError::NotBuilt(name)).diagnosis().clone()),
            };
            let failed = self.failed_over().into_iter().find(|failed| failed.from == name);
            let snapshots = backend.and_then(|backend| backend.snapshots());
            all.push(BackendStatus { failed_over: failed, ..BackendStatus::new(name, detection, snapshots) });
        }
        all
    }

    /// Opens a sandbox: an ephemeral one of its own, which ends with this process at the latest.
    ///
    /// # Errors
    /// `Refused` when a demand cannot be kept, `Unavailable` when no sandbox can be had here and now, `Invalid` when
    /// a setting cannot be right. Nothing is left behind on an error.
    pub async fn open(&self, overrides: &Overrides) -> Result<Opened> {
        self.open_with(overrides, &BuildSink::ignore()).await
    }

    /// [`open`](Self::open), with somebody who looks on while an image is built or fetched.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn open_with(&self, overrides: &Overrides, progress: &BuildSink) -> Result<Opened> {
        let asks = Asks { choice: settings::choice(self.config(), overrides), key: None };
        self.see_room().await?;
        let settings = self.settings(overrides.clone(), ephemeral_key(), Lifetime::Ephemeral).await?;
        let unkept = settings.unkept()?;
        let host_memory = host_memory();
        let mut barred = Vec::new();
        loop {
            let route = self.route_past(&asks, &barred, |name| settings.on(name, host_memory)).await?;
            let mut notes = route.notes.clone();
            let way_out = self.way_out(&route.spec, 0, &route.not_enforced, &mut notes).await?;
            let opened = match image::make_ready(&route, progress).await {
                Ok(()) => route.backend.open(&route.spec).await,
                Err(error) => Err(error),
            };
            let error = match opened {
                Ok(sandbox) => {
                    let Route { backend, not_enforced, spec, .. } = route;
                    let (sandbox, notes) = (way_out.of(sandbox), self.news(notes).await);
                    let not_enforced = [unkept, not_enforced].concat();
                    let (backend, spec) = (backend.name(), Box::new(spec));
                    return Ok(Opened { sandbox, backend, not_enforced, notes, spec });
                }
                Err(error) => error,
            };
            if !self.goes_on(asks.choice.value, &route, &error, &mut barred).await {
                return Err(error);
            }
        }
    }

    /// Makes the folders that a sandbox needs, and says what it is to be.
    pub(crate) async fn settings(
        &self,
        overrides: Overrides,
        key: SessionKey,
        lifetime: Lifetime,
    ) -> Result<Settings> {
        self.blocking(move |shared| shared.settings(&overrides, key, lifetime)).await
    }

    /// [`settings`](Self::settings) for threads that may block.
    pub(crate) fn settings_here(
        &self,
        overrides: &Overrides,
        key: SessionKey,
        lifetime: Lifetime,
    ) -> Result<Settings> {
        self.0.settings(overrides, key, lifetime)
    }

    /// Sees that there is room for what a command writes.
    ///
    /// # Errors
    /// `disk-low`.
    pub(crate) async fn see_room(&self) -> Result<()> {
        self.blocking(|shared| see_room(&shared.config.data_dir.value)).await
    }

    /// [`see_room`](Self::see_room) for threads that may block.
    pub(crate) fn see_room_here(&self) -> Result<()> {
        see_room(&self.config().data_dir.value)
    }

    /// Does work that blocks for a moment off the async threads.
    pub(crate) async fn in_short<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.blocking(|_| work()).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.0);
        let done = blocking::short(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(RuntimeError::Broke(error.to_string()).into()))
    }
}

impl Shared {
    fn settings(&self, overrides: &Overrides, key: SessionKey, lifetime: Lifetime) -> Result<Settings> {
        let data = &self.config.data_dir.value;
        homes::private_folder(data).map_err(|e| RuntimeError::data_directory(data, e))?;
        homes::is_safe(data)?;
        let settings = Settings::new(&self.config, overrides, key, lifetime);
        settings.make_folders()?;
        settings.hides(&self.config_files)?;
        Ok(settings)
    }
}

/// Does what may block for long off the async threads.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = blocking::long(work).await;
    done.unwrap_or_else(|error| Err(RuntimeError::Broke(error.to_string()).into()))
}

/// Makes the data directory if it is missing, and sees that there is room in it.
fn see_room(place: &Path) -> Result<()> {
    homes::private_folder(place).map_err(|e| RuntimeError::data_directory(place, e))?;
    see_space(place)
}

/// Sees that there is room where the data directory is, or would be.
pub(crate) fn see_space(place: &Path) -> Result<()> {
    see_space_for(place, 0)
}

/// Sees that there is room for so many bytes more.
pub(crate) fn see_space_for(place: &Path, bytes: u64) -> Result<()> {
    let free = free_bytes(place)?;
    if free.saturating_sub(bytes) < FREE_FLOOR {
        let mib = |bytes: u64| bytes >> 20;
        let place = place.display().to_string();
        return Err(RuntimeError::DiskLow { place, free: mib(free), floor: mib(FREE_FLOOR) }.into());
    }
    Ok(())
}

/// Free bytes on the file system where the data directory is, or would be.
pub(crate) fn free_bytes(place: &Path) -> Result<u64> {
    let there = place.ancestors().find(|folder| folder.exists()).unwrap_or(place);
    let space = rustix::fs::statvfs(there).map_err(|e| RuntimeError::data_directory(place, e.into()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// A key that no other process and no other call uses.
pub(crate) fn ephemeral_key() -> SessionKey {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{SystemTime, UNIX_EPOCH};

    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let key = format!("ephemeral:{}:{nanos}:{number}", std::process::id());
    // The text is never empty and far below the limit.
    SessionKey::new(key).unwrap_or_else(|| unreachable!("an ephemeral key is a valid key"))
}

/// Memory of this machine in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}
