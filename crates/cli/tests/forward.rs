//! Ports of a sandbox on this machine's loopback.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Place, Ran};

/// Time that a slow machine may take for anything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server inside: what it reads up to the end of the input, it sends back, one process a connection. It says when it
/// listens by making a file.
const ECHO: &str = "
import os, socketserver, sys, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        got = bytearray()
        while piece := self.request.recv(65536):
            got += piece
        self.request.sendall(got)
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 512
with Server(('127.0.0.1', int(sys.argv[1])), Echo) as server:
    open('/tmp/listens', 'w').close()
    server.serve_forever()
";

/// A forward that runs.
struct Forward {
    child: Child,
    told: Value,
}

impl Forward {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        match serde_json::from_str(&line) {
            Ok(told) => Self { child, told },
            Err(error) => panic!("{error}: {line:?} {:?}", Ran::from(child.wait_with_output().unwrap())),
        }
    }

    fn of(place: &Place, session: &str, ports: &[&str]) -> Self {
        Self::start(place.moltis([&["forward", "--session", session, "--json"], ports].concat()))
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.told["forwards"][index]["address"].as_str().unwrap().parse().unwrap()
    }

    fn connect(&self, index: usize) -> TcpStream {
        let stream = TcpStream::connect(self.address(index)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends what is given, ends that direction, and reads the answer to its end.
    fn ask(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = self.connect(0);
        stream.write_all(bytes)?;
        // One that was reset before is no longer connected; reading says which it was.
        stream.shutdown(Shutdown::Write).or_else(|error| match error.kind() {
            ErrorKind::NotConnected => Ok(()),
            _ => Err(error),
        })?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map(|_| answer)
    }

    /// Ends it; gives its status and what it said on standard error.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.over()
    }

    fn over(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        let status = self.child.wait().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn within(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts the server in a session of the built-in sandbox.
fn serve(place: &Place, session: &str, port: u16) {
    place.in_session(session, "rm -f /tmp/listens");
    let port = port.to_string();
    let ran = place.run(["exec", "--session", session, "--background", "--", "python3", "-c", ECHO, &port]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    listens(place, session);
}

fn listens(place: &Place, session: &str) {
    place.in_session(session, "until test -e /tmp/listens; do sleep 0.05; done");
}

fn open(place: &Place, session: &str) {
    let ran = place.run(["exec", "--backend", "namespaces", "--session", session, "true"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
}

fn id(place: &Place) -> Option<String> {
    let listed = place.run(["sandbox", "ps", "--json"]).json();
    Some(listed["sandboxes"][0]["id"].as_str()?.to_owned())
}

#[test]
fn a_server_inside_answers_here_until_ctrl_c() {
    let place = Place::new();
    open(&place, "s");
    place.in_session("s", "mkdir -p /tmp/www && cd /tmp/www && echo served > page");
    place.background("s", "cd /tmp/www && python3 -m http.server --bind 127.0.0.1 3000");
    let up = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 3000))'; do sleep 0.1; done";
    place.in_session("s", &format!("{up} 2>/dev/null"));

    let forward = Forward::of(&place, "s", &["3000:0"]);
    let address = forward.address(0);
    let want = json!({
        "session": "s", "backend": "namespaces", "sandboxId": id(&place),
        "forwards": [{ "port": 3000, "hostPort": address.port(), "address": address.to_string() }],
    });
    assert_eq!(forward.told, want);
    assert!(address.ip().is_loopback());
    let mut stream = forward.connect(0);
    stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("\r\n\r\nserved\n"), "{answer}");

    // One that is open does not hold it.
    let mut open = forward.connect(0);
    open.write_all(b"GET").unwrap();
    assert_eq!(forward.end(Signal::INT), (Some(130), String::new()));
    assert_eq!(
        TcpStream::connect(address).map_err(|e| e.kind()).map(drop),
        Err(ErrorKind::ConnectionRefused)
    );
    // Nothing of it stays inside either.
    within("the connection inside has ended", || {
        let ps = place.run(["sandbox", "ps", "--json"]).json();
        ps["sandboxes"][0]["activity"]["operations"] == 1
    });
}

#[test]
fn either_direction_ends_by_itself_and_much_goes_through() {
    let place = Place::new();
    open(&place, "s");
    serve(&place, "s", 7000);
    let forward = Forward::of(&place, "s", &["7000:0"]);
    let much: Vec<u8> = (0..8 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(forward.ask(&much).unwrap() == much, "8 MiB there and back");
    assert_eq!(forward.ask(b"").unwrap(), b"");
    assert_eq!(forward.end(Signal::TERM), (Some(143), String::new()));
}

#[test]
fn many_go_through_at_once_and_more_wait() {
    let place = Place::new();
    open(&place, "s");
    serve(&place, "s", 7000);
    let forward = Forward::of(&place, "s", &["7000:0"]);
    // As many as are carried at once, and some.
    let mut all: Vec<_> = (0..300).map(|_| forward.connect(0)).collect();
    for (number, stream) in all.iter_mut().enumerate() {
        stream.write_all(format!("number {number}").as_bytes()).unwrap();
    }
    for (number, mut stream) in all.into_iter().enumerate() {
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, format!("number {number}"));
    }
    assert_eq!(forward.end(Signal::INT), (Some(130), String::new()));
}

#[test]
fn a_closed_port_resets_and_is_told_once() {
    let place = Place::new();
    open(&place, "s");
    let forward = Forward::of(&place, "s", &["7000:0"]);
    for _ in 0..3 {
        assert_eq!(forward.ask(b"").map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    }
    serve(&place, "s", 7000);
    assert_eq!(forward.ask(b"now").unwrap(), b"now");
    let (status, said) = forward.end(Signal::INT);
    assert_eq!(status, Some(130));
    assert_eq!(said.matches("nothing listens on port 7000 inside the sandbox").count(), 1, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_session_s_next_sandbox_is_found() {
    let place = Place::new();
    open(&place, "s");
    serve(&place, "s", 7000);
    let mut forward = Forward::of(&place, "s", &["7000:0", "8000:0"]);
    assert_eq!(forward.ask(b"first").unwrap(), b"first");
    assert_eq!(place.run(["sandbox", "stop", "s"]).status, Some(0));
    assert_eq!(forward.ask(b"").map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    serve(&place, "s", 7000);
    assert_eq!(forward.ask(b"second").unwrap(), b"second");
    // Without its session there is nothing to wait for.
    assert_eq!(place.run(["session", "rm", "s"]).status, Some(0));
    assert!(forward.ask(b"").is_err());
    let (status, said) = forward.over();
    assert_eq!(status, Some(1));
    // The error is told as JSON on standard output.
    assert!(said.contains("does not run") && !said.contains("error["), "{said}");
    let mut rest = String::new();
    forward.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    let rest: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!((&rest["kind"], &rest["error"]["code"]), (&json!("invalid"), &json!("session-missing")));
}

#[test]
fn a_forward_keeps_its_sandbox_in_use() {
    let place = Place::new();
    assert_eq!(
        place.run(["session", "set", "s", "--backend", "namespaces", "--idle-ttl", "2s"]).status,
        Some(0)
    );
    place.in_session("s", "true");
    let forward = Forward::of(&place, "s", &["7000:0"]);
    let first = id(&place).unwrap();
    within("it has outlived three times its idle time", || {
        let listed = place.run(["sandbox", "ps", "--json"]).json();
        let sandbox = &listed["sandboxes"][0];
        assert_eq!((&sandbox["id"], &sandbox["running"]), (&json!(first), &json!(true)), "{listed}");
        sandbox["activity"]["uptimeMs"].as_f64().unwrap() > 6000.0
    });
    assert_eq!(forward.end(Signal::INT), (Some(130), String::new()));
    within("without it the time runs out", || {
        let listed = place.run(["sandbox", "ps", "--json"]).json();
        listed["sandboxes"].as_array().unwrap().iter().all(|sandbox| sandbox["running"] == false)
    });
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port();
    let forward = |ports: &[&str]| place.run([&["forward", "--session", "s"], ports].concat());
    forward(&["3000:0"]).fails(1, "session-missing");
    assert_eq!(place.run(["session", "list", "--json"]).json()["sessions"], json!([]));
    open(&place, "s");
    for wrong in ["0", "65536", "80:", "web", "127.0.0.1:80"] {
        forward(&[wrong]).fails(2, "port-invalid");
    }
    forward(&["1:5", "2:5"]).fails(2, "port-twice");
    assert_eq!(forward(&[]).status, Some(2));
    assert_eq!(place.run(["forward", "3000"]).status, Some(2));
    forward(&[&format!("3000:{taken}")]).fails(1, "host-port-taken");
    place
        .run(["forward", "--session", "s", "--json", &format!("3000:{taken}")])
        .fails_in_json(1, "host-port-taken");
    forward(&["3000:13131"]).fails(1, "host-port-gateway");
    std::fs::write(place.config().join("moltis.toml"), "[gateway]\nport = 13132\n").unwrap();
    forward(&["3000:13132"]).fails(1, "host-port-gateway");
}

#[test]
fn without_a_network_of_its_own_a_sandbox_s_ports_are_this_machine_s() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            let _ = stream.write_all(b"here");
        }
    });
    let ran = place.run(["exec", "--backend", "restricted-host", "--session", "s", "true"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let forward = Forward::of(&place, "s", &[&format!("{port}:0")]);
    assert_eq!(forward.ask(b"").unwrap(), b"here");
    assert_eq!(forward.end(Signal::INT), (Some(130), String::new()));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    place.run(["forward", "--session", "s", &free.to_string()]).fails(1, "host-port-own");
}

#[cfg(feature = "wasm")]
#[test]
fn a_shell_in_our_own_process_has_no_ports() {
    let place = Place::new();
    let ran = place.run(["exec", "--backend", "wasm", "--session", "s", "true"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    place.run(["forward", "--session", "s", "3000:0"]).fails(1, "forward-unsupported");
}

/// An engine of this machine, with the image of the tests.
fn through_an_engine(backend: &str, variable: &str) {
    let test = format!("forwarding into {backend}");
    if !moltis_testkit::need::as_root(&test, "the engines' sockets are root's") {
        return;
    }
    let place = Place::new();
    let image = "localhost/sandbox-base:busybox";
    let with = |args: &[&str]| {
        let mut command = place.moltis(args);
        command.env_remove(variable);
        command
    };
    let run = |args: &[&str]| Ran::from(with(args).output().unwrap());
    let ran = run(&["exec", "--backend", backend, "--image", image, "--session", "s", "true"]);
    if ran.status != Some(0) {
        return moltis_testkit::need::skip(&test, &ran.stderr);
    }
    let serve = "mkdir /tmp/www && echo served > /tmp/www/page && httpd -f -p 127.0.0.1:3000 -h /tmp/www";
    let begun = run(&["exec", "--session", "s", "--background", serve]);
    assert_eq!(begun.status, Some(0), "{begun:?}");
    let forward = Forward::start(with(&["forward", "--session", "s", "--json", "3000:0"]));
    assert_eq!(forward.told["backend"], backend);
    let mut answer = Vec::new();
    within("the server inside answers", || {
        let asked = forward.ask(b"GET /page HTTP/1.0\r\n\r\n");
        asked.map(|bytes| answer = bytes).is_ok_and(|()| !answer.is_empty())
    });
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.") && answer.ends_with("\r\n\r\nserved\n"), "{answer}");
    assert_eq!(forward.end(Signal::INT).0, Some(130));
    let removed = run(&["session", "rm", "s"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
}

#[test]
fn ports_of_a_docker_container() {
    through_an_engine("docker", "DOCKER_HOST");
}

#[test]
fn ports_of_a_podman_container() {
    if Path::new("/run/podman/podman.sock").exists() || moltis_testkit::need::program("podman").is_some() {
        through_an_engine("podman", "CONTAINER_HOST");
    } else {
        moltis_testkit::need::skip("forwarding into podman", "podman is not installed");
    }
}
