//! Commands, and what they print.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::exec::ExecEvents;
use moltis_sandbox::{Command, ExecControl, ExecEvent, ExecRequest, GuestPath};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::{Busy, One, State, answer, now, refusal};
use crate::remote::Fault;
use crate::remote::http::Reply;

/// Where commands of root's find what installs packages, and where those are.
pub(super) const TOOLS: &str = "/tmp/.stand-in";

/// Installs: knows every package but those that begin with `unknown`.
const DNF: &str = r#"#!/bin/sh
bad=
for n; do case $n in unknown*) bad="$bad $n"; echo "No match for argument: $n";; esac; done
[ -z "$bad" ] || { echo "Error: Unable to find a match:$bad"; exit 1; }
go=
for n; do [ -z "$go" ] || : >"/tmp/.stand-in/installed/$n"; [ "$n" = -- ] && go=1; done
exit 0
"#;

/// A command.
pub(super) struct Program {
    id: String,
    name: String,
    args: Value,
    cwd: String,
    started: u64,
    /// Lines of output, and how it ended.
    log: watch::Sender<Log>,
    pub(super) signals: mpsc::Sender<i32>,
}

#[derive(Clone, Default)]
struct Log {
    lines: Vec<Bytes>,
    code: Option<i64>,
}

impl Program {
    pub(super) fn tell(&self, run: &One) -> Value {
        json!({
            "id": self.id, "name": self.name, "args": self.args, "cwd": self.cwd, "sessionId": run.id,
            "exitCode": self.log.borrow().code, "startedAt": self.started,
        })
    }

    /// Waits for its end, or its machine's.
    pub(super) async fn ended(&self, run: &One) {
        let (mut log, mut status) = (self.log.subscribe(), run.status.subscribe());
        while log.borrow_and_update().code.is_none() && *status.borrow_and_update() == "running" {
            tokio::select! {
                _ = log.changed() => {}
                _ = status.changed() => {}
            }
        }
    }
}

impl State {
    pub(super) async fn command(
        self: &Arc<Self>,
        run: Arc<One>,
        body: &Value,
        fault: Option<Fault>,
    ) -> Reply {
        let words = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let (Some(command), Some(args)) = (body["command"].as_str(), words(&body["args"])) else {
            return self.bad("cmd: no program, or no arguments".to_owned());
        };
        let Some(env) = body["env"].as_object() else { return self.bad("cmd: no variables".to_owned()) };
        let waits = body["wait"] == json!(true) && body["logs"] == json!(true);
        let detached = body["wait"].is_null() && body["logs"].is_null();
        if !body["sudo"].is_boolean() || !(waits || detached) {
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
        if detached {
            return answer(200, &json!({ "command": program.tell(&run) }));
        }
        self.stream(run, program, true, fault)
    }

    /// Tells what a command printed and prints, and counts the time that it takes.
    pub(super) fn stream(
        self: &Arc<Self>,
        run: Arc<One>,
        program: Arc<Program>,
        waits: bool,
        fault: Option<Fault>,
    ) -> Reply {
        stream(run, program, waits, fault, Busy::new(self))
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
