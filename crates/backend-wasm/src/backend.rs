//! The backend: sandboxes that are folders, and shells that run in this process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_host::caller::Caller;
use moltis_host::sources::Judge;
use moltis_sandbox::{
    Backend, BackendName, BuildProgress, BuildSink, Detection, Lifetime, Prepared, Result as SandboxResult,
    Sandbox, SandboxId, SandboxRecord, SandboxSpec, Usable,
};

use serde::{Deserialize, Serialize};

use crate::engine::Room;
use crate::error::{Result, blocking, long};
use crate::guarantees::guarantees;
use crate::meter;
use crate::place::{InUse, Places, Record};
use crate::sandbox::{Inner, Shared, WasmSandbox, has_own_home, lasts, remove};
use crate::shown;

/// Version of the shell inside, and of what runs modules.
const VERSION: &str = "bashkit 0.20.2, wasmtime 48";

/// How this backend is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Moltis's data directory.
    pub data_dir: PathBuf,
    /// The folder of the user's configuration, which no sandbox may see.
    pub config_dir: Option<PathBuf>,
    /// WASI modules that commands may call by name.
    pub commands: BTreeMap<String, PathBuf>,
    /// How often a running module looks at its deadline.
    pub epoch_interval: Duration,
    /// Instructions that one run of a module may execute.
    pub fuel: u64,
}

/// The backend `wasm`.
pub struct WasmBackend {
    config: Config,
    places: Places,
    room: Arc<Room>,
    commands: Arc<BTreeMap<String, PathBuf>>,
}

impl WasmBackend {
    /// Set up like this. Nothing is made or looked at yet.
    pub fn new(config: Config) -> Self {
        Self {
            places: Places::new(&config.data_dir),
            room: Room::new(&config.data_dir, config.epoch_interval),
            commands: Arc::new(config.commands.clone()),
            config,
        }
    }

    fn inner(&self, record: Record) -> Arc<Inner> {
        let id = record.spec.id();
        Arc::new(Inner {
            shared: Shared::of(self.places.path(&id), &record),
            id,
            places: self.places.clone(),
            record,
            room: Arc::clone(&self.room),
            commands: Arc::clone(&self.commands),
            config: self.config.clone(),
        })
    }

    /// The sandbox of this id that was made then, if it is there still. Blocks for a moment.
    pub(crate) fn this_very(&self, id: &SandboxId, created_nanos: u64) -> Option<Arc<Inner>> {
        let record = self.places.record(id)?;
        (record.created_nanos == created_nanos).then(|| self.inner(record))
    }

    fn hand_out(&self, made: Made) -> Arc<dyn Sandbox> {
        let Made { record, is_new, hold } = made;
        let idle = lasts(&record);
        let inner = self.inner(record);
        if let Some(idle) = idle {
            end_when_idle(self.places.clone(), inner.id.clone(), idle);
        }
        Arc::new(WasmSandbox::new(is_new, inner, hold))
    }

    fn judge(config: &Config) -> Result<Judge> {
        Ok(Judge::new(&config.data_dir, config.config_dir.as_deref(), &Caller::now())?)
    }
}

struct Made {
    record: Record,
    is_new: bool,
    hold: Option<InUse>,
}

fn nanos() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Removes a session's sandbox once it was idle for as long as it may be, should this process live until then.
fn end_when_idle(places: Places, id: SandboxId, idle: Duration) {
    tokio::spawn(async move {
        let mut pause = idle;
        loop {
            tokio::time::sleep(pause.max(Duration::from_millis(20))).await;
            let (places, id) = (places.clone(), id.clone());
            let looked = long(move || {
                let Some(record) = places.record(&id) else { return Ok(None) };
                let Some((spent, used)) = places.use_of(&id) else { return Ok(None) };
                let left = lasts(&record).unwrap_or_default().saturating_sub(spent);
                if used || !left.is_zero() {
                    return Ok(Some(if used { idle.min(Duration::from_secs(5)) } else { left }));
                }
                sweep(&places, &id)?;
                Ok(None)
            });
            match looked.await {
                Ok(Some(left)) => pause = left,
                // What cannot be removed now is found by whoever looks next.
                Ok(None) | Err(_) => return,
            }
        }
    });
}

/// Removes a sandbox if its time is over. Blocks.
fn sweep(places: &Places, id: &SandboxId) -> Result<()> {
    let Some(held) = places.lock_existing(id)? else { return Ok(()) };
    match held.record() {
        Some(record) if !places.is_over(id, &record) => Ok(()),
        Some(record) => {
            Shared::of(places.path(id), &record).close();
            held.clear(record.spec.home.is_some())
        }
        // Half made or half removed; a home there is somebody's.
        None => held.clear(true),
    }
}

fn open(config: &Config, places: &Places, spec: &SandboxSpec) -> Result<Made> {
    let (id, fingerprint) = (spec.id(), spec.fingerprint());
    let judge = WasmBackend::judge(config)?;
    let shown = shown::judge(spec, &judge, &places.path(&id))?;
    let held = places.lock(&id)?;
    if let Some(found) = held.record() {
        let same = found.fingerprint == fingerprint && found.shown == shown;
        if !places.is_over(&id, &found) && same && found.spec.lifetime != Lifetime::Ephemeral {
            let mut record = Record { spec: spec.clone(), ..found };
            // Who asks is of the same spec; how long it lives and what its modules may do is said anew.
            drop(held.write(&mut record)?);
            return Ok(Made { record, is_new: false, hold: None });
        }
        Shared::of(places.path(&id), &found).close();
        Shared::of(places.path(&id), &found).wait();
        held.clear(found.spec.home.is_some())?;
        return open(config, places, spec);
    }
    let created = nanos();
    let mut record = Record {
        spec: spec.clone(),
        fingerprint,
        created_secs: created / 1_000_000_000,
        created_nanos: created,
        shown,
        own: Vec::new(),
    };
    let own_home = has_own_home(places, &record);
    let made = held.start(own_home, spec.home.is_some(), &mut record);
    let hold = match made {
        Ok(hold) => hold,
        Err(error) => {
            let _ = held.clear(spec.home.is_some());
            return Err(error);
        }
    };
    let hold = (spec.lifetime == Lifetime::Ephemeral).then_some(hold);
    Ok(Made { record, is_new: true, hold })
}

#[async_trait]
impl Backend for WasmBackend {
    fn name(&self) -> BackendName {
        BackendName::Wasm
    }

    async fn detect(&self) -> Detection {
        let mut notes = Vec::new();
        if !self.commands.is_empty() {
            let names: Vec<&str> = self.commands.keys().map(String::as_str).collect();
            notes.push(format!("modules with a name: {}", names.join(", ")));
        }
        Detection::Usable(Box::new(Usable {
            version: VERSION.to_owned(),
            guarantees: guarantees(meter::is_counting()),
            left_off: Vec::new(),
            notes,
        }))
    }

    async fn open(&self, spec: &SandboxSpec) -> SandboxResult<Arc<dyn Sandbox>> {
        let (config, places, spec) = (self.config.clone(), self.places.clone(), spec.clone());
        let made = blocking(move || open(&config, &places, &spec)).await?;
        Ok(self.hand_out(made))
    }

    async fn check(&self, spec: &SandboxSpec) -> SandboxResult<()> {
        let (config, mut spec) = (self.config.clone(), spec.clone());
        // A folder of ours that is to be made is no reason.
        spec.home = None;
        spec.managed_files = None;
        let place = self.places.path(&spec.id());
        Ok(blocking(move || shown::judge(&spec, &Self::judge(&config)?, &place).map(drop)).await?)
    }

    async fn adopt(&self, spec: &SandboxSpec) -> SandboxResult<Option<Arc<dyn Sandbox>>> {
        let (places, spec) = (self.places.clone(), spec.clone());
        let found = blocking(move || {
            let id = spec.id();
            let Some(record) = places.running(&id) else { return Ok(None) };
            let lasts = record.spec.lifetime != Lifetime::Ephemeral;
            if !lasts || record.fingerprint != spec.fingerprint() {
                return Ok(None);
            }
            // What it shows may have been replaced since.
            if shown::open_tree(&places.path(&id), &record).is_err() {
                return Ok(None);
            }
            places.renew(&id);
            let lifetime = record.spec.lifetime;
            Ok(Some(Record { spec: SandboxSpec { lifetime, ..spec }, ..record }))
        });
        let found = found.await?;
        Ok(found.map(|record| self.hand_out(Made { record, is_new: false, hold: None })))
    }

    async fn find(&self, id: &SandboxId) -> SandboxResult<Option<Arc<dyn Sandbox>>> {
        let (places, id) = (self.places.clone(), id.clone());
        let found = blocking(move || {
            let found = places.running(&id).filter(|record| record.spec.id() == id);
            Ok(found.filter(|record| shown::open_tree(&places.path(&id), record).is_ok()))
        });
        let found = found.await?;
        let handed = |record: Record| -> Arc<dyn Sandbox> {
            Arc::new(WasmSandbox::new(false, self.inner(record), None))
        };
        Ok(found.map(handed))
    }

    async fn list(&self) -> SandboxResult<Vec<SandboxRecord>> {
        let places = self.places.clone();
        let listed = long(move || {
            let mut all = Vec::new();
            for id in places.ids() {
                let Some(record) = places.record(&id) else { continue };
                if places.is_over(&id, &record) {
                    // One that cannot be removed is told of.
                    if sweep(&places, &id).is_ok() && places.record(&id).is_none() {
                        continue;
                    }
                }
                let running = places.running(&id).is_some();
                let Record { fingerprint, created_secs, .. } = record;
                all.push(SandboxRecord { id, fingerprint, running, created_secs, provider: None });
            }
            Ok(all)
        });
        Ok(listed.await?)
    }

    async fn prepare(&self, progress: &BuildSink) -> SandboxResult<Vec<Prepared>> {
        let mut all = Vec::new();
        for (name, path) in self.commands.iter() {
            let (room, name, path) = (Arc::clone(&self.room), name.clone(), path.clone());
            progress.tell(BuildProgress::Step(format!("compiling {name} ({})", path.display()))).await;
            let (module, began) = (name.clone(), Instant::now());
            let mut compiling = std::pin::pin!(long(move || room.prepare(&module, &path)));
            let new = loop {
                tokio::select! {
                    done = &mut compiling => break done?,
                    // What is being compiled is carried on to its end, but nobody waits for it.
                    () = progress.closed() => return Ok(all),
                    () = tokio::time::sleep(Duration::from_secs(5)) => {
                        let line = format!("{name}: {} s so far", began.elapsed().as_secs());
                        progress.tell(BuildProgress::Log(line)).await;
                    }
                }
            };
            all.push(Prepared { name, new });
        }
        Ok(all)
    }

    async fn remove(&self, id: &SandboxId) -> SandboxResult<()> {
        let (places, id) = (self.places.clone(), id.clone());
        Ok(long(move || {
            let Some(record) = places.record(&id) else {
                // Half of one, if anything; another backend has nothing here.
                return remove(&places, &id, None);
            };
            let shared = Shared::of(places.path(&id), &record);
            shared.close();
            shared.wait();
            remove(&places, &id, Some(&record))
        })
        .await?)
    }
}
