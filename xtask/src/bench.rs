//! `cargo xtask bench exec`, `bench engines`, `bench egress`, `bench wasm`, `bench http` and `bench remote`: figures beside their baselines, from one run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::command::{kept, shown};
use crate::tally::Tally;
use crate::{Outcome, cargo, install, marker};

/// The page that the table is written into.
const PAGE: &str = "docs/performance.md";

/// The proxies that ours is held against.
const PROXIES: [&str; 2] = ["tinyproxy", "squid"];

/// Builds the bench of the proxy and the proxy behind a listener.
fn egress(release: bool) -> Result<Command, String> {
    let example = |name| {
        let mut arguments = vec!["-p", "moltis-egress", "--example", name];
        if release {
            arguments.push("--release");
        }
        cargo::build(&arguments, name)
    };
    let mut command = Command::new(example("egress")?);
    command.arg("--proxy").arg(example("proxy")?);
    Ok(command)
}

/// Builds the bench of the proxy through a sandbox.
fn through(release: bool) -> Result<Command, String> {
    let mut arguments = vec!["-p", "moltis-backend-namespaces", "--example", "through"];
    if release {
        arguments.push("--release");
    }
    Ok(Command::new(cargo::build(&arguments, "through")?))
}

/// Builds the bench of a provider's backend, with the stand-in in it.
fn remote(release: bool) -> Result<Command, String> {
    let mut arguments = vec!["-p", "moltis-backend-remote", "--example", "remote"];
    if release {
        arguments.push("--release");
    }
    Ok(Command::new(cargo::build(&arguments, "remote")?))
}

/// Builds a bench and the program that it measures.
fn built(example: &str, release: bool) -> Result<Command, String> {
    let package = if example == "http" { "moltis-gateway" } else { "moltis-testkit" };
    let mut arguments = vec!["-p", package, "--example", example];
    if release {
        arguments.push("--release");
    }
    let bench = cargo::build(&arguments, example)?;
    let moltis = cargo::moltis(release)?;
    let mut command = Command::new(bench);
    command.arg("--moltis").arg(moltis);
    Ok(command)
}

/// Runs the bench.
pub fn run(arguments: &[&str]) -> Outcome {
    let (example, arguments) = match arguments.split_first() {
        Some((&"exec", arguments)) => ("bench", arguments),
        Some((&"engines", arguments)) => ("engines", arguments),
        Some((&"egress", arguments)) => ("egress", arguments),
        Some((&"wasm", arguments)) => ("wasm", arguments),
        Some((&"http", arguments)) => ("http", arguments),
        Some((&"remote", arguments)) => ("remote", arguments),
        _ => {
            let all = "`cargo xtask bench exec`, `bench engines`, `bench egress`, `bench wasm`, `bench http` and `bench remote`";
            return Err(format!("the benches are {all}"));
        }
    };
    let (mut release, mut write) = (true, false);
    let mut rest = Vec::new();
    for argument in arguments {
        match *argument {
            "--dev" => release = false,
            "--write" => write = true,
            "--all" if example == "egress" => install::packages(&PROXIES)?,
            "--short" | "--long" => rest.push(*argument),
            // A module of CPython, for its figures.
            argument if example == "wasm" && argument.starts_with("--python=") => rest.push(argument),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let section = match example {
        "bench" => "bench exec",
        "engines" => "bench engines",
        "wasm" => "bench wasm",
        "http" => "bench http",
        "remote" => "bench remote",
        _ => "bench egress",
    };
    let mut command = match example {
        "egress" => egress(release)?,
        "remote" => remote(release)?,
        _ => built(example, release)?,
    };
    let mut good = measured(command.args(&rest), section, write)?;
    if example == "egress" && cfg!(target_os = "linux") {
        good &= measured(through(release)?.args(&rest), "bench egress through", write)?;
    }
    Ok(good)
}

/// Runs one bench; its table goes into a section of the page if it is to be written.
fn measured(command: &mut Command, section: &str, write: bool) -> Outcome {
    if !write {
        return Ok(shown(command, Duration::from_secs(3600))? == 0);
    }
    let ended = kept(command, None, Duration::from_secs(3600))?;
    println!("{}", ended.all());
    if ended.late {
        return Ok(false);
    }
    let text = ended.text();
    let table: String = text.lines().filter(|l| l.starts_with('|')).map(|l| format!("{l}\n")).collect();
    if table.is_empty() {
        return Err("the bench printed no table".into());
    }
    marker::write(&cargo::root().join(PAGE), section, &table)?;
    println!("written to {PAGE}");
    Ok(ended.good())
}

/// A short run for the tests: sizes and counts must hold, times are only shown.
pub fn tally(tally: &mut Tally, bench: &Path, moltis: &Path) -> Result<(), String> {
    let mut command = Command::new(bench);
    command.arg("--moltis").arg(moltis).arg("--short");
    let ended = kept(&mut command, None, Duration::from_secs(900))?;
    println!("{}", ended.all());
    let result = if ended.good() { Ok(()) } else { Err(format!("ended with {}", ended.code)) };
    tally.check("bench exec: sizes and counts", result);
    Ok(())
}
