//! The store within one process. Many processes, kills and hostile file systems are in the integration tests.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use moltis_config::words::{BackendChoice, OnUnknown};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{BackendName, Ending, Error, MountMode, Network, SandboxId, SessionKey, Status};
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use tempfile::TempDir;

use super::commands::{MAX_AGE_MILLIS, MAX_COMMAND, MAX_COMMANDS};
use super::history::KEPT_BYTES;
use super::*;

const NOW: u64 = 1_800_000_000_000;
const ME: Caller = Caller::Cli { uid: 1000 };

fn key(text: &str) -> SessionKey {
    SessionKey::new(text).unwrap()
}

fn patch(json: &str) -> SessionPatch {
    serde_json::from_str(json).unwrap()
}

struct Fixture {
    folder: TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("data"));
        Self { folder, store }
    }

    fn run<T>(&self, work: impl FnOnce(&mut Database) -> Result<T>) -> T {
        self.store.run_blocking(work).unwrap()
    }

    fn session(&self, name: &str) -> Session {
        self.run(|d| d.create_session(&key(name), &SessionPatch::default(), &ME, NOW)).0
    }

    fn lock(&self, session: SessionNumber) -> SessionLock {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(self.store.lock_session(session, Duration::from_millis(50))).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("data/moltis.db")
    }
}

fn opening(backend: BackendName, fingerprint: &str) -> NewSandbox {
    NewSandbox { backend, fingerprint: fingerprint.to_owned(), judged: Judged::default() }
}

fn command(text: &str) -> NewCommand {
    NewCommand {
        command: text.to_owned(),
        caller: ME,
        backend: BackendName::Namespaces,
        background: false,
        started_millis: NOW,
    }
}

fn ended() -> Ended {
    Ended {
        status: Status::Code(0),
        ending: Ending::Exited,
        micros: 1234,
        stdout: Kept::whole(b"out"),
        stderr: Kept::default(),
    }
}

#[test]
fn nothing_is_touched_before_the_first_use_and_then_it_is_private() {
    let f = Fixture::new();
    assert!(!f.folder.path().join("data").exists());
    let instance = f.run(|d| d.instance());
    assert_eq!(instance.len(), 32);
    for (name, mode) in [("", 0o700), ("moltis.db", 0o600), ("moltis.db-wal", 0o600), ("moltis.lock", 0o600)]
    {
        let is = fs::metadata(f.folder.path().join("data").join(name)).unwrap();
        assert_eq!(is.mode() & 0o777, mode, "{name}");
    }
    assert_eq!(Store::new(f.folder.path().join("data")).run_blocking(|d| d.instance()).unwrap(), instance);
}

#[test]
fn a_session_is_made_once_and_found_by_key_and_id() {
    let f = Fixture::new();
    let first = patch(r#"{"sandboxBackend": "docker", "env": {"TOKEN": "s3cret"}}"#);
    let (made, new) = f.run(|d| d.create_session(&key("a/b ж"), &first, &ME, NOW));
    assert!(new);
    let expected = Session {
        number: made.number,
        key: key("a/b ж"),
        sandbox_id: SandboxId::of(&key("a/b ж")),
        created_millis: NOW,
        last_used_millis: NOW,
        last_used_by: ME,
        ended: None,
        overrides: SessionOverrides {
            sandbox_backend: Some(BackendChoice::Named(BackendName::Docker)),
            ..SessionOverrides::default()
        },
        env: vec!["TOKEN".to_owned()],
        begins: None,
        sandbox: None,
    };
    assert_eq!(made, expected);
    let (again, new) =
        f.run(|d| d.create_session(&key("a/b ж"), &patch(r#"{"network": "open"}"#), &ME, NOW + 9));
    assert!(!new);
    assert_eq!(again, expected);
    assert_eq!(f.run(|d| d.session_of(&expected.sandbox_id)), Some(expected));
    assert_eq!(f.run(|d| d.session(&key("A/B ж"))), None);
}

#[test]
fn a_patch_keeps_clears_and_sets() {
    let f = Fixture::new();
    let all = r#"{
        "sandboxEnabled": true, "sandboxImage": "debian:12", "sandboxBackend": "auto", "network": "trusted",
        "limits": {"memory": 536870912, "cpus": 0.5, "pids": 64},
        "workspace": {"source": "/srv/work", "mode": "rw"}, "env": {"A": "1", "B": "2"}, "idleTtlSecs": 60,
        "trustedDomains": ["*.Example.com"], "deniedDomains": ["bad.example.com:443"], "onUnknown": "ask",
        "wasmFuelLimit": 5
    }"#;
    let (made, _) = f.run(|d| d.create_session(&key("s"), &patch(all), &ME, NOW));
    let set = made.overrides.clone();
    assert_eq!(set.sandbox_backend, Some(BackendChoice::Auto));
    assert_eq!(set.on_unknown, Some(OnUnknown::Ask));
    assert_eq!(
        set.workspace,
        Some(StoredWorkspace { source: "/srv/work".into(), mode: Some(MountMode::Rw) })
    );
    let text = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<SessionOverrides>(&text).unwrap(), set);

    let kept = f.run(|d| d.patch_session(&key("s"), &SessionPatch::default())).unwrap();
    assert_eq!(kept, made);

    let some = r#"{"sandboxImage": null, "network": "blocked", "limits": {"cpus": null, "pids": 9},
                   "workspace": null, "env": {"A": null, "C": "3"}, "trustedDomains": null}"#;
    let changed = f.run(|d| d.patch_session(&key("s"), &patch(some))).unwrap();
    let expected = SessionOverrides {
        sandbox_image: None,
        network: Some(Network::Blocked),
        limits: LimitOverrides { memory: Some(536_870_912), cpus: None, pids: Some(9) },
        workspace: None,
        trusted_domains: None,
        ..set
    };
    assert_eq!(changed.overrides, expected);
    assert_eq!(f.run(|d| d.session(&key("s"))).unwrap(), changed);
    let env = f.run(|d| d.session_env(made.number));
    let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(env, [("B", "2"), ("C", "3")]);

    let none = f.run(|d| d.patch_session(&key("s"), &patch(r#"{"limits": null, "env": null}"#))).unwrap();
    assert_eq!((none.overrides.limits, none.env), (LimitOverrides::default(), vec![]));
    assert_eq!(f.run(|d| d.patch_session(&key("other"), &SessionPatch::default())), None);
}

#[test]
fn what_cannot_be_right_is_refused_and_not_stored() {
    let read = |json: &str| serde_json::from_str::<SessionPatch>(json).unwrap_err().to_string();
    assert!(read(r#"{"sandboxBackend": "dokcer"}"#).contains("`docker`"));
    assert!(read(r#"{"sandboxBackend": 1}"#).contains("string"));
    assert!(read(r#"{"sandboxImage": "http://x"}"#).contains("image reference"));
    assert!(read(r#"{"trustedDomains": ["http://x"]}"#).contains("domain pattern"));
    assert!(read(r#"{"sandboxEnable": true}"#).contains("unknown field"));

    let f = Fixture::new();
    for (json, name) in [
        (r#"{"limits": {"memory": 1}}"#, "limits.memory"),
        (r#"{"limits": {"memory": 18446744073709551615}}"#, "limits.memory"),
        (r#"{"limits": {"cpus": 0}}"#, "limits.cpus"),
        (r#"{"limits": {"pids": 0}}"#, "limits.pids"),
        (r#"{"idleTtlSecs": 0}"#, "idleTtlSecs"),
        (r#"{"workspace": {"source": "relative"}}"#, "workspace"),
        (r#"{"env": {"A=B": "x"}}"#, "env"),
        (r#"{"env": {"A": "x\u0000"}}"#, "env"),
    ] {
        let made = f.store.run_blocking(|d| d.create_session(&key("s"), &patch(json), &ME, NOW));
        assert!(matches!(made, Err(StoreError::Override { name: n, .. }) if n == name), "{json}");
    }
    assert_eq!(f.run(|d| d.session(&key("s"))), None);
}

#[test]
fn values_of_variables_are_told_to_nobody_but_the_command() {
    let f = Fixture::new();
    let secret = patch(r#"{"env": {"TOKEN": "hunter2"}}"#);
    assert!(!format!("{secret:?}").contains("hunter2"));
    let (session, _) = f.run(|d| d.create_session(&key("s"), &secret, &ME, NOW));
    assert!(!format!("{session:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&session).unwrap().contains("hunter2"));
    let env = f.run(|d| d.session_env(session.number));
    assert_eq!(format!("{env:?}"), r#"[("TOKEN", set)]"#);
    for wrong in ["31337", "31337.5", "[31337]", r#"{"a": 31337}"#, "true"] {
        let read = serde_json::from_str::<SessionPatch>(&format!(r#"{{"env": {{"TOKEN": {wrong}}}}}"#));
        assert!(!read.unwrap_err().to_string().contains("31337"), "{wrong}");
    }

    let broken = r#"{"TOKEN": hunter2"#;
    f.run(|d| {
        d.connection().execute("UPDATE sessions SET env = ?1", [broken]).unwrap();
        Ok(())
    });
    let error = Error::from(f.store.run_blocking(|d| d.session_env(session.number)).unwrap_err());
    assert!(!format!("{error:?} {error}").contains("hunter2"));
}

#[test]
fn sessions_are_listed_in_pages() {
    let f = Fixture::new();
    for name in ["b", "a", "c", "B"] {
        f.session(name);
    }
    let page = |after: Option<&str>, most| {
        let after = after.map(key);
        f.run(|d| d.sessions(after.as_ref(), most)).into_iter().map(|s| s.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 3), ["B", "a", "b"]);
    assert_eq!(page(Some("b"), 3), ["c"]);
    assert_eq!(page(Some("aa"), 1), ["b"]);
}

#[test]
fn what_is_intended_with_a_sandbox_is_written_down() {
    let f = Fixture::new();
    let number = f.session("s").number;
    let lock = f.lock(number);
    let sandbox = |f: &Fixture| f.run(|d| d.session(&key("s"))).unwrap().sandbox;
    let first = f.run(|d| d.sandbox_opening(&lock, &opening(BackendName::Docker, "f1"), 64, &ME, NOW));
    let mut expected = StoredSandbox {
        generation: first,
        backend: BackendName::Docker,
        fingerprint: "f1".to_owned(),
        state: SandboxState::Opening,
        created_millis: NOW,
        opened_by: ME,
        judged: Judged::default(),
    };
    assert_eq!(sandbox(&f), Some(expected.clone()));
    f.run(|d| d.sandbox_state(&lock, first, SandboxState::Running));
    expected.state = SandboxState::Running;
    assert_eq!(sandbox(&f), Some(expected));
    assert!(matches!(f.store.run_blocking(|d| d.remove_session(&key("s"))), Err(StoreError::HasSandbox)));

    let second = f.run(|d| d.sandbox_opening(&lock, &opening(BackendName::Namespaces, "f2"), 64, &ME, NOW));
    assert_ne!(first, second);
    let late = f.store.run_blocking(|d| d.sandbox_gone(&lock, first, Some(Gone::Stopped)));
    assert!(matches!(late, Err(StoreError::SandboxChanged)));
    assert_eq!(f.run(|d| d.sandboxes()).len(), 1);
    f.run(|d| d.sandbox_state(&lock, second, SandboxState::Closing));
    assert_eq!(f.run(|d| d.sandbox_gone(&lock, second, Some(Gone::Stopped))), 0);
    assert_eq!(sandbox(&f), None);
    let third = f.run(|d| d.sandbox_opening(&lock, &opening(BackendName::Docker, "f1"), 64, &ME, NOW));
    assert!(third > second, "a generation is never used twice");
    f.run(|d| d.sandbox_gone(&lock, third, Some(Gone::Stopped)));
    assert!(f.run(|d| d.remove_session(&key("s"))));
    assert!(!f.run(|d| d.remove_session(&key("s"))));
    assert!(f.session("s").number > number, "nor is a session's number");
}

#[test]
fn one_at_a_time_holds_a_sessions_lock() {
    let f = Fixture::new();
    let (a, b) = (f.session("a").number, f.session("b").number);
    let lock = f.lock(a);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let other = Store::new(f.folder.path().join("data"));
    for store in [&f.store, &other] {
        let held = runtime.block_on(store.lock_session(a, Duration::from_millis(20)));
        assert!(matches!(held, Err(StoreError::SessionBusy(_))));
    }
    drop(f.lock(b));
    drop(lock);
    assert_eq!(f.lock(a).session(), a);
}

#[test]
fn a_command_is_remembered_from_before_its_start() {
    let f = Fixture::new();
    let number = f.session("s").number;
    let id = f.run(|d| d.begin_command(number, &command("echo out")));
    let entry = |f: &Fixture| f.run(|d| d.history(number, None, 10)).entries.remove(0);
    let mut expected = HistoryEntry {
        number: 1,
        command: "echo out".to_owned(),
        caller: ME,
        backend: BackendName::Namespaces,
        background: false,
        process: None,
        started_millis: NOW,
        result: HistoryResult::Running,
    };
    assert_eq!(entry(&f), expected);
    assert!(f.run(|d| d.end_command(id, &ended())));
    expected.result = HistoryResult::Ended {
        status: Status::Code(0),
        ending: Ending::Exited,
        micros: 1234,
        stdout: Kept { bytes: 3, head: b"out".to_vec(), tail: vec![] },
        stderr: Kept::default(),
    };
    assert_eq!(entry(&f), expected);
    assert!(!f.run(|d| d.end_command(id, &ended())), "it ends once");
    assert!(!f.run(|d| d.lose_command(id)));

    let unstarted = f.run(|d| d.begin_command(number, &command("nope")));
    f.run(|d| d.forget_command(unstarted));
    let next = f.run(|d| d.begin_command(number, &command("next")));
    assert_eq!((entry(&f).number, next.number()), (3, 3));
    assert!(f.run(|d| d.lose_command(next)));
    assert_eq!(entry(&f).result, HistoryResult::Lost);
}

#[test]
fn output_and_commands_are_kept_within_bounds() {
    let f = Fixture::new();
    let number = f.session("s").number;
    let stream: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
    let kept = Kept::whole(&stream);
    assert_eq!((kept.head.len(), kept.tail.len(), kept.bytes), (KEPT_BYTES, KEPT_BYTES, 100_000));
    let long = "ж".repeat(MAX_COMMAND);
    let id = f.run(|d| d.begin_command(number, &command(&long)));
    let excessive = Kept { bytes: 100_000, head: stream.clone(), tail: stream.clone() };
    f.run(|d| d.end_command(id, &Ended { stdout: excessive, ..ended() }));
    let entry = f.run(|d| d.history(number, None, 1)).entries.remove(0);
    assert_eq!(entry.command, "ж".repeat(MAX_COMMAND / 2));
    let HistoryResult::Ended { stdout, .. } = entry.result else { panic!("{entry:?}") };
    assert_eq!(stdout, kept);
}

#[test]
fn history_is_paged_and_trimmed() {
    let f = Fixture::new();
    let number = f.session("s").number;
    let other = f.session("other").number;
    let old = NewCommand { started_millis: NOW - MAX_AGE_MILLIS - 1, ..command("old") };
    for _ in 0..20 {
        let id = f.run(|d| d.begin_command(other, &old));
        f.run(|d| d.end_command(id, &ended()));
    }
    let held = f.run(|d| d.begin_command(number, &command("runs still")));
    f.run(|d| {
        for _ in 0..MAX_COMMANDS + 5 {
            let id = d.begin_command(number, &command("x"))?;
            d.end_command(id, &ended())?;
        }
        Ok(())
    });
    assert_eq!(f.run(|d| d.history(other, None, 100)).entries, [], "what is too old goes, whosoever it is");
    let all = f.run(|d| d.history(number, None, 2000));
    let numbers: Vec<u64> = all.entries.iter().map(|entry| entry.number).collect();
    // The last one trims before it: 1,000 that ended, and the one that runs.
    assert_eq!(numbers.len() as u64, MAX_COMMANDS + 1);
    assert_eq!(numbers.last(), Some(&held.number()));
    assert_eq!(all.next, None);

    let mut paged = Vec::new();
    let mut cursor = None;
    loop {
        let page = f.run(|d| d.history(number, cursor, 300));
        paged.extend(page.entries.iter().map(|entry| entry.number));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged, numbers);
    f.run(|d| d.remove_session(&key("s")));
    assert_eq!(f.run(|d| d.history(number, None, 1)).entries, []);
    assert!(!f.run(|d| d.end_command(held, &ended())));
    let gone = f.store.run_blocking(|d| d.begin_command(number, &command("x")));
    assert!(matches!(gone, Err(StoreError::NoSession)));
}

#[test]
fn commands_of_a_process_that_died_are_lost_and_those_of_the_sandbox_are_not() {
    let f = Fixture::new();
    let number = f.session("s").number;
    // Another store stands for another process: its locks are its own.
    let other = Store::new(f.folder.path().join("data"));
    let background = NewCommand { background: true, ..command("server") };
    other.run_blocking(|d| d.begin_command(number, &command("foreground"))).unwrap();
    let kept = other.run_blocking(|d| d.begin_command(number, &background)).unwrap();
    other.run_blocking(|d| d.command_started(kept, ProcessId(7))).unwrap();
    other.run_blocking(|d| d.begin_command(number, &background)).unwrap();
    let mine = f.run(|d| d.begin_command(number, &command("mine")));
    assert_eq!(f.run(|d| d.sweep_lost()), 0);
    drop(other);
    assert_eq!(f.run(|d| d.sweep_lost()), 2);
    let lost = f.run(|d| d.tell_lost(number));
    let lost: Vec<_> =
        lost.iter().map(|lost| (lost.number, lost.command.as_str(), lost.background)).collect();
    assert_eq!(lost, [(1, "foreground", false), (3, "server", true)]);
    assert_eq!((f.run(|d| d.sweep_lost()), f.run(|d| d.tell_lost(number))), (0, vec![]));
    let held = f.run(|d| d.background_commands(number));
    assert_eq!(held, [BackgroundCommand { id: kept, process: ProcessId(7) }]);
    assert!(f.run(|d| d.end_command(mine, &ended())));

    let lock = f.lock(number);
    let generation =
        f.run(|d| d.sandbox_opening(&lock, &opening(BackendName::Namespaces, "f"), 64, &ME, NOW));
    assert_eq!(
        f.run(|d| d.sandbox_gone(&lock, generation, Some(Gone::Stopped))),
        1,
        "its background command goes with a sandbox"
    );
    assert_eq!(f.run(|d| d.background_commands(number)), []);
    assert_eq!(f.run(|d| d.tell_lost(number)).len(), 1);
}

#[test]
fn single_values_are_kept() {
    let f = Fixture::new();
    f.run(|d| d.set_meta("x", Some("1")));
    f.run(|d| d.set_meta("x", Some("2")));
    assert_eq!(f.run(|d| d.meta("x")).as_deref(), Some("2"));
    f.run(|d| d.set_meta("x", None));
    assert_eq!(f.run(|d| d.meta("x")), None);
}

fn raw(f: &Fixture, sql: &str) {
    rusqlite::Connection::open(f.file()).unwrap().execute_batch(sql).unwrap();
}

fn code(f: &Fixture) -> &'static str {
    let store = Store::new(f.folder.path().join("data"));
    store.run_blocking(|d| d.instance()).unwrap_err().code()
}

#[test]
fn a_newer_store_and_one_of_another_program_are_refused_untouched() {
    let f = Fixture::new();
    fs::create_dir(f.folder.path().join("data")).unwrap();
    raw(&f, "CREATE TABLE theirs (x)");
    assert_eq!(code(&f), "store-not-ours");
    raw(&f, "SELECT * FROM theirs");
    fs::remove_file(f.file()).unwrap();

    f.session("s");
    raw(&f, "PRAGMA user_version = 99");
    let store = Store::new(f.folder.path().join("data"));
    let error = store.run_blocking(|d| d.instance()).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, known: schema::VERSION, .. }));
    let error = Error::from(error);
    assert_eq!((error.code(), error.kind()), ("store-newer", "refused"));
    assert!(error.to_string().contains("99") && error.to_string().contains(&schema::VERSION.to_string()));
    raw(&f, &format!("PRAGMA user_version = {}", schema::VERSION));
    assert!(store.run_blocking(|d| d.session(&key("s"))).unwrap().is_some());
}

#[test]
fn what_is_no_file_of_ours_is_refused() {
    let f = Fixture::new();
    let data = f.folder.path().join("data");
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(f.folder.path().join("elsewhere"), f.file()).unwrap();
    assert_eq!(code(&f), "store-not-a-file");
    assert!(!f.folder.path().join("elsewhere").exists());
    fs::remove_file(f.file()).unwrap();
    fs::create_dir(f.file()).unwrap();
    assert_eq!(code(&f), "store-not-a-file");
    fs::remove_dir(f.file()).unwrap();

    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(code(&f), "store-exposed");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    f.session("s");
    fs::set_permissions(f.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let again = Store::new(&data);
    again.run_blocking(|d| d.instance()).unwrap();
    assert_eq!(fs::metadata(f.file()).unwrap().mode() & 0o777, 0o600);

    // A link to the data directory itself is the owner's business.
    std::os::unix::fs::symlink(&data, f.folder.path().join("link")).unwrap();
    Store::new(f.folder.path().join("link")).run_blocking(|d| d.instance()).unwrap();

    let plain = f.folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    let error = Store::new(&plain).run_blocking(|d| d.instance()).unwrap_err();
    assert_eq!(error.code(), "store-unusable");
}

#[test]
fn what_belongs_to_another_user_is_refused() {
    let f = Fixture::new();
    if !rustix::process::geteuid().is_root() {
        // The root directory is nobody else's.
        let error = Store::new("/").run_blocking(|d| d.instance()).unwrap_err();
        assert_eq!(error.code(), "store-owner");
        return;
    }
    f.session("s");
    std::os::unix::fs::chown(f.file(), Some(12345), None).unwrap();
    assert_eq!(code(&f), "store-owner");
    std::os::unix::fs::chown(f.file(), Some(0), None).unwrap();
    std::os::unix::fs::chown(f.folder.path().join("data"), Some(12345), None).unwrap();
    assert_eq!(code(&f), "store-owner");
}

fn kept(f: &Fixture) -> Vec<String> {
    let entries = fs::read_dir(f.folder.path().join("data")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.contains("corrupt")).collect();
    names.sort();
    names
}

#[test]
fn a_damaged_store_is_put_aside_whole_and_that_is_said() {
    for damage in ["garbage", "header", "log without database"] {
        let f = Fixture::new();
        f.session("s");
        // The first page stands in the database then, and the log holds others.
        f.run(|d| {
            d.connection().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            Ok(())
        });
        f.session("t");
        let garbage = b"this is not a database, but it is long enough to be looked at by one".repeat(100);
        match damage {
            "garbage" => fs::write(f.file(), &garbage).unwrap(),
            "header" => fs::write(f.file(), vec![0; 4096]).unwrap(),
            _ => fs::remove_file(f.file()).unwrap(),
        }
        let log = fs::read(f.folder.path().join("data/moltis.db-wal")).unwrap();
        let store = Store::new(f.folder.path().join("data"));
        // The first store is another process that has the database open.
        let error = store.run_blocking(|d| d.session(&key("s"))).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { kept: None, .. }), "{damage}: {error:?}");
        assert_eq!(kept(&f), [""; 0]);
        let Fixture { folder, store: first } = f;
        drop(first);
        let f = Fixture { folder, store };
        // What it held decides what may run: the first to ask is told, and the next begins anew.
        let error = f.store.run_blocking(|d| d.session(&key("s"))).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { kept: Some(_), .. }), "{damage}: {error:?}");
        assert_eq!(f.run(|d| d.session(&key("s"))), None);
        let names = kept(&f);
        assert!(names.iter().all(|name| name.starts_with("moltis.db.corrupt-")), "{names:?}");
        let kept_log = names.iter().find(|name| name.ends_with("-wal")).unwrap();
        assert_eq!(fs::read(f.folder.path().join("data").join(kept_log)).unwrap(), log);
        if damage == "garbage" {
            assert_eq!(fs::read(f.folder.path().join("data").join(&names[0])).unwrap(), garbage);
        }
        f.session("new");
        let next = Store::new(f.folder.path().join("data"));
        assert!(next.run_blocking(|d| d.session(&key("new"))).unwrap().is_some());
    }
}

#[test]
fn damage_that_is_found_in_the_middle_of_work_fails_that_work_only() {
    let f = Fixture::new();
    let number = f.session("s").number;
    f.run(|d| {
        for _ in 0..200 {
            let id = d.begin_command(number, &command(&"x".repeat(2000)))?;
            d.end_command(id, &ended())?;
        }
        d.connection().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        Ok(())
    });
    let Fixture { folder, store } = f;
    drop(store);
    let store = Store::new(folder.path().join("data"));
    let f = Fixture { folder, store };
    let mut bytes = fs::read(f.file()).unwrap();
    let second_half = bytes.len() / 8192 * 4096;
    bytes[second_half..].fill(0x5a);
    fs::write(f.file(), bytes).unwrap();

    assert!(f.run(|d| d.session(&key("s"))).is_some(), "the damage lies elsewhere");
    let error = f.store.run_blocking(|d| d.history(number, None, 1000)).unwrap_err();
    let StoreError::Corrupt { kept: Some(place), .. } = &error else { panic!("{error:?}") };
    assert!(place.exists());
    assert_eq!(f.run(|d| d.session(&key("s"))), None);
}

thread_local! {
    static SEEN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

#[test]
fn no_statement_of_a_command_walks_a_table() {
    let f = Fixture::new();
    let number = f.session("s").number;
    f.run(|d| {
        let traced = d.connection().trace_v2(
            TraceEventCodes::SQLITE_TRACE_STMT,
            Some(|event: TraceEvent<'_>| {
                if let TraceEvent::Stmt(statement, _) = event {
                    SEEN.with_borrow_mut(|seen| seen.insert(statement.sql().into_owned()));
                }
            }),
        );
        traced.unwrap();
        Ok(())
    });
    let lock = f.lock(number);
    f.run(|d| {
        d.session(&key("s"))?;
        d.session_of(&SandboxId::of(&key("s")))?;
        d.sessions(None, 10)?;
        d.create_session(&key("t"), &patch(r#"{"network": "open"}"#), &ME, NOW)?;
        d.patch_session(&key("t"), &patch(r#"{"env": {"A": "b"}}"#))?;
        d.session_env(number)?;
        d.touch_session(number, &ME, NOW)?;
        let generation = d.sandbox_opening(&lock, &opening(BackendName::Docker, "f"), 64, &ME, NOW)?;
        d.sandbox_state(&lock, generation, SandboxState::Running)?;
        d.sandbox_gone(&lock, generation, Some(Gone::Stopped))?;
        for _ in 0..MAX_COMMANDS + 2 {
            let id = d.begin_command(number, &command("x"))?;
            d.end_command(id, &ended())?;
        }
        let old = NewCommand { started_millis: NOW + MAX_AGE_MILLIS + 10, ..command("x") };
        let id = d.begin_command(number, &old)?;
        d.command_started(id, ProcessId(1))?;
        d.lose_command(id)?;
        d.forget_command(id)?;
        d.background_commands(number)?;
        d.history(number, None, 10)?;
        d.sweep_lost()?;
        d.sweep_lost_of(number)?;
        d.last_end(number)?;
        d.was_ended(number, 1)?;
        d.last_backend(number)?;
        d.forget_unused_session(number)?;
        d.instance()?;
        d.remove_session(&key("t"))?;
        Ok(())
    });
    let other = Store::new(f.folder.path().join("data"));
    other.run_blocking(|d| d.begin_command(number, &command("x"))).unwrap();
    drop(other);
    f.run(|d| {
        assert_eq!(d.sweep_lost()?, 1);
        assert_eq!(d.tell_lost(number)?.len(), 1);
        let seen = SEEN.take();
        let seen: Vec<_> =
            seen.iter().filter(|sql| !["BEGIN", "COMMIT"].iter().any(|w| sql.starts_with(w))).collect();
        assert!(seen.len() > 20, "{seen:#?}");
        for sql in seen.into_iter().filter(|sql| !sql.starts_with("--")) {
            let mut explain = d.connection().prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let plan = explain.raw_query().mapped(|row| row.get::<_, String>(3)).map(|line| line.unwrap());
            for line in plan {
                // Sandboxes are counted when one is opened: there are at most `max_sandboxes`.
                let counts = sql.starts_with("SELECT count(*) FROM sandboxes");
                let walks = line.starts_with("SCAN") && line != "SCAN CONSTANT ROW" && !counts;
                assert!(!walks && !line.contains("TEMP B-TREE"), "{line} in {sql}");
            }
        }
        Ok(())
    });
}

/// Prints figures; what must hold is the ratio.
#[test]
fn a_thousand_sessions_and_a_long_history_cost_a_command_nothing() {
    let small = Fixture::new();
    let large = Fixture::new();
    large.run(|d| {
        for i in 0..1000 {
            d.create_session(&key(&format!("session {i}")), &SessionPatch::default(), &ME, NOW)?;
        }
        d.connection()
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999)
                 INSERT INTO commands (session, number, state, background, backend, caller, command, started, code,
                     ending, micros, stdout_bytes, stderr_bytes, stdout_head)
                 SELECT i % 1000 + 1, i / 1000 + 1, 'ended', 0, 'namespaces', 'cli:0', 'make test', 1800000000000, 0,
                     'exited', 1000, 300, 0, randomblob(300) FROM n;
                 UPDATE sessions SET commands = 100;
                 PRAGMA wal_checkpoint(TRUNCATE);",
            )
            .unwrap();
        Ok(())
    });
    let time = |f: &Fixture| {
        let number = f.session("measured").number;
        let mut took: Vec<Duration> = (0..300)
            .map(|_| {
                let since = Instant::now();
                f.run(|d| {
                    d.session(&key("measured"))?;
                    d.sweep_lost()?;
                    let id = d.begin_command(number, &command("true"))?;
                    d.end_command(id, &ended())
                });
                since.elapsed()
            })
            .collect();
        took.sort();
        took[took.len() / 2]
    };
    let (small, large) = (time(&small), time(&large));
    println!(
        "a command costs {small:?} with nothing stored, {large:?} with 1,000 sessions and 100,000 commands"
    );
    assert!(large < small * 3 + Duration::from_micros(300));
}
