//! Machines: made, and what is asked of one that runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use moltis_sandbox::{Lifetime, Network, Origin, SandboxSpec, SessionKey, Setting};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::commands::TOOLS;
use super::{Kept, One, Snapshot, State, answer, files, now, refusal, tell};
use crate::remote::http::{Asked, Reply};
use crate::remote::{Asks, Fault};

impl State {
    /// A name for a machine whose maker gave it none.
    fn fresh_name(&self) -> String {
        let mut inner = self.inner.lock().unwrap();
        inner.number += 1;
        format!("sandbox_{:024x}", inner.number)
    }

    pub(super) async fn create(self: &Arc<Self>, path: &str, body: &Value, fault: Option<Fault>) -> Reply {
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        if text("projectId") != self.project {
            return refusal(404, "not_found", "no such project");
        }
        let name = text("name");
        let runtime = body["runtime"].as_str();
        let name = if name.is_empty() && self.asks == Asks::Anybody { self.fresh_name() } else { name };
        let fits = body["ports"].is_array()
            && !name.is_empty()
            // What stays when it is stopped is not known here, whoever asks.
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
            None if self.asks == Asks::Anybody => Network::Open,
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
            _ if body["networkPolicy"].is_null() => json!({ "mode": "allow-all" }),
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

    pub(super) async fn of_run(
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
                        if self.asks == Asks::Anybody && body["subnets"].is_object() =>
                    {
                        let of = |key: &str| body["subnets"][key].clone();
                        json!({
                            "mode": "custom", "allowedDomains": hosts, "allowedCIDRs": of("allow"), "deniedCIDRs": of("deny"),
                        })
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
                match files::unpack(&asked.body) {
                    Ok(files) => files::put(&run, files).await,
                    Err(what) => self.bad(format!("fs/write: {what}")),
                }
            }
            ("POST", ["fs", "mkdir"]) if self.asks == Asks::Anybody => files::mkdir(&run, body).await,
            ("POST", ["fs", "read"]) if self.asks == Asks::Anybody => files::read(&run, body).await,
            ("POST", ["cmd"]) => self.command(run, body, fault).await,
            ("GET", ["cmd", id]) => {
                let program = run.commands.lock().unwrap().get(*id).cloned();
                match program {
                    Some(program) => {
                        if asked.query.iter().any(|(key, value)| key == "wait" && value == "true") {
                            program.ended(&run).await;
                        }
                        answer(200, &json!({ "command": program.tell(&run) }))
                    }
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
}
