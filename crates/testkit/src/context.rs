//! What a case is given: a backend over a data directory of its own, folders, and sandboxes that end with the case.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moltis_sandbox::{
    Backend, Detection, Guarantees, ImageChoice, Lifetime, Mount, MountMode, Origin, Promise, Sandbox,
    SandboxSpec, SessionKey, Setting, judge,
};
use tempfile::TempDir;

use crate::leak::Whereabouts;
use crate::run::eventually;
use crate::subject::{Folders, Make, Subject, folder};
use crate::{Fail, Leak, Marker, need, patience};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The user behind root's containers where nothing else says who that is.
const WRITER: u32 = 1000;

/// A number that no other case of this machine has now.
pub fn unique() -> String {
    format!("{}x{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// The surroundings of one case.
pub struct Ctx {
    /// The backend on trial.
    pub backend: Arc<dyn Backend>,
    /// What it says it keeps here.
    pub guarantees: Guarantees,
    /// Its data and configuration directories.
    pub folders: Folders,
    make: Make,
    beside: Vec<Make>,
    image: Option<ImageChoice>,
    processes: bool,
    scratch: TempDir,
    open: Mutex<Vec<(Arc<dyn Sandbox>, Leak)>>,
    markers: Mutex<Vec<Marker>>,
}

impl Ctx {
    /// New surroundings; fails when the backend is not usable here.
    pub async fn new(subject: &Subject) -> Result<Self, Fail> {
        let scratch = tempfile::Builder::new().prefix("moltis-testkit-").tempdir()?;
        let folders = Folders { data: scratch.path().join("data"), config: scratch.path().join("config") };
        folder(scratch.path(), 0o755)?;
        folder(&folders.data, 0o700)?;
        folder(&folders.config, 0o700)?;
        let backend = (subject.make)(&folders);
        let guarantees = match backend.detect().await {
            Detection::Usable(usable) => usable.guarantees,
            Detection::Unusable(d) | Detection::Failing(d) => {
                return Err(Fail::new(format!("not usable here: [{}] {d}", d.code)));
            }
        };
        Ok(Self {
            backend,
            guarantees,
            folders,
            make: subject.make.clone(),
            beside: subject.beside.clone(),
            image: subject.image.clone(),
            processes: subject.processes,
            scratch,
            open: Mutex::default(),
            markers: Mutex::default(),
        })
    }

    /// Whether commands share the host's kernel, so that the host can look at them.
    pub fn shared_kernel(&self) -> bool {
        !self.guarantees.kernel.is_held()
    }

    /// Another instance over the same folders, as another process would have it.
    pub fn backend_again(&self) -> Arc<dyn Backend> {
        (self.make)(&self.folders)
    }

    /// The other backends over the same folders that are usable here.
    pub async fn neighbours(&self) -> Vec<Arc<dyn Backend>> {
        let mut usable = Vec::new();
        for make in &self.beside {
            let backend = make(&self.folders);
            // An engine of a user's own may lack the image that the machine's has.
            let ready = match (backend.images(), &self.image) {
                (Some(images), Some(image)) => images.is_ready(image).await.unwrap_or(false),
                _ => true,
            };
            if ready && matches!(backend.detect().await, Detection::Usable(_)) {
                usable.push(backend);
            }
        }
        usable
    }

    /// A folder that lasts as long as the case.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A new folder for a workspace or a mount, of the user that writes to it.
    pub fn folder(&self, name: &str) -> Result<PathBuf, Fail> {
        let path = self.scratch().join(format!("{name}-{}", unique()));
        folder(&path, 0o755)?;
        self.give(&path)?;
        Ok(path)
    }

    /// Whose a folder has to be that commands are to write to: the caller's own, but for root's containers. Engines map
    /// no ids for single mounts, and root enters no sandbox, so that what is root's can be written to by nobody inside.
    pub fn writer(&self) -> u32 {
        if self.has_image() && need::root() { WRITER } else { rustix::process::geteuid().as_raw() }
    }

    /// Gives something that a case made for commands to whoever they run as.
    pub fn give(&self, path: &Path) -> Result<(), Fail> {
        let writer = self.writer();
        if writer != rustix::process::geteuid().as_raw() {
            std::os::unix::fs::lchown(path, Some(writer), Some(writer))?;
        }
        Ok(())
    }

    /// Whether its sandboxes start from an image, and so show another system's files than the host's.
    pub fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// A new home folder, where homes lie.
    pub fn home(&self) -> Result<PathBuf, Fail> {
        let path = self.folders.homes().join(unique());
        folder(&path, 0o700)?;
        Ok(path)
    }

    /// A session key that nothing else uses.
    pub fn key(&self) -> SessionKey {
        SessionKey::new(format!("testkit {}", unique())).expect("short enough")
    }

    /// The smallest spec.
    pub fn bare(&self) -> SandboxSpec {
        let mut spec = SandboxSpec::new(self.key(), Lifetime::Ephemeral);
        spec.image = self.image.clone();
        spec
    }

    /// The smallest spec, with a home.
    pub fn spec(&self) -> Result<SandboxSpec, Fail> {
        let mut spec = self.bare();
        spec.home = Some(self.home()?);
        Ok(spec)
    }

    /// The same for a session's sandbox, which ends after this long without use.
    pub fn session(&self, idle: Duration) -> Result<SandboxSpec, Fail> {
        let mut spec = self.spec()?;
        spec.lifetime = Lifetime::Idle(idle);
        Ok(spec)
    }

    /// A spec with this workspace.
    pub fn spec_with_workspace(&self, source: &Path, mode: MountMode) -> Result<SandboxSpec, Fail> {
        let mut spec = self.spec()?;
        let mount = Mount { source: source.to_owned(), target: "/workspace".into(), mode };
        spec.workspace = Some(Setting::new(mount, Origin::Flag));
        Ok(spec)
    }

    /// Opens a sandbox for the spec once it has been judged, as the runtime does. It is closed with the case.
    pub async fn open(&self, spec: &SandboxSpec) -> Result<Place, Fail> {
        judge(spec, self.backend.name(), &self.guarantees, &[])?;
        let sandbox = self.backend.open(spec).await?;
        self.keep(sandbox).await
    }

    /// Takes a sandbox into the care of the case.
    pub async fn keep(&self, sandbox: Arc<dyn Sandbox>) -> Result<Place, Fail> {
        let shared_kernel = self.shared_kernel();
        let mut open = (sandbox.clone(), Leak::default());
        // Taken into care first: what cannot be looked at is closed with the case all the same.
        let looked = Leak::watch(sandbox.as_ref(), shared_kernel).await.map(|(leak, whereabouts)| {
            open.1 = leak;
            whereabouts
        });
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(open);
        let Whereabouts { cwd, home } = looked?;
        // Where nothing of the host's files shows, /tmp is the sandbox's own; elsewhere it is everybody's.
        let tmp = if self.guarantees.filesystem.is_held() { "/tmp".to_owned() } else { cwd.clone() };
        let room = if self.guarantees.home.is_held() { home.clone() } else { tmp.clone() };
        let processes = self.processes;
        Ok(Place { sandbox, shared_kernel, processes, cwd, home, tmp, room })
    }

    /// A sandbox of the smallest spec.
    pub async fn place(&self) -> Result<Place, Fail> {
        self.open(&self.spec()?).await
    }

    /// A marker for processes; the case fails if one of them outlives it.
    pub fn marker(&self) -> Marker {
        let marker = Marker::new();
        self.markers.lock().unwrap_or_else(PoisonError::into_inner).push(marker.clone());
        marker
    }

    /// A demand for what `promise` covers must be refused by name, if the backend does not keep it.
    /// Returns the reason it gives, or `None` when the promise is held.
    pub fn refused(&self, promise: &Promise, spec: &SandboxSpec, key: &str) -> Result<Option<String>, Fail> {
        let judged = judge(spec, self.backend.name(), &self.guarantees, &[]);
        match (promise, judged) {
            (Promise::Held, Ok(left_off)) => {
                let of_key: Vec<_> = left_off.into_iter().filter(|left| left.key.contains(key)).collect();
                crate::ensure_eq!(of_key, [], "a held promise is not left off");
                Ok(None)
            }
            (Promise::Held, Err(e)) => crate::fail!("refused though held: {e}"),
            (Promise::NotEnforced(reason), Err(moltis_sandbox::Error::Refused(d))) => {
                crate::ensure_eq!(d.code.as_ref(), "demand-not-kept", "code of the refusal");
                crate::ensure!(d.message.contains(key), "the refusal does not name `{key}`: {d}");
                crate::ensure!(d.fix.is_some(), "the refusal says not what to do");
                crate::ensure!(!reason.is_empty(), "no reason given");
                Ok(Some(reason.clone()))
            }
            // Where nothing is isolated, what was asked for may be listed instead.
            (Promise::NotEnforced(reason), Ok(left_off)) if !self.guarantees.filesystem.is_held() => {
                crate::ensure!(
                    left_off.iter().any(|n| n.key.contains(key) && n.reason == *reason),
                    "`{key}` is neither refused nor listed: {left_off:?}"
                );
                Ok(Some(reason.clone()))
            }
            (Promise::NotEnforced(_), other) => crate::fail!("not kept, yet not refused: {other:?}"),
        }
    }

    /// Closes what the case opened and says what it left: processes, namespaces, cgroups, mounts, run folders.
    pub async fn finish(self) -> Result<(), Fail> {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        let mut left = Vec::new();
        let mut leaks = Vec::new();
        for (sandbox, leak) in open {
            leaks.push(leak);
            match tokio::time::timeout(patience(Duration::from_secs(10)), sandbox.close()).await {
                Ok(Ok(())) => {}
                // A case may have closed or broken it itself.
                Ok(Err(moltis_sandbox::Error::Unavailable(_) | moltis_sandbox::Error::Lost(_))) => {}
                Ok(Err(e)) => left.push(format!("close failed: {e}")),
                Err(_) => left.push("close took too long".to_owned()),
            }
        }
        for leak in leaks {
            left.extend(leak.left(patience(Duration::from_secs(5))).await);
        }
        if self.shared_kernel() {
            let markers = std::mem::take(&mut *self.markers.lock().unwrap_or_else(PoisonError::into_inner));
            for marker in markers {
                let pids = marker.on_host();
                if !pids.is_empty() {
                    left.push(format!("processes {pids:?} outlive the sandbox"));
                }
            }
        }
        left.extend(crate::leak::mounts_below(self.scratch.path()));
        left.extend(crate::leak::workers(self.scratch.path()));
        // A sandbox that ended by itself takes its folder along a moment later.
        let data = &self.folders.data;
        let gone = async || Ok(crate::leak::run_folders(data).is_empty());
        eventually(Duration::from_secs(3), gone).await?;
        left.extend(crate::leak::run_folders(&self.folders.data));
        // What looked into an image goes, too, though nobody waits for it.
        if let Some(images) = self.backend.images() {
            images.settled().await;
        }
        // Where an engine holds them, what runs needs no folder to be there.
        let over = async || Ok(self.backend.list().await.is_ok_and(|listed| listed.is_empty()));
        eventually(Duration::from_secs(5), over).await?;
        match self.backend.list().await {
            Ok(listed) => left.extend(listed.iter().map(|sandbox| format!("sandbox {}", sandbox.id))),
            Err(e) => left.push(format!("listing failed: {e}")),
        }
        drop(self.backend);
        if left.is_empty() { Ok(()) } else { Err(Fail::new(format!("left behind: {}", left.join("; ")))) }
    }
}

/// An open sandbox, with the short ways in which cases run commands in it (see [`crate::run`]).
#[derive(Clone)]
pub struct Place {
    /// The sandbox.
    pub sandbox: Arc<dyn Sandbox>,
    /// Whether the host sees its processes.
    pub shared_kernel: bool,
    /// Whether what runs in it are processes.
    pub processes: bool,
    /// Where its commands start.
    pub cwd: String,
    /// Its `$HOME`. A place for files only where the backend keeps a home.
    pub home: String,
    /// A folder for a case's files: empty at first and nobody else's, unless a workspace was named where nothing is
    /// isolated.
    pub tmp: String,
    /// A folder for large files: the home where there is one, else [`tmp`](Self::tmp).
    pub room: String,
}

impl Place {
    /// A path in the folder for files.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.tmp)
    }
}

impl Deref for Place {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        self.sandbox.as_ref()
    }
}
