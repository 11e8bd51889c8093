//! `cargo xtask sdk`: the providers' own clients at the stand-ins for them, which hold only as much as these agree.
//!
//! What the stand-ins do not do, and these therefore do not ask: machines that stay when they are stopped, a session's shell
//! that remembers between commands, snapshots and volumes of Daytona's, images that are built, changes told by a socket.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::command::{Scratch, kept};
use crate::json::Json;
use crate::outside::Clients;
use crate::real::Trouble;
use crate::tally::Tally;
use crate::{Outcome, cargo, mcp};

const LIMIT: Duration = Duration::from_secs(300);

/// What each client does, by the name of its file.
const SCRIPTS: [(&str, &str); 3] = [
    ("vercel.mjs", include_str!("sdk/vercel.mjs")),
    ("daytona.mjs", include_str!("sdk/daytona.mjs")),
    ("daytona.py", include_str!("sdk/daytona.py")),
];

/// `cargo xtask sdk`.
pub fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let mut counted = Tally::default();
    let program = cargo::build(&["-p", "moltis-backend-remote", "--example", "standins"], "standins")?;
    tally(&mut counted, &program)?;
    Ok(counted.close(false))
}

/// Runs all of it against this program of the stand-ins, and counts it.
pub fn tally(tally: &mut Tally, program: &std::path::Path) -> Result<(), String> {
    let clients = match Clients::of_providers() {
        Ok(clients) => clients,
        Err(trouble) => {
            mcp::count(tally, "sdk", Err(trouble));
            return Ok(());
        }
    };
    for (name, script) in SCRIPTS {
        mcp::count(tally, &format!("sdk {name}"), held(&clients, program, name, script));
    }
    Ok(())
}

/// Lets one client work, and sees that the stand-ins knew all that it asked and that it left nothing.
fn held(clients: &Clients, program: &std::path::Path, name: &str, script: &str) -> Result<(), Trouble> {
    let scratch = Scratch::new("sdk")?;
    let mut standins = StandIns::start(program, &scratch)?;
    let file = scratch.0.join(name);
    std::fs::write(&file, script)?;
    let interpreter = if name.ends_with(".py") { clients.python() } else { clients.node()? };
    let mut command = Command::new(interpreter);
    // Nothing of this machine's own account may be found.
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &scratch.0).current_dir(clients.npm());
    let ended = kept(command.arg(&file).arg(&standins.place), None, LIMIT)?;
    let told = standins.close()?;
    if !ended.good() || ended.text().trim() != "ok" {
        return Err(Trouble::Failed(format!("{}\nthe stand-ins say {told}", ended.all())));
    }
    let told = Json::read(&told)?;
    let is_empty = |name: &str| matches!(told.get(name), Some(Json::List(all)) if all.is_empty());
    if is_empty("wrong") && is_empty("left") { Ok(()) } else { Err(Trouble::Failed(format!("{told:?}"))) }
}

/// The stand-ins, in a process of their own that ends with its input.
struct StandIns {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where they are, as one line of JSON.
    place: String,
}

impl StandIns {
    fn start(program: &std::path::Path, scratch: &Scratch) -> Result<Self, Trouble> {
        let mut command = Command::new(program);
        command.current_dir(&scratch.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some(output) = output else { return Err(Trouble::Failed("no pipes".to_owned())) };
        let mut standins = Self { child, input, output: BufReader::new(output), place: String::new() };
        standins.output.read_line(&mut standins.place)?;
        standins.place.truncate(standins.place.trim_end().len());
        Ok(standins)
    }

    /// Ends them; what they have to say of what they were asked.
    fn close(&mut self) -> Result<String, Trouble> {
        if let Some(mut input) = self.input.take() {
            let _ = input.flush();
        }
        let mut told = String::new();
        self.output.read_line(&mut told)?;
        let status = self.child.wait()?;
        if status.success() { Ok(told) } else { Err(Trouble::Failed(format!("they ended with {status}"))) }
    }
}

impl Drop for StandIns {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
