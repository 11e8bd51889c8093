//! A stand-in for Daytona: its API and the toolboxes of its sandboxes. These are sandboxes of another backend, so that
//! commands really run.

mod boxes;
mod commands;
mod files;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use moltis_sandbox::{Backend, Sandbox};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::http::{Asked, Reply, Server};
use super::{Asks, Fault, shapes};
use commands::Session;

/// What the official clients were recorded to send.
const SHAPES: &str = include_str!("daytona.shapes");
/// What the provider's documents name besides, and the recorded clients did not send.
const DOCUMENTED: &str = "GET /api/sandbox ? cursor labels limit :
POST /api/sandbox/{id}/network-settings ? : domainAllowList networkBlockAll
";
/// Headers that the official clients were recorded to send, or the provider's documents name.
const HEADERS: [&str; 17] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-daytona-organization-id",
    "x-daytona-sdk-version",
    "x-daytona-skip-last-activity-update",
    "x-daytona-source",
];
/// What a sandbox does not have whose state is another.
const STARTED: &str = "started";

/// A stand-in. Its sandboxes end with it.
pub struct Daytona {
    state: Arc<State>,
    server: Server,
}

/// Which generation of servers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Toolboxes have an address of their own, and output is followed over a WebSocket.
    Newer,
    /// Toolboxes lie below the API, and output is asked for.
    Older,
}

struct State {
    age: Age,
    asks: Asks,
    machines: Arc<dyn Backend>,
    url: Mutex<String>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    number: u64,
    boxes: BTreeMap<String, Arc<One>>,
    faults: Vec<(String, String, Fault, u32)>,
    wrong: Vec<String>,
    calls: Vec<String>,
    made: u64,
}

/// One sandbox.
struct One {
    id: String,
    name: String,
    asked: Value,
    /// Minutes without use after which it stops.
    stops: Mutex<u64>,
    blocked: Mutex<bool>,
    /// Hosts that it may reach, if it may not reach all.
    listed: Mutex<Option<String>>,
    state: watch::Sender<&'static str>,
    used: Mutex<Instant>,
    machine: Arc<dyn Sandbox>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
}

fn answer(status: u16, body: &Value) -> Reply {
    let kind = "application/json; charset=utf-8";
    Reply::Whole { status, kind, headers: Vec::new(), body: body.to_string().into_bytes() }
}

fn nothing(status: u16) -> Reply {
    Reply::Whole { status, kind: "text/plain", headers: Vec::new(), body: Vec::new() }
}

/// The API's kind of error.
fn refusal(status: u16, error: &str, message: &str) -> Reply {
    answer(
        status,
        &json!({ "path": "/api", "timestamp": "2026-11-29T17:55:45.801Z", "statusCode": status, "error": error, "message": message }),
    )
}

/// The toolbox's kind of error.
fn failed(status: u16, code: &str, message: &str) -> Reply {
    answer(
        status,
        &json!({
            "statusCode": status, "message": message, "code": code, "source": "DAYTONA_DAEMON",
            "timestamp": "2026-11-29T17:55:45.801Z", "path": "/", "method": "POST",
        }),
    )
}

impl Daytona {
    /// The only key that it knows.
    pub const KEY: &'static str = "daytona-stand-in-key-7f2c";
    /// The account's default snapshot, and one more.
    pub const SNAPSHOTS: [&'static str; 2] = ["daytona-small", "moltis-stand-in"];

    /// Starts one whose sandboxes are those of this backend, for Moltis's own client.
    pub async fn start(machines: Arc<dyn Backend>, age: Age) -> Self {
        Self::start_for(machines, age, Asks::Moltis).await
    }

    /// Starts one for this kind of client.
    pub async fn start_for(machines: Arc<dyn Backend>, age: Age, asks: Asks) -> Self {
        let state = Arc::new(State { age, asks, machines, url: Mutex::default(), inner: Mutex::default() });
        let shared = Arc::clone(&state);
        let server = Server::start(Arc::new(move |asked| {
            let state = Arc::clone(&shared);
            Box::pin(async move { state.faulty(asked).await })
        }))
        .await;
        state.url.lock().unwrap().clone_from(&server.url);
        Self { state, server }
    }

    /// Where its API is.
    pub fn url(&self) -> String {
        format!("{}/api", self.server.url)
    }

    /// Lets the next calls fail whose method is this and whose path holds this.
    pub fn fail(&self, method: &str, path: &str, fault: Fault, times: u32) {
        self.state.inner.lock().unwrap().faults.push((method.to_owned(), path.to_owned(), fault, times));
    }

    /// What it was asked that no record knows.
    pub fn wrong(&self) -> Vec<String> {
        self.state.inner.lock().unwrap().wrong.clone()
    }

    /// Every call, as method and path.
    pub fn calls(&self) -> Vec<String> {
        self.state.inner.lock().unwrap().calls.clone()
    }

    /// Names of sandboxes that there are.
    pub fn machines(&self) -> Vec<String> {
        self.state.inner.lock().unwrap().boxes.keys().cloned().collect()
    }

    /// What was asked for when they were made, by name.
    pub fn asked(&self) -> BTreeMap<String, Value> {
        let inner = self.state.inner.lock().unwrap();
        inner.boxes.iter().map(|(name, one)| (name.clone(), one.asked.clone())).collect()
    }

    /// What each may reach now: nothing, these hosts, or everything.
    pub fn reach(&self) -> Vec<String> {
        let told = |one: &Arc<One>| match (*one.blocked.lock().unwrap(), &*one.listed.lock().unwrap()) {
            (true, _) => "nothing".to_owned(),
            (false, Some(list)) => list.clone(),
            (false, None) => "everything".to_owned(),
        };
        self.all().iter().map(told).collect()
    }

    /// Minutes without use after which each stops.
    pub fn stops_after(&self) -> Vec<u64> {
        self.all().iter().map(|one| *one.stops.lock().unwrap()).collect()
    }

    /// How many were ever made.
    pub fn made(&self) -> u64 {
        self.state.inner.lock().unwrap().made
    }

    /// Sessions of toolboxes that were not ended.
    pub fn sessions(&self) -> usize {
        let inner = self.state.inner.lock().unwrap();
        inner.boxes.values().map(|one| one.sessions.lock().unwrap().len()).sum()
    }

    /// Stops all sandboxes, as when nobody used them: those that end when they stop are gone.
    pub async fn expire(&self) {
        for one in self.all() {
            self.state.stop(&one).await;
        }
    }

    /// Removes all sandboxes, as when their time after a stop is up or somebody removes them in the dashboard.
    pub async fn remove_all(&self) {
        for one in self.all() {
            self.state.destroy(&one).await;
        }
    }

    /// Makes all sandboxes be in this state, or be told to be.
    pub fn put_into(&self, state: &'static str) {
        for one in self.all() {
            one.state.send_replace(state);
        }
    }

    fn all(&self) -> Vec<Arc<One>> {
        self.state.inner.lock().unwrap().boxes.values().cloned().collect()
    }
}

impl One {
    fn tell(&self, proxy: Option<String>) -> Value {
        let body = &self.asked;
        let mut told = json!({
            "id": self.id, "organizationId": "11111111-1111-4111-8111-111111111111", "name": self.name,
            "snapshot": body["snapshot"].as_str().unwrap_or("daytona-small"), "user": "daytona", "env": body["env"],
            "labels": body["labels"], "public": false, "networkBlockAll": *self.blocked.lock().unwrap(), "kvm": false,
            "target": body["target"].as_str().unwrap_or("us"), "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
            "state": *self.state.borrow(), "desiredState": "started", "recoverable": false, "backupState": "None",
            "autoStopInterval": *self.stops.lock().unwrap(), "autoArchiveInterval": 10080,
            "autoDeleteInterval": body["autoDeleteInterval"], "volumes": [], "sandboxClass": "container",
            "createdAt": "2026-11-29T17:55:45.801Z", "updatedAt": "2026-11-29T17:55:45.801Z",
            "lastActivityAt": "2026-11-29T17:55:45.801Z", "daemonVersion": "0.218.0", "runnerId": "runner-1",
        });
        if let Some(list) = &*self.listed.lock().unwrap() {
            told["domainAllowList"] = json!(list);
        }
        if *self.state.borrow() == "error" {
            told["errorReason"] = json!(format!("as told; the key is {}", Daytona::KEY));
        }
        if let Some(proxy) = proxy {
            told["toolboxProxyUrl"] = json!(proxy);
        }
        told
    }

    fn is(&self, state: &str) -> bool {
        *self.state.borrow() == state
    }
}

impl State {
    fn fault(&self, asked: &Asked) -> Option<Fault> {
        let mut inner = self.inner.lock().unwrap();
        let at = inner.faults.iter().position(|(method, path, _, times)| {
            *times > 0 && *method == asked.method && asked.path.contains(path.as_str())
        })?;
        inner.faults[at].3 -= 1;
        Some(inner.faults[at].2.clone())
    }

    async fn faulty(self: Arc<Self>, asked: Asked) -> Reply {
        self.inner.lock().unwrap().calls.push(format!("{} {}", asked.method, asked.path));
        match self.fault(&asked) {
            Some(Fault::Status(status, code, wait)) => {
                let mut reply =
                    refusal(status, code, &format!("as told: {code}; the key is {}", Daytona::KEY));
                if let (Reply::Whole { headers, .. }, Some(wait)) = (&mut reply, wait) {
                    headers.push(("retry-after", wait.to_string()));
                }
                reply
            }
            Some(Fault::CutBefore) => Reply::Cut,
            Some(Fault::CutAfter) => {
                // Whoever hears of it has gone away.
                let _ = self.answer(asked, None).await;
                Reply::Cut
            }
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                self.answer(asked, None).await
            }
            Some(Fault::Junk(body)) => {
                Reply::Whole { status: 200, kind: "text/html", headers: Vec::new(), body: body.into() }
            }
            fault => self.answer(asked, fault).await,
        }
    }

    fn bad(&self, what: String) -> Reply {
        let reply = refusal(400, "Bad Request", &what);
        self.inner.lock().unwrap().wrong.push(what);
        reply
    }

    async fn answer(self: &Arc<Self>, asked: Asked, fault: Option<Fault>) -> Reply {
        let header = |name: &str| asked.headers.get(name).map(String::as_str).unwrap_or_default();
        if header("authorization") != format!("Bearer {}", Daytona::KEY) {
            return refusal(401, "Unauthorized", "Invalid credentials");
        }
        let path = asked.path.as_str();
        if let Some(other) = asked.headers.keys().find(|name| !HEADERS.contains(&name.as_str())) {
            return self.bad(format!("{path}: the header `{other}` is in no record"));
        }
        let version: Vec<u32> =
            header("x-daytona-sdk-version").split('.').filter_map(|part| part.parse().ok()).collect();
        if header("user-agent").is_empty()
            || header("x-daytona-source").is_empty()
            || version < vec![0, 167, 0]
        {
            return self.bad(format!("{path}: no user agent, no source, or too old a version"));
        }
        let is_upload = path.ends_with("/files/bulk-upload");
        let kind = header("content-type").split(';').next().unwrap_or_default();
        let wanted = match (is_upload, asked.body.is_empty()) {
            (true, _) => "multipart/form-data",
            (false, false) => "application/json",
            (false, true) => kind,
        };
        if kind != wanted {
            return self.bad(format!("{path}: the body is said to be `{kind}`, not {wanted}"));
        }
        let body: Value = match asked.body.is_empty() || is_upload {
            true => Value::Null,
            false => match serde_json::from_slice(&asked.body) {
                Ok(body) => body,
                Err(error) => return self.bad(format!("{path}: {error}")),
            },
        };
        let keys: Vec<String> = body.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
        let queried: Vec<String> = asked.query.iter().map(|(key, _)| key.clone()).collect();
        // At older servers the toolbox is somewhere else, and the same.
        let (shape, is_toolbox) = match (self.age, path.strip_prefix("/api/toolbox/")) {
            (Age::Older, Some(rest)) => (format!("/toolbox/{}", rest.replacen("/toolbox/", "/", 1)), true),
            _ => (path.to_owned(), self.age == Age::Newer && path.starts_with("/toolbox/")),
        };
        if let Some(wrong) = shapes::wrong(SHAPES, &asked.method, &shape, &queried, &keys)
            && shapes::wrong(DOCUMENTED, &asked.method, &shape, &queried, &keys).is_some()
        {
            return self.bad(wrong);
        }
        let parts: Vec<&str> = shape.trim_start_matches('/').split('/').collect();
        if is_toolbox {
            let ["toolbox", id, rest @ ..] = &parts[..] else {
                return self.bad(format!("{path} is not known"));
            };
            let one = self.inner.lock().unwrap().boxes.values().find(|one| one.id == *id).cloned();
            let Some(one) = one else { return failed(404, "NOT_FOUND", "sandbox container not found") };
            if !one.is(STARTED) {
                let what = "failed to resolve container IP after 3 attempts. Is the Sandbox started?";
                return failed(400, "BAD_REQUEST", what);
            }
            if header("x-daytona-skip-last-activity-update") != "true" {
                *one.used.lock().unwrap() = Instant::now();
            }
            return self.toolbox(one, rest, &asked, &body, fault).await;
        }
        match (asked.method.as_str(), &parts[1..]) {
            ("POST", ["sandbox"]) => self.create(body, fault).await,
            ("GET", ["sandbox"]) => self.list(&asked),
            (method, ["sandbox", name, rest @ ..]) => {
                let found = {
                    let inner = self.inner.lock().unwrap();
                    inner.boxes.values().find(|one| one.id == *name || one.name == *name).cloned()
                };
                match found {
                    Some(one) => self.of_one(method, one, rest, &body, fault).await,
                    None => refusal(404, "Not Found", &format!("Sandbox with ID or name {name} not found")),
                }
            }
            _ => self.bad(format!("{} {path} is not known", asked.method)),
        }
    }
}
