//! The YAML cases of the crate `brush-shell`: each script runs here and in the real `bash`, and both have to say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use moltis_sandbox::Command;
use serde::Deserialize;
use serde_norway::Value;

use crate::oracle;
use crate::world::{Call, HOME, Ran, World, argv, shown};
use crate::{AT_ONCE, Asked, Case, Went};

/// Time of one case, here and in `bash`.
const LIMIT: Duration = Duration::from_secs(20);

/// The folder below the home that a case runs in.
const WORK: &str = "work";

#[derive(Deserialize)]
struct Set {
    #[serde(default)]
    common_test_files: Vec<File>,
    cases: Vec<One>,
}

#[derive(Clone, Deserialize)]
struct File {
    path: String,
    contents: Option<String>,
    source_path: Option<String>,
    #[serde(default)]
    executable: bool,
}

#[derive(Clone, Deserialize)]
struct One {
    name: String,
    stdin: Option<String>,
    args: Option<Vec<Value>>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    #[serde(default)]
    test_files: Vec<File>,
    home_dir: Option<String>,
    #[serde(default)]
    ignore_stderr: bool,
    #[serde(default)]
    ignore_stdout: bool,
    #[serde(default)]
    ignore_whitespace: bool,
    #[serde(default)]
    ignore_exit_status: bool,
    #[serde(default)]
    pty: bool,
    #[serde(default)]
    skip: bool,
    #[serde(default)]
    snapshot: bool,
    #[serde(default)]
    removed_default_args: Vec<String>,
    #[serde(default)]
    incompatible_os: Vec<String>,
    min_oracle_version: Option<Value>,
    max_oracle_version: Option<Value>,
    expected_stdout: Option<String>,
    expected_stderr: Option<String>,
    expected_exit_code: Option<i32>,
}

/// Words of scripts that need what a shell inside another program has not: other programs, the machine, a terminal, a
/// shell that people type into.
const NEEDS: &[(&str, &[&str])] = &[
    (
        "need processes of the machine",
        &["/proc/", "process-helpers.sh", " ps ", "pgrep", "pstree", "$(which ", "mkfifo"],
    ),
    (
        "need the machine's programs or files",
        &["/usr/bin/", "/bin/sh", "/bin/ls", "/usr/local/bin", "/etc/", "python", "perl "],
    ),
    ("need the limits or the clock of a process", &["ulimit", "times\n"]),
    (
        "need a terminal or somebody who types",
        &["/dev/tty", "set -o history", "set -m", "bind ", "fc -", "set -o vi", "set -o emacs"],
    ),
    (
        "ask for the identity of the process or its user",
        &[
            "$BASHPID",
            "${BASHPID}",
            "$PPID",
            "$EUID",
            "$UID",
            "hostname",
            "$HOSTNAME",
            "$HOSTTYPE",
            "$MACHTYPE",
            "$OSTYPE",
            "${PS1@P}",
        ],
    ),
];

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        other => format!("{other:?}"),
    }
}

/// Two parts of a version as one number.
fn version(text: &str) -> u32 {
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    parts.next().unwrap_or(0) * 1000 + parts.next().unwrap_or(0)
}

fn version_of_bash() -> Option<u32> {
    let arguments = ["-c", "echo ${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}"].map(str::to_owned);
    let ran = oracle::bash(&arguments, b"", &[], Path::new("/"), LIMIT)?;
    Some(version(String::from_utf8_lossy(&ran.stdout).trim()))
}

impl One {
    fn arguments(&self) -> Vec<String> {
        self.args.iter().flatten().map(text).collect()
    }

    /// Why it does not apply here.
    fn excluded(&self, name: &str, bash: u32) -> Option<&'static str> {
        let bound = |version_is: &Option<Value>| version_is.as_ref().map(|value| version(&text(value)));
        if self.skip {
            return Some("are skipped by their own suite");
        }
        if self.pty {
            return Some("need a terminal or somebody who types");
        }
        if self.snapshot || !self.removed_default_args.is_empty() || name.contains("brush") {
            return Some("are about the suite's own shell");
        }
        if self.incompatible_os.iter().any(|os| os == "linux")
            || bound(&self.min_oracle_version).is_some_and(|least| bash < least)
            || bound(&self.max_oracle_version).is_some_and(|most| bash > most)
        {
            return Some("are for another system or another bash");
        }
        let arguments = self.arguments();
        let interactive = ["-i", "-l", "--login", "--rcfile", "--init-file", "-s", "--help", "--version"];
        if arguments.iter().any(|argument| interactive.contains(&argument.as_str())) {
            return Some("need a terminal or somebody who types");
        }
        let files: String = self.test_files.iter().filter_map(|file| file.contents.clone()).collect();
        let all = format!("{}\n{}\n{files}", self.stdin.as_deref().unwrap_or_default(), arguments.join(" "));
        NEEDS.iter().find(|(_, words)| words.iter().any(|word| all.contains(word))).map(|(why, _)| *why)
    }

    /// Puts its files into a folder.
    fn lay_out(&self, common: &[File], of_set: &Path, work: &Path) {
        use std::os::unix::fs::PermissionsExt;

        std::fs::create_dir_all(work).unwrap();
        for file in common.iter().chain(&self.test_files) {
            let at = work.join(&file.path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            let content = match (&file.contents, &file.source_path) {
                (Some(contents), _) => contents.clone(),
                (None, Some(source)) => std::fs::read_to_string(of_set.join(source)).unwrap_or_default(),
                (None, None) => String::new(),
            };
            std::fs::write(&at, content).unwrap();
            if file.executable {
                std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
    }

    /// Its variables, where the home is there.
    fn env(&self, home: &str) -> Vec<(String, String)> {
        let mut env = vec![
            ("HOME".to_owned(), home.to_owned()),
            ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ];
        if let Some(inside) = &self.home_dir {
            env.push(("HOME".to_owned(), format!("{home}/{WORK}/{inside}")));
        }
        env.extend(self.env.iter().map(|(name, value)| (name.clone(), text(value))));
        env
    }

    /// What bash is called with, and what it reads. A script alone is the command itself.
    fn call(&self) -> (Vec<String>, Vec<u8>) {
        let script = self.stdin.clone().unwrap_or_default();
        match &self.args {
            None => (vec!["-c".into(), script, "sh".into()], Vec::new()),
            Some(_) => (self.arguments(), script.into_bytes()),
        }
    }

    /// What `bash` says, or what the file records; or why neither is an answer.
    fn expected(&self, common: &[File], of_set: &Path) -> Result<Ran, &'static str> {
        let one = || {
            let temp = tempfile::Builder::new().prefix("moltis-suites-bash-").tempdir().unwrap();
            let home = temp.path().to_str().unwrap().to_owned();
            let work = temp.path().join(WORK);
            self.lay_out(common, of_set, &work);
            let (mut arguments, input) = self.call();
            if self.args.is_none() {
                // A variable that only `-c` makes.
                arguments[1].insert_str(0, "unset BASH_EXECUTION_STRING; ");
            }
            let mut ran = oracle::bash(&arguments, &input, &self.env(&home), &work, LIMIT)?;
            ran.stdout = replaced(&ran.stdout, &home, HOME);
            ran.stderr = replaced(&ran.stderr, &home, HOME);
            Some(ran)
        };
        let (Some(first), Some(second)) = (one(), one()) else { return Err("bash could not be run") };
        if first.late || second.late {
            return Err("do not end in bash itself");
        }
        if first != second {
            return Err("have another answer from bash each time");
        }
        let recorded = |text: &Option<String>, ran: Vec<u8>| text.clone().map_or(ran, String::into_bytes);
        Ok(Ran {
            code: self.expected_exit_code.unwrap_or(first.code),
            stdout: recorded(&self.expected_stdout, first.stdout),
            stderr: recorded(&self.expected_stderr, first.stderr),
            ..Ran::default()
        })
    }

    fn compare(&self, expected: &Ran, came: &Ran) -> Went {
        let mut different = Vec::new();
        let mut held = |what: &str, expected: String, came: String| {
            if expected != came {
                different.push(format!("  {what}: expected {expected}\n  {what}: came     {came}"));
            }
        };
        if !self.ignore_exit_status {
            held("status", expected.code.to_string(), came.code.to_string());
        }
        let plain = |bytes: &[u8]| {
            if self.ignore_whitespace {
                bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
            } else {
                bytes.to_vec()
            }
        };
        if !self.ignore_stdout {
            held("stdout", shown(&plain(&expected.stdout)), shown(&plain(&came.stdout)));
        }
        if !self.ignore_stderr {
            held("stderr", shown(&plain(&said(&expected.stderr))), shown(&plain(&said(&came.stderr))));
        }
        if came.late {
            held("time", "an end".into(), "none".into());
        }
        if different.is_empty() {
            Went::Passed
        } else {
            if self.ignore_stderr || !came.stderr.is_empty() {
                different.push(format!("  it said {}", shown(&came.stderr)));
            }
            Went::Failed(different.join("\n"))
        }
    }
}

/// Standard error without what the shell itself complains of, whose words are each shell's own.
fn said(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let own = |line: &str| {
        let name = line.split(':').next().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default();
        line.contains(": ") && (["sh", "bash", "environment"].contains(&name) || name.ends_with(".sh"))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !own(line)).collect();
    lines.join("\n").into_bytes()
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.replace(from, to).into_bytes(),
        Err(_) => bytes.to_vec(),
    }
}

fn files_below(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, into);
        } else if path.extension().is_some_and(|end| end == "yaml") {
            into.push(path);
        }
    }
}

/// Runs all.
pub async fn run(asked: &Asked) -> Vec<Case> {
    let root = asked.source.join("tests/cases");
    let mut files = Vec::new();
    files_below(&root, &mut files);
    files.sort();
    let bash = version_of_bash().expect("this machine has no bash to compare with");
    let world = World::new(BTreeMap::new(), None);
    let mut names = BTreeSet::new();
    let mut todo = Vec::new();
    for file in files {
        let content = std::fs::read_to_string(&file).unwrap();
        let set: Set = serde_norway::from_str(&content).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let of_set = file.parent().unwrap().to_owned();
        let short = file.strip_prefix(&root).unwrap().with_extension("").display().to_string();
        for one in set.cases {
            let mut name = format!("{short}: {}", one.name.trim());
            let mut number = 2;
            while !names.insert(name.clone()) {
                name = format!("{short}: {} ({number})", one.name.trim());
                number += 1;
            }
            todo.push((name, one, set.common_test_files.clone(), of_set.clone()));
        }
    }
    let chosen = todo
        .into_iter()
        .enumerate()
        .filter(|(at, (name, ..))| {
            at % asked.every == 0 && asked.only.as_deref().is_none_or(|part| name.contains(part))
        })
        .map(|(_, one)| one);
    let world = &world;
    futures_util::stream::iter(chosen)
        .map(|(name, one, common, of_set)| async move {
            let went = went(world, &name, &one, common, of_set, bash).await;
            Case { name, went }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

async fn went(world: &World, name: &str, one: &One, common: Vec<File>, of_set: PathBuf, bash: u32) -> Went {
    if let Some(why) = one.excluded(name, bash) {
        return Went::Excluded(why);
    }
    let (asking, files, folder) = (one.clone(), common.clone(), of_set.clone());
    let expected = tokio::task::spawn_blocking(move || asking.expected(&files, &folder)).await.unwrap();
    let expected = match expected {
        Ok(expected) => expected,
        Err(why) => return Went::Excluded(why),
    };
    let room = world.room(name).await;
    one.lay_out(&common, &of_set, &room.home.join(WORK));
    let (arguments, input) = one.call();
    let command = match &one.args {
        None => Command::Shell(arguments[1].clone().into()),
        Some(_) => argv(std::iter::once("bash".to_owned()).chain(arguments).map(OsString::from)),
    };
    let call = Call { command, cwd: WORK.into(), env: one.env(HOME), input, limit: LIMIT };
    let came = room.run(call).await;
    room.close().await;
    one.compare(&expected, &came)
}
