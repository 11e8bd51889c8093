//! `cargo xtask bench exec`: figures beside their baselines, from one run.

use std::process::Command;
use std::time::Duration;

use crate::command::{kept, shown};
use crate::tally::Tally;
use crate::{Outcome, cargo, marker};

/// The page that the table is written into.
const PAGE: &str = "docs/performance.md";

/// Builds the bench and the program that it measures.
fn built(release: bool) -> Result<Command, String> {
    let mut arguments = vec!["-p", "moltis-testkit", "--example", "bench"];
    if release {
        arguments.push("--release");
    }
    let bench = cargo::build(&arguments, "bench")?;
    let moltis = cargo::moltis(release)?;
    let mut command = Command::new(bench);
    command.arg("--moltis").arg(moltis);
    Ok(command)
}

/// Runs the bench.
pub fn run(arguments: &[&str]) -> Outcome {
    let Some((&"exec", arguments)) = arguments.split_first() else {
        return Err("`cargo xtask bench exec` is the bench that there is".into());
    };
    let (mut release, mut write) = (true, false);
    let mut rest = Vec::new();
    for argument in arguments {
        match *argument {
            "--dev" => release = false,
            "--write" => write = true,
            "--short" | "--long" => rest.push(*argument),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let mut command = built(release)?;
    command.args(rest);
    if !write {
        return Ok(shown(&mut command, Duration::from_secs(3600))? == 0);
    }
    let ended = kept(&mut command, None, Duration::from_secs(3600))?;
    println!("{}", ended.all());
    if ended.late {
        return Ok(false);
    }
    let text = ended.text();
    let table: String = text.lines().filter(|l| l.starts_with('|')).map(|l| format!("{l}\n")).collect();
    if table.is_empty() {
        return Err("the bench printed no table".into());
    }
    marker::write(&cargo::root().join(PAGE), "bench exec", &table)?;
    println!("written to {PAGE}");
    Ok(ended.good())
}

/// A short run for the tests: sizes and counts must hold, times are only shown.
pub fn tally(tally: &mut Tally) -> Result<(), String> {
    let ended = kept(built(false)?.arg("--short"), None, Duration::from_secs(900))?;
    println!("{}", ended.all());
    let result = if ended.good() { Ok(()) } else { Err(format!("ended with {}", ended.code)) };
    tally.check("bench exec: sizes and counts", result);
    Ok(())
}
