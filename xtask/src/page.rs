//! `cargo xtask page`: the web page in Chromium, against real gateways with real sandboxes.
//!
//! The tests are in `ui/e2e`, with a package of their own. They are copied to `~/.cache/moltis/page` and run there, with
//! what npm installs for them, so that nothing is written into the source tree but the pictures.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Scratch, find, kept};
use crate::real::Trouble;
use crate::tally::{Tally, indented};
use crate::{Outcome, cargo, mcp, served};

/// What is copied.
const SOURCES: [&str; 6] =
    ["package-lock.json", "package.json", "playwright.config.ts", "tsconfig.json", "lib", "tests"];

/// The file that says for which lock npm has installed.
const THERE: &str = "installed";

const INSTALL: Duration = Duration::from_secs(600);

const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How it is run.
#[derive(Default)]
pub struct Form {
    /// Draw the pictures of the documentation.
    write: bool,
    /// Part of the names of the only tests to run.
    only: Option<String>,
}

/// `cargo xtask page`.
pub fn run(arguments: &[&str]) -> Outcome {
    let (mut form, mut moltis) = (Form::default(), None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--write" => form.write = true,
            "--only" => {
                form.only = Some((*arguments.next().ok_or("--only: which tests?")?).to_owned());
            }
            "--program" => {
                let path = arguments.next().ok_or("--program: where is it?")?;
                moltis = Some(std::path::absolute(path).map_err(|e| format!("{path}: {e}"))?);
            }
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let moltis = moltis.map_or_else(|| cargo::moltis(false), Ok)?;
    let mut counted = Tally::default();
    tally(&mut counted, &moltis, &form)?;
    Ok(counted.close(false))
}

/// Runs the tests and counts each.
pub fn tally(tally: &mut Tally, moltis: &Path, form: &Form) -> Result<(), String> {
    let folder = match installed() {
        Ok(folder) => folder,
        Err(trouble) => {
            mcp::count(tally, "page", Err(trouble));
            return Ok(());
        }
    };
    let scratch = Scratch::new("page")?;
    let (node, chromium) = (program("node")?, program("chromium")?);
    // The tests' library runs them without a look at their types.
    let mut types = Command::new(&node);
    types.current_dir(&folder).args(["node_modules/typescript/bin/tsc", "--noEmit"]);
    let ended = kept(&mut types, None, INSTALL)?;
    tally.check(
        "page: the types of its tests are right",
        if ended.good() { Ok(()) } else { Err(ended.all()) },
    );
    let mut command = Command::new(node);
    command.current_dir(&folder).args(["node_modules/@playwright/test/cli.js", "test"]);
    command.arg("--output").arg(scratch.0.join("results"));
    if let Some(part) = &form.only {
        command.args(["--grep", part]);
    }
    command
        .env("MOLTIS_PROGRAM", moltis)
        .env("MOLTIS_PAGE_FOLDER", &scratch.0)
        .env("MOLTIS_CHROMIUM", chromium);
    if form.write {
        command.env("MOLTIS_PAGE_SHOTS", cargo::root().join("docs/page"));
    }
    let ended = kept(&mut command, None, LIMIT)?;
    let text = ended.text();
    for line in text.lines() {
        if let Some((name, why)) = skipped(line) {
            tally.skip(format!("page: {name}: {why}"));
        }
    }
    // What did not run was counted above, with its reason.
    let results = text.replace(" ignored; finished", " not run; finished");
    let seen = tally.harness("page", &results);
    print!("{}", indented(&text));
    println!("\n{:<5} page ({:.1} s)", if ended.good() { "pass" } else { "FAIL" }, ended.took.as_secs_f64());
    if !ended.good() && !text.contains(" ... FAILED") {
        tally.check("page", Err(ended.all()));
    } else if ended.good() && !seen {
        tally.fail("page: it said nothing of any test");
    }
    tally.check("page: the gateways end with nothing left", left(moltis, &scratch.0));
    Ok(())
}

/// The name of a test that did not run, and why, by a line such as `test name ... ignored, why`.
fn skipped(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ignored, ")
}

/// Ends what the gateways of tests that were killed have left. Nothing of those that ended by themselves is there.
fn left(moltis: &Path, scratch: &Path) -> Result<(), String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(scratch).map_err(|e| e.to_string())?.flatten() {
        let folder = entry.path();
        if !folder.join("data").is_dir() {
            continue;
        }
        let program = || {
            let mut command = Command::new(moltis);
            command.env("HOME", folder.join("home")).env("MOLTIS_CONFIG_DIR", folder.join("config"));
            command.env("MOLTIS_DATA_DIR", folder.join("data"));
            command
        };
        served::swept(program)?;
        let listed = kept(program().args(["sandbox", "list", "--json"]), None, INSTALL)?.text();
        for tag in listed.split('"').filter(|part| part.starts_with("localhost/moltis-sandbox:")) {
            let removed = kept(program().args(["sandbox", "remove", tag]), None, INSTALL)?;
            if !removed.good() {
                return Err(format!("an image is left: {}", removed.all()));
            }
        }
        found.push(format!("{} was left, with what ran and was built; that is ended", folder.display()));
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

fn program(name: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| format!("there is no {name}"))
}

/// The tests with what they need, in a folder of ours.
fn installed() -> Result<PathBuf, Trouble> {
    for name in ["node", "npm", "chromium"] {
        if find(name).is_none() {
            return Err(Trouble::Lacking(format!("there is no {name}")));
        }
    }
    let home = std::env::var_os("HOME").ok_or_else(|| "HOME is not set".to_owned())?;
    let (from, to) = (cargo::root().join("ui/e2e"), PathBuf::from(home).join(".cache/moltis/page"));
    std::fs::create_dir_all(&to)?;
    for name in SOURCES {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            if to.exists() {
                std::fs::remove_dir_all(&to)?;
            }
            copied(&from, &to)?;
        } else {
            std::fs::copy(&from, &to)?;
        }
    }
    let lock = std::fs::read(to.join("package-lock.json"))?;
    if std::fs::read(to.join(THERE)).is_ok_and(|there| there == lock) {
        return Ok(to);
    }
    println!("installing what ui/e2e needs into {}", to.display());
    let mut npm = Command::new(program("npm")?);
    npm.args(["ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]).current_dir(&to);
    let ended = kept(&mut npm, None, INSTALL)?;
    if !ended.good() {
        return Err(Trouble::Lacking(format!("npm ended with {}: {}", ended.code, ended.all().trim())));
    }
    std::fs::write(to.join(THERE), lock)?;
    Ok(to)
}

fn copied(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copied(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_did_not_run_is_named_with_its_reason() {
        assert_eq!(
            skipped("test walk: an image ... ignored, Docker: no daemon"),
            Some(("walk: an image", "Docker: no daemon"))
        );
        assert_eq!(skipped("test walk: an image ... ok (1.0 s)"), None);
    }
}
