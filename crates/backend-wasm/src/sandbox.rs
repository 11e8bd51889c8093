//! A sandbox, as it is handed out: a place on disk, and what of this process is at it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Duplex, Exec, ExecRequest, Files, Forwarder, GuestPath, Lifetime, Outcome, ProcessInfo,
    Result as SandboxResult, Sandbox, SandboxId,
};

use crate::backend::Config;
use crate::background;
use crate::commands::{self, Asked, Fate, declared};
use crate::engine::Room;
use crate::error::{Error, Result, blocking, long};
use crate::files::TreeFiles;
use crate::guarantees::NO_FORWARD;
use crate::meter::Meter;
use crate::page::Page;
use crate::place::{self, InUse, Places, Record};
use crate::shown::open_tree;
use crate::tree::Tree;

/// Memory of a sandbox for which nobody set another limit.
pub const MEMORY: u64 = 512 << 20;

/// Most commands that run at once in one sandbox: each has a thread, and some memory that is counted as it is used.
const MAX_COMMANDS: u32 = 256;

/// How long commands that are to end may take before the sandbox goes without waiting for them.
const PATIENCE: Duration = Duration::from_secs(3);

/// What all handles of one sandbox share in this process.
#[derive(Debug)]
pub struct Shared {
    /// Its memory.
    pub meter: Arc<Meter>,
    /// Commands since its start, where no other process can count.
    commands: AtomicU32,
    operations: AtomicU32,
    running: AtomicU32,
    closed: AtomicBool,
    began: Instant,
    fates: Mutex<Vec<Weak<Fate>>>,
}

impl Shared {
    /// Of the sandbox at this place that was made then.
    pub fn of(place: PathBuf, record: &Record) -> Arc<Self> {
        type Key = (PathBuf, u64, String);
        static ALL: OnceLock<Mutex<HashMap<Key, Weak<Shared>>>> = OnceLock::new();
        let key = (place, record.created_nanos, record.fingerprint.clone());
        let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        // Those that are gone make room for as many again.
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|_, shared| shared.strong_count() > 0);
        }
        let limit = record.spec.limits.memory.map_or(MEMORY, |memory| memory.value);
        // Where the folder is gone, so is the sandbox, and nothing will be counted.
        let meter = Page::open(&key.0).map_or_else(|_| Meter::new(limit), |page| Meter::shared(limit, page));
        let made = Arc::new(Self {
            meter,
            commands: AtomicU32::new(0),
            operations: AtomicU32::new(0),
            running: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            began: Instant::now(),
            fates: Mutex::new(Vec::new()),
        });
        all.insert(key, Arc::downgrade(&made));
        made
    }

    /// A number for a command.
    pub fn number(&self) -> u32 {
        match self.meter.page() {
            Some(page) => page.next(),
            None => self.commands.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        }
    }

    /// How many commands there were.
    fn commands(&self) -> u32 {
        self.meter.page().map_or_else(|| self.commands.load(Ordering::Relaxed), Page::last)
    }

    /// Another command runs.
    pub fn add(&self, fate: &Arc<Fate>) {
        let mut fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        if fates.len() >= 16 && fates.len().is_power_of_two() {
            fates.retain(|fate| fate.strong_count() > 0);
        }
        fates.push(Arc::downgrade(fate));
        drop(fates);
        // It may have been closed in this moment.
        if self.closed.load(Ordering::SeqCst) {
            fate.close();
        }
    }

    /// Ends all that runs, and lets nothing begin any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let fates = std::mem::take(&mut *self.fates.lock().unwrap_or_else(PoisonError::into_inner));
        for fate in fates.iter().filter_map(Weak::upgrade) {
            fate.close();
        }
    }

    /// Waits until nothing runs any more, but not for ever.
    pub fn wait(&self) {
        let until = Instant::now() + PATIENCE;
        while self.operations.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a sandbox is made of.
pub struct Inner {
    /// Its id.
    pub id: SandboxId,
    /// All places.
    pub places: Places,
    /// What is written down of it.
    pub record: Record,
    /// What this process has of it.
    pub shared: Arc<Shared>,
    /// Where modules are.
    pub room: Arc<Room>,
    /// Modules that have a name.
    pub commands: Arc<BTreeMap<String, PathBuf>>,
    /// How its backend is set up.
    pub config: Config,
}

/// One operation, counted; not yet held against others who might remove the sandbox.
pub struct Begun(Option<Counted>);

/// One operation.
pub struct Busy {
    _use: InUse,
    _counted: Counted,
}

struct Counted {
    inner: Arc<Inner>,
    command: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let shared = &self.inner.shared;
        if self.command {
            shared.running.fetch_sub(1, Ordering::SeqCst);
        }
        shared.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Begun {
    /// Holds the sandbox against being removed. Blocks for a moment.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn hold(mut self) -> Result<Busy> {
        let counted = self.0.take().ok_or(Error::Gone)?;
        let in_use = counted.inner.places.begin(&counted.inner.id)?;
        // Another sandbox may have the same id by now.
        let now = counted.inner.places.record(&counted.inner.id);
        if now.is_none_or(|now| now.created_nanos != counted.inner.record.created_nanos) {
            return Err(Error::Gone);
        }
        Ok(Busy { _use: in_use, _counted: counted })
    }
}

impl Inner {
    /// Counts an operation.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Full`].
    pub fn begin(self: &Arc<Self>, command: bool) -> Result<Begun> {
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err(Error::Gone);
        }
        self.shared.operations.fetch_add(1, Ordering::SeqCst);
        if command {
            let running = self.shared.running.fetch_add(1, Ordering::SeqCst) + 1;
            let counted = Counted { inner: Arc::clone(self), command };
            if running > MAX_COMMANDS {
                drop(counted);
                return Err(Error::Full(format!("{MAX_COMMANDS} run in it already")));
            }
            return Ok(Begun(Some(counted)));
        }
        Ok(Begun(Some(Counted { inner: Arc::clone(self), command })))
    }

    /// Its folder.
    pub fn place(&self) -> PathBuf {
        self.places.path(&self.id)
    }

    /// Opens its files. Blocks for a moment.
    ///
    /// # Errors
    /// [`Error::Changed`], [`Error::Gone`].
    pub fn tree(&self) -> Result<Tree> {
        open_tree(&self.place(), &self.record)
    }

    /// Where commands run.
    pub fn directory(&self) -> &'static str {
        let workspace = self.record.spec.workspace.is_some();
        if workspace { moltis_host::target::WORKSPACE } else { moltis_host::target::HOME }
    }

    /// Instructions that one run of a module may execute.
    pub fn fuel(&self) -> u64 {
        self.record.spec.fuel.map_or(self.config.fuel, |fuel| fuel.value)
    }

    /// Whether this process has ended it.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// Ends what runs, and removes it. Blocks.
    ///
    /// # Errors
    /// Those of removing.
    pub fn remove(&self) -> Result<()> {
        self.shared.close();
        self.shared.wait();
        remove(&self.places, &self.id, Some(&self.record))
    }
}

/// Whether a sandbox's home is in its own folder.
pub fn has_own_home(places: &Places, record: &Record) -> bool {
    let own = places.path(&record.spec.id()).join(place::HOME);
    record.spec.home.as_deref().is_none_or(|home| home == own)
}

/// Removes what is at a place: this very sandbox, or whichever. Blocks.
///
/// # Errors
/// Those of removing.
pub fn remove(places: &Places, id: &SandboxId, which: Option<&Record>) -> Result<()> {
    let Some(held) = places.lock_existing(id)? else { return Ok(()) };
    let found = held.record();
    if let (Some(which), Some(found)) = (which, &found)
        && which.created_nanos != found.created_nanos
    {
        return Ok(());
    }
    // A home that lasts stays, and where nobody knows, it may be one.
    let keeps = found.or_else(|| which.cloned()).is_none_or(|record| record.spec.home.is_some());
    held.clear(keeps)
}

/// A running sandbox.
pub struct WasmSandbox {
    is_new: bool,
    inner: Arc<Inner>,
    files: TreeFiles,
    /// Held as long as a temporary one lives.
    hold: Mutex<Option<InUse>>,
}

impl WasmSandbox {
    /// Hands it out. `hold` is of a temporary one.
    pub fn new(is_new: bool, inner: Arc<Inner>, hold: Option<InUse>) -> Self {
        let files = TreeFiles::new(Arc::clone(&inner));
        Self { is_new, inner, files, hold: Mutex::new(hold) }
    }

    fn let_go(&self) -> Option<InUse> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for WasmSandbox {
    fn drop(&mut self) {
        let Some(hold) = self.let_go() else { return };
        self.inner.shared.close();
        let inner = Arc::clone(&self.inner);
        let done = std::thread::Builder::new().name("moltis-wasm-end".to_owned()).spawn(move || {
            drop(hold);
            // What stays is found by whoever looks next.
            let _ = inner.remove();
        });
        drop(done);
    }
}

#[async_trait]
impl Sandbox for WasmSandbox {
    fn id(&self) -> &SandboxId {
        &self.inner.id
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn directory(&self) -> Option<GuestPath> {
        GuestPath::new(self.inner.directory())
    }

    async fn activity(&self) -> SandboxResult<Activity> {
        let inner = Arc::clone(&self.inner);
        let ((idle, used), apart) = blocking(move || {
            let used = inner.places.use_of(&inner.id).ok_or(Error::Gone)?;
            Ok((used, background::held_apart(&inner.place())))
        })
        .await?;
        let shared = &self.inner.shared;
        let held = self.hold.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let own = shared.operations.load(Ordering::SeqCst);
        let operations = (own + apart).max(u32::from(used && !held));
        Ok(Activity {
            operations,
            idle: if operations > 0 { Duration::ZERO } else { idle },
            commands: shared.commands().into(),
            uptime: shared.began.elapsed(),
        })
    }

    async fn exec(&self, request: ExecRequest) -> SandboxResult<Exec> {
        let asked = Asked::read(&request)?;
        if request.background {
            return background::start(&self.inner, asked).await;
        }
        Ok(commands::start(&self.inner, asked, None).await?.exec())
    }

    async fn processes(&self) -> SandboxResult<Vec<ProcessInfo>> {
        background::list(&self.inner).await
    }

    async fn attach(
        &self,
        process: ProcessId,
        stdout: u64,
        stderr: u64,
        follow: bool,
    ) -> SandboxResult<Exec> {
        background::attach(&self.inner, process, stdout, stderr, follow).await
    }

    async fn stop(&self, process: ProcessId) -> SandboxResult<Outcome> {
        background::stop(&self.inner, process).await
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, _: u16) -> SandboxResult<Box<dyn Duplex>> {
        Err(declared("no port can be reached", NO_FORWARD, "forward-unsupported").into())
    }

    async fn listen(&self, _: u16) -> SandboxResult<Box<dyn Forwarder>> {
        Err(declared("no port can be listened on", NO_FORWARD, "forward-unsupported").into())
    }

    async fn close(&self) -> SandboxResult<()> {
        let (inner, hold) = (Arc::clone(&self.inner), self.let_go());
        Ok(long(move || {
            inner.shared.close();
            inner.shared.wait();
            drop(hold);
            inner.remove()
        })
        .await?)
    }

    async fn close_if_idle(&self) -> SandboxResult<bool> {
        let held = self.hold.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let inner = Arc::clone(&self.inner);
        if held {
            if inner.shared.operations.load(Ordering::SeqCst) > 0 {
                return Ok(false);
            }
            return self.close().await.map(|()| true);
        }
        Ok(long(move || {
            let Some(held) = inner.places.lock_existing(&inner.id)? else { return Ok(true) };
            let ours = held.record().is_some_and(|r| r.created_nanos == inner.record.created_nanos);
            if ours && held.is_used() {
                return Ok(false);
            }
            inner.shared.close();
            if ours { held.clear(inner.record.spec.home.is_some()).map(|()| true) } else { Ok(true) }
        })
        .await?)
    }
}

/// Whether it outlives its opener.
pub fn lasts(record: &Record) -> Option<Duration> {
    match record.spec.lifetime {
        Lifetime::Ephemeral => None,
        Lifetime::Idle(idle) => Some(idle),
    }
}
