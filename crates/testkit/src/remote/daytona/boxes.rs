//! Sandboxes: made, listed, and what is asked of one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use moltis_sandbox::{Lifetime, Network, Origin, SandboxSpec, SessionKey, Setting};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Age, Daytona, One, STARTED, State, answer, nothing, refusal};
use crate::remote::http::{Asked, Reply};
use crate::remote::{Asks, Fault};

impl State {
    /// Where toolboxes are, if the server names it.
    fn proxy(&self) -> Option<String> {
        (self.age == Age::Newer).then(|| format!("{}/toolbox", self.url.lock().unwrap()))
    }

    pub(super) fn list(&self, asked: &Asked) -> Reply {
        let query =
            |name: &str| asked.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let labels: BTreeMap<String, String> = match query("labels").map(serde_json::from_str) {
            Some(Ok(labels)) => labels,
            Some(Err(error)) => return self.bad(format!("labels: {error}")),
            None => BTreeMap::new(),
        };
        let limit: usize = match query("limit").unwrap_or("100").parse() {
            Ok(limit @ 1..=200) => limit,
            _ => return self.bad("limit is from 1 to 200".to_owned()),
        };
        let inner = self.inner.lock().unwrap();
        let has = |one: &One| labels.iter().all(|(key, value)| one.asked["labels"][key] == json!(value));
        let all: Vec<_> = inner
            .boxes
            .iter()
            .filter(|(name, one)| has(one) && query("cursor").is_none_or(|cursor| name.as_str() > cursor))
            .collect();
        let page = &all[..all.len().min(limit)];
        let next = (all.len() > limit).then(|| page.last().map(|(name, _)| (*name).clone())).flatten();
        let told: Vec<_> = page
            .iter()
            .map(|(_, one)| {
                let mut told = one.tell(self.proxy());
                for key in ["env", "volumes", "buildInfo", "kvm"] {
                    told.as_object_mut().expect("an object").remove(key);
                }
                told
            })
            .collect();
        answer(200, &json!({ "items": told, "nextCursor": next }))
    }

    /// Puts what the provider takes for granted where a client says nothing.
    fn filled(&self, body: &mut Value) {
        let name = {
            let mut inner = self.inner.lock().unwrap();
            inner.number += 1;
            format!("00000000-0000-4000-a000-{:012x}", inner.number)
        };
        let usual = [
            ("name", json!(name)),
            ("public", json!(false)),
            ("networkBlockAll", json!(false)),
            ("autoStopInterval", json!(15)),
            // Without end, which is not known here: the stand-in's end is theirs.
            ("autoDeleteInterval", json!(1440)),
        ];
        for (key, value) in usual {
            if body[key].is_null() || body[key] == json!(-1) {
                body[key] = value;
            }
        }
    }

    pub(super) async fn create(self: &Arc<Self>, mut body: Value, fault: Option<Fault>) -> Reply {
        if self.asks == Asks::Anybody {
            self.filled(&mut body);
        }
        let name = body["name"].as_str().unwrap_or_default().to_owned();
        let is_words =
            |value: &Value| value.as_object().is_some_and(|map| map.values().all(Value::is_string));
        let image = body["buildInfo"]["dockerfileContent"].as_str();
        let fits = !name.is_empty()
            && is_words(&body["env"])
            && is_words(&body["labels"])
            && body["public"] == json!(false)
            && body["networkBlockAll"].is_boolean()
            && body["autoStopInterval"].as_u64().is_some_and(|minutes| minutes > 0)
            && body["autoDeleteInterval"].as_i64().is_some_and(|minutes| minutes >= 0)
            && !(body["snapshot"].is_string() && body["buildInfo"].is_object())
            && (body["buildInfo"].is_null()
                || image.is_some_and(|image| image.starts_with("FROM ") && image.ends_with('\n')));
        if !fits {
            return self
                .bad(format!("a body that makes a sandbox that stays, is public, or has no name: {body}"));
        }
        if body["target"].as_str().is_some_and(|target| !["us", "eu"].contains(&target)) {
            return refusal(400, "Bad Request", "Invalid region: there is none of that name");
        }
        if let Some(snapshot) = body["snapshot"].as_str()
            && !Daytona::SNAPSHOTS.contains(&snapshot)
        {
            let what =
                format!("Snapshot {snapshot} not found. Did you add it through the Daytona Dashboard?");
            return refusal(400, "Bad Request", &what);
        }
        if image.is_some_and(|image| image.trim_end().ends_with(":latest")) {
            return refusal(400, "Bad Request", "Image must carry a tag other than latest");
        }
        let number = {
            let mut inner = self.inner.lock().unwrap();
            if inner.boxes.contains_key(&name) {
                return refusal(409, "Conflict", &format!("Sandbox with name {name} already exists"));
            }
            inner.number += 1;
            inner.number
        };
        let blocked = body["networkBlockAll"] == json!(true);
        let network = if blocked { Network::Blocked } else { Network::Open };
        let key =
            SessionKey::new(format!("daytona stand-in {} {number}", std::process::id())).expect("a key");
        let mut spec = SandboxSpec::new(key, Lifetime::Ephemeral);
        spec.network = Setting::new(network, Origin::Flag);
        let machine = match self.machines.open(&spec).await {
            Ok(machine) => machine,
            Err(error) => return refusal(500, "Internal Server Error", &format!("no machine: {error}")),
        };
        let first = if image.is_some() { "pending_build" } else { "creating" };
        let one = Arc::new(One {
            id: format!("00000000-0000-4000-8000-{number:012x}"),
            name: name.clone(),
            blocked: Mutex::new(blocked && !matches!(fault, Some(Fault::OtherPolicy))),
            listed: Mutex::new(None),
            stops: Mutex::new(body["autoStopInterval"].as_u64().unwrap_or(15)),
            asked: body,
            state: watch::Sender::new(first),
            used: Mutex::new(Instant::now()),
            machine,
            sessions: Mutex::default(),
        });
        {
            let mut inner = self.inner.lock().unwrap();
            inner.boxes.insert(name, Arc::clone(&one));
            inner.made += 1;
        }
        let told = one.tell(self.proxy());
        let state = Arc::clone(self);
        tokio::spawn(async move {
            if one.is("pending_build") {
                for step in ["building_snapshot", "pulling_snapshot", "creating"] {
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    one.state.send_replace(step);
                }
            }
            tokio::time::sleep(Duration::from_millis(120)).await;
            if one.is("creating") {
                one.state.send_replace(if matches!(fault, Some(Fault::Fails)) { "error" } else { STARTED });
            }
            state.watch(&one).await;
        });
        answer(200, &told)
    }

    /// Stops it once nobody has used it for its time, and tells it as failed once somebody killed its processes: what was
    /// on its disk went with them, so that it cannot be started again.
    async fn watch(&self, one: &Arc<One>) {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if one.is("destroyed") {
                return;
            }
            let idle = one.used.lock().unwrap().elapsed();
            let limit = Duration::from_secs(60 * *one.stops.lock().unwrap());
            if one.is(STARTED) && idle >= limit {
                self.stop(one).await;
            }
            if matches!(*one.state.borrow(), STARTED | "stopped") && one.machine.activity().await.is_err() {
                one.state.send_if_modified(|state| {
                    let fails = matches!(*state, STARTED | "stopped");
                    if fails {
                        *state = "error";
                    }
                    fails
                });
                one.end_sessions().await;
            }
        }
    }

    pub(super) async fn stop(&self, one: &Arc<One>) {
        if !one.is(STARTED) {
            return;
        }
        if one.asked["autoDeleteInterval"] == json!(0) {
            return self.destroy(one).await;
        }
        one.state.send_replace("stopping");
        one.end_sessions().await;
        one.state.send_replace("stopped");
    }

    pub(super) async fn destroy(&self, one: &Arc<One>) {
        one.state.send_replace("destroying");
        one.end_sessions().await;
        let _ = one.machine.close().await;
        one.state.send_replace("destroyed");
        self.inner.lock().unwrap().boxes.remove(&one.name);
    }

    pub(super) async fn of_one(
        self: &Arc<Self>,
        method: &str,
        one: Arc<One>,
        rest: &[&str],
        body: &Value,
        fault: Option<Fault>,
    ) -> Reply {
        let changing = || refusal(409, "Conflict", "Sandbox state change in progress");
        match (method, rest) {
            ("GET", []) => {
                let mut told = one.tell(self.proxy());
                if let Some(Fault::State(state)) = fault {
                    told["state"] = json!(state);
                }
                answer(200, &told)
            }
            ("DELETE", []) if matches!(*one.state.borrow(), "stopping" | "starting") => changing(),
            ("DELETE", []) => {
                self.destroy(&one).await;
                answer(200, &one.tell(self.proxy()))
            }
            ("GET", ["toolbox-proxy-url"]) => match self.proxy() {
                Some(url) => answer(200, &json!({ "url": url })),
                None => refusal(404, "Not Found", "Cannot GET /toolbox-proxy-url"),
            },
            ("POST", ["start"]) => {
                match *one.state.borrow() {
                    STARTED => return answer(200, &one.tell(self.proxy())),
                    "stopped" | "archived" | "paused" => {}
                    "stopping" | "starting" => return changing(),
                    _ => return refusal(400, "Bad Request", "Sandbox is not in valid state"),
                }
                one.state.send_replace("starting");
                *one.used.lock().unwrap() = Instant::now();
                let started = Arc::clone(&one);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    started.state.send_replace(STARTED);
                });
                answer(200, &one.tell(self.proxy()))
            }
            ("POST", ["stop"]) => {
                if !one.is(STARTED) {
                    return refusal(400, "Bad Request", "Sandbox is not in a stoppable state");
                }
                self.stop(&one).await;
                answer(200, &one.tell(self.proxy()))
            }
            ("POST", ["autostop", minutes]) => match minutes.parse::<u64>() {
                // Without end, which is not known here either.
                Ok(0) if self.asks == Asks::Moltis => self.bad("autostop: one that stays".to_owned()),
                Ok(minutes) => {
                    *one.stops.lock().unwrap() = minutes;
                    answer(200, &one.tell(self.proxy()))
                }
                Err(error) => self.bad(format!("autostop: {error}")),
            },
            ("POST", ["last-activity"]) => {
                *one.used.lock().unwrap() = Instant::now();
                nothing(201)
            }
            ("POST", ["network-settings"]) => match body["networkBlockAll"].as_bool() {
                Some(block) => {
                    *one.blocked.lock().unwrap() = block;
                    let list = body["domainAllowList"]
                        .as_str()
                        .filter(|_| !matches!(fault, Some(Fault::OtherPolicy)));
                    *one.listed.lock().unwrap() = list.map(str::to_owned);
                    answer(200, &one.tell(self.proxy()))
                }
                None => self.bad("network-settings: networkBlockAll is neither true nor false".to_owned()),
            },
            _ => self.bad(format!("{method} {rest:?} is not known")),
        }
    }
}
