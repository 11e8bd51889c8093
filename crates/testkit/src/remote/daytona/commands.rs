//! Sessions of a toolbox, the commands in them, and what these print.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::exec::ExecEvents;
use moltis_sandbox::{Command, Ending, ExecControl, ExecEvent, ExecRequest, GuestPath};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::{Age, One, State, answer, failed, files, nothing};
use crate::remote::http::{Asked, Reply};
use crate::remote::{Asks, Fault};

/// Where commands and files begin.
pub const DIRECTORY: &str = "/home/sandbox";

/// A session. Its commands are told by number.
#[derive(Default)]
pub struct Session {
    commands: Mutex<BTreeMap<String, Arc<Program>>>,
    ended: watch::Sender<bool>,
}

/// A command.
pub struct Program {
    id: String,
    command: String,
    log: watch::Sender<Log>,
    signals: mpsc::Sender<i32>,
    input: mpsc::Sender<Bytes>,
}

#[derive(Clone, Default)]
struct Log {
    /// Whole lines, each behind its mark.
    lines: Vec<Bytes>,
    code: Option<i64>,
    /// It will never be known.
    lost: bool,
}

impl Program {
    fn tell(&self) -> Value {
        let mut told = json!({ "id": self.id, "command": self.command });
        if let Some(code) = self.log.borrow().code {
            told["exitCode"] = json!(code);
        }
        told
    }

    fn printed(&self) -> Value {
        let lines = self.log.borrow().lines.clone();
        let of = |mark: u8| -> Vec<u8> {
            lines.iter().filter(|line| line[0] == mark).flat_map(|line| line[3..].to_vec()).collect()
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        json!({ "output": text(&lines.concat()), "stdout": text(&of(1)), "stderr": text(&of(2)) })
    }
}

impl One {
    /// Ends all sessions and what runs in them.
    pub async fn end_sessions(&self) {
        let all = std::mem::take(&mut *self.sessions.lock().unwrap());
        for session in all.values() {
            session.end().await;
        }
    }
}

impl Session {
    fn tell(&self, id: &str) -> Value {
        let told: Vec<_> = self.commands.lock().unwrap().values().map(|one| one.tell()).collect();
        json!({ "sessionId": id, "commands": told })
    }

    /// Kills the group of each command.
    async fn end(&self) {
        self.ended.send_replace(true);
        let all: Vec<_> = self.commands.lock().unwrap().values().cloned().collect();
        for program in all.iter().filter(|program| program.log.borrow().code.is_none()) {
            let _ = program.signals.send(9).await;
        }
    }
}

impl State {
    /// Answers for the toolbox of a sandbox.
    pub(super) async fn toolbox(
        self: &Arc<Self>,
        one: Arc<One>,
        rest: &[&str],
        asked: &Asked,
        body: &Value,
        fault: Option<Fault>,
    ) -> Reply {
        let session = |id: &str| one.sessions.lock().unwrap().get(id).cloned();
        match (asked.method.as_str(), rest) {
            ("GET", ["work-dir" | "user-home-dir"]) => answer(200, &json!({ "dir": DIRECTORY })),
            ("POST", ["files", "bulk-upload"]) => match files::parts(asked) {
                Ok(parts) => files::put(&one, parts, matches!(fault, Some(Fault::Partial))).await,
                Err(what) => self.bad(format!("bulk-upload: {what}")),
            },
            ("POST", ["process", "execute"]) if self.asks == Asks::Anybody => execute(&one, body).await,
            ("GET", ["process", "session"]) if self.asks == Asks::Anybody => {
                let sessions = one.sessions.lock().unwrap();
                let told: Vec<_> = sessions.iter().map(|(id, session)| session.tell(id)).collect();
                answer(200, &json!(told))
            }
            (method, ["files", rest @ ..]) if self.asks == Asks::Anybody => {
                files::other(&one, method, rest, asked, body).await
            }
            ("POST", ["process", "session"]) => {
                let Some(id) = body["sessionId"].as_str().filter(|id| !id.is_empty() && *id != "entrypoint")
                else {
                    return self.bad("a session without a name".to_owned());
                };
                let mut sessions = one.sessions.lock().unwrap();
                if sessions.contains_key(id) {
                    return failed(409, "CONFLICT", "conflict: session already exists");
                }
                sessions.insert(id.to_owned(), Arc::default());
                nothing(201)
            }
            (method, ["process", "session", id, rest @ ..]) => {
                let Some(session) = session(id) else {
                    return failed(404, "NOT_FOUND", "not found: session not found");
                };
                match (method, rest) {
                    ("GET", []) => answer(200, &session.tell(id)),
                    ("DELETE", []) => {
                        one.sessions.lock().unwrap().remove(*id);
                        session.end().await;
                        nothing(204)
                    }
                    ("POST", ["exec"]) => self.command(&one, &session, body).await,
                    (_, ["command", command, rest @ ..]) => {
                        let found = session.commands.lock().unwrap().get(*command).cloned();
                        let Some(program) = found else {
                            return failed(404, "NOT_FOUND", "not found: command not found");
                        };
                        self.of_command(&session, program, (method, rest), asked, body, fault).await
                    }
                    _ => self.bad(format!("{method} {rest:?} of a session is not known")),
                }
            }
            (method, rest) => self.bad(format!("{method} {rest:?} of a toolbox is not known")),
        }
    }

    async fn command(&self, one: &Arc<One>, session: &Arc<Session>, body: &Value) -> Reply {
        let Some(line) = body["command"].as_str().filter(|line| !line.trim().is_empty()) else {
            return self.bad("exec: no command".to_owned());
        };
        let waits = self.asks == Asks::Anybody && body["runAsync"] != json!(true);
        if !waits && body["runAsync"] != json!(true) {
            return self.bad("exec: only what nobody waits for is known".to_owned());
        }
        // A shell gets what it is to do by its input, which commands that are given input would read themselves.
        let argv = match self.asks {
            Asks::Moltis => vec!["/bin/sh".into()],
            Asks::Anybody => vec!["/bin/sh".into(), "-c".into(), line.into()],
        };
        let mut request = ExecRequest::new(Command::Argv(argv));
        request.cwd = GuestPath::new(DIRECTORY);
        request.stdin = true;
        let mut exec = match one.machine.exec(request).await {
            Ok(exec) => exec,
            Err(error) => return failed(400, "BAD_REQUEST", &error.to_string()),
        };
        let text = (self.asks == Asks::Moltis).then(|| Bytes::from(format!("{line}\n")));
        let number = {
            let mut inner = self.inner.lock().unwrap();
            inner.number += 1;
            inner.number
        };
        let (signals, asked) = mpsc::channel(4);
        let (input, given) = mpsc::channel(4);
        let id = format!("00000000-0000-4000-9000-{number:012x}");
        let program = Arc::new(Program {
            id: id.clone(),
            command: line.to_owned(),
            log: watch::Sender::default(),
            signals,
            input,
        });
        session.commands.lock().unwrap().insert(id.clone(), Arc::clone(&program));
        let mut log = program.log.subscribe();
        let printing = Arc::clone(&program);
        tokio::spawn(async move {
            let ends = waits || text.is_some();
            if let Some(text) = text {
                let _ = exec.control.stdin(text).await;
            }
            if ends {
                let _ = exec.control.close_stdin().await;
            }
            keep(exec.events, exec.control, (asked, given), program).await;
        });
        if waits {
            while log.borrow_and_update().code.is_none() && !log.borrow().lost {
                if log.changed().await.is_err() {
                    break;
                }
            }
            let mut told = printing.printed();
            (told["cmdId"], told["exitCode"]) = (json!(id), json!(printing.log.borrow().code));
            return answer(200, &told);
        }
        answer(202, &json!({ "cmdId": id, "output": null, "stdout": null, "stderr": null, "exitCode": null }))
    }

    async fn of_command(
        &self,
        session: &Session,
        program: Arc<Program>,
        (method, rest): (&str, &[&str]),
        asked: &Asked,
        body: &Value,
        fault: Option<Fault>,
    ) -> Reply {
        let follows = asked.query.iter().any(|(key, value)| key == "follow" && value == "true");
        match (method, rest) {
            ("GET", []) => answer(200, &program.tell()),
            ("POST", ["input"]) if self.asks == Asks::Anybody => {
                let Some(text) = body["data"].as_str() else { return self.bad("input: no data".to_owned()) };
                if program.log.borrow().code.is_some() {
                    return failed(410, "COMMAND_ALREADY_COMPLETED", "command has already completed");
                }
                let _ = program.input.send(Bytes::from(text.to_owned())).await;
                nothing(204)
            }
            ("GET", ["logs"]) if !follows => answer(200, &program.printed()),
            ("GET", ["logs"]) if self.age == Age::Older => failed(404, "NOT_FOUND", "no such page"),
            ("GET", ["logs"]) => {
                let header = |name: &str| asked.headers.get(name).map(String::as_str).unwrap_or_default();
                let is_socket = header("upgrade").eq_ignore_ascii_case("websocket")
                    && header("connection").eq_ignore_ascii_case("upgrade")
                    && header("sec-websocket-version") == "13";
                if !is_socket {
                    return self.bad("logs: followed without a WebSocket".to_owned());
                }
                let key = header("sec-websocket-key").to_owned();
                Reply::Socket { key, messages: stream(session, program, fault) }
            }
            _ => self.bad(format!("{method} {rest:?} of a command is not known")),
        }
    }
}

/// Runs a line to its end: both outputs in one.
async fn execute(one: &One, body: &Value) -> Reply {
    let Some(line) = body["command"].as_str().filter(|line| !line.trim().is_empty()) else {
        return failed(400, "BAD_REQUEST", "command is required");
    };
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    let directory = body["cwd"].as_str().unwrap_or(DIRECTORY);
    request.cwd = GuestPath::new(directory);
    request.timeout = body["timeout"].as_u64().filter(|limit| *limit > 0).map(Duration::from_secs);
    let variables = body["envs"].as_object().into_iter().flatten();
    request.env =
        variables.map(|(name, value)| (name.into(), value.as_str().unwrap_or_default().into())).collect();
    let mut exec = match one.machine.exec(request).await {
        Ok(exec) => exec,
        // A directory that is not there is the command's fault, and told as its output.
        Err(error) => return answer(200, &json!({ "exitCode": -1, "result": error.to_string() })),
    };
    let mut printed = Vec::new();
    while let Some(Ok(event)) = exec.events.next().await {
        match event {
            ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => printed.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) if outcome.ending == Ending::TimedOut => {
                return failed(408, "PROCESS_EXECUTION_TIMEOUT", "command execution timeout");
            }
            ExecEvent::Exit(outcome) => {
                let result = String::from_utf8_lossy(&printed);
                return answer(200, &json!({ "exitCode": outcome.status.shell_code(), "result": result }));
            }
            _ => {}
        }
    }
    failed(400, "BAD_REQUEST", "Is the Sandbox started?")
}

/// Keeps what a command prints, whoever listens: line by line, each behind its mark and with an end.
async fn keep(
    mut events: ExecEvents,
    mut control: Box<dyn ExecControl>,
    (mut signals, mut given): (mpsc::Receiver<i32>, mpsc::Receiver<Bytes>),
    program: Arc<Program>,
) {
    let mut rest: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
    let say = |which: usize, line: &[u8]| {
        let mark = [u8::try_from(which + 1).expect("a mark"); 3];
        let marked = Bytes::from([&mark[..], line, b"\n"].concat());
        program.log.send_modify(|log| log.lines.push(marked));
    };
    let code = loop {
        let event = tokio::select! {
            event = events.next() => event,
            Some(signal) = signals.recv() => {
                let _ = control.signal(signal).await;
                continue;
            }
            Some(text) = given.recv() => {
                let _ = control.stdin(text).await;
                continue;
            }
        };
        let (which, bytes) = match event {
            Some(Ok(ExecEvent::Stdout(bytes))) => (0, bytes),
            Some(Ok(ExecEvent::Stderr(bytes))) => (1, bytes),
            Some(Ok(ExecEvent::Exit(outcome))) => break Some(i64::from(outcome.status.shell_code())),
            Some(Ok(_)) => continue,
            // The machine ended.
            Some(Err(_)) | None => break None,
        };
        rest[which].extend_from_slice(&bytes);
        while let Some(end) = memchr::memchr(b'\n', &rest[which]) {
            let line: Vec<u8> = rest[which].drain(..=end).collect();
            say(which, &line[..end]);
        }
    };
    for (which, line) in rest.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        say(which, line);
    }
    program.log.send_modify(|log| {
        log.code = code;
        log.lost = code.is_none();
    });
}

/// Tells what a command printed and prints, in messages that are cut anywhere.
fn stream(
    session: &Session,
    program: Arc<Program>,
    fault: Option<Fault>,
) -> mpsc::Receiver<Result<Bytes, ()>> {
    let (sender, receiver) = mpsc::channel(16);
    let mut ended = session.ended.subscribe();
    let mut left = match fault {
        Some(Fault::CutStream(lines)) => Some(lines),
        _ => None,
    };
    tokio::spawn(async move {
        let mut log = program.log.subscribe();
        let mut at = 0;
        loop {
            let (lines, is_over, lost) = {
                let log = log.borrow_and_update();
                (log.lines[at..].to_vec(), log.code.is_some(), log.lost)
            };
            at += lines.len();
            for line in lines {
                if left == Some(0) {
                    let _ = sender.send(Err(())).await;
                    return;
                }
                left = left.map(|left| left - 1);
                // A message holds 1 KiB at most, and the first of a line not even its whole mark. Of much output that would
                // only take its time.
                let (first, rest) = line.split_at(2);
                let size = if at < 64 { 1024 } else { 16 << 10 };
                for piece in std::iter::once(first).chain(rest.chunks(size)) {
                    if sender.send(Ok(Bytes::copy_from_slice(piece))).await.is_err() {
                        return;
                    }
                }
            }
            if is_over {
                return;
            }
            if lost || *ended.borrow() {
                let _ = sender.send(Err(())).await;
                return;
            }
            tokio::select! {
                _ = log.changed() => {}
                _ = ended.changed() => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
