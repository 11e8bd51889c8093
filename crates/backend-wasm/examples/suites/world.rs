//! A data directory of this run, sandboxes in it, and what a command in one of them did.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moltis_backend_wasm::{Config, WasmBackend};
use moltis_sandbox::{
    Backend, Command, Ending, ExecEvent, ExecRequest, GuestPath, Lifetime, Sandbox, SandboxSpec, SessionKey,
};
use tempfile::TempDir;

/// Where the home of a sandbox shows.
pub const HOME: &str = "/home/sandbox";

/// Most bytes of a stream that are kept.
const KEPT: usize = 4 << 20;

/// Sandboxes of this run, removed with it.
pub struct World {
    temp: TempDir,
    backend: WasmBackend,
    compiled: Option<PathBuf>,
}

/// One sandbox, and its home on the host.
pub struct Room {
    sandbox: Arc<dyn Sandbox>,
    /// The folder behind `/home/sandbox`.
    pub home: PathBuf,
}

/// What is run.
pub struct Call {
    /// The command.
    pub command: Command,
    /// Directory below the home.
    pub cwd: String,
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub input: Vec<u8>,
    /// Its time.
    pub limit: Duration,
}

/// What it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit code as a shell shows it.
    pub code: i32,
    /// Whether its time was up.
    pub late: bool,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// What the answer notes.
    pub notes: Vec<String>,
}

fn copy_files(from: &Path, to: &Path, overwrite: bool) {
    use std::os::unix::fs::DirBuilderExt;

    let Ok(entries) = std::fs::read_dir(from) else { return };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        if entry.path().extension().is_some_and(|end| end == "cwasm") && (overwrite || !target.exists()) {
            let draft = target.with_extension(format!("{}.new", std::process::id()));
            std::fs::copy(entry.path(), &draft).unwrap();
            std::fs::rename(&draft, &target).unwrap();
        }
    }
}

impl World {
    /// With these modules, and what earlier runs compiled.
    pub fn new(commands: BTreeMap<String, PathBuf>, compiled: Option<&Path>) -> Self {
        let temp = tempfile::Builder::new().prefix("moltis-suites-").tempdir().unwrap();
        let data_dir = temp.path().join("data");
        if let Some(compiled) = compiled {
            copy_files(compiled, &data_dir.join("cache/wasm"), true);
        }
        let backend = WasmBackend::new(Config {
            data_dir,
            config_dir: None,
            commands,
            epoch_interval: Duration::from_millis(20),
            fuel: 1 << 40,
        });
        Self { temp, backend, compiled: compiled.map(Path::to_owned) }
    }

    /// The folder that everything of this run lies in.
    pub fn path(&self) -> &Path {
        self.temp.path()
    }

    /// Compiles the modules that have a name.
    pub async fn prepare(&self) {
        self.backend.prepare(&moltis_sandbox::BuildSink::ignore()).await.unwrap();
        self.keep_compiled();
    }

    /// Keeps for later runs what this one compiled.
    pub fn keep_compiled(&self) {
        if let Some(compiled) = &self.compiled {
            copy_files(&self.path().join("data/cache/wasm"), compiled, false);
        }
    }

    /// A fresh sandbox.
    pub async fn room(&self, key: &str) -> Room {
        let spec = SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Ephemeral);
        self.room_of(&spec).await
    }

    /// A sandbox like this.
    pub async fn room_of(&self, spec: &SandboxSpec) -> Room {
        let sandbox = self.backend.open(spec).await.unwrap();
        let home = self.path().join("data/sandbox/wasm").join(sandbox.id().to_string()).join("home");
        Room { sandbox, home }
    }
}

impl Room {
    /// Runs it to its end.
    pub async fn run(&self, call: Call) -> Ran {
        let mut request = ExecRequest::new(call.command);
        request.cwd = Some(GuestPath::new(format!("{HOME}/{}", call.cwd).trim_end_matches('/')).unwrap());
        request.env = call.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        request.timeout = Some(call.limit);
        request.stdin = !call.input.is_empty();
        let mut exec = match self.sandbox.exec(request).await {
            Ok(exec) => exec,
            Err(error) => {
                return Ran { code: 125, stderr: format!("{error:?}").into_bytes(), ..Ran::default() };
            }
        };
        let mut ran = Ran { code: -1, ..Ran::default() };
        let mut control = exec.control;
        let feeding = async {
            for piece in call.input.chunks(16 * 1024) {
                // A command need not read all of it.
                if control.stdin(bytes::Bytes::copy_from_slice(piece)).await.is_err() {
                    break;
                }
            }
            let _ = control.close_stdin().await;
            std::future::pending::<()>().await;
        };
        let listening = async {
            while let Some(event) = exec.events.next().await {
                match event {
                    Ok(ExecEvent::Stdout(bytes)) => keep(&mut ran.stdout, &bytes),
                    Ok(ExecEvent::Stderr(bytes)) => keep(&mut ran.stderr, &bytes),
                    Ok(ExecEvent::Exit(outcome)) => {
                        ran.code = outcome.exit_code();
                        ran.late = outcome.ending != Ending::Exited;
                        ran.notes = outcome.notes;
                    }
                    Ok(ExecEvent::Started(_) | ExecEvent::Missed { .. }) => {}
                    Err(error) => keep(&mut ran.stderr, format!("{error:?}").as_bytes()),
                }
            }
        };
        tokio::select! {
            () = feeding => {}
            () = listening => {}
        }
        ran
    }

    /// Ends it, with all that is in it.
    pub async fn close(self) {
        open_up(&self.home);
        self.sandbox.close().await.unwrap();
    }
}

/// Lets what a case locked be removed.
fn open_up(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;

    let Ok(found) = std::fs::symlink_metadata(folder) else { return };
    if !found.is_dir() {
        return;
    }
    if found.permissions().mode() & 0o700 != 0o700 {
        let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        open_up(&entry.path());
    }
}

fn keep(to: &mut Vec<u8>, bytes: &[u8]) {
    let room = KEPT.saturating_sub(to.len());
    to.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// A program and its arguments.
pub fn argv<T: Into<OsString>>(words: impl IntoIterator<Item = T>) -> Command {
    Command::Argv(words.into_iter().map(Into::into).collect())
}

/// Bytes for a person.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.chars().take(2000).collect();
    format!("{text:?}")
}
