//! What the tests of the backend share: one backend on a data directory of its own, commands in its sandboxes, other
//! processes that use the same directory, and images made up for one test.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{Container, Engine, EngineKind, Environment, connect};
use moltis_backend_container::{Config, ContainerBackend};
use moltis_sandbox::{
    Backend, Command, Error, ExecEvent, ExecRequest, ImageChoice, Lifetime, Mount, MountMode, Origin,
    Outcome, Sandbox, SandboxSpec, SessionKey, Setting, Status,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::support::{IMAGE, IS_ROOTS, environment, unique, with};

/// How long something may take that is sure to come, on a machine that does much else.
pub const SOON: Duration = Duration::from_secs(30);

/// An engine, and a data directory with sandboxes in it. What is left of them goes when it is dropped.
pub struct Rig {
    pub name: &'static str,
    pub kind: EngineKind,
    pub engine: Arc<dyn Engine>,
    pub backend: ContainerBackend,
    environment: Environment,
    temp: tempfile::TempDir,
    prefix: String,
}

/// What a command said and how it left.
#[derive(Debug, PartialEq)]
pub struct Said {
    pub stdout: String,
    pub stderr: String,
    pub outcome: Outcome,
}

impl Said {
    /// Standard output of a command that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.outcome.status, Status::Code(0), "{self:?}");
        self.stdout
    }
}

/// A rig on each engine that answers here; those that do not are reported.
pub async fn rigs(test: &str) -> Vec<Rig> {
    let mut found = Vec::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        found.extend(rig(test, kind, environment()).await);
    }
    found
}

/// Those of root on rootful engines, which alone can do or show it.
pub async fn roots_rigs(test: &str, why: &str) -> Vec<Rig> {
    if moltis_testkit::need::as_root(test, why) { rigs(test).await } else { Vec::new() }
}

/// Those whose containers have groups of their own, by which they are limited and paused.
pub async fn limiting(test: &str) -> Vec<Rig> {
    let mut found = Vec::new();
    for rig in rigs(test).await {
        let has_groups = rig.engine.info().await.unwrap().pids.is_yes();
        let name = format!("{test} ({})", rig.name);
        if has_groups || moltis_testkit::need::as_root(&name, "its containers have no groups without root") {
            found.push(rig);
        }
    }
    found
}

/// A rig on one engine.
pub async fn rig(test: &str, kind: EngineKind, environment: Environment) -> Option<Rig> {
    let name = if kind == EngineKind::Docker { "docker" } else { "podman" };
    let skip = |why: &str| moltis_testkit::need::skip(&format!("{test} ({name})"), why);
    if kind == EngineKind::Docker && !moltis_testkit::need::as_root(&format!("{test} ({name})"), IS_ROOTS) {
        return None;
    }
    let engine = match connect(kind, &environment).await {
        Ok(engine) => engine,
        Err(error) => {
            skip(&error.to_string());
            return None;
        }
    };
    match engine.image(IMAGE).await {
        Ok(Some(_)) => Some(Rig::new(name, kind, engine, environment)),
        Ok(None) => {
            skip(&format!("there is no {IMAGE}"));
            None
        }
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

impl Rig {
    fn new(name: &'static str, kind: EngineKind, engine: Arc<dyn Engine>, environment: Environment) -> Self {
        let temp = tempfile::Builder::new().prefix("moltis-rig").tempdir().unwrap();
        // Its last character keeps it from being the beginning of another one.
        let prefix = unique("r").replace("moltis-test-", "") + "x";
        let backend = backend(kind, &temp.path().join("data"), &environment, &prefix);
        Self { name, kind, engine, backend, environment, temp, prefix }
    }

    /// First part of the names of its containers.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// One more data directory on the same engine.
    pub fn another(&self) -> Self {
        Self::new(self.name, self.kind, Arc::clone(&self.engine), self.environment.clone())
    }

    /// A second backend on the same data directory, as another process would have it.
    pub fn again(&self) -> ContainerBackend {
        self.on(&self.data())
    }

    /// A backend on another data directory.
    pub fn on(&self, data_dir: &Path) -> ContainerBackend {
        backend(self.kind, data_dir, &self.environment, &self.prefix)
    }

    /// A backend on the same data directory that finds no engine.
    pub fn without_engine(&self) -> ContainerBackend {
        let nowhere = "unix:///nonexistent/engine.sock";
        let environment = with(&[("DOCKER_HOST", nowhere), ("CONTAINER_HOST", nowhere)]);
        backend(self.kind, &self.data(), &environment, &self.prefix)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// A new folder beside the data directory.
    pub fn folder(&self, name: &str, owner: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        // Without root, the sandbox's user is the caller outside.
        let given = if moltis_testkit::need::root() { Some(owner) } else { None };
        std::os::unix::fs::chown(&path, given, given).unwrap();
        path
    }

    /// A folder of the data directory, as the runtime makes them.
    pub fn own_folder(&self, name: &str, mode: u32) -> PathBuf {
        use std::os::unix::fs::DirBuilderExt;
        let path = self.data().join(name);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).unwrap();
        set_mode(&path, mode);
        path
    }

    /// The smallest spec of a sandbox that outlives its handle.
    pub fn spec(&self, key: &str) -> SandboxSpec {
        let lifetime = Lifetime::Idle(Duration::from_secs(120));
        let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), lifetime);
        spec.image = Some(ImageChoice::Finished { reference: Setting::new(IMAGE.to_owned(), Origin::Flag) });
        spec.container_prefix.clone_from(&self.prefix);
        spec
    }

    /// One of an image of the test's own.
    pub fn spec_of(&self, key: &str, image: &str) -> SandboxSpec {
        let reference = Setting::new(image.to_owned(), Origin::Flag);
        SandboxSpec { image: Some(ImageChoice::Finished { reference }), ..self.spec(key) }
    }

    pub async fn open(&self, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
        let opened = tokio::time::timeout(SOON * 4, self.backend.open(spec)).await;
        opened.expect("opening hangs").unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    /// The error of an open that must fail and leave nothing behind.
    pub async fn refusal(&self, spec: &SandboxSpec) -> Error {
        let opened = tokio::time::timeout(SOON * 4, self.backend.open(spec)).await;
        let error = match opened.expect("opening hangs") {
            Ok(_) => panic!("{}: it was opened", self.name),
            Err(error) => error,
        };
        assert_eq!(self.folders(), Vec::<String>::new(), "{}: {error:?}", self.name);
        assert_eq!(self.containers().await, Vec::new(), "{}: {error:?}", self.name);
        error
    }

    /// What of the containers of this rig there is.
    pub async fn containers(&self) -> Vec<Container> {
        let all = self.engine.containers(&[("org.moltis.session", "")]).await.unwrap();
        all.into_iter().filter(|found| found.name.starts_with(&self.prefix)).collect()
    }

    /// The only one.
    pub async fn container(&self) -> Container {
        let mut all = self.containers().await;
        assert_eq!(all.len(), 1, "{}: {all:?}", self.name);
        // A list does not tell all.
        self.engine.inspect(&all.remove(0).id).await.unwrap().unwrap()
    }

    /// Names in the run folder.
    pub fn folders(&self) -> Vec<String> {
        names(&self.data().join("run").join(self.name))
    }

    /// Where a sandbox is written down.
    pub fn run_folder(&self, spec: &SandboxSpec) -> PathBuf {
        self.data().join("run").join(self.name).join(spec.id().as_str())
    }

    /// Waits until there is neither a container nor a folder.
    pub async fn until_nothing_is_left(&self) {
        let what = format!("{}: something is left", self.name);
        eventually(&what, async || self.folders().is_empty() && self.containers().await.is_empty()).await;
    }

    /// Makes an image; gone when what is handed out is dropped.
    pub async fn image(
        &self,
        architecture: &str,
        config: &serde_json::Value,
        files: &[(&str, u32, Option<Vec<u8>>)],
    ) -> MadeImage {
        let name = format!("localhost/{}:1", unique("image").replace("moltis-test", "moltis-rig"));
        let archive = archive(&name, architecture, config, files);
        self.engine.load(Box::new(std::io::Cursor::new(archive))).await.unwrap();
        let id = self.engine.image(&name).await.unwrap().unwrap().id;
        MadeImage { engine: Arc::clone(&self.engine), name, id }
    }

    /// A command of the engine's program.
    pub async fn cli(&self, arguments: &[&str]) {
        let output = self.program().args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{}: {arguments:?}: {output:?}", self.name);
    }

    pub fn program(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.name);
        if let Some(host) = self.environment.vars.get("DOCKER_HOST") {
            command.env("DOCKER_HOST", host);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Another process that does something with the same data directory and the session of this key.
    pub fn process(&self, action: &str, key: &str) -> Other {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        let child = command
            .args(["--exact", "rig::another_process", "--nocapture", "--test-threads", "1"])
            .env("MOLTIS_TEST_ACTION", action)
            .env("MOLTIS_TEST_ENGINE", self.name)
            .env("MOLTIS_TEST_DATA", self.data())
            .env("MOLTIS_TEST_PREFIX", &self.prefix)
            .env("MOLTIS_TEST_KEY", key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = child.unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let (engine, prefix) = (Arc::clone(&self.engine), self.prefix.clone());
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let Ok(all) = engine.containers(&[]).await else { return };
                for container in all.into_iter().filter(|found| found.name.starts_with(&prefix)) {
                    let _ = engine.remove(&container.id).await;
                }
            });
        });
        let _ = removed.join();
    }
}

/// An image of a test's own, removed when this is dropped.
pub struct MadeImage {
    engine: Arc<dyn Engine>,
    pub name: String,
    id: String,
}

impl Drop for MadeImage {
    fn drop(&mut self) {
        let (engine, id) = (Arc::clone(&self.engine), self.id.clone());
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // A container that is on its way out holds it, and Podman may then have taken its name already.
                for _ in 0..200 {
                    let _ = engine.remove_image(&id).await;
                    if matches!(engine.image(&id).await, Ok(None)) {
                        return;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                eprintln!("image {id} is left");
            });
        });
        let _ = removed.join();
    }
}

/// Another process of this test. It ends when this is dropped.
pub struct Other {
    pub child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Other {
    /// What it says in the end: the rest of the line that begins with `said:`.
    pub async fn says(&mut self) -> String {
        let reading = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some((_, said)) = line.split_once("said:") {
                    return said.to_owned();
                }
            }
            panic!("the other process ended");
        };
        tokio::time::timeout(SOON * 4, reading).await.expect("the other process hangs")
    }

    /// Ends it at once.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// What another process does; in this one, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process() {
    let var = |name: &str| std::env::var(format!("MOLTIS_TEST_{name}"));
    let Ok(action) = var("ACTION") else { return };
    let (engine, key, prefix) = (var("ENGINE").unwrap(), var("KEY").unwrap(), var("PREFIX").unwrap());
    let kind = if engine == "docker" { EngineKind::Docker } else { EngineKind::Podman };
    let backend = ContainerBackend::new(Config {
        kind,
        data_dir: var("DATA").unwrap().into(),
        config_dir: None,
        host_data_dir: var("HOST_DATA").ok().map(PathBuf::from),
        prefix: prefix.clone(),
        environment: environment(),
    });
    let lifetime = match &*action {
        "ephemeral" => Lifetime::Ephemeral,
        _ => Lifetime::Idle(Duration::from_secs(120)),
    };
    let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), lifetime);
    spec.image = Some(ImageChoice::Finished { reference: Setting::new(IMAGE.to_owned(), Origin::Flag) });
    spec.container_prefix = prefix;
    if let Ok(workspace) = var("WORKSPACE") {
        spec.workspace = Some(asked(mount(workspace, "/workspace", MountMode::Rw)));
    }
    let sandbox = match backend.open(&spec).await {
        Ok(sandbox) => sandbox,
        Err(error) if action == "once" => return println!("said:{} {error}", error.code()),
        Err(error) => panic!("{error:?}"),
    };
    if action == "once" {
        let said = sh(&sandbox, "id -u; echo made > made; cat made; echo here >&2").await;
        let found = backend.adopt(&spec).await.unwrap().is_some();
        sandbox.close().await.unwrap();
        let left = backend.list().await.unwrap().len();
        return println!("said:{} {found} {left}", said.ok().replace('\n', " "));
    }
    if action == "background" {
        sh(&sandbox, "mkfifo /tmp/pipe").await.ok();
        background(&sandbox, "echo on; cat /tmp/pipe; echo over").await;
    }
    println!("said:{}", sandbox.is_new());
    // Until the end of input, or of this process.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await;
}

fn backend(kind: EngineKind, data_dir: &Path, environment: &Environment, prefix: &str) -> ContainerBackend {
    ContainerBackend::new(Config {
        kind,
        data_dir: data_dir.to_owned(),
        config_dir: None,
        host_data_dir: None,
        prefix: prefix.to_owned(),
        environment: environment.clone(),
    })
}

/// An image in the form of `docker save`: of this name, with this configuration (`config` of the image's own file, and
/// the architecture) and these files (name, mode, contents; a directory where there are none).
pub fn archive(
    name: &str,
    architecture: &str,
    config: &serde_json::Value,
    files: &[(&str, u32, Option<Vec<u8>>)],
) -> Vec<u8> {
    use sha2::{Digest, Sha256};

    fn add(tar: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: Option<&[u8]>) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(if content.is_some() {
            tar::EntryType::Regular
        } else {
            tar::EntryType::Directory
        });
        header.set_mode(mode);
        header.set_size(content.map_or(0, <[u8]>::len) as u64);
        tar.append_data(&mut header, name, content.unwrap_or_default()).unwrap();
    }
    let mut layer = tar::Builder::new(Vec::new());
    for (name, mode, content) in files {
        add(&mut layer, name, *mode, content.as_deref());
    }
    let layer = layer.into_inner().unwrap();
    let hash = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let config = serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hash(&layer))] },
    });
    let config = serde_json::to_vec(&config).unwrap();
    let config_name = format!("{}.json", hash(&config));
    let manifest =
        serde_json::json!([{ "Config": config_name, "RepoTags": [name], "Layers": ["one/layer.tar"] }]);
    let mut all = tar::Builder::new(Vec::new());
    add(&mut all, &config_name, 0o644, Some(&config));
    add(&mut all, "one", 0o755, None);
    add(&mut all, "one/layer.tar", 0o644, Some(&layer));
    add(&mut all, "manifest.json", 0o644, Some(&serde_json::to_vec(&manifest).unwrap()));
    all.into_inner().unwrap()
}

pub fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub fn mount(source: impl Into<PathBuf>, target: &str, mode: MountMode) -> Mount {
    Mount { source: source.into(), target: target.into(), mode }
}

pub fn asked<T>(value: T) -> Setting<T> {
    Setting::new(value, Origin::Flag)
}

/// Runs a shell line.
pub async fn sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Said {
    run(sandbox, Command::Shell(line.into())).await.unwrap_or_else(|error| panic!("{line}: {error:?}"))
}

/// Runs a command.
pub async fn run(sandbox: &Arc<dyn Sandbox>, command: Command) -> moltis_sandbox::Result<Said> {
    let mut request = ExecRequest::new(command);
    request.timeout = Some(SOON);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let running = async {
        let mut exec = sandbox.exec(request).await?;
        while let Some(event) = exec.events.next().await {
            match event? {
                ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ExecEvent::Exit(outcome) => return Ok::<_, Error>(outcome),
                _ => {}
            }
        }
        panic!("the stream ended without an end of the command");
    };
    let outcome = tokio::time::timeout(SOON * 2, running).await.expect("the command hangs")?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Said { stdout: text(stdout), stderr: text(stderr), outcome })
}

/// Starts a shell line that needs no caller.
pub async fn background(sandbox: &Arc<dyn Sandbox>, line: &str) {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.background = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
}

/// Waits until something is so.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !check().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
