//! An engine that fails under a gateway: what is answered, what moves, what is said of it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moltis_testkit::need;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::support::{Place, Ran};

/// Where this machine's Docker listens.
const DOCKER: &str = "/var/run/docker.sock";

/// An image that whoever made the tests' engines has put there.
const IMAGE: &str = "localhost/sandbox-base:debian";

/// Docker as the gateway knows it, which can be cut off.
struct Engine {
    socket: PathBuf,
    is_cut: Arc<AtomicBool>,
}

impl Engine {
    fn new(place: &Place) -> Self {
        let engine = Self { socket: place.path("engine.sock"), is_cut: Arc::default() };
        let listener = UnixListener::bind(&engine.socket).unwrap();
        let is_cut = Arc::clone(&engine.is_cut);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !is_cut.load(Ordering::SeqCst)
                    && let Ok(docker) = UnixStream::connect(DOCKER)
                {
                    std::thread::spawn(move || pass(&stream, &docker));
                }
            }
        });
        engine
    }

    /// From now on whoever connects is hung up on.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

/// Passes bytes both ways until both sides have ended.
fn pass(one: &UnixStream, other: &UnixStream) {
    let way = |mut from: &UnixStream, mut to: &UnixStream| {
        let mut piece = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| way(one, other));
        way(other, one);
    });
}

/// Whether this test has a Docker to cut off. Only root may use this machine's own.
fn docker_runs(test: &str) -> bool {
    if !need::as_root(test, "it uses this machine's Docker") {
        return false;
    }
    match UnixStream::connect(DOCKER) {
        Ok(_) => true,
        Err(error) => {
            need::skip(test, &format!("Docker does not run: {error}"));
            false
        }
    }
}

struct World {
    place: Place,
    engine: Engine,
    gateway: Option<Gateway>,
    token: String,
}

impl World {
    fn new(config: &str) -> Self {
        let place = Place::new();
        let engine = Engine::new(&place);
        let config = format!("[tools.exec.sandbox]\npackages = []\n{config}");
        std::fs::write(place.config().join("moltis.toml"), config).unwrap();
        let mut command = place.moltis(["gateway", "--port", "0", "--json"]);
        command.env("DOCKER_HOST", engine.address());
        let gateway = Gateway::started(command);
        let token = gateway.token();
        Self { place, engine, gateway: Some(gateway), token }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, body) = self.gateway.as_ref().unwrap().ask(&self.token, method, path, &body);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    #[track_caller]
    fn exec(&self, session: &str, line: &str) -> Value {
        let path = format!("/api/v1/sessions/{session}/exec");
        let (status, answer) = self.ask("POST", &path, &json!({ "command": line }));
        assert_eq!(status, 200, "{answer}");
        answer
    }

    fn backend(&self, name: &str) -> Value {
        let (_, all) = self.ask("GET", "/api/v1/backends", &Value::Null);
        all["backends"].as_array().unwrap().iter().find(|one| one["backend"] == name).unwrap().clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.gateway.take());
        // What the gateway could not end without its engine.
        let with_docker = |words: Vec<String>| {
            let mut command = self.place.moltis(words);
            Ran::from(command.env("DOCKER_HOST", format!("unix://{DOCKER}")).output().unwrap())
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pruned = with_docker(words(&["sandbox", "prune"]));
        let all = with_docker(words(&["sandbox", "ps", "--json"]));
        let all: Value = serde_json::from_str(&all.stdout).unwrap_or_default();
        let ids = all["sandboxes"].as_array().into_iter().flatten().map(|one| one["id"].as_str().unwrap());
        let ids: Vec<_> = ids.map(str::to_owned).collect();
        if !ids.is_empty() {
            let removed = with_docker([words(&["sandbox", "rm"]), ids].concat());
            assert!(std::thread::panicking() || removed.status == Some(0), "{removed:?}");
        }
        assert!(std::thread::panicking() || pruned.status == Some(0), "{pruned:?}");
    }
}

/// The image that the configuration names where nobody says anything, which nothing is fetched for: until this is
/// dropped it is another name of one that is here, if it is none yet.
struct DefaultImage {
    is_ours: bool,
}

impl DefaultImage {
    const NAME: &str = "docker.io/library/ubuntu:24.04";

    fn new() -> Self {
        let docker = |words: &[&str]| Command::new("docker").args(words).output().unwrap().status.success();
        let is_ours = !docker(&["image", "inspect", Self::NAME]);
        assert!(!is_ours || docker(&["tag", IMAGE, Self::NAME]));
        Self { is_ours }
    }
}

impl Drop for DefaultImage {
    fn drop(&mut self) {
        if self.is_ours {
            let removed = Command::new("docker").args(["rmi", Self::NAME]).output().unwrap();
            assert!(std::thread::panicking() || removed.status.success(), "{removed:?}");
        }
    }
}

#[test]
fn sessions_go_on_elsewhere_and_everybody_is_told() {
    if !docker_runs("an engine that fails under a gateway") {
        return;
    }
    let _image = DefaultImage::new();
    let world = World::new("backend = \"docker\"\n");
    let before = world.exec("moves", "echo ran");
    assert_eq!((&before["backend"], &before["stdout"]), (&json!("docker"), &json!("ran\n")), "{before}");
    assert_eq!(world.backend("docker").get("failedOver"), None);
    world.engine.cut();
    // Nothing ran yet: a new session is opened on the next backend at once.
    let new = world.exec("new", "echo elsewhere");
    assert_eq!((&new["backend"], &new["stdout"]), (&json!("namespaces"), &json!("elsewhere\n")), "{new}");
    assert!(new["notes"].to_string().contains("docker"), "{new}");
    // One whose container would still answer goes there too.
    let moved = world.exec("moves", "echo on");
    assert_eq!(
        (&moved["backend"], &moved["stdout"], &moved["restarted"]),
        (&json!("namespaces"), &json!("on\n"), &json!("failover")),
        "{moved}"
    );
    let failed = world.backend("docker");
    assert_eq!(failed["failedOver"]["to"], "namespaces", "{failed}");
    // A command of the program goes by the gateway, and is told the same.
    let mut command = world.place.moltis(["exec", "--session", "new", "--json", "echo by the program"]);
    let ran = Ran::from(command.env("DOCKER_HOST", world.engine.address()).output().unwrap());
    let answer = ran.json();
    assert_eq!((&answer["backend"], ran.status), (&json!("namespaces"), Some(0)), "{answer}");
    assert!(answer["notes"].to_string().contains("docker"), "{answer}");
    // What a session asks for is kept or refused there too; whoever names the backend that failed is not taken elsewhere.
    for (settings, status, code) in [
        (json!({ "image": IMAGE }), 422, "demand-not-kept"),
        (json!({ "backend": "docker" }), 503, "backend-failed"),
    ] {
        let body = json!({ "command": "true", "settings": settings });
        let refused = world.ask("POST", "/api/v1/exec", &body);
        assert_eq!((refused.0, &refused.1["code"]), (status, &json!(code)), "{refused:?}");
    }
}

#[test]
fn where_it_is_switched_off_nothing_moves() {
    if !docker_runs("an engine that fails with failover off") {
        return;
    }
    let world = World::new("backend = \"docker\"\nfailover = \"off\"\n");
    world.engine.cut();
    let (status, problem) = world.ask("POST", "/api/v1/exec", &json!({ "command": "true" }));
    assert_eq!((status, &problem["code"]), (503, &json!("engine-unreachable")), "{problem}");
    assert_eq!(world.backend("docker").get("failedOver"), None);
}

#[test]
fn new_sessions_take_what_the_pool_has_ready() {
    if !docker_runs("the pool of a gateway") {
        return;
    }
    let world = World::new("backend = \"docker\"\npool = 2\nimage = \"localhost/sandbox-base:debian\"\n");
    let gateway = world.gateway.as_ref().unwrap();
    let containers = |world: &World| {
        let ps = world.ask("GET", "/api/v1/sandboxes", &Value::Null).1;
        let all = ps["sandboxes"].as_array().unwrap().iter();
        all.map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let ready = |world: &World| {
        let (_, text) = world.ask("GET", "/metrics", &Value::Null);
        let text = text.as_str().unwrap();
        let line = text.lines().find(|line| line.starts_with("moltis_pool_ready")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    gateway.until(|_| ready(&world) == 2);
    // They are nobody's: no session has them.
    assert_eq!(world.ask("GET", "/api/v1/sessions", &Value::Null).1["sessions"], json!([]));
    let waiting = containers(&world);
    let ran = world.exec("one", "echo ran");
    assert_eq!((&ran["stdout"], ran.get("restarted")), (&json!("ran\n"), None), "{ran}");
    assert!(waiting.is_empty() || waiting.len() == 2, "{waiting:?}");
    // Another takes its place at once.
    gateway.until(|_| ready(&world) == 2);
}
