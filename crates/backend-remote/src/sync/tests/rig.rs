//! Two folders, of which one stands for the machine at a provider.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use moltis_sandbox::files::ByteStream;
use moltis_sandbox::{Diagnosis, Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::sync::{Bounds, Carrier, Far, Report, Store, Terms};

/// What happens just before a script that holds this text.
pub type Meanwhile = (&'static str, Box<dyn FnOnce() + Send>);

/// A directory of this machine, worked on by these tools.
pub struct Local {
    pub folder: PathBuf,
    /// Where the tools are; absent: this machine's own.
    pub tools: Option<PathBuf>,
    /// How many scripts were run.
    pub runs: AtomicUsize,
    /// Bytes that were sent.
    pub sent: AtomicUsize,
    /// What happens just before the next script that holds this text.
    pub before: Mutex<Option<Meanwhile>>,
    /// After so many bytes of input it breaks off.
    pub cut: AtomicUsize,
}

#[async_trait]
impl Far for Local {
    async fn run(&self, script: &str, args: &[&[u8]], input: Option<ByteStream>) -> Result<ByteStream> {
        use std::os::unix::ffi::OsStrExt;
        self.runs.fetch_add(1, Ordering::SeqCst);
        {
            let mut before = self.before.lock().unwrap();
            if before.as_ref().is_some_and(|(text, _)| script.contains(text)) {
                (before.take().unwrap().1)();
            }
        }
        let shell = self.tools.as_ref().map_or("/bin/sh".into(), |tools| tools.join("sh"));
        let mut command = tokio::process::Command::new(shell);
        command.arg("-c").arg(script).arg("sh").arg(&self.folder);
        command.args(args.iter().map(|arg| std::ffi::OsStr::from_bytes(arg)));
        if let Some(tools) = &self.tools {
            command.env("PATH", tools);
        }
        command.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut cut = self.cut.swap(usize::MAX, Ordering::SeqCst);
        let mut sent = 0;
        if let Some(mut input) = input {
            while let Some(piece) = input.next().await {
                let piece = piece?;
                let piece = &piece[..piece.len().min(cut)];
                cut -= piece.len();
                sent += piece.len();
                if stdin.write_all(piece).await.is_err() {
                    break;
                }
                if cut == 0 {
                    drop(stdin);
                    let _ = child.wait().await;
                    return Err(Error::Lost(Diagnosis::new("agent-lost", "cut")));
                }
            }
        } else {
            self.cut.store(cut, Ordering::SeqCst);
        }
        self.sent.fetch_add(sent, Ordering::SeqCst);
        drop(stdin);
        let mut stdout = child.stdout.take().unwrap();
        let mut said = Vec::new();
        stdout.read_to_end(&mut said).await.unwrap();
        let status = child.wait().await.unwrap();
        let end = if status.success() {
            Vec::new()
        } else {
            vec![Err(Error::Invalid(Diagnosis::new("script-failed", status.to_string())))]
        };
        let pieces: Vec<Result<Bytes>> = std::iter::once(Ok(Bytes::from(said))).chain(end).collect();
        Ok(Box::pin(futures_util::stream::iter(pieces)))
    }
}

/// Both sides.
pub struct Rig {
    pub here: PathBuf,
    pub there: PathBuf,
    pub far: Arc<Local>,
    pub terms: Terms,
    pub bounds: Bounds,
    pub root: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(None)
    }

    pub fn with(tools: Option<PathBuf>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (here, there) = (root.path().join("here"), root.path().join("there"));
        fs::create_dir(&here).unwrap();
        fs::create_dir(&there).unwrap();
        let about = fs::metadata(&here).unwrap();
        let terms = Terms {
            path: here.clone(),
            identity: (about.dev(), about.ino()),
            writable: true,
            protect: [".git/hooks", ".git/config", ".envrc", ".vscode", ".moltis*"]
                .map(str::to_owned)
                .to_vec(),
            listed: Vec::new(),
            in_home: false,
        };
        let far = Arc::new(Local {
            folder: there.clone(),
            tools,
            runs: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            before: Mutex::new(None),
            cut: AtomicUsize::new(usize::MAX),
        });
        Self { here, there, far, terms, bounds: Bounds::default(), root }
    }

    pub fn store(&self) -> Store {
        Store::new(&self.root.path().join("data"), "test", "id")
    }

    /// As another process would make one.
    pub fn carrier(&self) -> Carrier {
        self.to(Arc::clone(&self.far) as _)
    }

    pub fn to(&self, far: Arc<dyn Far>) -> Carrier {
        let top: OwnedFd = fs::File::open(&self.here).unwrap().into();
        Carrier::new(far, self.store(), "machine-1", self.terms.clone(), Arc::new(top), Arc::new(|_| {}))
            .within(self.bounds)
    }

    pub async fn both(&self) -> Report {
        self.carrier().both().await.unwrap()
    }
}

/// What something is, for comparing whole trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    File(Vec<u8>, u32),
    Directory(u32),
    Link(PathBuf),
    Other,
}

/// A whole tree.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Thing> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let (path, about) = (entry.path(), entry.path().symlink_metadata().unwrap());
            let mode = about.permissions().mode() & 0o777;
            let thing = if about.is_dir() {
                folders.push(path.clone());
                Thing::Directory(mode)
            } else if about.is_symlink() {
                Thing::Link(fs::read_link(&path).unwrap())
            } else if about.is_file() {
                Thing::File(fs::read(&path).unwrap(), mode)
            } else {
                Thing::Other
            };
            all.insert(path.strip_prefix(folder).unwrap().to_owned(), thing);
        }
    }
    all
}

/// Writes a file, with what is above it.
pub fn put(folder: &Path, path: &str, content: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub fn read(folder: &Path, path: &str) -> Option<String> {
    fs::read_to_string(folder.join(path)).ok()
}

pub fn paths(set: &std::collections::BTreeSet<Vec<u8>>) -> Vec<String> {
    set.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}
