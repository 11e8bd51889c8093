//! A gateway for other people's clients: on a port of its own, with a data folder of its own, and with no backend in
//! reach but `namespaces`, and `wasm` where it is built in, whatever a request asks for.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::command::{Scratch, kept};
use crate::json::Json;
use crate::real::Trouble;

/// How long it has to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"
[tools.exec]
default_timeout_secs = 5

[tools.exec.sandbox]
backend = "namespaces"
failover = "off"
home_persistence = "session"
max_sandboxes = 4
"#;

/// One that runs.
pub struct Gateway {
    moltis: PathBuf,
    scratch: Scratch,
    child: Child,
    /// Where it listens.
    pub url: String,
}

impl Gateway {
    /// Starts it.
    pub fn start(moltis: &Path) -> Result<Self, Trouble> {
        let scratch = Scratch::new("served")?;
        for folder in ["home", "config"] {
            std::fs::create_dir(scratch.0.join(folder))?;
        }
        std::fs::write(scratch.0.join("config/moltis.toml"), CONFIG)?;
        let mut command = program(moltis, &scratch.0);
        command.args(["gateway", "--port", "0", "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(scratch.0.join("log"))?);
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", moltis.display()))?;
        let out = child.stdout.take();
        let mut gateway = Self { moltis: moltis.to_owned(), scratch, child, url: String::new() };
        let (sender, line) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out.into_iter().next()?);
            let mut line = String::new();
            out.read_line(&mut line).ok()?;
            sender.send(line).ok()?;
            // It must not find its output closed.
            out.read_to_end(&mut Vec::new()).ok()
        });
        let line = line.recv_timeout(PATIENCE).map_err(|_| format!("no gateway: {}", gateway.log()))?;
        let url = Json::read(&line)?.get("url").and_then(Json::text).map(str::to_owned);
        gateway.url = url.ok_or_else(|| format!("the gateway told no address: {line}"))?;
        Ok(gateway)
    }

    /// `moltis`, beside it.
    pub fn program(&self) -> Command {
        program(&self.moltis, &self.scratch.0)
    }

    /// A folder that goes with it.
    pub fn folder(&self) -> &Path {
        &self.scratch.0
    }

    /// An API key of the scope `operator.write`.
    pub fn key(&self) -> Result<String, Trouble> {
        let mut command = self.program();
        command.args(["gateway", "key", "create", "outside", "--scope", "operator.write"]);
        let ended = kept(&mut command, None, PATIENCE)?;
        match ended.text().split_whitespace().find(|word| word.starts_with("mk_")) {
            Some(key) if ended.good() => Ok(key.to_owned()),
            _ => Err(Trouble::Failed(ended.all())),
        }
    }

    /// Ends it and its sandboxes. It has to have lived until now, without a panic.
    pub fn close(mut self) -> Result<(), String> {
        let gone = self.child.try_wait().map_err(|e| e.to_string())?;
        let (ended, log) = (self.end(), self.log());
        match gone {
            Some(status) => Err(format!("the gateway ended by itself with {status}\n{log}")),
            None if log.contains("panicked at") => Err(log),
            None => ended,
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        for _ in 0..PATIENCE.as_millis() / 20 {
            if self.child.try_wait().map_err(|e| e.to_string())?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let late = self.child.try_wait().map_err(|e| e.to_string())?.is_none();
        let _ = self.child.kill();
        let _ = self.child.wait();
        swept(|| self.program())?;
        if late { Err("the gateway did not end when it was told to".to_owned()) } else { Ok(()) }
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.end();
        }
    }
}

/// Ends the sandboxes of a data folder, which `program` is given.
pub fn swept(program: impl Fn() -> Command) -> Result<(), String> {
    let listed = kept(program().args(["sandbox", "ps", "--json"]), None, PATIENCE)?;
    for part in listed.text().split('"').filter(|part| is_id(part)) {
        let removed = kept(program().args(["sandbox", "rm", part]), None, PATIENCE)?;
        if !removed.good() && !removed.all().contains("missing") {
            return Err(format!("a sandbox is left: {}", removed.all()));
        }
    }
    Ok(())
}

/// A sandbox's id.
fn is_id(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `moltis` with nothing of ours: no configuration, and no engine that would answer.
fn program(moltis: &Path, folder: &Path) -> Command {
    let mut command = Command::new(moltis);
    command.env_clear().current_dir(folder);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", folder.join("home"));
    command.env("MOLTIS_CONFIG_DIR", folder.join("config")).env("MOLTIS_DATA_DIR", folder.join("data"));
    for engine in ["DOCKER_HOST", "CONTAINER_HOST"] {
        command.env(engine, "unix:///nonexistent/engine.sock");
    }
    command
}
