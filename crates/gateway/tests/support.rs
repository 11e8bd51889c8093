//! A gateway of a test's own, and a client that holds its answers against the document.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use moltis_gateway::{Options, Running, Token};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

use crate::conform;

/// Time that anything may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway with a data directory of its own, which ends with the test.
pub struct World {
    pub folder: tempfile::TempDir,
    pub options: Options,
    running: Option<Running>,
    pub address: SocketAddr,
    /// The admin token.
    pub token: String,
}

/// Who a request is from.
#[derive(Clone, Debug)]
pub enum As {
    Nobody,
    /// The user who runs it, by the private socket.
    Owner,
    /// A key or the token.
    Bearer(String),
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    #[track_caller]
    pub fn fails(self, status: u16, code: &str) -> Value {
        let value = self.is(status);
        assert_eq!(value["code"], code, "{value:#}");
        value
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

static ENGINES: Once = Once::new();

/// How a gateway is started that has all that is its own in this folder.
pub fn options(folder: &Path, config: &str) -> Options {
    ENGINES.call_once(|| {
        // SAFETY: it is done once, before this process starts anything that reads the environment past std's lock.
        unsafe {
            std::env::set_var("DOCKER_HOST", "unix:///nonexistent/docker.sock");
            std::env::set_var("CONTAINER_HOST", "unix:///nonexistent/podman.sock");
        }
    });
    for name in ["home", "config", "state"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("config/moltis.toml"), config).unwrap();
    let mut env = BTreeMap::new();
    for (name, place) in
        [("HOME", "home"), ("MOLTIS_CONFIG_DIR", "config"), ("MOLTIS_DATA_DIR", "state/data")]
    {
        env.insert(name.into(), folder.join(place).into_os_string());
    }
    let load = moltis_config::Options {
        env,
        uid: rustix::process::geteuid().as_raw(),
        ..moltis_config::Options::default()
    };
    Options { load, port: Some(0), deadline: Some(Duration::from_secs(5)), ..Options::default() }
}

impl World {
    /// One whose commands run on the host: the least that any machine has.
    pub async fn new() -> Self {
        Self::with("[tools.exec.sandbox]\nbackend = \"restricted-host\"\n").await
    }

    pub async fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), config);
        let running = moltis_gateway::start(options.clone(), true).await.unwrap();
        let address = running.banner().address;
        let Token::Shown(token) = running.banner().token.clone() else { panic!("{:?}", running.banner()) };
        let world = Self { folder, options, running: Some(running), address, token };
        world.until_ready().await;
        world
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("state/data")
    }

    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("config/moltis.toml")
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    async fn until_ready(&self) {
        // By the private socket, which has no TLS.
        until(async || self.get(As::Owner, "/readyz").await.status == 200).await;
    }

    /// Ends the gateway and starts another one on the same data directory.
    pub async fn again(&mut self) {
        self.running.take().unwrap().end().await;
        let running = moltis_gateway::start(self.options.clone(), true).await.unwrap();
        self.address = running.banner().address;
        assert_eq!(running.banner().token, Token::Known);
        self.running = Some(running);
        self.until_ready().await;
    }

    /// Ends the gateway and every sandbox that is left; the test has to do so at its end.
    pub async fn end(mut self) {
        let all = self.get(As::Owner, "/api/v1/sandboxes").await.is(200);
        for sandbox in all["sandboxes"].as_array().unwrap() {
            let id = sandbox["id"].as_str().unwrap();
            self.send(As::Owner, Method::DELETE, &format!("/api/v1/sandboxes/{id}")).await;
        }
        self.running.take().unwrap().end().await;
        for folder in ["run", "run-host"] {
            let left: Vec<_> = std::fs::read_dir(self.data().join(folder)).into_iter().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    pub fn admin(&self) -> As {
        As::Bearer(self.token.clone())
    }

    /// Makes an API key.
    pub async fn key(&self, name: &str, scope: &str, sessions: Option<&[&str]>) -> As {
        let asked = json!({ "name": name, "scope": scope, "sessions": sessions });
        let made = self.post(self.admin(), "/api/v1/keys", asked).await.is(201);
        As::Bearer(made["key"].as_str().unwrap().to_owned())
    }

    pub async fn get(&self, who: As, path: &str) -> Answer {
        self.send(who, Method::GET, path).await
    }

    pub async fn send(&self, who: As, method: Method, path: &str) -> Answer {
        self.request(who, method, path, &[], Bytes::new()).await
    }

    pub async fn post(&self, who: As, path: &str, body: Value) -> Answer {
        self.with_json(who, Method::POST, path, body).await
    }

    pub async fn with_json(&self, who: As, method: Method, path: &str, body: Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.request(who, method, path, &headers, body.to_string().into()).await
    }

    /// Sends a request and holds the answer against the document.
    pub async fn request(
        &self,
        who: As,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.raw(who, method.clone(), path, headers, body));
        let answer = answer.await.unwrap_or_else(|_| panic!("{method} {path} is not answered"));
        let kind = answer.headers.get("content-type").map(|kind| kind.to_str().unwrap());
        // What is mounted has words of its own.
        if !path.starts_with("/mcp") {
            conform::see(method.as_str(), path, answer.status, kind, &answer.body);
        }
        assert!(!answer.header("x-request-id").is_empty());
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control-")));
        answer
    }

    /// Sends a request that the document says nothing of.
    pub async fn plain(&self, who: As, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.raw(who, method, path, headers, Bytes::new()));
        answer.await.unwrap_or_else(|_| panic!("{path} is not answered"))
    }

    /// Opens an answer that goes on.
    pub async fn stream(&self, who: As, path: &str) -> Events {
        let headers = [("accept", "application/x-ndjson")];
        let response = self.respond(who, Method::GET, path, &headers, Bytes::new()).await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body(), held: Vec::new() }
    }

    async fn raw(
        &self,
        who: As,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Answer {
        let response = self.respond(who, method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let body = if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            Bytes::new()
        } else {
            body.collect().await.unwrap().to_bytes()
        };
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn respond(
        &self,
        who: As,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Response<Incoming> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        if let As::Bearer(key) = &who {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request = request.header(name, HeaderValue::from_str(value).unwrap());
        }
        let request = request.body(Full::new(body)).unwrap();
        match who {
            As::Owner => {
                let stream = UnixStream::connect(self.data().join("gateway.sock")).await.unwrap();
                let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
            As::Nobody | As::Bearer(_) => {
                let stream = TcpStream::connect(self.address).await.unwrap();
                let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
        }
    }
}

/// Events of an answer that goes on.
pub struct Events {
    body: Incoming,
    held: Vec<u8>,
}

impl Events {
    /// The next one.
    pub async fn next(&mut self) -> Value {
        loop {
            if let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.held.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap();
            self.held.extend_from_slice(frame.unwrap().unwrap().data_ref().unwrap());
        }
    }

    /// Whether it ends, whatever comes before.
    pub async fn ended(mut self) -> bool {
        loop {
            match tokio::time::timeout(PATIENCE, self.body.frame()).await {
                Ok(Some(Ok(_))) => {}
                Ok(None) => return true,
                Ok(Some(Err(_))) | Err(_) => return false,
            }
        }
    }

    /// Whether nothing more comes.
    pub async fn end(mut self) -> bool {
        tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap().is_none()
    }
}

/// Waits until something is so.
pub async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Events of a stream of lines.
pub fn events(body: &[u8]) -> Vec<Value> {
    std::str::from_utf8(body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
