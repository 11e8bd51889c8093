//! `cargo xtask contract` and `cargo xtask attack`: the suite of `moltis-testkit`, for each kind of user, and its page.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Scratch, root, shown};
use crate::user::{self, Engines, User};
use crate::{Outcome, cargo, marker};

/// Limit of one whole run.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// The page that the matrix is written into.
const PAGE: &str = "docs/guarantees.md";

/// What the suite says in the column of a backend that it could not run.
const UNUSABLE: &str = "not usable here";

/// The example that runs the suite.
fn suite() -> Result<PathBuf, String> {
    cargo::build(&["-p", "moltis-testkit", "--example", "contract"], "contract")
}

/// Runs it as this user, or as an ordinary one whose own Podman has the images.
fn once(suite: &Path, user: Option<&User>, arguments: &[String]) -> Result<bool, String> {
    let mut command = match user {
        Some(user) => user.command(suite, &cargo::root()),
        None => Command::new(suite),
    };
    Ok(shown(command.args(arguments), LIMIT)? == 0)
}

/// The ordinary user that sees the suite.
fn ordinary(suite: &Path) -> Result<User, String> {
    let target = suite.parent().and_then(Path::parent).unwrap_or(suite).to_owned();
    let mut user = User::new(&[cargo::root(), target], Engines::Used)?;
    user.fill_podman()?;
    Ok(user)
}

/// Whether that user's Podman is as it was.
fn closed(user: User) -> bool {
    let left = user.close();
    if let Err(what) = &left {
        println!("left in Podman without root:\n{what}");
    }
    left.is_ok()
}

/// Runs the contract and writes the page.
pub fn contract(arguments: &[&str]) -> Outcome {
    let mut rest: Vec<String> = Vec::new();
    let (mut only_user, mut whole) = (false, true);
    for argument in arguments {
        match *argument {
            "--user" => only_user = true,
            other => {
                whole = false;
                rest.push(other.to_owned());
            }
        }
    }
    let suite = suite()?;
    let scratch = Scratch::new("contract")?;
    let exchange = scratch.0.join("reports");
    std::fs::create_dir(&exchange).map_err(|e| e.to_string())?;
    if root() {
        std::os::unix::fs::chown(&exchange, Some(user::UID), None).map_err(|e| e.to_string())?;
    }
    let mut files = Vec::new();
    let mut good = true;
    for as_user in [false, true] {
        if as_user && !root() || only_user && !as_user && root() {
            continue;
        }
        let label = if root() && !as_user { " (root)" } else { " (user)" };
        let file = exchange.join(if as_user { "user" } else { "own" });
        let mut all = rest.clone();
        all.extend(["--label".into(), label.into(), "--json".into(), file.display().to_string()]);
        if as_user {
            let user = ordinary(&suite)?;
            good &= once(&suite, Some(&user), &all)?;
            good &= closed(user);
        } else {
            good &= once(&suite, None, &all)?;
        }
        files.push(file);
    }
    let table = |which: &str| -> Result<String, String> {
        let output = Command::new(&suite).arg(which).args(&files).output().map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let (promises, matrix) = (table("--promises")?, table("--table")?);
    println!("{promises}\n{matrix}");
    // A part of the suite, one kind of user, or a backend less would make a page that says less than the last one.
    if whole && files.len() == 2 && good && !promises.contains(UNUSABLE) {
        let page = cargo::root().join(PAGE);
        marker::write(&page, "promises", &promises)?;
        marker::write(&page, "contract", &matrix)?;
        println!("written to {PAGE}");
    }
    Ok(good)
}

/// Runs the attacks.
pub fn attack(arguments: &[&str]) -> Outcome {
    let mut rest: Vec<String> = vec!["--attacks".into()];
    let mut rounds = 1;
    for argument in arguments {
        match *argument {
            "--full" => rounds = 5,
            other => rest.push(other.to_owned()),
        }
    }
    let suite = suite()?;
    let user = if root() { Some(ordinary(&suite)?) } else { None };
    let mut good = true;
    for round in 1..=rounds {
        if rounds > 1 {
            println!("round {round} of {rounds}");
        }
        good &= once(&suite, None, &rest)?;
        if let Some(user) = &user {
            println!("as an ordinary user");
            good &= once(&suite, Some(user), &rest)?;
        }
    }
    Ok(good & user.is_none_or(closed))
}
