//! The engine of a process: what compiles modules, keeps them, and counts the time by which they are ended. It is made
//! when the first module is run; a shell alone does without.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::sync::Semaphore;
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module, OptLevel,
    PoolingAllocationConfig,
};
use wasmtime_wasi::I32Exit;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::module::{MAX_OF_SANDBOX, State};
use crate::tree::{Follow, Spot, Tree};

/// Most modules that run at once in this process.
const RUNNING: u32 = 256;

/// Most address space of one module's memory: all that a module can name.
const MEMORY: usize = 1 << 32;

/// Stack of a module, and of the thread of control that it runs on.
const STACK: usize = 1 << 20;
const FIBER: usize = 2 << 20;

/// Most compiled modules that are held; the least lately used goes first.
const HELD: usize = 32;

/// Most files that are read at a time.
const READING: usize = 4;

/// Largest module of the configuration.
const MAX_CONFIGURED: u64 = 512 << 20;

/// Where a module comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The configuration names it: where it lies on the host.
    Configured(PathBuf),
    /// It is one of the sandbox's files.
    Inside(String),
}

/// Why a module cannot be run.
#[derive(Debug)]
pub enum NotRun {
    /// There is none.
    Missing(Errno),
    /// It is none, or not one of ours.
    Unfit(String),
    /// The engine is not there.
    Engine(String),
}

impl NotRun {
    /// What a shell ends with.
    pub fn code(&self) -> i32 {
        match self {
            Self::Missing(Errno::NOENT) => 127,
            Self::Missing(_) | Self::Unfit(_) | Self::Engine(_) => 126,
        }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(errno) => {
                let text = std::io::Error::from(*errno).to_string();
                f.write_str(text.split(" (os error").next().unwrap_or(&text))
            }
            Self::Unfit(why) => write!(f, "not a WASI preview1 module that can be run: {why}"),
            Self::Engine(why) => write!(f, "the WebAssembly engine cannot be set up: {why}"),
        }
    }
}

/// What tells a file's content from another one without reading it: nobody can set back the time of its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &File) -> std::io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Whether it changed so lately that a further change might not show.
    fn is_fresh(&self) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or(0));
        now.saturating_sub(changed) < Duration::from_secs(2)
    }
}

struct Made {
    engine: Engine,
    linker: Linker<State>,
}

/// The modules of a data directory, in this process.
pub struct Room {
    configured: Kept,
    inside: Kept,
    interval: Duration,
    made: OnceLock<Result<Made, String>>,
    held: Mutex<HashMap<Identity, (InstancePre<State>, Instant)>>,
    /// So many files are read at a time: each is held in memory whole.
    reading: Arc<Semaphore>,
    ticker: Arc<Ticker>,
}

/// Where modules of one origin are kept. What sandboxes bring never makes the configuration's wait or go.
struct Kept {
    cache: Cache,
    /// One is compiled at a time: it takes all processors and much memory.
    compiling: Arc<Semaphore>,
    /// Largest module in bytes.
    most: u64,
}

impl Kept {
    fn new(cache: Cache, most: u64) -> Self {
        Self { cache, compiling: Arc::new(Semaphore::new(1)), most }
    }
}

impl Room {
    /// Modules are kept below this data directory, and look at their deadline this often.
    pub fn new(data_dir: &Path, interval: Duration) -> Arc<Self> {
        Arc::new(Self {
            configured: Kept::new(Cache::configured(data_dir), MAX_CONFIGURED),
            inside: Kept::new(Cache::inside(data_dir), MAX_OF_SANDBOX),
            interval,
            made: OnceLock::new(),
            held: Mutex::new(HashMap::new()),
            reading: Arc::new(Semaphore::new(READING)),
            ticker: Arc::default(),
        })
    }

    fn made(&self) -> Result<&Made, NotRun> {
        let make = || make().map_err(|error| format!("{error:#}"));
        self.made.get_or_init(make).as_ref().map_err(|why| NotRun::Engine(why.clone()))
    }

    /// Counts time for as long as what is given is held.
    pub fn ticking(&self) -> Ticking {
        if let Some(Ok(made)) = self.made.get() {
            self.ticker.begin(&made.engine, self.interval);
        }
        Ticking(Arc::clone(&self.ticker))
    }

    /// A module, compiled now if it never was. A caller that does not wait for the end leaves it compiled for the next.
    ///
    /// # Errors
    /// [`NotRun`].
    pub async fn program(
        self: &Arc<Self>,
        source: Source,
        tree: &Arc<Tree>,
    ) -> Result<InstancePre<State>, NotRun> {
        let file = open(&source, tree)?;
        let identity = Identity::of(&file).map_err(|e| NotRun::Unfit(e.to_string()))?;
        if let Some(program) = self.find(&identity) {
            return Ok(program);
        }
        let broke = |_| NotRun::Unfit("the compiler broke off".to_owned());
        let closed = |_| NotRun::Engine("it shuts down".to_owned());
        let (room, is_inside) = (Arc::clone(self), matches!(source, Source::Inside(_)));
        // Whoever waits can be ended; what has begun holds its place to its end.
        let reading = Arc::clone(&self.reading).acquire_owned().await.map_err(closed)?;
        let looking = tokio::task::spawn_blocking(move || {
            let found = room.look(&file, identity, is_inside);
            drop(reading);
            (found, file)
        });
        let (found, file) = looking.await.map_err(broke)?;
        if let Some(program) = found? {
            return Ok(program);
        }
        let room = Arc::clone(self);
        let compiling = Arc::clone(&self.kept(is_inside).compiling).acquire_owned().await.map_err(closed)?;
        let loading = tokio::task::spawn_blocking(move || {
            let made = room.made()?;
            let (module, _) = room.compiled(made, &file, &identity, is_inside)?;
            drop(compiling);
            room.linked(made, &module, identity)
        });
        loading.await.map_err(broke)?
    }

    fn kept(&self, is_inside: bool) -> &Kept {
        if is_inside { &self.inside } else { &self.configured }
    }

    fn find(&self, identity: &Identity) -> Option<InstancePre<State>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (program, used) = held.get_mut(identity)?;
        *used = Instant::now();
        Some(program.clone())
    }

    /// One that was compiled before.
    fn look(
        &self,
        file: &File,
        identity: Identity,
        is_inside: bool,
    ) -> Result<Option<InstancePre<State>>, NotRun> {
        let (made, kept) = (self.made()?, self.kept(is_inside));
        let known = (!identity.is_fresh()).then_some(&identity);
        let found = match known.and_then(|identity| kept.cache.by_identity(&made.engine, identity)) {
            Some(module) => Some(module),
            None => {
                let key = kept.cache.key(&made.engine, &content(file, kept.most)?);
                let found = self.by_key(made, &key);
                if found.is_some() && !identity.is_fresh() {
                    kept.cache.remember(&identity, &key);
                }
                found
            }
        };
        found.map(|module| self.linked(made, &module, identity)).transpose()
    }

    /// The same content is the same module, wherever it comes from.
    fn by_key(&self, made: &Made, key: &str) -> Option<Module> {
        [&self.configured, &self.inside].into_iter().find_map(|kept| kept.cache.by_key(&made.engine, key))
    }

    fn linked(&self, made: &Made, module: &Module, identity: Identity) -> Result<InstancePre<State>, NotRun> {
        let program = made.linker.instantiate_pre(module).map_err(|e| NotRun::Unfit(format!("{e:#}")))?;
        if !identity.is_fresh() {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.len() >= HELD {
                let oldest = held.iter().min_by_key(|(_, (_, used))| *used).map(|(identity, _)| *identity);
                oldest.and_then(|oldest| held.remove(&oldest));
            }
            held.insert(identity, (program.clone(), Instant::now()));
        }
        Ok(program)
    }

    /// A module, compiled now unless somebody was quicker, and whether it was.
    fn compiled(
        &self,
        made: &Made,
        file: &File,
        identity: &Identity,
        is_inside: bool,
    ) -> Result<(Module, bool), NotRun> {
        let kept = self.kept(is_inside);
        let content = content(file, kept.most)?;
        let key = kept.cache.key(&made.engine, &content);
        let (module, new) = match self.by_key(made, &key) {
            Some(module) => (module, false),
            None => (compile(made, &kept.cache, &key, &content)?, true),
        };
        if !identity.is_fresh() {
            kept.cache.remember(identity, &key);
        }
        Ok((module, new))
    }

    /// Compiles a module of the configuration, if it is not kept yet; whether it was not. Blocks for long.
    ///
    /// # Errors
    /// [`Error::Module`].
    pub fn prepare(&self, name: &str, path: &Path) -> Result<bool> {
        let failed = |cause: String| Error::Module { name: name.to_owned(), path: path.to_owned(), cause };
        let source = Source::Configured(path.to_owned());
        let file = open(&source, &Tree::new(Vec::new())).map_err(|e| failed(e.to_string()))?;
        let identity = Identity::of(&file).map_err(|e| failed(e.to_string()))?;
        let made = self.made().map_err(|e| failed(e.to_string()))?;
        let kept = self.kept(false);
        if kept.cache.by_identity(&made.engine, &identity).is_some() {
            return Ok(false);
        }
        let _one = loop {
            match kept.compiling.try_acquire() {
                Ok(one) => break one,
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let compiled = self.compiled(made, &file, &identity, false);
        compiled.map(|(_, new)| new).map_err(|e| failed(e.to_string()))
    }
}

/// The whole file, from its beginning.
fn content(mut file: &File, most: u64) -> Result<Vec<u8>, NotRun> {
    let unfit = |e: std::io::Error| NotRun::Unfit(e.to_string());
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(unfit)?;
    file.take(most + 1).read_to_end(&mut content).map_err(unfit)?;
    if content.len() as u64 > most {
        return Err(NotRun::Unfit(format!("it is larger than {} MiB", most >> 20)));
    }
    if !content.starts_with(b"\0asm") {
        return Err(NotRun::Unfit("it does not begin as a WebAssembly module does".to_owned()));
    }
    Ok(content)
}

fn compile(made: &Made, cache: &Cache, key: &str, content: &[u8]) -> Result<Module, NotRun> {
    let compiled = made.engine.precompile_module(content).map_err(|e| NotRun::Unfit(format!("{e:#}")))?;
    match cache.keep(&made.engine, key, &compiled) {
        Ok(module) => Ok(module),
        // Without a place to keep it, it is run all the same.
        // SAFETY: these are the bytes that this very engine has just made.
        Err(_) => unsafe { Module::deserialize(&made.engine, &compiled) }
            .map_err(|e| NotRun::Unfit(format!("{e:#}"))),
    }
}

fn open(source: &Source, tree: &Tree) -> Result<File, NotRun> {
    let file: File = match source {
        Source::Configured(path) => {
            let errno = |e: std::io::Error| NotRun::Missing(Errno::from_io_error(&e).unwrap_or(Errno::IO));
            std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open(path)
                .map_err(errno)?
        }
        Source::Inside(path) => {
            let spot = tree.walk(path.as_bytes(), Follow::All).map_err(NotRun::Missing)?;
            let Spot::Entry { directory, name, .. } = spot else { return Err(NotRun::Missing(Errno::ISDIR)) };
            let (file, _): (OwnedFd, _) =
                moltis_host::tree::object::file(&directory, &*name).map_err(|why| {
                    use moltis_host::tree::object::NotOpened;
                    match why {
                        NotOpened::Kernel(errno) => NotRun::Missing(errno),
                        NotOpened::Kind(_) => NotRun::Missing(Errno::ACCESS),
                    }
                })?;
            file.into()
        }
    };
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        _ => Err(NotRun::Unfit("it is not a regular file".to_owned())),
    }
}

fn make() -> wasmtime::Result<Made> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(RUNNING)
        .total_memories(RUNNING)
        .total_tables(RUNNING * 4)
        .total_stacks(RUNNING)
        .max_memories_per_module(1)
        .max_tables_per_module(4)
        .max_memory_size(MEMORY)
        .max_unused_warm_slots(16);
    // Where the user may not reserve that much address space, memory is reserved as it is needed.
    let engine = Engine::new(&config(InstanceAllocationStrategy::Pooling(pool)))
        .or_else(|_| Engine::new(&config(InstanceAllocationStrategy::OnDemand)))?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p1::add_to_linker_async(&mut linker, |state: &mut State| &mut state.wasi)?;
    // Theirs takes codes below 126 only, and a program may leave with any.
    linker.allow_shadowing(true);
    let exit = |code: i32| -> wasmtime::Result<()> { Err(I32Exit(code).into()) };
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", exit)?;
    linker.allow_shadowing(false);
    Ok(Made { engine, linker })
}

fn config(allocation: InstanceAllocationStrategy) -> Config {
    let mut config = Config::new();
    config
        .allocation_strategy(allocation)
        .consume_fuel(true)
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .memory_init_cow(true)
        .max_wasm_stack(STACK)
        .async_stack_size(FIBER)
        .wasm_backtrace_max_frames(None)
        .parallel_compilation(true);
    config
}

/// Time is counted while somebody holds one.
pub struct Ticking(Arc<Ticker>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Counts the time of one engine, on a thread that rests while no module runs.
#[derive(Default)]
struct Ticker {
    state: Mutex<Ticks>,
    wake: Condvar,
}

#[derive(Default)]
struct Ticks {
    users: usize,
    started: bool,
}

impl Ticker {
    fn begin(self: &Arc<Self>, engine: &Engine, interval: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.users += 1;
        if state.started {
            self.wake.notify_one();
            return;
        }
        let (ticker, engine) = (Arc::downgrade(self), engine.weak());
        let thread = std::thread::Builder::new().name("moltis-wasm-clock".to_owned()).spawn(move || {
            loop {
                let Some(ticker) = ticker.upgrade() else { return };
                {
                    let mut state = ticker.state.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut waited = Duration::ZERO;
                    while state.users == 0 && waited < Duration::from_secs(60) {
                        let part = Duration::from_secs(5);
                        state =
                            ticker.wake.wait_timeout(state, part).unwrap_or_else(PoisonError::into_inner).0;
                        waited += part;
                    }
                    if state.users == 0 {
                        state.started = false;
                        return;
                    }
                }
                drop(ticker);
                std::thread::sleep(interval);
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        });
        state.started = thread.is_ok();
    }

    fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.users = state.users.saturating_sub(1);
    }
}
