//! What the tests share: the engines that answer here, and containers that go when a test ends, however it ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use moltis_backend_container::engine::{
    ContainerSpec, Engine, EngineKind, Environment, ExecSpec, Execution, Stream, connect,
};

/// Label that every container of these tests carries; its value is the process that made it.
pub const LABEL: &str = "moltis.test.engine";

/// The small image that the tests run.
pub const IMAGE: &str = "localhost/sandbox-base:busybox";

/// Why tests of Docker are root's: Podman is each user's own.
pub const IS_ROOTS: &str = "whoever may use Docker's socket uses root's Docker";

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    format!("moltis-test-{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// This process's environment, without what says where engines are.
pub fn environment() -> Environment {
    let mut environment = Environment::of_process();
    environment.vars.retain(|name, _| !name.starts_with("DOCKER_") && !name.starts_with("CONTAINER"));
    environment
}

/// One with these variables.
pub fn with(vars: &[(&str, &str)]) -> Environment {
    let mut environment = environment();
    environment.vars.extend(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    environment
}

/// An engine, and the image to use on it.
pub struct Tested {
    pub name: &'static str,
    pub engine: Arc<dyn Engine>,
    pub image: String,
}

/// The engines that answer here and have the image; those that do not are reported. An ordinary user has a Podman only.
pub async fn engines(test: &str) -> Vec<Tested> {
    let nowhere = Environment { root: PathBuf::from("/nonexistent"), ..environment() };
    let all = [
        ("docker", EngineKind::Docker, environment()),
        ("podman", EngineKind::Podman, environment()),
        ("podman-cli", EngineKind::Podman, nowhere),
    ];
    let mut found = Vec::new();
    for (name, kind, environment) in all {
        let without = match kind {
            EngineKind::Docker => !moltis_testkit::need::as_root(&format!("{test} ({name})"), IS_ROOTS),
            // A user's Podman is asked by its program in any case.
            _ => name == "podman-cli" && !moltis_testkit::need::root(),
        };
        if without {
            continue;
        }
        let engine = match connect(kind, &environment).await {
            Ok(engine) => engine,
            Err(error) => {
                moltis_testkit::need::skip(&format!("{test} ({name})"), &error.to_string());
                continue;
            }
        };
        match engine.image(IMAGE).await {
            Ok(Some(image)) => found.push(Tested { name, engine, image: image.id }),
            Ok(None) => {
                moltis_testkit::need::skip(&format!("{test} ({name})"), &format!("there is no {IMAGE}"))
            }
            Err(error) => moltis_testkit::need::skip(&format!("{test} ({name})"), &error.to_string()),
        }
    }
    found
}

impl Tested {
    /// A container that sleeps for a minute and then goes.
    pub fn spec(&self) -> ContainerSpec {
        ContainerSpec {
            name: unique(self.name),
            image: self.image.clone(),
            hostname: "sandbox".to_owned(),
            user: (1000, 1000),
            argv: words(&["/bin/sleep", "60"]),
            directory: "/".to_owned(),
            labels: BTreeMap::from([(LABEL.to_owned(), std::process::id().to_string())]),
            auto_remove: true,
            ..ContainerSpec::default()
        }
    }

    /// Makes one.
    pub async fn create(&self, spec: &ContainerSpec) -> Made {
        let id = self.engine.create(spec).await.unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
        Made { engine: Arc::clone(&self.engine), id }
    }

    /// Makes and starts one.
    pub async fn run(&self, spec: &ContainerSpec) -> Made {
        let made = self.create(spec).await;
        self.engine.start(&made.id).await.unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
        made
    }

    /// What a shell command in a container prints, and its exit code.
    pub async fn shell(&self, id: &str, command: &str) -> (String, String, i32) {
        let spec = exec(&["/bin/sh", "-c", command]);
        let run =
            self.engine.exec(id, &spec).await.unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
        self.finish(run).await
    }

    /// Ends the input of a program and collects what it does.
    pub async fn finish(&self, run: Execution) -> (String, String, i32) {
        let Execution { id, stdin, mut output } = run;
        drop(stdin);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some((stream, piece)) = output.next().await.unwrap() {
            match stream {
                Stream::Stdout => out.extend(piece),
                Stream::Stderr => err.extend(piece),
            }
        }
        let code = self.code(&id).await;
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), code)
    }

    /// The exit code of a program whose output has ended. Engines may need a moment to know it.
    pub async fn code(&self, exec: &str) -> i32 {
        for _ in 0..200 {
            if let Some(code) = self.engine.exec_result(exec).await.unwrap() {
                return code;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("{}: a program that is over is not known to be", self.name);
    }
}

pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A program to run, with nothing special.
pub fn exec(argv: &[&str]) -> ExecSpec {
    ExecSpec { argv: words(argv), user: None, directory: None, env: Vec::new(), terminal: None }
}

/// A container that is removed when this is dropped.
pub struct Made {
    pub engine: Arc<dyn Engine>,
    pub id: String,
}

impl Drop for Made {
    fn drop(&mut self) {
        let (engine, id) = (Arc::clone(&self.engine), self.id.clone());
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(engine.remove(&id))
        });
        let removed = removed.join().unwrap();
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}
