//! An engine that is made up: it keeps images and containers in memory, and does what a test tells it to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent_protocol::tar;
use tokio::io::AsyncReadExt;

use crate::engine::{
    BuildSpec, Bytes, Container, ContainerSpec, ContainerState, Engine, EngineError, EngineInfo, EngineKind,
    ExecSpec, Execution, Image, Progress, ProgressSink, Result,
};

/// Something in an image.
#[derive(Clone)]
pub enum Node {
    File(&'static [u8]),
    Program,
    Link(&'static str),
    Directory(&'static [&'static str]),
    /// An archive as it is.
    Raw(Vec<u8>),
}

/// What comes of a build.
#[derive(Clone)]
pub enum Outcome {
    Built(Duration),
    Failed(&'static [&'static str]),
    Error(EngineError),
}

#[derive(Default)]
pub struct State {
    pub images: Vec<Image>,
    pub registry: BTreeMap<String, Image>,
    pub containers: Vec<Container>,
    pub made: Vec<ContainerSpec>,
    pub built: Vec<BuildSpec>,
    pub removed: Vec<String>,
    pub moved: Vec<String>,
}

/// Counts builds that are under way, also those that are dropped.
struct Building<'a>(&'a AtomicU32);

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct Fake {
    pub kind: EngineKind,
    pub state: Mutex<State>,
    pub files: BTreeMap<&'static str, Node>,
    pub outcome: Mutex<Outcome>,
    pub down: bool,
    pub building: AtomicU32,
    /// Another engine's archive is an image's id and tag; this finds the image.
    pub world: Arc<Mutex<BTreeMap<String, Image>>>,
}

pub fn base() -> Image {
    Image {
        id: format!("sha256:{}", "b".repeat(64)),
        tags: vec!["localhost/base:1".into()],
        arch: "x86_64".into(),
        os: "linux".into(),
        ..Image::default()
    }
}

pub fn debian() -> BTreeMap<&'static str, Node> {
    [
        ("/etc/os-release", Node::Link("../usr/lib/os-release")),
        ("/usr/lib/os-release", Node::File(b"ID=debian\nPRETTY_NAME=\"Debian 12\"\n")),
        ("/etc/passwd", Node::File(b"root:x:0:0:root:/root:/bin/sh\n")),
        ("/etc/group", Node::File(b"root:x:0:\n")),
        ("/bin/sh", Node::Link("dash")),
        ("/bin/dash", Node::Program),
        ("/usr/bin/apt-get", Node::Program),
        ("/home/sandbox", Node::Directory(&[".profile", "notes"])),
    ]
    .into()
}

impl Fake {
    pub fn new(kind: EngineKind, files: BTreeMap<&'static str, Node>) -> Self {
        Self {
            kind,
            state: Mutex::new(State { images: vec![base()], ..State::default() }),
            files,
            outcome: Mutex::new(Outcome::Built(Duration::ZERO)),
            down: false,
            building: AtomicU32::new(0),
            world: Arc::default(),
        }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap())
    }

    fn up(&self) -> Result<()> {
        let down = || EngineError::Unreachable { engine: self.kind, endpoint: "x".into(), cause: "y".into() };
        if self.down { Err(down()) } else { Ok(()) }
    }
}

fn found(image: &Image, reference: &str) -> bool {
    image.id == reference || image.tags.iter().any(|tag| tag == reference)
}

fn carries(own: &BTreeMap<String, String>, labels: &[(&str, &str)]) -> bool {
    labels.iter().all(|(name, value)| own.get(*name).is_some_and(|own| value.is_empty() || own == value))
}

fn entry(out: &mut Vec<u8>, kind: tar::Kind, name: &str, target: &str, mode: u32, content: &[u8]) {
    let size = content.len() as u64;
    let (name, target) = (name.as_bytes(), target.as_bytes());
    tar::Entry { kind, name, target, mode, uid: 0, gid: 0, size, mtime: 0 }.write(out);
    out.extend_from_slice(content);
    out.resize(out.len() + tar::padding(size), 0);
}

#[async_trait]
impl Engine for Fake {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn endpoint(&self) -> String {
        "made up".into()
    }

    async fn info(&self) -> Result<EngineInfo> {
        self.up()?;
        Ok(EngineInfo::whole())
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        self.with(|state| {
            let id = format!("c{}", state.made.len());
            state.made.push(spec.clone());
            state.containers.push(Container {
                id: id.clone(),
                name: spec.name.clone(),
                state: ContainerState::Created,
                labels: spec.labels.clone(),
                image: spec.image.clone(),
                created_secs: crate::image::store::now().0,
                ..Container::default()
            });
            Ok(id)
        })
    }

    async fn start(&self, _: &str) -> Result<()> {
        panic!("nothing is ever started")
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>> {
        Ok(self.with(|state| state.containers.iter().find(|container| container.id == id).cloned()))
    }

    async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>> {
        let all = self.with(|state| state.containers.clone());
        Ok(all.into_iter().filter(|container| carries(&container.labels, labels)).collect())
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.with(|state| state.containers.retain(|container| container.id != id && container.name != id));
        Ok(())
    }

    async fn wait(&self, _: &str) -> Result<()> {
        unreachable!()
    }

    async fn logs(&self, _: &str, _: usize) -> Result<Vec<u8>> {
        unreachable!()
    }

    async fn exec(&self, _: &str, _: &ExecSpec) -> Result<Execution> {
        panic!("nothing is ever run")
    }

    async fn exec_result(&self, _: &str) -> Result<Option<i32>> {
        unreachable!()
    }

    async fn exec_resize(&self, _: &str, _: u16, _: u16) -> Result<()> {
        unreachable!()
    }

    async fn put_archive(&self, _: &str, _: &str, _: Vec<u8>) -> Result<()> {
        unreachable!()
    }

    async fn get_archive(&self, id: &str, path: &str) -> Result<Bytes> {
        tokio::task::yield_now().await;
        assert!(self.with(|state| state.containers.iter().any(|container| container.id == id)));
        let Some(node) = self.files.get(path) else {
            return Err(EngineError::NoSuchPath { path: path.into() });
        };
        let name = path.rsplit('/').next().unwrap();
        let mut out = Vec::new();
        match node {
            Node::File(content) => entry(&mut out, tar::Kind::File, name, "", 0o644, content),
            Node::Program => entry(&mut out, tar::Kind::File, name, "", 0o755, &[7; 100_000]),
            Node::Link(target) => entry(&mut out, tar::Kind::Symlink, name, target, 0o777, b""),
            Node::Directory(names) => {
                entry(&mut out, tar::Kind::Directory, &format!("{name}/"), "", 0o755, b"");
                for inner in *names {
                    entry(&mut out, tar::Kind::File, &format!("{name}/{inner}"), "", 0o644, b"content");
                }
            }
            Node::Raw(bytes) => out = bytes.clone(),
        }
        out.resize(out.len() + 1024, 0);
        Ok(Box::new(std::io::Cursor::new(out)))
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        self.up()?;
        Ok(self.with(|state| state.images.iter().find(|image| found(image, reference)).cloned()))
    }

    async fn images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
        let all = self.with(|state| state.images.clone());
        Ok(all.into_iter().filter(|image| carries(&image.labels, labels)).collect())
    }

    async fn pull(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()> {
        progress.progress(Progress::Download { layer: "a".into(), bytes: 1, total: 2 });
        let cannot =
            || EngineError::CannotPull { reference: reference.into(), message: "no such host".into() };
        self.with(|state| {
            let image = state.registry.get(reference).cloned().ok_or_else(cannot)?;
            state.images.retain(|old| old.id != image.id);
            state.images.push(image);
            Ok(())
        })
    }

    async fn build(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
        self.building.fetch_add(1, Ordering::SeqCst);
        let _building = Building(&self.building);
        progress.progress(Progress::Step { number: 1, total: 2, what: "RUN x".into() });
        let outcome = self.outcome.lock().unwrap().clone();
        let time = match outcome {
            Outcome::Built(time) => time,
            Outcome::Error(error) => return Err(error),
            Outcome::Failed(log) => {
                let log: Vec<_> = log.iter().map(|line| (*line).to_owned()).collect();
                log.iter().for_each(|line| progress.progress(Progress::Log(line.clone())));
                return Err(EngineError::BuildFailed { message: "the step ended with 1".into(), log });
            }
        };
        tokio::time::sleep(time).await;
        self.with(|state| {
            state.built.push(spec.clone());
            let id = format!("sha256:{:064}", state.built.len());
            let image = Image {
                id: id.clone(),
                tags: vec![spec.tag.clone()],
                labels: spec.labels.clone(),
                size_bytes: 100,
                created_secs: state.built.len() as u64,
                ..base()
            };
            for old in &mut state.images {
                old.tags.retain(|tag| *tag != spec.tag);
            }
            self.world.lock().unwrap().insert(spec.tag.clone(), image.clone());
            state.images.push(image);
            Ok(id)
        })
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.with(|state| {
            let Some(image) = state.images.iter_mut().find(|image| found(image, reference)) else {
                return Ok(());
            };
            if state.containers.iter().any(|container| container.image == image.id) {
                return Err(EngineError::Conflict { message: "a container uses it".into() });
            }
            image.tags.retain(|tag| tag != reference);
            state.removed.push(reference.to_owned());
            state.images.retain(|image| !(image.tags.is_empty() && found_or_untagged(image, reference)));
            Ok(())
        })
    }

    async fn load(&self, mut archive: Bytes) -> Result<()> {
        let mut tag = String::new();
        archive.read_to_string(&mut tag).await.unwrap();
        let mut image = self.world.lock().unwrap()[&tag].clone();
        image.id = format!("sha256:{:064}", 99);
        self.with(|state| {
            state.moved.push(tag);
            state.images.push(image);
        });
        Ok(())
    }

    async fn save(&self, reference: &str) -> Result<Bytes> {
        Ok(Box::new(std::io::Cursor::new(reference.as_bytes().to_vec())))
    }
}

fn found_or_untagged(image: &Image, reference: &str) -> bool {
    image.id == reference || !reference.starts_with("sha256:")
}
