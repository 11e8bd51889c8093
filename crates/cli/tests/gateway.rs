//! `moltis gateway`, its token and its keys, as a user runs them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Place;

/// Time that anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway that runs, and ends with the test.
pub struct Gateway {
    child: Child,
    banner: Value,
}

impl Gateway {
    pub fn start(place: &Place) -> Self {
        Self::started(place.moltis(["gateway", "--port", "0", "--json"]))
    }

    pub fn started(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let banner: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        let gateway = Self { child, banner };
        gateway.until(|gateway| gateway.ask("", "GET", "/readyz", "").0 == 200);
        gateway
    }

    pub fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The admin token.
    pub fn token(&self) -> String {
        std::fs::read_to_string(self.banner["tokenFile"].as_str().unwrap()).unwrap().trim().to_owned()
    }

    fn address(&self) -> &str {
        self.banner["address"].as_str().unwrap()
    }

    /// Asks; gives the status and the body.
    pub fn ask(&self, key: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let key = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        let (address, length) = (self.address(), body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Ends it as a service manager does.
    pub fn end(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_serves_until_it_is_told_to_end() {
    let place = Place::new();
    let gateway = Gateway::start(&place);
    assert!(gateway.banner["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    // Nobody sees a terminal: the token stands in a file of its owner's.
    let file = std::path::PathBuf::from(gateway.banner["tokenFile"].as_str().unwrap());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap();
    assert_eq!(gateway.ask(token.trim(), "GET", "/api/v1/me", "").0, 200);
    let second = place.run(["gateway", "--port", "0"]);
    assert_eq!(second.status, Some(1), "{second:?}");
    assert!(second.stderr.contains("[gateway-running]"), "{second:?}");
    let exposed = place.run(["gateway", "--bind", "0.0.0.0"]);
    assert!(exposed.stderr.contains("[gateway-exposed]"), "{exposed:?}");
    // The command line works beside it, and each sees what the other does.
    place.in_session("s", "echo from the command line > /tmp/mark");
    let (status, body) =
        gateway.ask(token.trim(), "POST", "/api/v1/sessions/s/exec", r#"{"command":"cat /tmp/mark"}"#);
    let ran: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &ran["stdout"]), (200, &"from the command line\n".into()), "{ran}");
    assert_eq!(gateway.end(), Some(0));
    assert!(!place.data().join("gateway.sock").exists());
    // The sandbox goes on.
    assert_eq!(place.in_session("s", "cat /tmp/mark"), "from the command line\n");
}

#[test]
fn keys_and_tokens_are_made_and_end_while_it_runs() {
    let place = Place::new();
    let gateway = Gateway::start(&place);
    let made = place.run(["gateway", "key", "create", "ci", "--scope", "operator.read", "--session", "ci/*"]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let key = made.stdout.trim().to_owned();
    let (status, me) = gateway.ask(&key, "GET", "/api/v1/me", "");
    let me: Value = serde_json::from_str(&me).unwrap();
    assert_eq!(
        (status, me),
        (
            200,
            serde_json::json!({ "kind": "key", "name": "ci", "scope": "operator.read", "sessions": ["ci/*"] })
        )
    );
    assert_eq!(gateway.ask(&key, "GET", "/api/v1/keys", "").0, 403);
    let again = place.run(["gateway", "key", "create", "ci"]);
    assert!(again.stderr.contains("[key-exists]"), "{again:?}");
    for words in [&["admin"][..], &["a b"], &["x", "--scope", "all"], &["x", "--expires", "soon"]] {
        let wrong = place.run(["gateway", "key", "create"].iter().chain(words));
        assert_eq!(wrong.status, Some(2), "{wrong:?}");
    }
    let listed = place.run(["gateway", "key", "list"]);
    assert!(listed.stdout.contains("ci") && !listed.stdout.contains(&key), "{listed:?}");
    let revoked = place.run(["gateway", "key", "revoke", "ci"]);
    assert_eq!(revoked.status, Some(0), "{revoked:?}");
    assert_eq!(gateway.ask(&key, "GET", "/api/v1/me", "").0, 401);
    assert_eq!(place.run(["gateway", "key", "revoke", "ci"]).status, Some(1));
    let file = gateway.banner["tokenFile"].as_str().unwrap();
    let old = std::fs::read_to_string(file).unwrap();
    let new = place.run(["gateway", "token"]);
    assert_eq!(gateway.ask(old.trim(), "GET", "/api/v1/me", "").0, 401);
    assert_eq!(gateway.ask(new.stdout.trim(), "GET", "/api/v1/me", "").0, 200);
    assert!(!std::path::Path::new(file).exists());
    assert_eq!(gateway.end(), Some(0));
}

#[test]
fn a_hangup_makes_it_read_its_configuration() {
    let place = Place::new();
    let gateway = Gateway::start(&place);
    let token = std::fs::read_to_string(gateway.banner["tokenFile"].as_str().unwrap()).unwrap();
    let timeout = |gateway: &Gateway| {
        let (_, body) = gateway.ask(token.trim(), "GET", "/api/v1/settings", "");
        let all: Value = serde_json::from_str(&body).unwrap();
        let rows = all["settings"].as_array().unwrap().iter();
        rows.clone().find(|row| row["key"] == "tools.exec.default_timeout_secs").unwrap()["value"].clone()
    };
    assert_eq!(timeout(&gateway), "30");
    std::fs::write(place.config().join("moltis.toml"), "[tools.exec]\ndefault_timeout_secs = 7\n").unwrap();
    gateway.signal("-HUP");
    gateway.until(|gateway| timeout(gateway) == "7");
    assert_eq!(gateway.end(), Some(0));
}

/// What a gateway has acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Answers of commands, by their idempotency keys: where each ran, and what it was answered.
    ran: Vec<(String, String, String)>,
    /// Idempotency keys of commands that were not answered.
    unanswered: Vec<(String, String)>,
    /// Sessions and the variable that each was given last.
    sessions: std::collections::BTreeMap<String, String>,
    rules: Vec<String>,
}

/// A request that may find nobody there, or lose him half-way.
fn try_ask(
    address: &str,
    token: &str,
    method: &str,
    path: &str,
    key: &str,
    body: &str,
) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let key = if key.is_empty() { String::new() } else { format!("Idempotency-Key: {key}\r\n") };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n{key}\
         Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    // An answer that is cut is none.
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    let whole = length.is_none_or(|length| length.trim().parse() == Ok(body.len()));
    whole.then(|| Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned())))?
}

fn path_of(session: &str) -> String {
    format!("/api/v1/sessions/{session}")
}

/// Asks for whatever comes to mind until nobody answers any more.
fn load(address: &str, token: &str, worker: usize, round: usize, seen: &std::sync::Mutex<Acknowledged>) {
    for step in 0.. {
        let name = format!("w{worker}-{}", step % 3);
        let key = format!("{round}-{worker}-{step}");
        let body = format!(r#"{{"command":"echo {key} | tee -a /tmp/all"}}"#);
        let done = match step % 4 {
            0 | 1 => {
                let exec = format!("{}/exec", path_of(&name));
                let answer = try_ask(address, token, "POST", &exec, &key, &body);
                let mut seen = seen.lock().unwrap();
                match answer {
                    Some((200, answer)) => seen.ran.push((name, key, answer)),
                    Some((status, answer)) => panic!("{status} {answer}"),
                    None => {
                        seen.unanswered.push((name, key));
                        return;
                    }
                }
                continue;
            }
            2 => {
                let name = format!("{name}-set");
                let body = format!(r#"{{"env":{{"KEY":null,"K{step}":"x"}},"idleTtlSecs":{}}}"#, step + 1);
                let answer = try_ask(address, token, "PATCH", &path_of(&name), "", &body);
                answer.map(|(status, _)| {
                    assert!(matches!(status, 200 | 201), "{status}");
                    seen.lock().unwrap().sessions.insert(name, format!("K{step}"));
                })
            }
            _ => {
                let pattern = format!("h{round}-{worker}-{step}.example");
                let body = format!(r#"{{"pattern":"{pattern}","action":"allow"}}"#);
                let answer = try_ask(address, token, "POST", "/api/v1/network/rules", "", &body);
                answer.map(|(status, answer)| {
                    assert_eq!(status, 200, "{answer}");
                    seen.lock().unwrap().rules.push(pattern);
                })
            }
        };
        if done.is_none() {
            return;
        }
    }
}

/// Sees that all is there that was acknowledged, and that nothing runs that nobody waits for.
fn see(gateway: &Gateway, token: &str, seen: &Acknowledged) {
    let get = |path: &str| -> Value {
        let (status, body) = gateway.ask(token, "GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    for (name, variable) in &seen.sessions {
        let session = get(&path_of(name));
        assert!(session["env"].as_array().unwrap().iter().any(|one| one == variable), "{session}");
    }
    let rules = get("/api/v1/network/rules");
    for pattern in &seen.rules {
        assert!(
            rules["rules"].as_array().unwrap().iter().any(|rule| rule["pattern"] == *pattern),
            "{pattern}"
        );
    }
    // Every command that was answered is answered the same, and did not run again.
    let mut answered: std::collections::BTreeMap<&str, Vec<&str>> = std::collections::BTreeMap::new();
    for (name, key, before) in &seen.ran {
        answered.entry(name).or_default().push(key);
        let body = format!(r#"{{"command":"echo {key} | tee -a /tmp/all"}}"#);
        let exec = format!("{}/exec", path_of(name));
        let now = try_ask(gateway.address(), token, "POST", &exec, key, &body).unwrap();
        assert_eq!(now, (200, before.clone()));
    }
    for (name, key) in &seen.unanswered {
        // It is lost, or ended unheard, or never began: whatever it is, it is said, and asking does not run it twice.
        let body = format!(r#"{{"command":"echo {key} | tee -a /tmp/all"}}"#);
        let exec = format!("{}/exec", path_of(name));
        let (status, answer) = try_ask(gateway.address(), token, "POST", &exec, key, &body).unwrap();
        assert!(status == 200 || (status == 502 && answer.contains("exec-lost")), "{status} {answer}");
    }
    for (name, keys) in answered {
        let exec = format!("{}/exec", path_of(name));
        let (status, body) = gateway.ask(token, "POST", &exec, r#"{"command":"cat /tmp/all"}"#);
        let ran: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, ran.get("restarted")), (200, None), "the sandbox of {name} went on: {ran}");
        let lines: Vec<_> = ran["stdout"].as_str().unwrap().lines().collect();
        for key in keys {
            assert_eq!(lines.iter().filter(|line| *line == &key).count(), 1, "{key} in {name}");
        }
        for (_, key) in seen.unanswered.iter().filter(|(of, _)| of == name) {
            assert!(lines.iter().filter(|line| *line == key).count() <= 1, "{key} in {name} ran twice");
        }
        let history = get(&format!("{}/history?limit=1000", path_of(name)));
        for one in history["commands"].as_array().unwrap() {
            assert!(one["state"] != "running", "{one}");
        }
    }
}

#[test]
fn a_gateway_that_is_killed_loses_nothing_that_it_acknowledged() {
    let place = Place::new();
    let rounds = std::env::var("MOLTIS_KILLS").map_or(10, |rounds| rounds.parse().unwrap());
    let seen = std::sync::Mutex::new(Acknowledged::default());
    let mut token = String::new();
    let mut process = None;
    for round in 0..rounds {
        let gateway = Gateway::start(&place);
        if round == 0 {
            token = std::fs::read_to_string(gateway.banner["tokenFile"].as_str().unwrap())
                .unwrap()
                .trim()
                .to_owned();
            let body = r#"{"command":"while :; do echo tick; sleep 0.1; done"}"#;
            let (status, started) = gateway.ask(&token, "POST", "/api/v1/sessions/ticks/processes", body);
            assert_eq!(status, 201, "{started}");
            process = serde_json::from_str::<Value>(&started).unwrap()["process"].as_u64();
        }
        see(&gateway, &token, &seen.lock().unwrap());
        // Drawn by the clock: from at once to a second and a half later.
        let nanos =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
        let until = Duration::from_millis(u64::from(nanos) % 1500);
        std::thread::scope(|scope| {
            let address = gateway.address();
            let (seen, token) = (&seen, &*token);
            for worker in 0..4 {
                scope.spawn(move || load(address, token, worker, round, seen));
            }
            std::thread::sleep(until);
            gateway.signal("-KILL");
        });
    }
    let gateway = Gateway::start(&place);
    let seen = seen.into_inner().unwrap();
    see(&gateway, &token, &seen);
    assert!(rounds < 5 || seen.ran.len() > rounds, "there was load: {}", seen.ran.len());
    let path = format!("/api/v1/sessions/ticks/processes/{}", process.unwrap());
    let (_, shown) = gateway.ask(&token, "GET", &path, "");
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["running"], true, "{shown}");
    assert_eq!(gateway.ask(&token, "DELETE", &path, "").0, 200);
    assert_eq!(gateway.end(), Some(0));
}

/// Memory that a gateway may keep after much work, beyond what it had: the allocator gives back late and in pieces.
const SLACK: usize = 24 << 20;

/// What a gateway holds on to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    /// Those that have to do with its data directory.
    processes: usize,
    sandboxes: usize,
    sessions: usize,
}

impl Held {
    fn of(gateway: &Gateway, token: &str, place: &Place) -> Self {
        let count = |what: &str| {
            let (status, body) = gateway.ask(token, "GET", &format!("/api/v1/{what}"), "");
            assert_eq!(status, 200, "{body}");
            serde_json::from_str::<Value>(&body).unwrap()[what].as_array().unwrap().len()
        };
        let (sandboxes, sessions) = (count("sandboxes"), count("sessions"));
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", gateway.child.id())).unwrap().count();
        Self { descriptors, processes: place.processes().len(), sandboxes, sessions }
    }
}

/// Memory of a process that is its own, in bytes.
fn own_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// All that a caller does with a session, from its beginning to its end.
fn whole_session(gateway: &Gateway, token: &str, name: &str) {
    let path = path_of(name);
    let good = |method: &str, rest: &str, body: &str, status: u16| {
        let answer = gateway.ask(token, method, &format!("{path}{rest}"), body);
        assert_eq!(answer.0, status, "{method} {rest}: {}", answer.1);
        answer.1
    };
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let ran = json(good("POST", "/exec", r#"{"command":"seq 2000; echo done >&2"}"#, 200));
    assert_eq!((&ran["exitCode"], &ran["stderr"]), (&0.into(), &"done\n".into()), "{ran}");
    let content = "x".repeat(100_000);
    good("PUT", "/files/content?path=%2Ftmp%2Fa", &content, 201);
    // It comes in chunks, whose sizes stand between.
    let read = good("GET", "/files/content?path=%2Ftmp%2Fa", "", 200);
    assert_eq!(read.matches('x').count(), content.len());
    good("GET", "/files/list?path=%2Ftmp", "", 200);
    let started = json(good("POST", "/processes", r#"{"command":"echo up; sleep 600"}"#, 201));
    let process = format!("/processes/{}", started["process"]);
    gateway.until(|_| good("GET", &format!("{process}/output"), "", 200).contains("up"));
    // Every other one is left to the end of its sandbox.
    if name.ends_with(['0', '2', '4', '6', '8']) {
        good("DELETE", &process, "", 200);
    }
    good("PATCH", "", r#"{"env":{"A":"b"}}"#, 200);
    good("GET", "/history", "", 200);
    good("DELETE", "?purge=true", "", 200);
}

#[test]
fn a_gateway_ends_long_work_where_it_began() {
    // Another user's gateway does nothing otherwise.
    let usual = if moltis_testkit::need::root() { 120 } else { 30 };
    let seconds = std::env::var("MOLTIS_SOAK_SECS").map_or(usual, |seconds| seconds.parse().unwrap());
    let place = Place::new();
    let gateway = Gateway::start(&place);
    let token = std::fs::read_to_string(gateway.banner["tokenFile"].as_str().unwrap()).unwrap();
    let token = token.trim();
    let callers = |until: &(dyn Fn(usize) -> bool + Sync)| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6)
                .map(|worker| {
                    let gateway = &gateway;
                    scope.spawn(move || {
                        let mut round = 0;
                        while !until(round) {
                            whole_session(gateway, token, &format!("soak-{worker}-{round}"));
                            round += 1;
                        }
                        round
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<usize>()
        })
    };
    // What is made once is made before it is counted.
    callers(&|round| round == 3);
    gateway.until(|gateway| Held::of(gateway, token, &place).sandboxes == 0);
    let quiet = || {
        // Until two looks in a row agree.
        let mut last = Held::of(&gateway, token, &place);
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "it does not come to rest: {last:?}");
            std::thread::sleep(Duration::from_millis(200));
            let now = Held::of(&gateway, token, &place);
            if now == last {
                return last;
            }
            last = now;
        }
    };
    let (before, memory) = (quiet(), own_memory(gateway.child.id()));
    let start = Instant::now();
    let rounds = callers(&|_| start.elapsed() >= Duration::from_secs(seconds));
    assert!(rounds >= 6, "there was load: {rounds}");
    gateway.until(|gateway| {
        let now = Held::of(gateway, token, &place);
        let is_as_before = now == before;
        if !is_as_before && start.elapsed() > Duration::from_secs(seconds) + PATIENCE / 2 {
            eprintln!("{now:?}, and before {before:?}");
        }
        is_as_before
    });
    gateway.until(|gateway| own_memory(gateway.child.id()) <= memory + SLACK);
    eprintln!("{rounds} sessions; {} KiB more", own_memory(gateway.child.id()).saturating_sub(memory) / 1024);
    assert_eq!(gateway.end(), Some(0));
}
