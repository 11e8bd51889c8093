//! `cargo xtask mcp`: other people's MCP clients at Moltis's tools, over standard input and output and over `/mcp`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::command::{Ended, kept};
use crate::outside::Clients;
use crate::real::Trouble;
use crate::served::Gateway;
use crate::tally::Tally;
use crate::{Outcome, cargo};

const TASK: &str = include_str!("mcp/task.py");
const DOOR: &str = include_str!("mcp/door.mjs");

/// Scenarios of the conformance suite that do not apply, each with the reason. The list may only shrink.
const EXCUSED: &str = include_str!("mcp/excused.txt");

const LIMIT: Duration = Duration::from_secs(300);

/// What `cargo xtask mcp` and `cargo xtask http` are told: whether it is the long form, and the program to hold to it.
pub fn arguments(arguments: &[&str]) -> Result<(bool, PathBuf), String> {
    let (mut long, mut moltis) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--long" => long = true,
            "--program" => {
                let path = arguments.next().ok_or("--program: where is it?")?;
                moltis = Some(std::path::absolute(path).map_err(|e| format!("{path}: {e}"))?);
            }
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok((long, moltis.map_or_else(|| cargo::moltis(false), Ok)?))
}

/// Counts a check that may be lacking something.
pub fn count(tally: &mut Tally, name: &str, result: Result<(), Trouble>) {
    match result {
        Ok(()) => tally.check(name, Ok(())),
        Err(Trouble::Failed(text)) => tally.check(name, Err(text)),
        Err(Trouble::Lacking(what)) => {
            println!("skip  {name}: {what}");
            tally.skip(format!("{name}: {what}"));
        }
    }
}

/// `cargo xtask mcp`.
pub fn run(arguments: &[&str]) -> Outcome {
    let (_, moltis) = self::arguments(arguments)?;
    let mut counted = Tally::default();
    tally(&mut counted, &moltis)?;
    Ok(counted.close(false))
}

/// Runs all of it and counts it.
pub fn tally(tally: &mut Tally, moltis: &Path) -> Result<(), String> {
    let place = match Place::new(moltis) {
        Ok(place) => place,
        Err(trouble) => {
            count(tally, "mcp", Err(trouble));
            return Ok(());
        }
    };
    count(tally, "mcp task over stdio", place.task(false));
    count(tally, "mcp task over /mcp", place.task(true));
    count(tally, "mcp inspector over stdio", place.inspector(false));
    count(tally, "mcp inspector over /mcp", place.inspector(true));
    match place.conformance() {
        Ok(scenarios) => held(tally, &scenarios, EXCUSED),
        Err(trouble) => count(tally, "mcp conformance", Err(trouble)),
    }
    count(tally, "mcp: the gateway ends with nothing left", place.gateway.close().map_err(Trouble::Failed));
    Ok(())
}

/// What the checks are given.
struct Place {
    clients: Clients,
    gateway: Gateway,
    moltis: PathBuf,
    key: String,
}

impl Place {
    fn new(moltis: &Path) -> Result<Self, Trouble> {
        let (clients, gateway) = (Clients::new()?, Gateway::start(moltis)?);
        let key = gateway.key()?;
        std::fs::write(gateway.folder().join("task.py"), TASK)?;
        std::fs::write(gateway.folder().join("door.mjs"), DOOR)?;
        Ok(Self { clients, gateway, moltis: moltis.to_owned(), key })
    }

    /// A program in the surroundings of the gateway.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let own = self.gateway.program();
        command.env_clear().current_dir(self.gateway.folder());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("MOLTIS_KEY", &self.key).env("NO_COLOR", "1");
        command
    }

    fn url(&self) -> String {
        format!("{}/mcp", self.gateway.url)
    }

    /// A real task, by the client for Python.
    fn task(&self, over_http: bool) -> Result<(), Trouble> {
        let mut command = self.command(&self.clients.python());
        command.arg("task.py");
        if over_http {
            command.args(["http", &self.url()]);
        } else {
            command.arg("stdio").arg(&self.moltis).args(["mcp", "--backend", "namespaces"]);
        }
        good(kept(&mut command, None, LIMIT)?).map(drop)
    }

    /// The inspector: the tools are listed and without fault in its eyes, and one of them is called.
    fn inspector(&self, over_http: bool) -> Result<(), Trouble> {
        let ask = |words: &[&str]| {
            let mut command = self.command(&self.clients.node()?);
            let launcher = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";
            command.arg(self.clients.of_npm(launcher)).arg("--cli");
            if over_http {
                let header = format!("Authorization: Bearer {}", self.key);
                command.args([&self.url(), "--transport", "http", "--header", &header]);
            } else {
                for name in ["MOLTIS_CONFIG_DIR", "MOLTIS_DATA_DIR", "DOCKER_HOST", "CONTAINER_HOST"] {
                    let own = self.gateway.program();
                    let value = own.get_envs().find(|(found, _)| *found == name).and_then(|(_, value)| value);
                    let value = value.unwrap_or_default().to_string_lossy().into_owned();
                    command.args(["-e", &format!("{name}={value}")]);
                }
                command.arg(&self.moltis).args(["mcp", "--backend", "namespaces"]);
            }
            good(kept(command.args(words), None, LIMIT)?)
        };
        let tools = ask(&["--method", "tools/list", "--strict"])?;
        for name in ["exec", "read_file", "process_start", "sandbox_info"] {
            if !tools.contains(&format!("\"name\": \"{name}\"")) {
                return Err(Trouble::Failed(format!("no tool {name}: {tools}")));
            }
        }
        let call = ["--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo $((6 * 7))"];
        let answer = ask(&call)?;
        for part in ["\"stdout\": \"42\\n\"", "\"exitCode\": 0", "\"backend\": \"namespaces\""] {
            if !answer.contains(part) {
                return Err(Trouble::Failed(format!("no {part}: {answer}")));
            }
        }
        Ok(())
    }

    /// The scenarios of the conformance suite, and what became of each.
    fn conformance(&self) -> Result<BTreeMap<String, bool>, Trouble> {
        let node = self.clients.node()?;
        let mut command = self.command(&node);
        command.args(["door.mjs", &self.gateway.url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut door = Door(command.spawn()?);
        let mut address = String::new();
        if let Some(out) = door.0.stdout.take() {
            BufReader::new(out).read_line(&mut address)?;
        }
        let mut command = self.command(&node);
        command.arg(self.clients.of_npm("@modelcontextprotocol/conformance/dist/index.js"));
        command.args(["server", "--suite", "all", "--output-dir", "conformance"]);
        command.args(["--url", &format!("{}/mcp", address.trim())]);
        let ended = kept(&mut command, None, LIMIT)?;
        let scenarios = summary(&ended.text());
        if scenarios.is_empty() { Err(Trouble::Failed(ended.all())) } else { Ok(scenarios) }
    }
}

/// It ends with its input.
struct Door(Child);

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn good(ended: Ended) -> Result<String, Trouble> {
    if ended.good() { Ok(ended.text()) } else { Err(Trouble::Failed(ended.all())) }
}

/// What the suite's summary says: lines as `✓ ping: 1 passed, 0 failed`.
fn summary(text: &str) -> BTreeMap<String, bool> {
    let text = text.rsplit("=== SUMMARY ===").next().unwrap_or_default();
    let line = |line: &str| {
        let (name, counts) = line.trim().trim_start_matches(['✓', '✗', '⚠', ' ']).split_once(": ")?;
        let passed = counts.contains(", 0 failed") && !counts.starts_with("0 passed");
        (counts.contains(" failed") && name != "Total").then(|| (name.to_owned(), passed))
    };
    text.lines().filter_map(line).collect()
}

/// Holds each scenario to the list: what is not on it passes, and what is on it is there and does not.
fn held(tally: &mut Tally, scenarios: &BTreeMap<String, bool>, excused: &str) {
    let excused: BTreeMap<&str, &str> = excused
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .collect();
    for (name, passed) in scenarios {
        let result = match (passed, excused.contains_key(name.as_str())) {
            (true, false) => Ok(()),
            (false, true) => continue,
            (false, false) => Err("it failed, and is not excused".to_owned()),
            (true, true) => Err("it passes: take it off the list".to_owned()),
        };
        tally.check(&format!("mcp conformance {name}"), result);
    }
    for name in excused.keys().filter(|name| !scenarios.contains_key(**name)) {
        tally
            .check(&format!("mcp conformance {name}"), Err("there is none: take it off the list".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_and_held_to_the_list() {
        let text = "✓ early: 1 passed, 0 failed\n=== SUMMARY ===\n✓ ping: 1 passed, 0 failed\n\
                    ✗ prompts-list: 0 passed, 1 failed\n✗ odd: 0 passed, 0 failed\n\nTotal: 1 passed, 1 failed\n";
        let scenarios = summary(text);
        let seen: Vec<_> = scenarios.iter().map(|(name, passed)| (name.as_str(), *passed)).collect();
        assert_eq!(seen, [("odd", false), ("ping", true), ("prompts-list", false)]);

        let holds = |excused: &str| {
            let mut tally = Tally::default();
            held(&mut tally, &scenarios, excused);
            tally.close(false)
        };
        assert!(holds("# Why\nodd: of others\nprompts-list: no prompts\n"));
        assert!(!holds("prompts-list: no prompts\n"));
        assert!(!holds("odd: x\nprompts-list: x\nping: x\n"));
        assert!(!holds("odd: x\nprompts-list: x\ngone: x\n"));
    }
}
