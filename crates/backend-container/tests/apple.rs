//! Apple's `container` by a stand-in of each modelled version: what works, what is refused, and how failures are told.
//! Whatever runs in a container needs root here, which the stand-in's namespaces need.

mod agent;
mod archives;
mod backend;
mod faults;
mod images;
mod lifecycle;
mod programs;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moltis_backend_container::apple::Apple;
use moltis_backend_container::engine::{ContainerSpec, Engine, EngineError, ExecSpec, NetworkMode, Stream};
use moltis_testkit::apple::{Standin, Version};
use moltis_testkit::need;

/// The image that is used.
const IMAGE: &str = "localhost/base:1";

/// A stand-in, and an engine that drives it.
struct Tested {
    standin: Standin,
    engine: Arc<dyn Engine>,
    image: String,
}

/// The stand-in's executable, which is built beside the tests.
fn program() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().and_then(Path::parent).unwrap().join("examples/apple-container")
}

/// Without an image.
fn bare(version: Version) -> (Standin, Arc<dyn Engine>) {
    let standin = Standin::new(&program(), version);
    let engine = Apple::new(standin.program(), standin.variables());
    (standin, Arc::new(engine))
}

/// With an image that has a shell.
async fn tested(version: Version) -> Tested {
    let (standin, engine) = bare(version);
    let busybox = need::program("busybox");
    standin.image(
        IMAGE,
        busybox.as_deref(),
        &[("etc/passwd", "root:x:0:0::/:/bin/sh\n"), ("etc/motd", "hello\n")],
    );
    let image = engine.image(IMAGE).await.unwrap().unwrap().id;
    Tested { standin, engine, image }
}

/// Whether containers can run here; else it is reported.
fn runs(test: &str) -> bool {
    if !need::as_root(test, "the stand-in's machines are root's") {
        return false;
    }
    let lacking = [
        (need::program("busybox").is_none(), "there is no busybox"),
        (need::program("unshare").is_none(), "there is no unshare"),
        (need::program("nsenter").is_none(), "there is no nsenter"),
    ];
    match lacking.iter().find(|(lacking, _)| *lacking) {
        Some((_, why)) => {
            need::skip(test, why);
            false
        }
        None => true,
    }
}

impl Tested {
    /// A container that sleeps, not made yet.
    fn spec(&self, name: &str) -> ContainerSpec {
        ContainerSpec {
            name: name.to_owned(),
            image: self.image.clone(),
            user: (1000, 1000),
            argv: ["/bin/sh", "-c", "echo begun; exec sleep 1000"].map(str::to_owned).to_vec(),
            directory: "/".to_owned(),
            network: NetworkMode::Engine,
            ..ContainerSpec::default()
        }
    }

    /// A container that sleeps.
    async fn running(&self, name: &str) -> String {
        let id = self.engine.create(&self.spec(name)).await.unwrap();
        self.engine.start(&id).await.unwrap();
        id
    }

    /// What a program printed, and its exit code.
    async fn output(&self, id: &str, argv: &[&str]) -> Result<(String, String, i32), EngineError> {
        let spec = ExecSpec {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            user: None,
            directory: None,
            env: Vec::new(),
            terminal: None,
        };
        let mut running = self.engine.exec(id, &spec).await?;
        drop(running.stdin);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some((stream, piece)) = running.output.next().await? {
            match stream {
                Stream::Stdout => out.extend(piece),
                Stream::Stderr => err.extend(piece),
            }
        }
        let code = loop {
            if let Some(code) = self.engine.exec_result(&running.id).await? {
                break code;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        };
        Ok((String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), code))
    }
}

/// The code of a broken engine.
fn code<T: std::fmt::Debug>(result: Result<T, EngineError>) -> &'static str {
    match result {
        Err(EngineError::Broken { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}
