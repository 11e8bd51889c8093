//! Our own C programs, each for a part of WASI preview1: what each call gives, and what it must not give. A program prints
//! `ok NAME` or `not ok NAME: WHY` for each of its checks, and `end` as its last line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moltis_sandbox::{Lifetime, Mount, MountMode, SandboxSpec, SessionKey, Setting};

use crate::world::{Call, HOME, Ran, Room, World, argv, shown};
use crate::{Asked, Case, Went};

/// Time of one module.
const LIMIT: Duration = Duration::from_secs(120);

/// What lies outside of the sandbox, and must not be read in it.
const SECRET: &str = "outside";

/// What the programs are called with, and what comes of it.
const ENDS: &[(&str, i32, &str)] = &[
    ("ends exit 0", 0, ""),
    ("ends exit 7", 7, ""),
    ("ends exit 255", 255, ""),
    ("ends return", 3, ""),
    ("ends abort", 134, "wasm-trap"),
    ("ends divide", 134, "wasm-trap"),
    ("ends wild", 134, "wasm-trap"),
    // Flags that WASI does not know.
    ("ends fdflags", 134, "wasm-trap"),
    ("ends oflags", 134, "wasm-trap"),
    ("ends lookup", 134, "wasm-trap"),
    ("ends fstflags", 134, "wasm-trap"),
    ("ends whence", 134, "wasm-trap"),
    ("ends advice", 134, "wasm-trap"),
    // Memory that the module has not.
    ("ends pointer", 134, "wasm-trap"),
    ("ends length", 134, "wasm-trap"),
];

struct Place {
    world: World,
    /// Checks that went wrong or well.
    cases: Vec<Case>,
}

impl Place {
    fn check(&mut self, name: impl Into<String>, good: bool, why: impl FnOnce() -> String) {
        let went = if good { Went::Passed } else { Went::Failed(why()) };
        self.cases.push(Case { name: name.into(), went });
    }

    /// Takes in what a program printed of its checks.
    fn take(&mut self, program: &str, ran: &Ran) {
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let mut ended = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ok ") {
                self.check(format!("{program}: {name}"), true, String::new);
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
                self.check(format!("{program}: {name}"), false, || format!("  {why}"));
            } else {
                ended = line == "end";
            }
        }
        self.check(format!("{program}: goes to its end"), ended && ran.code == 0, || {
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            format!("  ended with {}: {last:?} {} {:?}", ran.code, shown(&ran.stderr), ran.notes)
        });
    }
}

fn call(line: &str, input: &[u8]) -> Call {
    Call {
        command: argv(line.split(' ')),
        cwd: "work".to_owned(),
        env: vec![("A".to_owned(), "of the caller".to_owned()), ("EMPTY".to_owned(), String::new())],
        input: input.to_vec(),
        limit: LIMIT,
    }
}

/// Files that a program finds, among them ways out.
fn lay_out(home: &Path, outside: &Path) {
    use std::os::unix::fs::symlink;

    let work = home.join("work");
    std::fs::create_dir_all(work.join("in/deep")).unwrap();
    std::fs::write(work.join("in/file"), "inside\n").unwrap();
    std::fs::write(work.join("ten"), "0123456789").unwrap();
    std::fs::write(home.join("above"), "above\n").unwrap();
    symlink("in/file", work.join("to-file")).unwrap();
    symlink("in", work.join("to-in")).unwrap();
    symlink("../work/in/file", work.join("around")).unwrap();
    symlink("nowhere", work.join("dangling")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("loop-b", work.join("loop-a")).unwrap();
    symlink("loop-a", work.join("loop-b")).unwrap();
    // Ways out.
    symlink("/etc/passwd", work.join("abs-passwd")).unwrap();
    symlink("/", work.join("abs-root")).unwrap();
    symlink(outside, work.join("abs-outside")).unwrap();
    symlink(outside.join(SECRET), work.join("abs-secret")).unwrap();
    symlink(format!("{HOME}/work/in/file"), work.join("abs-inside")).unwrap();
    symlink("../../../../../../../../../../etc", work.join("up-etc")).unwrap();
    symlink("..", work.join("in/up")).unwrap();
    symlink("../..", work.join("in/up-two")).unwrap();
    symlink("in/up/in/up/in/up-two", work.join("winding")).unwrap();
    symlink("../../../tmp", work.join("up-tmp")).unwrap();
}

/// Turns a link between a folder inside and one outside, until it is told to stop.
fn turning(folder: PathBuf, outside: PathBuf, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let (inner, outer) = (folder.join(".inner"), folder.join(".outer"));
        let mut turns = 0;
        while !stop.load(Ordering::Relaxed) {
            for (draft, target) in [(&inner, Path::new("in")), (&outer, outside.as_path())] {
                let _ = std::os::unix::fs::symlink(target, draft);
                let _ = std::fs::rename(draft, folder.join("turning"));
            }
            // And a folder that is a link the next moment.
            let _ = std::fs::rename(folder.join("real"), folder.join(".real"));
            let _ = std::os::unix::fs::symlink(&outside, folder.join("real"));
            let _ = std::fs::remove_file(folder.join("real"));
            let _ = std::fs::rename(folder.join(".real"), folder.join("real"));
            turns += 1;
        }
        turns
    })
}

/// Runs all.
pub async fn run(asked: &Asked) -> Vec<Case> {
    let mut commands = BTreeMap::new();
    for entry in std::fs::read_dir(&asked.source).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "wasm") {
            commands.insert(path.file_stem().unwrap().to_string_lossy().into_owned(), path);
        }
    }
    let world = World::new(commands, asked.compiled.as_deref());
    world.prepare().await;
    let mut place = Place { world, cases: Vec::new() };
    let outside = place.world.path().join("outside");
    let read_only = place.world.path().join("shown");
    for folder in [&outside, &read_only] {
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        std::fs::write(folder.join("file"), "shown\n").unwrap();
    }
    std::fs::write(outside.join(SECRET), SECRET).unwrap();
    std::os::unix::fs::symlink(outside.join(SECRET), read_only.join("way-out")).unwrap();
    let mut spec = SandboxSpec::new(SessionKey::new("wasi").unwrap(), Lifetime::Ephemeral);
    let mount = Mount { source: read_only.clone(), target: "/mnt/shown".into(), mode: MountMode::Ro };
    spec.mounts = vec![Setting::built_in(mount)];
    let room = place.world.room_of(&spec).await;
    lay_out(&room.home, &outside);
    for (line, input) in [
        ("start one two  '' ü", &b""[..]),
        ("files", b""),
        ("folders", b""),
        ("escapes", b""),
        ("waits", b"typed\nmore\n"),
    ] {
        let ran = room.run(call(line, input)).await;
        let program = line.split(' ').next().unwrap_or_default();
        place.take(program, &ran);
    }
    races(&mut place, &room, &outside).await;
    for (line, code, note) in ENDS {
        let ran = room.run(call(line, b"")).await;
        let noted =
            note.is_empty() == ran.notes.is_empty() && ran.notes.iter().all(|one| one.starts_with(note));
        place.check(*line, ran.code == *code && noted, || {
            format!(
                "  expected {code} and {note:?}\n  came     {} and {:?}: {}",
                ran.code,
                ran.notes,
                shown(&ran.stderr)
            )
        });
    }
    outcome(&mut place, &room, &outside, &read_only);
    room.close().await;
    place.cases
}

async fn races(place: &mut Place, room: &Room, outside: &Path) {
    let folder = room.home.join("work");
    std::fs::create_dir_all(folder.join("real")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let turner = turning(folder.clone(), outside.to_owned(), Arc::clone(&stop));
    let ran = room.run(call("races", b"")).await;
    stop.store(true, Ordering::Relaxed);
    let turns = turner.join().unwrap();
    place.take("races", &ran);
    place.check("races: the link was turned", turns > 100, || format!("  {turns} times"));
}

/// What the programs must have left, and must have left alone, as the host sees it.
fn outcome(place: &mut Place, room: &Room, outside: &Path, read_only: &Path) {
    let names = |folder: &Path| {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let left = (names(outside), std::fs::read_to_string(outside.join(SECRET)).unwrap_or_default());
    let expected = (["deep", "file", SECRET].map(str::to_owned).to_vec(), SECRET.to_owned());
    place.check("outside: nothing came, went or changed", left == expected, || format!("  {left:?}"));
    let left = names(read_only);
    place.check("a read-only folder stays as it is", left == ["deep", "file", "way-out"], || {
        format!("  {left:?}")
    });
    let above = std::fs::read_to_string(room.home.join("above")).unwrap_or_default();
    place.check("above: what a folder shows of its parent", above == "above\n", || format!("  {above:?}"));
}
