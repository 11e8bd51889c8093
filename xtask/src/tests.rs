//! `cargo xtask test`: everything that this machine can run, counted once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cargo::{self, TestProgram};
use crate::command::{Scratch, kept, root};
use crate::tally::{Tally, failures, indented};
use crate::user::{Engines, User};
use crate::{
    Outcome, bench, blocks, engines, firecracker, http, install, lab, mcp, page, real, sdk, suites, user,
};

/// Limit of one test program.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Limit of one test program in the long form.
const LONG_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// Failed tests of one program that are tried again. More of them are no accident.
const AGAIN: usize = 3;

/// Tests of the engines and of sandboxes on every backend: the ordinary user may use Docker and Podman there.
const OF_ENGINES: [&str; 2] = ["moltis-backend-container::", "moltis-testkit::"];

/// Tests that are run as root alone: nothing depends on who runs a client of a provider, which asks the kernel for
/// nothing, and `/dev/kvm` is not everybody's.
const AS_ROOT: [&str; 2] = ["moltis-backend-remote::", "moltis-backend-firecracker::"];

#[derive(Default)]
struct Form {
    all: bool,
    long: bool,
    /// As the ordinary user only.
    user: bool,
    /// Part of the names of the only test programs to run.
    only: Option<String>,
    /// What they are told: which of their tests, say.
    told: Vec<String>,
}

impl Form {
    fn read(arguments: &[&str]) -> Result<Self, String> {
        let mut form = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--all" => form.all = true,
                "--long" => form.long = true,
                "--user" if root() => form.user = true,
                "--" => form.told = arguments.by_ref().map(|word| (*word).to_owned()).collect(),
                "--user" => return Err("--user: only root can run as another user".into()),
                "--only" => {
                    let part = arguments.next().ok_or("--only: which test programs? (moltis-agent, say)")?;
                    form.only = Some((*part).to_owned());
                }
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(form)
    }

    /// Whether everything is run, and not a part.
    fn whole(&self) -> bool {
        !self.user && self.only.is_none() && self.told.is_empty()
    }
}

/// Runs the tests.
pub fn run(arguments: &[&str]) -> Outcome {
    let form = Form::read(arguments)?;
    let mut tally = Tally::default();
    if form.all {
        install::install()?;
    }
    // Stopped when this is left, whichever way; what ran before goes on.
    let engines = if form.all { Some(engines::up()?) } else { None };
    // Who lacks it says so.
    let machines = if form.all { firecracker::programs().ok() } else { None };
    for (program, package) in install::missing() {
        tally.skip(format!("whatever needs {program} (package {package})"));
    }

    let scratch = Scratch::new("test")?;
    let skips = scratch.0.join("skips");
    std::fs::write(&skips, "").map_err(|e| e.to_string())?;
    std::os::unix::fs::chown(&skips, root().then_some(user::UID), None).map_err(|e| e.to_string())?;

    let before = if form.all { Some(engines::left::Look::take()?) } else { None };
    let built = cargo::build_tests()?;
    let (moltis, bench) = (built.program("moltis")?.to_owned(), built.program("bench")?.to_owned());
    let (cases, standins) = (built.program("suites")?.to_owned(), built.program("standins")?.to_owned());
    let mut programs = built.tests;
    if let Some(part) = &form.only {
        programs.retain(|program| program.name.contains(part.as_str()));
        if programs.is_empty() {
            return Err(format!("--only: no test program has {part:?} in its name"));
        }
    }
    for program in programs.iter().filter(|_| !form.user) {
        let mut command = Command::new(&program.path);
        if let Some(machines) = &machines {
            command.env(firecracker::VARIABLE, machines.join("firecracker"));
        }
        test_program(&mut tally, program, "", &mut command, &skips, &form)?;
    }
    if form.whole() {
        doc_tests(&mut tally)?;
    }
    if root() {
        let target = moltis.parent().and_then(Path::parent).unwrap_or(&moltis).to_owned();
        let shows = [cargo::root(), target];
        let stranger = User::new(&shows, Engines::Strange)?;
        let mut member = User::new(&shows, Engines::Used)?;
        member.fill_podman()?;
        let depends = |name: &str| !AS_ROOT.iter().any(|package| name.starts_with(package));
        for program in programs.iter().filter(|p| p.integration && depends(&p.name)) {
            let of_engines = OF_ENGINES.iter().any(|package| program.name.starts_with(package));
            let user = if of_engines { &member } else { &stranger };
            let mut command = user.command(&program.path, &program.folder);
            command.env("MOLTIS_TEST_ROOT_TOO", "1");
            test_program(&mut tally, program, " (ordinary user)", &mut command, &skips, &form)?;
        }
        stranger.close()?;
        tally.check("nothing is left in the ordinary user's Podman", member.close());
    } else {
        tally.skip("everything as root: run this as root to have both");
    }
    if form.whole() {
        real::tally(&mut tally, &moltis, form.long)?;
        suites::tally(&mut tally, &cases, form.long)?;
        bench::tally(&mut tally, &bench, &moltis)?;
        blocks::tally(&mut tally, &moltis)?;
    }
    // They install programs of others, which only `--all` may.
    if form.whole() && form.all {
        http::tally(&mut tally, &moltis, false)?;
        mcp::tally(&mut tally, &moltis)?;
        sdk::tally(&mut tally, &standins)?;
        page::tally(&mut tally, &moltis, &page::Form::default())?;
        lab::tally(&mut tally, &moltis)?;
    } else if form.whole() {
        tally.skip("systemd and cgroup v2 in the lab (cargo xtask lab), which only --all installs all for");
        tally.skip("the page in a browser (cargo xtask page), which only --all installs all for");
    }
    if let Some(before) = before {
        tally.check("nothing of the container suites is left", before.same_again());
    }
    let collected = std::fs::read_to_string(&skips).map_err(|e| e.to_string())?;
    for line in collected.lines() {
        tally.skip(line);
    }
    drop(engines);
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
    command.args(&form.told).current_dir(&program.folder).env("MOLTIS_TEST_SKIPS", skips);
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
        } else if form.whole() {
            again(tally, &name, command, &ended.text(), if form.long { LONG_LIMIT } else { LIMIT })?;
        }
    } else if !seen {
        tally.fail(format!("{name}: it said nothing of any test"));
    }
    Ok(())
}

/// Tries the tests that failed once more, one at a time: what passes alone and failed beside hundreds of others is told
/// apart from what is broken, and both are named.
fn again(
    tally: &mut Tally,
    program: &str,
    command: &mut Command,
    output: &str,
    limit: Duration,
) -> Result<(), String> {
    let names: Vec<&str> = failures(output).collect();
    if names.len() > AGAIN {
        return Ok(());
    }
    command.args(["--test-threads=1", "--exact"]).args(&names);
    let ended = kept(command, None, limit)?;
    let text = ended.text();
    for name in names {
        let passed = text.lines().any(|line| line == format!("test {name} ... ok"));
        println!("{:<5} {program}: {name}, tried again", if passed { "pass" } else { "FAIL" });
        if passed {
            tally.passed_again(&format!("{program}: {name}"));
        }
    }
    if !ended.good() {
        println!("{}", indented(&ended.all()));
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
