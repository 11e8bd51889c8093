//! `cargo xtask test`: everything that this machine can run, counted once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cargo::{self, TestProgram};
use crate::command::{Scratch, kept, root};
use crate::tally::{Tally, indented};
use crate::{Outcome, bench, blocks, install, real, user};

/// Limit of one test program.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Limit of one test program in the long form.
const LONG_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

struct Form {
    all: bool,
    long: bool,
}

/// Runs the tests.
pub fn run(arguments: &[&str]) -> Outcome {
    let mut form = Form { all: false, long: false };
    for argument in arguments {
        match *argument {
            "--all" => form.all = true,
            "--long" => form.long = true,
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let mut tally = Tally::default();
    if form.all {
        install::install()?;
    }
    for (program, package) in install::missing() {
        tally.skip(format!("whatever needs {program} (package {package})"));
    }

    let scratch = Scratch::new("test")?;
    let skips = scratch.0.join("skips");
    std::fs::write(&skips, "").map_err(|e| e.to_string())?;
    std::os::unix::fs::chown(&skips, root().then_some(user::UID), None).map_err(|e| e.to_string())?;

    let programs = cargo::build_tests()?;
    // Once here, so that no test and no block has to wait for it.
    let moltis = cargo::moltis(false)?;
    for program in &programs {
        let mut command = Command::new(&program.path);
        test_program(&mut tally, program, "", &mut command, &skips, &form)?;
    }
    doc_tests(&mut tally)?;
    if root() {
        let target = moltis.parent().and_then(Path::parent).unwrap_or(&moltis).to_owned();
        let shows = [cargo::root(), target];
        for program in programs.iter().filter(|p| p.integration) {
            let mut command = user::command(&program.path, &shows, &scratch)?;
            test_program(&mut tally, program, " (ordinary user)", &mut command, &skips, &form)?;
        }
    } else {
        tally.skip("everything as root: run this as root to have both");
    }
    real::tally(&mut tally, &moltis, form.long)?;
    bench::tally(&mut tally)?;
    blocks::tally(&mut tally, &moltis)?;
    let collected = std::fs::read_to_string(&skips).map_err(|e| e.to_string())?;
    for line in collected.lines() {
        tally.skip(line);
    }
    Ok(tally.close(form.all))
}

fn test_program(
    tally: &mut Tally,
    program: &TestProgram,
    label: &str,
    command: &mut Command,
    skips: &Path,
    form: &Form,
) -> Result<(), String> {
    command.current_dir(&program.folder).env("MOLTIS_TEST_SKIPS", skips);
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    if form.all {
        command.env("MOLTIS_TEST_ALL", "1");
    }
    if form.long {
        command.env("MOLTIS_TEST_LONG", "1");
    }
    let ended = kept(command, None, if form.long { LONG_LIMIT } else { LIMIT })?;
    let name = format!("{}{label}", program.name);
    let seen = tally.harness(&name, &ended.text());
    println!("{:<5} {name} ({:.1} s)", if ended.good() { "pass" } else { "FAIL" }, ended.took.as_secs_f64());
    if !ended.good() {
        println!("{}", indented(&ended.all()));
        if ended.late {
            tally.fail(format!("{name}: killed after {:?}", ended.took));
        } else if !ended.text().contains(" ... FAILED") {
            tally.fail(format!("{name}: ended with {}", ended.code));
        }
    } else if !seen {
        tally.fail(format!("{name}: it said nothing of any test"));
    }
    Ok(())
}

fn doc_tests(tally: &mut Tally) -> Result<(), String> {
    let ended = kept(cargo::cargo().args(["test", "--workspace", "--doc"]), None, LIMIT)?;
    tally.harness("doc", &ended.text());
    println!(
        "{:<5} doc tests ({:.1} s)",
        if ended.good() { "pass" } else { "FAIL" },
        ended.took.as_secs_f64()
    );
    if !ended.good() {
        println!("{}", indented(&ended.all()));
        if !ended.text().contains(" ... FAILED") {
            tally.fail("doc tests");
        }
    }
    Ok(())
}
