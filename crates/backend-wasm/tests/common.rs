//! A data directory, sandboxes in it, and what commands in them print.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use moltis_backend_wasm::{Config, WasmBackend};
use moltis_sandbox::{
    Backend, Command, Ending, ExecEvent, ExecRequest, GuestPath, Lifetime, Outcome, Sandbox, SandboxSpec,
    SessionKey, Status,
};
use tempfile::TempDir;

/// A place of a test's own.
pub struct World {
    pub temp: TempDir,
    pub commands: BTreeMap<String, PathBuf>,
    pub fuel: u64,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub outcome: Outcome,
    pub took: Duration,
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn code(&self) -> i32 {
        assert_eq!(self.outcome.ending, Ending::Exited, "{self:?}");
        match self.outcome.status {
            Status::Code(code) => code,
            Status::Signal(signal) => panic!("signal {signal}: {self:?}"),
        }
    }
}

impl World {
    pub fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap(), commands: BTreeMap::new(), fuel: 1_000_000_000 }
    }

    pub fn data(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    pub fn backend(&self) -> WasmBackend {
        WasmBackend::new(Config {
            data_dir: self.data(),
            config_dir: None,
            commands: self.commands.clone(),
            epoch_interval: Duration::from_millis(20),
            fuel: self.fuel,
        })
    }

    pub fn spec(&self, key: &str) -> SandboxSpec {
        SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Ephemeral)
    }

    pub fn session(&self, key: &str, idle: Duration) -> SandboxSpec {
        SandboxSpec { lifetime: Lifetime::Idle(idle), ..self.spec(key) }
    }

    pub async fn open(&self) -> Arc<dyn Sandbox> {
        self.open_as("s").await
    }

    pub async fn open_as(&self, key: &str) -> Arc<dyn Sandbox> {
        self.backend().open(&self.spec(key)).await.unwrap()
    }

    /// A module in a file of the host, under this name in the configuration.
    pub fn module(&mut self, name: &str, which: &str) -> PathBuf {
        let path = self.temp.path().join(format!("{name}.wasm"));
        std::fs::write(&path, compiled(which)).unwrap();
        self.commands.insert(name.to_owned(), path.clone());
        path
    }
}

/// One of the modules of `tests/wasm`: `NAME.wasm` is made of `NAME.wat` (`wat2wasm`, or `wasm-tools parse`).
pub fn compiled(which: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wasm").join(format!("{which}.wasm")))
        .unwrap()
}

pub fn shell(line: &str) -> ExecRequest {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(20));
    request
}

pub async fn sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Ran {
    run(sandbox, shell(line)).await
}

/// What a line prints that must end well.
pub async fn out(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let ran = sh(sandbox, line).await;
    assert_eq!((ran.code(), ran.errors().as_str()), (0, ""), "{line}: {}", ran.text());
    ran.text()
}

pub async fn run(sandbox: &Arc<dyn Sandbox>, request: ExecRequest) -> Ran {
    with_input(sandbox, request, &[]).await
}

pub async fn with_input(sandbox: &Arc<dyn Sandbox>, mut request: ExecRequest, input: &[&[u8]]) -> Ran {
    let began = Instant::now();
    request.stdin = !input.is_empty();
    let mut exec = sandbox.exec(request).await.unwrap();
    let (mut stdout, mut stderr, mut ended) = (Vec::new(), Vec::new(), None);
    let mut control = exec.control;
    let feeding = async {
        for piece in input {
            control.stdin(bytes::Bytes::copy_from_slice(piece)).await.unwrap();
        }
        control.close_stdin().await.unwrap();
    };
    let listening = async {
        while let Some(event) = exec.events.next().await {
            match event.unwrap() {
                ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ExecEvent::Exit(outcome) => ended = Some(outcome),
                ExecEvent::Started(_) | ExecEvent::Missed { .. } => {}
            }
        }
    };
    tokio::join!(feeding, listening);
    Ran { stdout, stderr, outcome: ended.unwrap(), took: began.elapsed() }
}

pub fn path(text: &str) -> GuestPath {
    GuestPath::new(text).unwrap()
}

pub async fn read(sandbox: &Arc<dyn Sandbox>, at: &str) -> moltis_sandbox::Result<Vec<u8>> {
    let mut content = sandbox.files().read(&path(at), 0, None).await?.content;
    let mut all = Vec::new();
    while let Some(piece) = content.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

pub async fn write(sandbox: &Arc<dyn Sandbox>, at: &str, content: &[u8]) -> moltis_sandbox::Result<()> {
    let options = moltis_sandbox::files::WriteOptions { mode: None, overwrite: true, parents: true };
    let content = bytes::Bytes::copy_from_slice(content);
    sandbox
        .files()
        .write(&path(at), options, Box::pin(futures_util::stream::iter([Ok(content)])))
        .await
        .map(drop)
}

/// Waits until something holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} never came");
}

/// All names in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
