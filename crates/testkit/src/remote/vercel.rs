//! A stand-in for Vercel Sandbox. Its machines are sandboxes of another backend, so that commands really run.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use moltis_sandbox::exec::ExecEvents;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{
    Backend, Command, ExecControl, ExecEvent, ExecRequest, GuestPath, Lifetime, Network, Origin, Sandbox,
    SandboxSpec, SessionKey, Setting,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::Fault;
use super::http::{Asked, Reply, Server};
use super::shapes;

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

/// Where commands of root's find what installs packages, and where those are.
const TOOLS: &str = "/tmp/.stand-in";

/// Installs: knows every package but those that begin with `unknown`.
const DNF: &str = r#"#!/bin/sh
bad=
for n; do case $n in unknown*) bad="$bad $n"; echo "No match for argument: $n";; esac; done
[ -z "$bad" ] || { echo "Error: Unable to find a match:$bad"; exit 1; }
go=
for n; do [ -z "$go" ] || : >"/tmp/.stand-in/installed/$n"; [ "$n" = -- ] && go=1; done
exit 0
"#;

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

struct Program {
    id: String,
    name: String,
    args: Value,
    cwd: String,
    started: u64,
    /// Lines of output, and how it ended.
    log: watch::Sender<Log>,
    signals: mpsc::Sender<i32>,
}

#[derive(Clone, Default)]
struct Log {
    lines: Vec<Bytes>,
    code: Option<i64>,
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

    /// Starts one whose machines are sandboxes of this backend.
    pub async fn start(machines: Arc<dyn Backend>) -> Self {
        let state = Arc::new(State {
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

impl Program {
    fn tell(&self, run: &One) -> Value {
        json!({
            "id": self.id, "name": self.name, "args": self.args, "cwd": self.cwd, "sessionId": run.id,
            "exitCode": self.log.borrow().code, "startedAt": self.started,
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

    async fn create(self: &Arc<Self>, path: &str, body: &Value, fault: Option<Fault>) -> Reply {
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        if text("projectId") != self.project {
            return refusal(404, "not_found", "no such project");
        }
        let name = text("name");
        let runtime = body["runtime"].as_str();
        let fits = body["ports"].is_array()
            && !name.is_empty()
            && body["persistent"] == json!(false)
            && (path == "/v3/sandboxes") == runtime.is_none();
        if !fits {
            return self
                .bad(format!("{path}: a body that makes a machine that stays, or has no name: {body}"));
        }
        if runtime.is_some_and(|runtime| !["node22", "node24", "python3.13"].contains(&runtime)) {
            return refusal(400, "bad_request", "unknown runtime");
        }
        let mut packages = Vec::new();
        if body["source"]["type"] == "snapshot" && body["source"]["snapshotId"] != "snap_standin" {
            let id = body["source"]["snapshotId"].as_str().unwrap_or_default();
            let snapshot = self.inner.lock().unwrap().snapshots.get(id).cloned();
            match snapshot.filter(|snapshot| snapshot.expires > now()) {
                Some(snapshot) => packages = snapshot.packages,
                None => return refusal(410, "snapshot_not_found", "The snapshot has expired"),
            }
        }
        let network = match body["networkPolicy"]["mode"].as_str() {
            Some("deny-all") => Network::Blocked,
            Some("allow-all") => Network::Open,
            _ => return self.bad(format!("{path}: no network policy")),
        };
        let timeout = body["timeout"].as_u64().unwrap_or(300_000);
        if !(1000..=24 * 3_600_000).contains(&timeout) {
            return refusal(400, "sandbox_timeout_invalid", "timeout");
        }
        let number = {
            let mut inner = self.inner.lock().unwrap();
            if inner.boxes.contains_key(&name) {
                return refusal(409, "conflict", "there is one of that name");
            }
            inner.number += 1;
            inner.number
        };
        let key = SessionKey::new(format!("vercel stand-in {} {number}", std::process::id())).expect("a key");
        let mut spec = SandboxSpec::new(key, Lifetime::Ephemeral);
        spec.network = Setting::new(network, Origin::Flag);
        let machine = match self.machines.open(&spec).await {
            Ok(machine) => machine,
            Err(error) => return refusal(500, "internal", &format!("no machine: {error}")),
        };
        let id = format!("sbx_{number:024x}");
        let policy = match fault {
            Some(Fault::OtherPolicy) => json!({ "mode": "allow-all" }),
            _ => body["networkPolicy"].clone(),
        };
        let run = Arc::new(One {
            id: id.clone(),
            name: name.clone(),
            policy: Mutex::new(policy),
            vcpus: body["resources"]["vcpus"].as_u64().unwrap_or(2),
            runtime: json!(runtime.unwrap_or("snapshot")),
            started: now(),
            timeout: Mutex::new(timeout),
            status: watch::Sender::new("running"),
            directory: "/home/sandbox".to_owned(),
            machine,
            commands: Mutex::default(),
        });
        if !packages.is_empty() {
            let line = format!(
                "mkdir -p {TOOLS}/installed && cd {TOOLS}/installed && touch -- {}",
                packages.join(" ")
            );
            run.line(&line).await;
        }
        let tags = body["tags"].as_object().map(|tags| {
            tags.iter()
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        });
        let kept = Kept { run: id.clone(), tags: tags.unwrap_or_default(), created: now() };
        let told = json!({ "sandbox": tell(&name, &kept, &run), "session": run.tell(), "routes": [] });
        {
            let mut inner = self.inner.lock().unwrap();
            inner.boxes.insert(name, kept);
            inner.runs.insert(id, Arc::clone(&run));
            inner.made += 1;
        }
        tokio::spawn(async move {
            while run.runs() {
                let ends = run.started + *run.timeout.lock().unwrap();
                if now() >= ends {
                    run.end().await;
                    return;
                }
                tokio::time::sleep(Duration::from_millis((ends - now()).clamp(10, 200))).await;
            }
        });
        answer(200, &told)
    }

    async fn of_run(
        self: &Arc<Self>,
        method: &str,
        run: Arc<One>,
        rest: &[&str],
        asked: &Asked,
        body: &Value,
        fault: Option<Fault>,
    ) -> Reply {
        match (method, rest) {
            ("POST", ["stop"]) => {
                run.end().await;
                answer(200, &json!({ "session": run.tell() }))
            }
            ("POST", ["extend-timeout"]) => match body["duration"].as_u64() {
                Some(more @ 1000..) => {
                    *run.timeout.lock().unwrap() += more;
                    answer(200, &json!({ "session": run.tell() }))
                }
                _ => self.bad("extend-timeout: no duration of a second".to_owned()),
            },
            ("POST", ["network-policy"]) => {
                let told = match (&body["mode"], &body["allow"]) {
                    (Value::String(mode), Value::Null) if mode == "allow-all" || mode == "deny-all" => {
                        json!({ "mode": mode })
                    }
                    (Value::Null, Value::Array(hosts))
                        if !hosts.is_empty() && hosts.iter().all(Value::is_string) =>
                    {
                        json!({ "mode": "custom", "allowedDomains": hosts })
                    }
                    _ => return self.bad(format!("network-policy: {body}")),
                };
                *run.policy.lock().unwrap() = told;
                answer(200, &json!({ "session": run.tell() }))
            }
            ("POST", ["snapshot"]) => {
                let Some(lasts) = body["expiration"].as_u64() else {
                    return self.bad("snapshot: no time after which it ends".to_owned());
                };
                let packages = run.packages().await;
                let (id, expires) = {
                    let mut inner = self.inner.lock().unwrap();
                    inner.number += 1;
                    let (id, expires) = (format!("snap_{:024x}", inner.number), now() + lasts);
                    inner.snapshots.insert(id.clone(), Snapshot { packages, expires });
                    (id, expires)
                };
                run.end().await;
                let told = json!({
                    "id": id, "sourceSessionId": run.id, "region": "iad1", "status": "created", "sizeBytes": 1,
                    "createdAt": now(), "updatedAt": now(), "expiresAt": expires, "creationMethod": "manual",
                });
                answer(201, &json!({ "snapshot": told, "session": run.tell() }))
            }
            ("POST", ["fs", "write"]) => {
                if asked.headers.get("x-cwd").map(String::as_str) != Some("/") {
                    return self.bad("fs/write: x-cwd is not the root".to_owned());
                }
                match unpack(&asked.body) {
                    Ok(files) => put(&run, files).await,
                    Err(what) => self.bad(format!("fs/write: {what}")),
                }
            }
            ("POST", ["cmd"]) => self.command(run, body, fault).await,
            ("GET", ["cmd", id]) => {
                let program = run.commands.lock().unwrap().get(*id).cloned();
                match program {
                    Some(program) => answer(200, &json!({ "command": program.tell(&run) })),
                    None => refusal(404, "not_found", "no such command"),
                }
            }
            ("GET", ["cmd", id, "logs"]) => {
                let program = run.commands.lock().unwrap().get(*id).cloned();
                match program {
                    Some(program) => self.stream(run, program, false, fault),
                    None => refusal(404, "not_found", "no such command"),
                }
            }
            ("POST", ["cmd", id, "kill"]) => {
                let program = run.commands.lock().unwrap().get(*id).cloned();
                let signal = body["signal"].as_i64().and_then(|signal| i32::try_from(signal).ok());
                match (program, signal) {
                    (Some(program), Some(signal)) => {
                        let _ = program.signals.send(signal).await;
                        answer(200, &json!({ "command": program.tell(&run) }))
                    }
                    _ => refusal(404, "not_found", "no such command"),
                }
            }
            _ => self.bad(format!("{method} {rest:?} is not known")),
        }
    }

    async fn command(self: &Arc<Self>, run: Arc<One>, body: &Value, fault: Option<Fault>) -> Reply {
        let words = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let (Some(command), Some(args)) = (body["command"].as_str(), words(&body["args"])) else {
            return self.bad("cmd: no program, or no arguments".to_owned());
        };
        let Some(env) = body["env"].as_object() else { return self.bad("cmd: no variables".to_owned()) };
        if !body["sudo"].is_boolean() || body["wait"] != json!(true) || body["logs"] != json!(true) {
            return self.bad("cmd: only what is waited for and tells its output is known".to_owned());
        }
        let mut argv: Vec<std::ffi::OsString> =
            std::iter::once(command.to_owned()).chain(args.clone()).map(Into::into).collect();
        if body["sudo"] == json!(true) {
            // Nobody is root in the machines here: what root would install is put where it is found again.
            let line = format!(
                "mkdir -p {TOOLS}/bin {TOOLS}/installed && cat >{TOOLS}/bin/dnf <<'END'\n{DNF}END\nchmod 755 {TOOLS}/bin/dnf"
            );
            run.line(&line).await;
            let path = format!("PATH={TOOLS}/bin:/usr/bin:/bin");
            argv.splice(0..0, ["/usr/bin/env".into(), path.into()]);
        }
        let mut request = ExecRequest::new(Command::Argv(argv));
        request.env =
            env.iter().map(|(key, value)| (key.into(), value.as_str().unwrap_or_default().into())).collect();
        request.cwd = GuestPath::new(body["cwd"].as_str().unwrap_or(&run.directory));
        request.timeout = body["timeout"].as_u64().map(Duration::from_millis);
        let exec = match run.machine.exec(request).await {
            Ok(exec) => exec,
            Err(_) if !run.runs() => return refusal(410, "sandbox_stopped", "The sandbox has stopped"),
            Err(error) => return refusal(400, "bad_request", &error.to_string()),
        };
        let number = {
            let mut inner = self.inner.lock().unwrap();
            inner.number += 1;
            inner.number
        };
        let (signals, asked) = mpsc::channel(4);
        let program = Arc::new(Program {
            id: format!("cmd_{number:024x}"),
            name: command.to_owned(),
            args: json!(args),
            cwd: body["cwd"].as_str().unwrap_or(&run.directory).to_owned(),
            started: now(),
            log: watch::Sender::default(),
            signals,
        });
        run.commands.lock().unwrap().insert(program.id.clone(), Arc::clone(&program));
        tokio::spawn(follow(exec.events, exec.control, asked, Arc::clone(&program)));
        self.stream(run, program, true, fault)
    }

    /// Tells what a command printed and prints, and counts the time that it takes.
    fn stream(
        self: &Arc<Self>,
        run: Arc<One>,
        program: Arc<Program>,
        waits: bool,
        fault: Option<Fault>,
    ) -> Reply {
        stream(run, program, waits, fault, Busy::new(self))
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

/// Keeps what a command prints, whoever listens.
async fn follow(
    mut events: ExecEvents,
    mut control: Box<dyn ExecControl>,
    mut signals: mpsc::Receiver<i32>,
    program: Arc<Program>,
) {
    let code = loop {
        let event = tokio::select! {
            event = events.next() => event,
            Some(signal) = signals.recv() => {
                let _ = control.signal(signal).await;
                continue;
            }
        };
        let (name, bytes) = match event {
            Some(Ok(ExecEvent::Stdout(bytes))) => ("stdout", bytes),
            Some(Ok(ExecEvent::Stderr(bytes))) => ("stderr", bytes),
            Some(Ok(ExecEvent::Exit(outcome))) => break Some(i64::from(outcome.status.shell_code())),
            Some(Ok(_)) => continue,
            // The machine ended.
            Some(Err(_)) | None => break None,
        };
        let line = json!({ "stream": name, "data": String::from_utf8_lossy(&bytes) }).to_string() + "\n";
        program.log.send_modify(|log| log.lines.push(line.into()));
    };
    if code.is_some() {
        program.log.send_modify(|log| log.code = code);
    }
}

/// Tells what a command printed and prints.
fn stream(run: Arc<One>, program: Arc<Program>, waits: bool, fault: Option<Fault>, busy: Busy) -> Reply {
    let (sender, receiver) = mpsc::channel(16);
    let mut left = match fault {
        Some(Fault::CutStream(lines)) => Some(lines),
        _ => None,
    };
    tokio::spawn(async move {
        let _busy = busy;
        let mut status = run.status.subscribe();
        let mut log = program.log.subscribe();
        let mut at = 0;
        let line = |value: Value| Bytes::from(value.to_string() + "\n");
        if waits {
            let first = json!({ "command": program.tell(&run) });
            if sender.send(Ok(line(first))).await.is_err() {
                return;
            }
        }
        loop {
            let (lines, code) = {
                let log = log.borrow_and_update();
                (log.lines[at..].to_vec(), log.code)
            };
            at += lines.len();
            for line in lines {
                if left == Some(0) {
                    let _ = sender.send(Err(())).await;
                    return;
                }
                left = left.map(|left| left - 1);
                if sender.send(Ok(line)).await.is_err() {
                    return;
                }
            }
            if code.is_some() {
                if waits {
                    let _ = sender.send(Ok(line(json!({ "command": program.tell(&run) })))).await;
                }
                return;
            }
            if !run.runs() {
                let what = json!({ "code": "sandbox_stopped", "message": "The sandbox has stopped" });
                let _ = sender.send(Ok(line(json!({ "stream": "error", "data": what })))).await;
                return;
            }
            tokio::select! {
                _ = log.changed() => {}
                _ = status.changed() => {}
                () = sender.closed() => return,
            }
        }
    });
    Reply::Stream(receiver)
}

fn tell(name: &str, kept: &Kept, run: &One) -> Value {
    json!({
        "name": name, "persistent": false, "region": "iad1", "createdAt": kept.created, "updatedAt": kept.created,
        "currentSessionId": run.id, "status": *run.status.borrow(), "tags": kept.tags, "cwd": run.directory,
        "networkPolicy": *run.policy.lock().unwrap(), "timeout": *run.timeout.lock().unwrap(),
    })
}

/// Files of an archive, which holds plain ones alone and ends as it should.
fn unpack(body: &[u8]) -> Result<Vec<(String, u32, Vec<u8>)>, String> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).map_err(|error| error.to_string())?;
    if plain.len() % 512 != 0
        || plain.len() < 1024
        || plain[plain.len() - 1024..].iter().any(|byte| *byte != 0)
    {
        return Err("the archive does not end with two empty blocks".to_owned());
    }
    let mut files = Vec::new();
    let mut archive = tar::Archive::new(&plain[..]);
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        let header = entry.header().clone();
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(|error| error.to_string())?;
        let is_plain = header.entry_type() == tar::EntryType::Regular
            && header.uid().ok() == Some(0)
            && header.gid().ok() == Some(0)
            && !name.starts_with('/')
            && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_plain {
            return Err(format!("`{name}` is no plain file with a relative name"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(|error| error.to_string())?;
        files.push((name, header.mode().map_err(|error| error.to_string())?, content));
    }
    Ok(files)
}

async fn put(run: &One, files: Vec<(String, u32, Vec<u8>)>) -> Reply {
    for (name, mode, content) in files {
        let path = GuestPath::new(format!("/{name}")).expect("a path");
        let options = WriteOptions { mode: Some(mode), overwrite: true, parents: true };
        let content = Box::pin(futures_util::stream::iter([Ok(Bytes::from(content))]));
        if let Err(error) = run.machine.files().write(&path, options, content).await {
            return refusal(400, "bad_request", &error.to_string());
        }
    }
    answer(200, &json!({}))
}
