//! Apple's `container` as an engine: a virtual machine for every container, driven by its command line.
//!
//! Written by what is documented of it, and tried against a stand-in only: there was no Mac to run it on. What is relied
//! on, and where it is said (`command-reference.md`, `runtime-configuration.md` and `volumes.md` of its `docs/`, and its
//! issues and release notes):
//!
//! * `create` takes `--name --user --workdir --rm --network --cpus --memory --env --label --mount --tmpfs --entrypoint`;
//!   its id is the name. `--cpus` is a whole number, `--memory` has a granularity of 1 MiB.
//! * `--network none` (issues 386 and 1037), `--read-only` (pull request 999), `--ulimit` (pull request 1129, "0.9 or
//!   newer"), `--cap-drop` (release notes of 1.0) came with later versions; see [`Version`].
//! * `--tmpfs` takes no options: they become part of the path (issue 2094).
//! * Single files can be mounted since 0.9 (containerization pull request 487), by a second name of the file, which at
//!   times cannot be read (issue 1251).
//! * Anonymous volumes stay when their container goes (`volumes.md`).
//! * `inspect` of what is not there prints `[]` and succeeds up to 0.12 (issue 1539), and fails with `container not found`
//!   from 1.1 on; `status` is a word up to 0.12 and an object with `state` from 1.0 on (pull request 1656).
//! * `exec` answers with the program's own exit code; a program that is missing cannot be told from one that failed
//!   (issue 2210); its `--ulimit` is ignored and the first process's limits hold (issue 2266).
//! * `image load` takes the OCI image layout alone (issue 1103), whose index names its media type (issue 330), and may
//!   complain on standard output (issue 1535).
//! * Unknown options end with `Error: Unknown option …` and exit code 64, everything else that fails with `Error: …` on
//!   standard error and exit code 1. Without its service it says `XPC connection error: Connection invalid`, and
//!   `system status` that `apiserver is not running`. With `--rm`, some versions say `Connection interrupted` of a
//!   program that cannot be executed (issue 563).
//! * Names have 63 characters at most in later versions (pull request 1956), 64 before.
//!
//! Files come out of a container that was never started by way of its image, which the tool saves; into and out of one
//! that runs by its own `tar`, since `cp` is missing from most versions and keeps neither owners nor modes.

pub mod arguments;
mod exec;
mod images;
mod labels;
mod layers;
mod oci;
mod shapes;
mod staging;
mod tool;
pub mod version;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, OnceCell};

use crate::engine::{
    BuildSpec, Bytes, Confinement, Container, ContainerSpec, ContainerState, Engine, EngineError, EngineInfo,
    EngineKind, ExecSpec, Execution, Image, Output, Place, ProgressSink, Result, Stream, Support,
};
use images::strings;
use tool::{Answer, Tool};
use version::{OLDEST, Version};

/// Name of the tool.
pub const PROGRAM: &str = "container";

/// How long the files of an image are kept for the next look at it.
const LAYERS_KEPT: Duration = Duration::from_secs(60);
/// Bytes of an archive's block.
const BLOCK: usize = 512;
/// Attempts to remove a container.
const ATTEMPTS: u32 = 5;
/// Between two looks at a container that is waited for.
const PAUSE: Duration = Duration::from_millis(200);

/// Apple's `container`.
#[derive(Clone)]
pub struct Apple(Arc<Inner>);

/// What all handles share.
pub struct Inner {
    tool: Tool,
    version: OnceCell<Version>,
    executions: exec::Executions,
    layers: Mutex<Option<(String, Arc<layers::Layers>, Instant)>>,
}

impl Apple {
    /// The tool at this path, which is run with these environment variables and no others. Nothing is asked of it yet.
    pub fn new(program: PathBuf, variables: BTreeMap<String, String>) -> Self {
        Self(Arc::new(Inner {
            tool: Tool::new(program, variables),
            version: OnceCell::new(),
            executions: exec::Executions::default(),
            layers: Mutex::new(None),
        }))
    }

    /// The tool on the search path that these variables name.
    ///
    /// # Errors
    /// [`EngineError::NotInstalled`].
    pub fn find(variables: &BTreeMap<String, String>) -> Result<Self> {
        let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
        let found = std::env::split_paths(path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(PROGRAM))
            .find(|file| is_program(file));
        match found {
            Some(program) => Ok(Self::new(program, variables.clone())),
            None => Err(missing(format!("there is no program {PROGRAM} on PATH"))),
        }
    }

    /// Its version, which is asked for once.
    ///
    /// # Errors
    /// [`EngineError::NotInstalled`] for another program of that name, or one that is too old.
    pub async fn version(&self) -> Result<Version> {
        let ask = async {
            let list = strings(&["--version"]);
            let answer = self.0.tool.ask("tell its version", tool::QUESTION, &list).await?;
            let text = String::from_utf8_lossy(&answer.stdout);
            let shown = self.0.tool.program().display();
            let version = Version::read(&text).filter(|_| answer.is_ok());
            let version = version.ok_or_else(|| missing(format!("{shown} is not Apple's container")))?;
            if version < OLDEST {
                return Err(missing(format!(
                    "{shown} is version {version}, and {OLDEST} or newer is needed"
                )));
            }
            Ok(version)
        };
        self.0.version.get_or_try_init(|| ask).await.copied()
    }

    fn tool(&self) -> &Tool {
        &self.0.tool
    }

    fn executions(&self) -> &exec::Executions {
        &self.0.executions
    }

    fn kept_layers(&self) -> &Mutex<Option<(String, Arc<layers::Layers>, Instant)>> {
        &self.0.layers
    }

    fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    async fn ask(&self, what: &str, limit: Duration, arguments: &[String]) -> Result<Answer> {
        self.0.tool.ask(what, limit, arguments).await
    }

    /// Asks for something that is to be done.
    async fn done(&self, what: &str, limit: Duration, arguments: &[String]) -> Result<Vec<u8>> {
        let answer = self.ask(what, limit, arguments).await?;
        self.sound(answer, arguments)
    }

    fn sound(&self, answer: Answer, arguments: &[String]) -> Result<Vec<u8>> {
        if answer.is_ok() { Ok(answer.stdout) } else { Err(self.failure(&answer, arguments)) }
    }

    /// What a failed answer means: that the engine is broken, has no room, or refuses.
    fn failure(&self, answer: &Answer, arguments: &[String]) -> EngineError {
        let said = &answer.words;
        let Some(code) = answer.code else {
            return tool::answer(format!("it was ended by a signal: {}", words::clean(said)));
        };
        // Arguments that it does not know are ours, whatever is in them.
        if code != tool::USAGE {
            if let Some(code) = words::broken(said, arguments) {
                return self.broken(code, said);
            }
            if words::full(said) {
                return EngineError::Full { engine: EngineKind::Apple, message: words::clean(said) };
            }
        }
        let said = words::clean(said);
        self.refused(if said.is_empty() { format!("it ended with exit code {code}") } else { said })
    }

    fn broken(&self, code: &'static str, said: &str) -> EngineError {
        EngineError::Broken { engine: EngineKind::Apple, code, message: words::clean(said) }
    }

    fn refused(&self, message: String) -> EngineError {
        EngineError::Refused { engine: EngineKind::Apple, message }
    }

    fn disk(&self, cause: &std::io::Error) -> EngineError {
        if cause.kind() == std::io::ErrorKind::StorageFull {
            return EngineError::Full { engine: EngineKind::Apple, message: cause.to_string() };
        }
        tool::answer(cause.to_string())
    }

    /// Work that blocks.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done.map_err(|cause| self.disk(&cause)),
            Err(error) => Err(tool::answer(error.to_string())),
        }
    }

    /// Asks whether the service answers.
    ///
    /// # Errors
    /// [`EngineError::Broken`] with `apple-service`.
    async fn serves(&self) -> Result<()> {
        let answer = self.ask("tell its status", tool::QUESTION, &strings(&["system", "status"])).await?;
        if answer.is_ok() {
            return Ok(());
        }
        // It says so on either stream.
        let said = format!("{} {}", answer.words, String::from_utf8_lossy(&answer.stdout));
        let said = words::clean(&said);
        let said = if said.is_empty() { "its services do not run".to_owned() } else { said };
        Err(self.broken("apple-service", &format!("{said} (start them: container system start)")))
    }

    /// What a failure in one container means: a broken connection is believed only if the service does not answer.
    async fn failure_in(&self, answer: &Answer, arguments: &[String]) -> EngineError {
        match self.failure(answer, arguments) {
            EngineError::Broken { engine, code: "apple-service", message } => {
                if words::interrupted(&answer.words) && self.serves().await.is_ok() {
                    return EngineError::Refused { engine, message };
                }
                EngineError::Broken { engine, code: "apple-service", message }
            }
            other => other,
        }
    }

    async fn found(&self, id: &str) -> Result<Option<shapes::Found>> {
        if arguments::name(id).is_err() {
            return Ok(None);
        }
        let version = self.version().await?;
        let list = strings(&["inspect", id]);
        let answer = self.ask("look at a container", tool::QUESTION, &list).await?;
        if !answer.is_ok() {
            let error = self.failure(&answer, &list);
            let gone = matches!(error, EngineError::Refused { .. }) && words::not_found(&answer.words);
            return if gone { Ok(None) } else { Err(error) };
        }
        let objects = shapes::objects("a container", &answer.stdout)?;
        let found = objects.first().map(|object| shapes::container(object, version)).transpose()?;
        match found {
            Some(found) if found.container.id != id => {
                Err(tool::answer(format!("asked about {id}, it told of {}", found.container.id)))
            }
            found => Ok(found),
        }
    }

    /// User and group of a container's first process, if it was made by this driver.
    async fn user_of(&self, id: &str) -> Result<Option<(u32, u32)>> {
        let found = self.found(id).await?;
        found.map(|found| found.user).ok_or_else(|| EngineError::NoSuchContainer { id: id.to_owned() })
    }

    /// Looks whether the machine of a container that was started ever ran.
    async fn booted(&self, id: &str) -> Result<()> {
        let Some(found) = self.found(id).await? else { return Ok(()) };
        if found.container.lives() {
            return Ok(());
        }
        // What its kernel said is the engine's: nothing that runs in it has begun where there is none.
        let boot = self.0.tool.tail("show a boot log", 4096, &strings(&["logs", "--boot", id])).await?;
        // One that goes by itself takes its log along.
        let is_empty = boot.is_ok() && boot.stdout.trim_ascii().is_empty();
        if is_empty && self.found(id).await?.is_some_and(|found| !found.container.lives()) {
            return Err(
                self.broken("apple-vm-never-booted", "the virtual machine never booted: its log is empty")
            );
        }
        Ok(())
    }

    /// Runs the container's own `tar`, and reads all that it complains of.
    async fn tar(&self, id: &str, arguments: &[&str]) -> Result<Execution> {
        let mut argv = strings(&["tar"]);
        argv.extend(strings(arguments));
        let spec =
            ExecSpec { argv, user: None, directory: Some("/".to_owned()), env: Vec::new(), terminal: None };
        exec::begin(self, id, &spec).await
    }
}

#[async_trait]
impl Engine for Apple {
    fn kind(&self) -> EngineKind {
        EngineKind::Apple
    }

    fn endpoint(&self) -> String {
        self.0.tool.program().display().to_string()
    }

    async fn info(&self) -> Result<EngineInfo> {
        let version = self.version().await?;
        self.serves().await?;
        Ok(EngineInfo {
            version: version.to_string(),
            arch: std::env::consts::ARCH.to_owned(),
            kernel: String::new(),
            hostname: String::new(),
            place: Place::Vm,
            // Its services are this user's, and what is shared with a machine is reached as this user.
            rootless: true,
            userns_remap: false,
            cgroup_version: 0,
            memory: Support::Yes,
            // Whole ones; see `arguments::whole_cores`.
            cpus: Support::Yes,
            pids: version.pids(),
            network_none: version.network_none(),
            confinement: Confinement::default(),
            runtimes: Vec::new(),
            warnings: version.lacking().iter().map(ToString::to_string).collect(),
        })
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let version = self.version().await?;
        arguments::judge(spec, version).map_err(|reason| self.refused(reason))?;
        let wanted = spec.clone();
        let spec = tokio::task::spawn_blocking(move || {
            let mut spec = staging::stage(wanted)?;
            if !version.file_mounts() {
                // Said in advance, see `Version::lacking`; what else is a file is refused.
                spec.binds.retain(|bind| !matches!(bind.target.as_str(), "/etc/passwd" | "/etc/group"));
                if let Some(file) = spec.binds.iter().find(|bind| bind.source.is_file()) {
                    return Err(EngineError::Refused {
                        engine: EngineKind::Apple,
                        message: format!(
                            "{} is a file, and mounting files needs version 0.9 or newer",
                            file.source.display()
                        ),
                    });
                }
            }
            Ok(spec)
        });
        let spec = spec.await.map_err(|error| tool::answer(error.to_string()))??;
        // The tool would fetch one that is not here.
        let reference = self.reference_of(&spec.image).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let list = arguments::create(&spec, version, &reference, now);
        let answer = self.ask("make a container", tool::CHANGE, &list).await?;
        if !answer.is_ok() {
            let error = self.failure_in(&answer, &list).await;
            return Err(match error {
                EngineError::Refused { message, .. } if message.contains("exists") => {
                    EngineError::Conflict { message }
                }
                other => other,
            });
        }
        let text = String::from_utf8_lossy(&answer.stdout);
        let id = text.lines().next_back().unwrap_or_default().trim();
        if id != spec.name {
            let _ = self.remove(&spec.name).await;
            return Err(tool::answer(format!("asked to make {}, it made {id:?}", spec.name)));
        }
        // The name may have come to mean another image meanwhile.
        let made = self.found(id).await?.map(|found| found.container.image).unwrap_or_default();
        if spec.image.starts_with("sha256:") && made != spec.image {
            let _ = self.remove(id).await;
            return Err(EngineError::Conflict {
                message: format!("{reference} names another image than it did a moment ago"),
            });
        }
        Ok(id.to_owned())
    }

    async fn start(&self, id: &str) -> Result<()> {
        if arguments::name(id).is_err() {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        }
        let list = strings(&["start", id]);
        let answer = self.ask("start a container", tool::CHANGE, &list).await?;
        if answer.is_ok() {
            return self.booted(id).await;
        }
        match self.failure_in(&answer, &list).await {
            EngineError::Refused { message, .. } => {
                if words::not_found(&message) && self.found(id).await?.is_none() {
                    return Err(EngineError::NoSuchContainer { id: id.to_owned() });
                }
                Err(EngineError::CannotStart { message })
            }
            other => Err(other),
        }
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>> {
        Ok(self.found(id).await?.map(|found| found.container))
    }

    async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>> {
        let version = self.version().await?;
        let list = strings(&["list", "--all", "--format", "json"]);
        let answer = self.done("list containers", tool::QUESTION, &list).await?;
        let mut found = Vec::new();
        for object in shapes::objects("containers", &answer)? {
            let container = shapes::container(&object, version)?.container;
            if bears(&container.labels, labels) {
                found.push(container);
            }
        }
        Ok(found)
    }

    async fn remove(&self, id: &str) -> Result<()> {
        if arguments::name(id).is_err() {
            return Ok(());
        }
        let list = strings(&["delete", "--force", id]);
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(PAUSE * attempt).await;
            }
            let answer = self.ask("remove a container", tool::CHANGE, &list).await?;
            if answer.is_ok() {
                return Ok(());
            }
            let error = self.failure_in(&answer, &list).await;
            if matches!(error, EngineError::Broken { .. }) {
                return Err(error);
            }
            if self.found(id).await?.is_none() {
                return Ok(());
            }
            last = Some(error);
            // It may be on its way out, or not be ready to go.
            let _ = self.ask("kill a container", tool::CHANGE, &strings(&["kill", id])).await?;
        }
        Err(last.unwrap_or_else(|| tool::answer(format!("{id} cannot be removed"))))
    }

    async fn wait(&self, id: &str) -> Result<()> {
        let mut pause = PAUSE / 4;
        while self.found(id).await?.is_some_and(|found| found.container.lives()) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE * 5);
        }
        Ok(())
    }

    async fn logs(&self, id: &str, limit: usize) -> Result<Vec<u8>> {
        if arguments::name(id).is_err() {
            return Ok(Vec::new());
        }
        let list = strings(&["logs", id]);
        let answer = self.0.tool.tail("show a log", limit, &list).await?;
        if answer.is_ok() {
            return Ok(answer.stdout);
        }
        // It went with its container, or was never begun.
        match self.failure(&answer, &list) {
            EngineError::Refused { .. } => Ok(Vec::new()),
            other => Err(other),
        }
    }

    async fn exec(&self, id: &str, spec: &ExecSpec) -> Result<Execution> {
        exec::begin(self, id, spec).await
    }

    async fn exec_result(&self, exec: &str) -> Result<Option<i32>> {
        self.executions().result(exec)
    }

    async fn exec_resize(&self, _: &str, _: u16, _: u16) -> Result<()> {
        Err(self.refused("a terminal is the agent's to give, not the tool's".to_owned()))
    }

    async fn put_archive(&self, id: &str, directory: &str, tar: Vec<u8>) -> Result<()> {
        let found =
            self.found(id).await?.ok_or_else(|| EngineError::NoSuchContainer { id: id.to_owned() })?;
        if !found.container.lives() {
            return Err(self.refused("files go into a container only while it runs".to_owned()));
        }
        let running = self.tar(id, &["-x", "-f", "-", "-C", directory]).await?;
        let Execution { id: exec, mut stdin, mut output } = running;
        let give = async {
            // It may end before it has read everything, and says why.
            let _ = stdin.write_all(&tar).await;
            let _ = stdin.shutdown().await;
        };
        let (said, ()) = tokio::join!(complaints(&mut *output), give);
        let said = said?;
        match self.executed(&exec).await? {
            0 => Ok(()),
            _ => Err(self.refused(format!("tar inside: {said}"))),
        }
    }

    async fn get_archive(&self, id: &str, path: &str) -> Result<Bytes> {
        let version = self.version().await?;
        let no_path = || EngineError::NoSuchPath { path: path.to_owned() };
        let found =
            self.found(id).await?.ok_or_else(|| EngineError::NoSuchContainer { id: id.to_owned() })?;
        let container = found.container;
        if container.lives() {
            let (parent, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", "."));
            let (parent, name) = (if parent.is_empty() { "/" } else { parent }, format!("./{name}"));
            let Execution { stdin, mut output, .. } =
                self.tar(id, &["-c", "-f", "-", "-C", parent, &name]).await?;
            drop(stdin);
            // An archive begins with a name. Without one there is no such path, or no `tar`.
            let (mut said, mut first) = (Vec::new(), Vec::new());
            while first.len() < BLOCK {
                match output.next().await? {
                    Some((Stream::Stdout, piece)) => first.extend(piece),
                    Some((Stream::Stderr, piece)) => note(&mut said, &piece),
                    // The tool's own complaint is that there is no such program; `tar`'s is that there is no such file.
                    None if said.starts_with(b"Error: ") => {
                        let said = words::clean(&String::from_utf8_lossy(&said));
                        return Err(self.refused(format!("tar inside: {said}")));
                    }
                    None => return Err(no_path()),
                }
            }
            if first[..BLOCK].iter().all(|byte| *byte == 0) {
                return Err(no_path());
            }
            let (mut to, from) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let mut piece = Some(first);
                while let Some(bytes) = piece {
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                    piece = loop {
                        match output.next().await {
                            Ok(Some((Stream::Stdout, piece))) => break Some(piece),
                            Ok(Some((Stream::Stderr, _))) => {}
                            Ok(None) | Err(_) => break None,
                        }
                    };
                }
            });
            return Ok(Box::new(from));
        }
        if container.state != ContainerState::Created && version.tells_started() {
            return Err(self.refused("a container that is over shows no files".to_owned()));
        }
        let layers = self.layers(&container.image).await?;
        let wanted = path.to_owned();
        let archive = self.blocking(move || layers.archive(&wanted).map_err(std::io::Error::other)).await?;
        Ok(Box::new(tokio::fs::File::from_std(archive.ok_or_else(no_path)?)))
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        self.inspect_image(reference).await
    }

    async fn images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
        self.list_images(labels).await
    }

    async fn pull(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()> {
        self.fetch(reference, progress).await
    }

    async fn build(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
        self.make(spec, progress).await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.drop_image(reference).await
    }

    async fn load(&self, archive: Bytes) -> Result<()> {
        self.take(archive).await
    }

    async fn save(&self, reference: &str) -> Result<Bytes> {
        Ok(Box::new(tokio::fs::File::from_std(self.give(reference).await?)))
    }
}

impl Apple {
    /// The exit code of a program whose output is over.
    async fn executed(&self, exec: &str) -> Result<i32> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(code) = self.executions().result(exec)? {
                return Ok(code);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE);
        }
    }
}

/// All that a program says, shortened.
async fn complaints(output: &mut dyn Output) -> Result<String> {
    let mut said = Vec::new();
    while let Some((_, piece)) = output.next().await? {
        note(&mut said, &piece);
    }
    Ok(words::clean(&String::from_utf8_lossy(&said)))
}

fn note(said: &mut Vec<u8>, piece: &[u8]) {
    let room = 4096_usize.saturating_sub(said.len());
    said.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// Whether labels hold all that are asked for. An empty value stands for any.
fn bears(labels: &BTreeMap<String, String>, asked: &[(&str, &str)]) -> bool {
    asked.iter().all(|(name, value)| labels.get(*name).is_some_and(|have| value.is_empty() || have == value))
}

fn missing(cause: String) -> EngineError {
    EngineError::NotInstalled { engine: EngineKind::Apple, cause }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
