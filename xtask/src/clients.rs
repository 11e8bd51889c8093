//! The blocks of docs/clients: the command that each tells a client to start is started, and has to speak MCP.
//!
//! ```` ```json ```` and ```` ```toml ```` blocks name it as `command` and `args`; a ```` ```sh client ```` block is a line for the
//! client's own program that names it after ` -- ` or as JSON. `${workspaceFolder}` stands for a folder. What is no such
//! thing begins with ```` ```json no-run ````.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::cargo;
use crate::command::Scratch;
use crate::json::Json;
use crate::tally::Tally;

/// How long a server has to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that a page names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    /// File and line.
    place: String,
    /// What names it, if that can be read.
    command: Result<Vec<String>, String>,
}

/// Starts each command that the pages name, and counts them.
pub fn tally(tally: &mut Tally, moltis: &Path) -> Result<(), String> {
    let folder = cargo::root().join("docs/clients");
    let mut pages: Vec<_> =
        std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten().collect();
    pages.sort_by_key(std::fs::DirEntry::file_name);
    let mut count = 0;
    for page in pages {
        let name = format!("docs/clients/{}", page.file_name().to_string_lossy());
        let text = std::fs::read_to_string(page.path()).map_err(|e| format!("{name}: {e}"))?;
        let named = commands(&name, &text);
        if named.is_empty() {
            tally.fail(format!("{name} names no command"));
        }
        for Named { place, command } in named {
            count += 1;
            let speaks = command.and_then(|command| speaks(&command, moltis));
            tally.check(&format!("client {place}"), speaks);
        }
    }
    if count == 0 {
        tally.fail("docs/clients names no command");
    }
    Ok(())
}

/// The commands that a page names.
fn commands(file: &str, page: &str) -> Vec<Named> {
    let mut named = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (number, line) in page.lines().enumerate() {
        match &mut open {
            Some((start, kind, block)) if line.trim() == "```" => {
                let command = match *kind {
                    "json" => in_json(block),
                    "toml" => in_toml(block),
                    "sh client" => in_line(block),
                    // What runs by itself, or cannot.
                    _ => Err(String::new()),
                };
                if matches!(*kind, "json" | "toml" | "sh client") {
                    named.push(Named { place: format!("{file}:{start}"), command });
                }
                open = None;
            }
            Some((_, _, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None => {
                if let Some(kind) = line.trim_start().strip_prefix("```") {
                    open = Some((number + 1, kind.trim(), String::new()));
                }
            }
        }
    }
    named
}

fn in_json(text: &str) -> Result<Vec<String>, String> {
    let json = Json::read(text)?;
    let all = json.all();
    let found = all.iter().find(|value| value.get("command").is_some());
    of_parts(found.and_then(|f| f.get("command")), found.and_then(|f| f.get("args")))
}

fn in_toml(text: &str) -> Result<Vec<String>, String> {
    let value = |key: &str| -> Result<Option<Json>, String> {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        // Lists and texts are written as in JSON.
        found.map(Json::read).transpose()
    };
    of_parts(value("command")?.as_ref(), value("args")?.as_ref())
}

fn in_line(text: &str) -> Result<Vec<String>, String> {
    if let (Some(open), Some(close)) = (text.find('{'), text.rfind('}')) {
        return in_json(&text[open..=close]);
    }
    let (_, command) = text.split_once(" -- ").ok_or("it names no command after ` -- `")?;
    Ok(command.split_whitespace().map(str::to_owned).collect())
}

fn of_parts(command: Option<&Json>, args: Option<&Json>) -> Result<Vec<String>, String> {
    let mut all = vec![command.and_then(Json::text).ok_or("it has no `command`")?.to_owned()];
    if let Some(args) = args {
        let Json::List(args) = args else { return Err("`args` is no list".to_owned()) };
        for arg in args {
            all.push(arg.text().ok_or("an argument is no text")?.to_owned());
        }
    }
    Ok(all)
}

/// Starts it where a client would, and has it say which tools there are.
fn speaks(command: &[String], moltis: &Path) -> Result<(), String> {
    let scratch = Scratch::new("client")?;
    let (home, project) = (scratch.0.join("home"), scratch.0.join("project"));
    for folder in [&home, &project] {
        std::fs::create_dir(folder).map_err(|e| e.to_string())?;
    }
    let [program, args @ ..] = command else { return Err("it is empty".to_owned()) };
    if program != "moltis" {
        return Err(format!("it starts {program:?} and not moltis"));
    }
    let args = args.iter().map(|arg| arg.replace("${workspaceFolder}", &project.display().to_string()));
    let mut command = Command::new(moltis);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MOLTIS_") || text.starts_with("XDG_") {
            command.env_remove(&name);
        }
    }
    command
        .args(args)
        .current_dir(&project)
        .env("HOME", &home)
        .env("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        .env("CONTAINER_HOST", "unix:///nonexistent/podman.sock");
    let said = converse(&mut command)?;
    // The sandbox of a session would outlive this; a list of tools opens none.
    if said.contains("\"name\":\"sandbox_info\"") { Ok(()) } else { Err(format!("it answers {said}")) }
}

/// Begins, asks for the tools, and gives the answer. Nothing of the server is left.
fn converse(command: &mut Command) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|e| e.to_string())?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("no pipes".to_owned());
    };
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let asked = stdin.write_all(ASKED.as_bytes());
    let mut answer = Err("it does not answer".to_owned());
    if asked.is_ok() {
        while let Ok(line) = lines.recv_timeout(PATIENCE) {
            if line.contains("\"id\":2") {
                answer = Ok(line);
                break;
            }
        }
    }
    drop(stdin);
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) if status.success() => return answer,
            Some(status) => return Err(format!("it ended with {status}")),
            None if std::time::Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it does not end with its input".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

const ASKED: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"xtask","version":"1"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
    "\n",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_every_kind_of_block() {
        let page = "\
```json
{\"mcpServers\": {\"moltis\": {\"command\": \"moltis\", \"args\": [\"mcp\", \"--x\"]}}}
```
```toml
[a.b]
command = \"moltis\"
args = [\"mcp\"]
```
```sh client
claude mcp add moltis -- moltis mcp --workspace .:rw
```
```sh client
code --add-mcp '{\"command\": \"moltis\"}'
```
```json no-run
{}
```
```json
{}
```
";
        let named = |place: &str, words: &[&str]| Named {
            place: place.to_owned(),
            command: Ok(words.iter().map(|word| (*word).to_owned()).collect()),
        };
        let want = [
            named("p:1", &["moltis", "mcp", "--x"]),
            named("p:4", &["moltis", "mcp"]),
            named("p:9", &["moltis", "mcp", "--workspace", ".:rw"]),
            named("p:12", &["moltis"]),
            Named { place: "p:18".to_owned(), command: Err("it has no `command`".to_owned()) },
        ];
        assert_eq!(commands("p", page), want);
    }
}
