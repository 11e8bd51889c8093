//! `moltis mcp`: the protocol spoken by hand, line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Place;

/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `moltis mcp`, whose standard output is read line by line, each of which must be a message.
struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
}

impl Server {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut server = Self::silent(place, args);
        let answer = server.ask(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": { "name": "by hand", "version": "1" },
            }),
        );
        assert_eq!(answer["result"]["serverInfo"]["name"], "moltis", "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        server.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        server
    }

    /// One that has been told nothing yet.
    fn silent(place: &Place, args: &[&str]) -> Self {
        let mut command = place.moltis(["mcp", "--backend", "namespaces"]);
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let line = line.unwrap();
                let message: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert_eq!(message["jsonrpc"], "2.0", "{line}");
                if send.send(message).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next: 1 }
    }

    fn say(&mut self, message: Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request; gives its number.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer_to(id).1
    }

    /// Waits for the answer to a request; gives the notifications that came before it, too.
    #[track_caller]
    fn answer_to(&mut self, id: u64) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let message = self.lines.recv_timeout(PATIENCE).unwrap();
            if message["id"] == id {
                return (before, message);
            }
            before.push(message);
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }));
        answer["result"].clone()
    }

    /// The data of an answer that is none of an error.
    #[track_caller]
    fn good(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    /// Closes the client's end, and waits for the end of the program.
    fn leave(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        self.end()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended.
    fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut stderr = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut stderr).unwrap();
        (self.child.wait().unwrap(), stderr)
    }
}

impl Drop for Server {
    /// A test that fails leaves nothing running either.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until no process of the machine has this on its command line.
#[track_caller]
fn until_gone(mark: &str) {
    let begun = Instant::now();
    while !with(mark).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "left: {:?}", with(mark));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn with(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(mark) {
            found.push(line);
        }
    }
    found
}

/// Starts a call that ends only when it is ended; gives its number once all of it runs.
fn started(server: &mut Server, mark: &str) -> u64 {
    let command = format!("trap '' TERM; setsid sleep {mark} & sleep {mark}; sleep {mark}");
    let params = json!({ "name": "exec", "arguments": { "command": command, "timeout_secs": 600 } });
    let id = server.begin("tools/call", params);
    let begun = Instant::now();
    while with(&format!("sleep {mark}")).len() < 2 {
        assert!(begun.elapsed() < PATIENCE, "it does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    id
}

fn mark(number: u32) -> String {
    format!("5{}.{number}", std::process::id())
}

#[test]
fn every_tool_answers() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    let listed = server.ask("tools/list", json!({}));
    let names: Vec<_> = listed["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let want = [
        "exec",
        "read_file",
        "write_file",
        "edit_file",
        "list_directory",
        "glob",
        "grep",
        "process_start",
        "process_output",
        "process_input",
        "process_stop",
        "sandbox_info",
    ];
    assert_eq!(names, want);
    // Nothing has been opened so far.
    assert_eq!(place.left_running(), Vec::<String>::new());

    let ran = server.good("exec", json!({ "command": "echo out; echo err >&2; exit 4" }));
    assert_eq!(
        (&ran["stdout"], &ran["stderr"], &ran["exitCode"]),
        (&json!("out\n"), &json!("err\n"), &json!(4))
    );
    server.good("write_file", json!({ "path": "f", "content": "one\n" }));
    server.good("edit_file", json!({ "path": "f", "old_string": "one", "new_string": "two" }));
    assert_eq!(server.good("read_file", json!({ "path": "f" }))["content"], "two\n");
    assert_eq!(server.good("list_directory", json!({}))["entries"][0]["name"], "f");
    assert_eq!(server.good("glob", json!({ "pattern": "*" }))["files"], json!(["f"]));
    assert_eq!(server.good("grep", json!({ "pattern": "t.o" }))["matches"][0]["text"], "two");
    let process = server.good("process_start", json!({ "command": "cat" }))["process"].clone();
    server.good("process_input", json!({ "process": process, "text": "fed\n" }));
    let output = server.good("process_output", json!({ "process": process, "wait_secs": 60 }));
    assert_eq!((&output["stdout"], &output["running"]), (&json!("fed\n"), &json!(true)));
    assert_eq!(server.good("sandbox_info", json!({}))["processes"][0]["process"], process);
    assert_eq!(server.good("process_stop", json!({ "process": process }))["cancelled"], true);

    let failed = server.call("read_file", json!({ "path": "none" }));
    assert_eq!(
        (&failed["isError"], &failed["_meta"]["error"]["code"]),
        (&json!(true), &json!("file-missing"))
    );
    let unknown = server.ask("tools/call", json!({ "name": "none", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let (status, stderr) = server.leave();
    assert_eq!((status.code(), stderr.contains("error")), (Some(0), false), "{stderr}");
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn output_comes_as_progress_before_the_answer() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    let command = "echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done";
    let params = json!({
        "name": "exec", "arguments": { "command": command, "timeout_secs": 60 }, "_meta": { "progressToken": "p" },
    });
    let id = server.begin("tools/call", params);
    let told = server.lines.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (&told["method"], &told["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("p"))
    );
    assert_eq!(told["params"]["message"], "first\n");
    let other =
        server.begin("tools/call", json!({ "name": "exec", "arguments": { "command": "touch /tmp/go" } }));
    let mut open = vec![id, other];
    while !open.is_empty() {
        let message = server.lines.recv_timeout(PATIENCE).unwrap();
        open.retain(|id| message["id"] != *id);
    }
    // Nothing comes after the answer.
    assert_eq!(server.lines.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    server.leave();
}

#[test]
fn a_cancelled_call_leaves_no_process() {
    let place = Place::new();
    let mut server = Server::start(&place, &["--session", "s"]);
    let mark = mark(1);
    let id = started(&mut server, &mark);
    server
        .say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
    until_gone(&mark);
    assert_eq!(server.good("exec", json!({ "command": "echo on" }))["stdout"], "on\n");
    assert_eq!(server.leave().0.code(), Some(0));
    let history = place.run(["history", "s", "--json"]).json();
    let told: Vec<_> = history["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["caller"].clone(), entry["state"].clone(), entry["cancelled"].clone()))
        .collect();
    let by = json!({ "kind": "mcp", "client": "by hand 1" });
    assert_eq!(told, [(by.clone(), json!("ended"), json!(false)), (by, json!("ended"), json!(true))]);
}

#[test]
fn the_end_of_input_leaves_no_process() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    let mark = mark(2);
    started(&mut server, &mark);
    server.good("process_start", json!({ "command": format!("setsid sleep {mark}") }));
    assert_eq!(server.leave().0.code(), Some(0));
    until_gone(&mark);
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn a_signal_and_a_killed_client_leave_no_process() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    let term = mark(3);
    started(&mut server, &term);
    server.signal("TERM");
    assert_eq!(server.end().0.code(), Some(128 + 15));
    until_gone(&term);
    let mut server = Server::start(&place, &["--session", "s"]);
    let killed = mark(4);
    started(&mut server, &killed);
    // Nobody is left who could end it politely: the sandbox sees that its caller is gone.
    server.signal("KILL");
    server.end();
    until_gone(&killed);
}

#[test]
fn requests_of_a_client_that_says_no_more_are_answered() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    // So that a sandbox is there: a slow machine may take long to open one.
    server.good("exec", json!({ "command": "true" }));
    let params = json!({ "name": "exec", "arguments": { "command": "echo last" } });
    let id = server.begin("tools/call", params);
    drop(server.stdin.take());
    let (_, answer) = server.answer_to(id);
    assert!(answer["result"]["content"].is_array(), "{answer}");
    assert_eq!(server.end().0.code(), Some(0));
}

#[test]
fn a_session_stays_and_what_does_not_agree_is_told() {
    let place = Place::new();
    let mut server = Server::start(&place, &["--session", "work"]);
    server.good("exec", json!({ "command": "echo kept > /tmp/f" }));
    let process = server.good("process_start", json!({ "command": "sleep 1000" }))["process"].clone();
    assert_eq!(server.leave().0.code(), Some(0));
    assert_eq!(place.in_session("work", "cat /tmp/f"), "kept\n");
    let listed = place.run(["process", "list", "work", "--json"]).json();
    assert_eq!(
        (&listed["processes"][0]["process"], &listed["processes"][0]["running"]),
        (&process, &json!(true))
    );
    let mut server = Server::start(&place, &["--session", "work", "--network", "trusted"]);
    let refused = server.call("exec", json!({ "command": "true" }));
    assert_eq!(refused["_meta"]["error"]["code"], "session-differs", "{refused}");
    server.leave();
    place.run(["session", "rm", "work"]);
}

#[test]
fn what_is_no_client_is_told() {
    let place = Place::new();
    place.fed(["mcp"], b"").is(0, "", "");
    let ran = place.fed(["mcp"], b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    ran.fails(1, "mcp-not-spoken");
    let ran = place.fed(["mcp", "--backend", "nowhere"], b"");
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
}
