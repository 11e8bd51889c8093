//! A stand-in for Vercel Sandbox. Its machines are sandboxes of another backend, so that commands really run.

mod commands;
mod files;
mod machines;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_sandbox::{Backend, Command, ExecEvent, ExecRequest, Sandbox};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::commands::{Program, TOOLS};
use super::http::{Asked, Reply, Server};
use super::{Asks, Fault, shapes};

/// What the official client was recorded to send.
const SHAPES: &str = include_str!("vercel.shapes");
/// What the provider's documents name besides, and the recorded client does not send.
const DOCUMENTED: &str = "GET /v2/sandboxes/sessions/{id} ? teamId :";

/// A stand-in. Its machines end with it.
pub struct Vercel {
    state: Arc<State>,
    server: Server,
}

struct State {
    asks: Asks,
    token: &'static str,
    project: &'static str,
    team: &'static str,
    machines: Arc<dyn Backend>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    number: u64,
    boxes: BTreeMap<String, Kept>,
    runs: BTreeMap<String, Arc<One>>,
    faults: Vec<(String, String, Fault, u32)>,
    snapshots: BTreeMap<String, Snapshot>,
    wrong: Vec<String>,
    calls: Vec<String>,
    made: u64,
    spent: Duration,
    /// Calls under way, and since when there is one.
    busy: usize,
    since: Option<Instant>,
}

/// What was kept of a machine's disk: the packages on it.
#[derive(Clone)]
struct Snapshot {
    packages: Vec<String>,
    expires: u64,
}

/// The record of a machine.
#[derive(Clone)]
struct Kept {
    run: String,
    tags: BTreeMap<String, String>,
    created: u64,
}

/// One run of a machine.
struct One {
    id: String,
    name: String,
    policy: Mutex<Value>,
    vcpus: u64,
    runtime: Value,
    started: u64,
    timeout: Mutex<u64>,
    status: watch::Sender<&'static str>,
    machine: Arc<dyn Sandbox>,
    directory: String,
    commands: Mutex<BTreeMap<String, Arc<Program>>>,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u64::try_from(since.as_millis()).expect("a time")
}

fn answer(status: u16, body: &Value) -> Reply {
    let kind = "application/json; charset=utf-8";
    Reply::Whole { status, kind, headers: Vec::new(), body: body.to_string().into_bytes() }
}

fn refusal(status: u16, code: &str, message: &str) -> Reply {
    answer(status, &json!({ "error": { "code": code, "message": message } }))
}

impl Vercel {
    /// The only token that it knows.
    pub const TOKEN: &'static str = "vercel-stand-in-token-4b1d";
    /// The only project.
    pub const PROJECT: &'static str = "prj_standin";
    /// The only team.
    pub const TEAM: &'static str = "team_standin";

    /// Starts one whose machines are sandboxes of this backend, for Moltis's own client.
    pub async fn start(machines: Arc<dyn Backend>) -> Self {
        Self::start_for(machines, Asks::Moltis).await
    }

    /// Starts one for this kind of client.
    pub async fn start_for(machines: Arc<dyn Backend>, asks: Asks) -> Self {
        let state = Arc::new(State {
            asks,
            token: Self::TOKEN,
            project: Self::PROJECT,
            team: Self::TEAM,
            machines,
            inner: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let server = Server::start(Arc::new(move |asked| {
            let state = Arc::clone(&shared);
            Box::pin(async move {
                let _busy = Busy::new(&state);
                Arc::clone(&state).faulty(asked).await
            })
        }))
        .await;
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

    /// Names of machines that there are.
    pub fn machines(&self) -> Vec<String> {
        self.state.inner.lock().unwrap().boxes.keys().cloned().collect()
    }

    /// How long a call was under way until now, from its arrival to the last byte of its answer; those at once count once.
    pub fn spent(&self) -> Duration {
        let inner = self.state.inner.lock().unwrap();
        inner.spent + inner.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Whether a call is under way.
    pub fn is_busy(&self) -> bool {
        self.state.inner.lock().unwrap().busy > 0
    }

    /// How many were ever made.
    pub fn made(&self) -> u64 {
        self.state.inner.lock().unwrap().made
    }

    /// Names of packages on a machine's disk, and what it may reach.
    pub async fn looks_like(&self, name: &str) -> (Vec<String>, Value) {
        let run = {
            let inner = self.state.inner.lock().unwrap();
            inner.boxes.get(name).and_then(|kept| inner.runs.get(&kept.run)).cloned().expect("a machine")
        };
        let policy = run.policy.lock().unwrap().clone();
        (run.packages().await, policy)
    }

    /// How many snapshots there are.
    pub fn snapshots(&self) -> usize {
        self.state.inner.lock().unwrap().snapshots.len()
    }

    /// Ends all snapshots, as when their time is up.
    pub fn forget_snapshots(&self) {
        self.state.inner.lock().unwrap().snapshots.clear();
    }

    /// Ends all machines, as when their time is up.
    pub async fn expire(&self) {
        let runs: Vec<_> = self.state.inner.lock().unwrap().runs.values().cloned().collect();
        for run in runs {
            run.end().await;
        }
    }
}

impl One {
    /// Runs a line of the stand-in's own on the machine; what it prints.
    async fn line(&self, line: &str) -> String {
        let request = ExecRequest::new(Command::Shell(line.into()));
        let mut said = Vec::new();
        if let Ok(mut exec) = self.machine.exec(request).await {
            while let Some(Ok(event)) = exec.events.next().await {
                if let ExecEvent::Stdout(bytes) = event {
                    said.extend_from_slice(&bytes);
                }
            }
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    async fn packages(&self) -> Vec<String> {
        self.line(&format!("ls {TOOLS}/installed 2>/dev/null")).await.lines().map(str::to_owned).collect()
    }

    async fn end(&self) {
        let before = self.status.send_replace("stopped");
        if before == "running" {
            let _ = self.machine.close().await;
        }
    }

    fn runs(&self) -> bool {
        *self.status.borrow() == "running"
    }

    fn tell(&self) -> Value {
        json!({
            "id": self.id, "memory": self.vcpus * 2048, "vcpus": self.vcpus, "region": "iad1", "runtime": self.runtime,
            "timeout": *self.timeout.lock().unwrap(), "status": *self.status.borrow(), "requestedAt": self.started,
            "startedAt": self.started, "createdAt": self.started, "cwd": self.directory, "updatedAt": now(),
            "networkPolicy": *self.policy.lock().unwrap(), "sourceSandboxName": self.name,
        })
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
                let mut reply = refusal(status, code, &format!("as told; the token is {}", self.token));
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
            Some(Fault::Junk(body)) => {
                Reply::Whole { status: 200, kind: "text/html", headers: Vec::new(), body: body.into() }
            }
            fault => self.answer(asked, fault).await,
        }
    }

    fn bad(&self, what: String) -> Reply {
        let reply = refusal(400, "bad_request", &what);
        self.inner.lock().unwrap().wrong.push(what);
        reply
    }

    async fn answer(self: &Arc<Self>, asked: Asked, fault: Option<Fault>) -> Reply {
        let header = |name: &str| asked.headers.get(name).map(String::as_str).unwrap_or_default();
        if header("authorization") != format!("Bearer {}", self.token) {
            return refusal(403, "forbidden", "Not authorized");
        }
        let Some(path) = asked.path.strip_prefix("/api") else {
            return self.bad(format!("{} is not below the API", asked.path));
        };
        let query =
            |name: &str| asked.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if asked.query.first().map(|(key, value)| (key.as_str(), value.as_str()))
            != Some(("teamId", self.team))
        {
            return self.bad(format!("{path}: the query does not begin with the team"));
        }
        let is_write = path.ends_with("/fs/write");
        let kind = if is_write { "application/gzip" } else { "application/json" };
        if header("content-type") != kind || header("user-agent").is_empty() {
            return self.bad(format!("{path}: no user agent, or not the kind {kind}"));
        }
        let body: Value = match asked.body.is_empty() || is_write {
            true => Value::Null,
            false => match serde_json::from_slice(&asked.body) {
                Ok(body) => body,
                Err(error) => return self.bad(format!("{path}: {error}")),
            },
        };
        let mut keys: Vec<String> =
            body.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
        if path == "/v3/sandboxes" {
            // Named by the provider's documents, though no record has them together.
            keys.retain(|key| !matches!(key.as_str(), "networkPolicy" | "env" | "tags"));
        }
        let asked_for: Vec<String> =
            asked.query.iter().map(|(key, _)| key.clone()).filter(|key| key != "cursor").collect();
        if let Some(wrong) = shapes::wrong(SHAPES, &asked.method, path, &asked_for, &keys)
            && shapes::wrong(DOCUMENTED, &asked.method, path, &asked_for, &keys).is_some()
        {
            return self.bad(wrong);
        }
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').skip(2).collect();
        match (asked.method.as_str(), &parts[..]) {
            ("POST", []) => self.create(path, &body, fault).await,
            ("GET", []) if query("project") == Some(self.project) => {
                self.list(query("tags"), query("limit"), query("cursor"))
            }
            ("GET", []) => refusal(404, "not_found", "no such project"),
            ("GET", ["sessions", id]) => match self.run(id) {
                Some(run) => answer(200, &json!({ "session": run.tell(), "routes": [] })),
                None => refusal(404, "not_found", "no such session"),
            },
            (method, ["sessions", id, rest @ ..]) => match self.run(id) {
                Some(run) if run.runs() || rest == ["stop"] => {
                    self.of_run(method, run, rest, &asked, &body, fault).await
                }
                Some(_) => refusal(410, "sandbox_stopped", "The sandbox has stopped"),
                None => refusal(404, "not_found", "no such session"),
            },
            (method, [name]) if query("projectId") == Some(self.project) => {
                let kept = self.inner.lock().unwrap().boxes.get(*name).cloned();
                let Some(kept) = kept else { return refusal(404, "not_found", "no such sandbox") };
                let run = self.run(&kept.run).expect("a run of it");
                let told = json!({ "sandbox": tell(name, &kept, &run), "session": run.tell(), "routes": [] });
                if method == "DELETE" {
                    run.end().await;
                    self.inner.lock().unwrap().boxes.remove(*name);
                }
                answer(200, &told)
            }
            _ => self.bad(format!("{} {path} is not known", asked.method)),
        }
    }

    fn run(&self, id: &str) -> Option<Arc<One>> {
        self.inner.lock().unwrap().runs.get(id).cloned()
    }

    fn list(&self, tag: Option<&str>, limit: Option<&str>, cursor: Option<&str>) -> Reply {
        let inner = self.inner.lock().unwrap();
        let has = |kept: &Kept| {
            tag.is_none_or(|tag| {
                tag.split_once(':').is_some_and(|(key, value)| kept.tags.get(key).is_some_and(|v| v == value))
            })
        };
        let limit = limit.and_then(|limit| limit.parse().ok()).unwrap_or(20);
        let all: Vec<_> = inner
            .boxes
            .iter()
            .filter(|(name, kept)| has(kept) && cursor.is_none_or(|cursor| name.as_str() > cursor))
            .collect();
        let page = &all[..all.len().min(limit)];
        let next = (all.len() > limit).then(|| page.last().map(|(name, _)| (*name).clone())).flatten();
        let told: Vec<_> = page
            .iter()
            .filter_map(|(name, kept)| Some(tell(name, kept, inner.runs.get(&kept.run)?)))
            .collect();
        answer(200, &json!({ "sandboxes": told, "pagination": { "count": told.len(), "next": next } }))
    }
}

/// A call that is under way: until the last one ends, time counts as the provider's, once.
struct Busy(Arc<State>);

impl Busy {
    fn new(state: &Arc<State>) -> Self {
        let mut inner = state.inner.lock().unwrap();
        inner.busy += 1;
        inner.since.get_or_insert_with(Instant::now);
        Self(Arc::clone(state))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock().unwrap();
        inner.busy -= 1;
        if inner.busy == 0
            && let Some(since) = inner.since.take()
        {
            inner.spent += since.elapsed();
        }
    }
}

fn tell(name: &str, kept: &Kept, run: &One) -> Value {
    json!({
        "name": name, "persistent": false, "region": "iad1", "createdAt": kept.created, "updatedAt": kept.created,
        "currentSessionId": run.id, "status": *run.status.borrow(), "tags": kept.tags, "cwd": run.directory,
        "networkPolicy": *run.policy.lock().unwrap(), "timeout": *run.timeout.lock().unwrap(),
    })
}
