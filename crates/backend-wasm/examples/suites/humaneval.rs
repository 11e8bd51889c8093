//! The tasks of HumanEval with their own solutions, each a script of CPython as a WASI module; and one wrong solution, which
//! has to be told from a right one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;

use crate::world::{Call, World, argv, shown};
use crate::{Asked, Case, Went};

/// Time of one task.
const LIMIT: Duration = Duration::from_secs(120);

/// A solution that is wrong.
const WRONG: &str = "def f(): return 1\nassert f() == 2\nprint('passed')\n";

/// Tasks at a time: Python computes.
const AT_ONCE: usize = 2;

/// Runs the scripts of a folder, `000.py` and so on; each ends with `passed HumanEval/N`.
pub async fn run(asked: &Asked) -> Vec<Case> {
    let python = asked.python.clone().expect("--python MODULE");
    let world = World::new(BTreeMap::from([("python3".to_owned(), python)]), asked.compiled.as_deref());
    world.prepare().await;
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(&asked.source).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|end| end == "py"));
    scripts.sort();
    let world = &world;
    let mut todo: Vec<(String, String, bool)> = scripts
        .iter()
        .enumerate()
        .filter(|(at, _)| at % asked.every == 0)
        .map(|(at, path)| (format!("HumanEval/{at}"), std::fs::read_to_string(path).unwrap(), true))
        .collect();
    todo.push(("a wrong solution".to_owned(), WRONG.to_owned(), false));
    todo.retain(|(name, ..)| asked.only.as_deref().is_none_or(|part| name.contains(part)));
    futures_util::stream::iter(todo)
        .map(|(name, script, right)| async move {
            let room = world.room(&name).await;
            std::fs::write(room.home.join("task.py"), script).unwrap();
            let call = Call {
                command: argv(["python3", "task.py"]),
                cwd: String::new(),
                env: Vec::new(),
                input: Vec::new(),
                limit: LIMIT,
            };
            let ran = room.run(call).await;
            room.close().await;
            // Some of the tasks print on their own account before the last line.
            let passed = ran.code == 0 && ran.stdout.ends_with(format!("passed {name}\n").as_bytes());
            let went = match (right, passed, ran.code) {
                (true, true, _) | (false, _, 1) => Went::Passed,
                _ => Went::Failed(format!(
                    "  ended with {}: {} {} {:?}",
                    ran.code,
                    shown(&ran.stdout),
                    shown(&ran.stderr),
                    ran.notes
                )),
            };
            Case { name, went }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}
