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
struct Gateway {
    child: Child,
    banner: Value,
}

impl Gateway {
    fn start(place: &Place) -> Self {
        let mut command = place.moltis(["gateway", "--port", "0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let banner: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        let gateway = Self { child, banner };
        gateway.until(|gateway| gateway.ask("", "GET", "/readyz", "").0 == 200);
        gateway
    }

    fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn address(&self) -> &str {
        self.banner["address"].as_str().unwrap()
    }

    /// Asks; gives the status and the body.
    fn ask(&self, key: &str, method: &str, path: &str, body: &str) -> (u16, String) {
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

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Ends it as a service manager does.
    fn end(mut self) -> Option<i32> {
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
