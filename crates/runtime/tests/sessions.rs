//! Sessions on real backends: what lasts, what is made anew and why, what is refused.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use moltis_config::{BackendChoice, Config};
use moltis_runtime::store::{
    Gone, HistoryResult, NewSandbox, SandboxState, Session, SessionPatch, Store, now_millis,
};
use moltis_runtime::{OpenSession, Overrides, Runtime, SessionRequest, Stopped};
use moltis_sandbox::{
    BackendName, Command, Error, ExecEvent, ExecRequest, Outcome, SessionKey, Setting, Status,
};

/// The backends that the same promises are held against.
const BACKENDS: [BackendName; 2] = [BackendName::Namespaces, BackendName::RestrictedHost];

/// A data directory of its own. Its sandboxes end with it.
pub(crate) struct Here {
    temp: tempfile::TempDir,
    backend: BackendName,
}

impl Here {
    pub(crate) fn new(backend: BackendName) -> Self {
        Self { temp: tempfile::tempdir().unwrap(), backend }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.data_dir.value = self.data();
        config.tools.exec.sandbox.backend.value = BackendChoice::Named(self.backend);
        config
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join("data")
    }

    /// The runtime of a process of its own, as far as what is stored goes.
    pub(crate) fn runtime(&self) -> Runtime {
        Runtime::new(self.config(), None, Vec::new())
    }

    pub(crate) fn runtime_with(&self, change: impl FnOnce(&mut Config)) -> Runtime {
        let mut config = self.config();
        change(&mut config);
        Runtime::new(config, None, Vec::new())
    }

    /// Names of what is left of sandboxes.
    fn remains(&self) -> Vec<String> {
        let mut names = Vec::new();
        for folder in ["run", "run-host"] {
            let Ok(entries) = std::fs::read_dir(self.data().join(folder)) else { continue };
            let names_there = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
            // The folders of engines hold nothing here.
            names.extend(names_there.filter(|name| moltis_sandbox::SandboxId::parse(name).is_some()));
        }
        names
    }

    /// Ends all there is and sees that nothing is left.
    pub(crate) async fn end(self) {
        end_all(&self.runtime()).await;
        assert_eq!(self.remains(), Vec::<String>::new());
    }
}

async fn end_all(runtime: &Runtime) {
    for info in runtime.sandboxes().await.unwrap() {
        runtime.remove_sandbox(&info.id).await.unwrap();
    }
}

impl Drop for Here {
    /// A test that fails leaves nothing running either.
    fn drop(&mut self) {
        if self.remains().is_empty() {
            return;
        }
        let runtime = self.runtime();
        let ended = std::thread::spawn(move || {
            let thread = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            thread.block_on(end_all(&runtime));
        });
        let _ = ended.join();
    }
}

pub(crate) fn key(text: &str) -> SessionKey {
    SessionKey::new(text).unwrap()
}

pub(crate) fn request(text: &str) -> SessionRequest {
    SessionRequest::new(key(text))
}

fn shell(line: &str) -> ExecRequest {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(20));
    request
}

async fn ran(session: &mut OpenSession, request: ExecRequest) -> (String, Outcome) {
    let mut exec = session.exec(request).await.unwrap();
    let mut text = Vec::new();
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => text.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => return (String::from_utf8(text).unwrap(), outcome),
            _ => {}
        }
    }
    panic!("no exit");
}

pub(crate) async fn out(session: &mut OpenSession, line: &str) -> String {
    ran(session, shell(line)).await.0
}

pub(crate) async fn background(session: &mut OpenSession, line: &str) -> moltis_sandbox::exec::ProcessId {
    let mut request = shell(line);
    (request.timeout, request.background, request.stdin) = (None, true, true);
    let mut exec = session.exec(request).await.unwrap();
    loop {
        if let ExecEvent::Started(process) = exec.events.next().await.unwrap().unwrap() {
            return process;
        }
    }
}

pub(crate) async fn open(runtime: &Runtime, name: &str) -> OpenSession {
    runtime.open_session(&request(name)).await.unwrap()
}

pub(crate) async fn stored(runtime: &Runtime, name: &str) -> Session {
    runtime.session(&key(name)).await.unwrap().unwrap()
}

pub(crate) async fn set(runtime: &Runtime, name: &str, json: &str) {
    let patch: SessionPatch = serde_json::from_str(json).unwrap();
    runtime.set_session(&key(name), patch, &moltis_runtime::store::Caller::this_user()).await.unwrap();
}

/// Waits until something is so.
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !so().await {
        assert!(since.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_session_is_found_again_with_all_that_runs_in_it() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let mut first = open(&here.runtime(), "s").await;
        assert!(first.sandbox.is_new());
        assert_eq!((first.backend, first.restarted), (backend, None));
        out(&mut first, "echo kept > kept").await;
        let process = background(&mut first, "echo ready; read line; echo got $line; exit 7").await;
        drop(first);

        let later = here.runtime();
        let mut again = open(&later, "s").await;
        assert!(!again.sandbox.is_new());
        assert_eq!(again.restarted, None);
        assert_eq!(out(&mut again, "cat kept").await, "kept\n");
        let (_, found) = later.find_sandbox(&key("s")).await.unwrap().unwrap();
        let mut watched = found.attach(process, 0, 0, true).await.unwrap();
        watched.control.stdin("you\n".into()).await.unwrap();
        let mut text = Vec::new();
        let outcome = loop {
            match watched.events.next().await.unwrap().unwrap() {
                ExecEvent::Stdout(bytes) => text.extend_from_slice(&bytes),
                ExecEvent::Exit(outcome) => break outcome,
                _ => {}
            }
        };
        assert_eq!((text.as_slice(), outcome.status), (&b"ready\ngot you\n"[..], Status::Code(7)));

        let page = here.runtime().history(&key("s"), None, 10).await.unwrap();
        let told: Vec<_> = page.entries.iter().map(|e| (e.command.as_str(), e.background)).collect();
        assert_eq!(
            told,
            [
                ("cat kept", false),
                ("echo ready; read line; echo got $line; exit 7", true),
                ("echo kept > kept", false)
            ]
        );
        let HistoryResult::Ended { status, stdout, .. } = &page.entries[1].result else { panic!("{page:?}") };
        assert_eq!((*status, stdout.head.as_slice()), (Status::Code(7), &b"ready\ngot you\n"[..]));
        here.end().await;
    }
}

#[tokio::test]
async fn callers_at_the_same_moment_get_one_sandbox() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let opened = futures_util::future::join_all((0..8).map(|_| {
            let runtime = here.runtime();
            async move {
                let mut session = open(&runtime, "s").await;
                out(&mut session, "echo x >> all").await;
                session.sandbox.is_new()
            }
        }))
        .await;
        assert_eq!(opened.into_iter().filter(|new| *new).count(), 1);
        let runtime = here.runtime();
        assert_eq!(out(&mut open(&runtime, "s").await, "cat all | wc -l").await.trim(), "8");
        assert_eq!(runtime.sandboxes().await.unwrap().len(), 1);
        here.end().await;
    }
}

#[tokio::test]
async fn a_changed_spec_makes_it_anew_unless_something_runs() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    let process = background(&mut session, "sleep 1000").await;
    out(&mut session, "echo x > /tmp/x; echo y > y").await;
    set(&runtime, "s", r#"{"limits": {"pids": 99}}"#).await;
    let busy = runtime.open_session(&request("s")).await.map(drop).unwrap_err();
    assert_eq!((busy.code(), busy.kind()), ("sandbox-busy", "refused"));
    assert!(busy.diagnosis().cause.as_ref().unwrap().contains("sleep 1000"), "{busy:?}");
    // Back as it was it is found as it was.
    set(&runtime, "s", r#"{"limits": null}"#).await;
    assert_eq!(out(&mut open(&runtime, "s").await, "cat /tmp/x").await, "x\n");

    set(&runtime, "s", r#"{"limits": {"pids": 99}}"#).await;
    session.sandbox.stop(process).await.unwrap();
    let mut new = open(&runtime, "s").await;
    assert_eq!((new.restarted, new.sandbox.is_new()), (Some(Gone::Spec), true));
    assert_eq!(out(&mut new, "cat /tmp/x 2>&1 | wc -l; cat y").await, "1\ny\n", "the home stays");
    assert_eq!(open(&runtime, "s").await.restarted, None);

    background(&mut new, "sleep 1000").await;
    set(&runtime, "s", r#"{"limits": {"pids": 98}}"#).await;
    let recreate = SessionRequest { recreate: true, ..request("s") };
    assert_eq!(runtime.open_session(&recreate).await.unwrap().restarted, Some(Gone::Recreated));
    let page = runtime.history(&key("s"), None, 2).await.unwrap();
    assert_eq!(page.entries[0].result, HistoryResult::Lost, "{page:?}");
    here.end().await;
}

#[tokio::test]
async fn what_is_demanded_later_is_judged_though_the_sandbox_stays_the_same() {
    let here = Here::new(BackendName::RestrictedHost);
    let runtime = here.runtime();
    let session = open(&runtime, "s").await;
    assert!(session.not_enforced.iter().any(|left| left.key == "network"), "{:?}", session.not_enforced);
    // The same value, but now somebody asks for it.
    set(&runtime, "s", r#"{"network": "blocked"}"#).await;
    let refused = runtime.open_session(&request("s")).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), "demand-not-kept");
    set(&runtime, "s", r#"{"network": null}"#).await;
    let again = open(&runtime, "s").await;
    assert!(!again.sandbox.is_new());
    assert_eq!(again.not_enforced, session.not_enforced);
    here.end().await;
}

#[tokio::test]
async fn a_request_must_agree_with_the_session() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let flag = |pids| {
        let pids = Some(Setting::new(pids, moltis_sandbox::Origin::Flag));
        SessionRequest { settings: Overrides { pids, ..Overrides::default() }, ..request("s") }
    };
    runtime.open_session(&flag(77)).await.unwrap();
    assert_eq!(stored(&runtime, "s").await.overrides.limits.pids, Some(77));
    runtime.open_session(&flag(77)).await.unwrap();
    let differs = runtime.open_session(&flag(78)).await.map(drop).unwrap_err();
    assert_eq!((differs.code(), differs.kind()), ("session-differs", "refused"));
    assert!(differs.diagnosis().fix.as_ref().unwrap().contains("moltis session set s --pids 78"));

    let none = SessionRequest { must_exist: true, ..request("t") };
    assert_eq!(runtime.open_session(&none).await.map(drop).unwrap_err().code(), "session-missing");
    assert_eq!(runtime.session(&key("t")).await.unwrap(), None);
    here.end().await;
}

#[tokio::test]
async fn an_idle_sandbox_ends_and_the_next_answer_says_so() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let runtime = here.runtime();
        set(&runtime, "s", r#"{"idleTtlSecs": 1}"#).await;
        let mut session = open(&runtime, "s").await;
        out(&mut session, "echo x > x").await;
        until("it is idle", async || runtime.find_sandbox(&key("s")).await.unwrap().is_none()).await;
        let next = open(&here.runtime(), "s").await;
        assert_eq!((next.restarted, next.sandbox.is_new()), (Some(Gone::Idle), true), "{backend}");
        here.end().await;
    }
}

#[tokio::test]
async fn one_that_died_is_made_anew_and_its_background_commands_are_lost() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    background(&mut session, "sleep 1000").await;
    session.sandbox.close().await.unwrap();
    // A command that had not started yet finds a new one by itself.
    assert_eq!(out(&mut session, "echo new").await, "new\n");
    assert_eq!(session.restarted, Some(Gone::Crash));
    let page = runtime.history(&key("s"), None, 9).await.unwrap();
    let results: Vec<_> = page.entries.iter().map(|e| e.result == HistoryResult::Lost).collect();
    assert_eq!(results, [false, true]);
    here.end().await;
}

#[tokio::test]
async fn whoever_died_while_starting_or_ending_is_cleaned_up_after() {
    for (state, backend) in [
        (SandboxState::Opening, BackendName::Namespaces),
        (SandboxState::Closing, BackendName::RestrictedHost),
    ] {
        let here = Here::new(backend);
        let runtime = here.runtime();
        let mut session = open(&runtime, "s").await;
        let number = session.session.number;
        out(&mut session, "echo x > kept").await;
        // As another process leaves it that is killed.
        let store = Store::new(here.data());
        let lock = store.lock_session(number, Duration::from_secs(5)).await.unwrap();
        store
            .run(move |db| {
                let row = db.session(&key("s"))?.unwrap().sandbox.unwrap();
                if state == SandboxState::Closing {
                    return db.sandbox_state(&lock, row.generation, state);
                }
                let new = NewSandbox { backend, fingerprint: row.fingerprint, judged: row.judged };
                let by = moltis_runtime::store::Caller::this_user();
                db.sandbox_opening(&lock, &new, 64, &by, now_millis()).map(drop)
            })
            .await
            .unwrap();
        let mut next = open(&here.runtime(), "s").await;
        assert_eq!((next.restarted, next.sandbox.is_new()), (Some(Gone::Crash), true));
        assert_eq!(out(&mut next, "cat kept").await, "x\n", "home and scratch folder stay");
        assert_eq!(here.remains().len(), 1);
        here.end().await;
    }
}

#[tokio::test]
async fn the_longest_unused_makes_room_and_none_that_is_in_use() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime_with(|config| config.tools.exec.sandbox.max_sandboxes.value = 2);
    let mut a = open(&runtime, "a").await;
    out(&mut a, "true").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut b = open(&runtime, "b").await;
    out(&mut b, "true").await;
    open(&runtime, "c").await;
    assert_eq!(stored(&runtime, "a").await.sandbox, None);
    assert_eq!(open(&runtime, "b").await.restarted, None);
    // With both in use there is no room.
    let mut c = open(&runtime, "c").await;
    background(&mut b, "sleep 1000").await;
    let process = background(&mut c, "sleep 1000").await;
    let full = runtime.open_session(&request("a")).await.map(drop).unwrap_err();
    assert_eq!((full.code(), full.kind()), ("max-sandboxes", "refused"));
    c.sandbox.stop(process).await.unwrap();
    assert_eq!(open(&runtime, "a").await.restarted, Some(Gone::Evicted));
    assert_eq!(open(&runtime, "a").await.restarted, None);
    here.end().await;
}

#[tokio::test]
async fn a_home_that_was_closed_inside_is_opened_again() {
    use std::os::unix::fs::PermissionsExt;

    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "a").await;
    out(&mut session, "echo x > $HOME/x; chmod 000 $HOME").await;
    // All sessions share it.
    assert_eq!(out(&mut open(&runtime, "b").await, "cat x").await, "x\n");
    let home = runtime.home(&key("a")).unwrap();
    assert_eq!(std::fs::metadata(home).unwrap().permissions().mode() & 0o777, 0o700);
    here.end().await;
}

#[tokio::test]
async fn a_sandbox_ends_though_that_cannot_be_written_down() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    background(&mut session, "sleep 1000").await;
    // A process that was stopped in the middle of writing, or a full disk.
    let writer = rusqlite::Connection::open(here.data().join("moltis.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = runtime.stop_sandbox(&key("s")).await.unwrap_err();
    assert_eq!(error.code(), "store-busy");
    assert_eq!(here.remains(), Vec::<String>::new());
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(open(&runtime, "s").await.restarted, Some(Gone::Crash));
    here.end().await;
}

#[tokio::test]
async fn stopped_and_removed_sessions_leave_what_they_should() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let runtime = here.runtime_with(|config| {
            config.tools.exec.sandbox.home_persistence.value = moltis_config::words::HomePersistence::Session;
        });
        let mut session = open(&runtime, "s").await;
        out(&mut session, "echo x > x").await;
        assert_eq!(runtime.stop_sandbox(&key("s")).await.unwrap(), Stopped::Ended);
        assert_eq!(runtime.stop_sandbox(&key("s")).await.unwrap(), Stopped::Nothing);
        assert_eq!(here.remains(), Vec::<String>::new());
        let mut session = open(&runtime, "s").await;
        assert_eq!(session.restarted, Some(Gone::Stopped));
        assert_eq!(out(&mut session, "cat x").await, "x\n");
        let home = here.data().join("sandbox/home/session").join(session.session.sandbox_id.as_str());
        let removed = runtime.remove_session(&key("s"), false).await.unwrap();
        assert!(removed.existed && !removed.home);
        assert_eq!(runtime.session(&key("s")).await.unwrap(), None);
        assert!(home.exists());
        open(&runtime, "s").await;
        runtime.remove_session(&key("s"), true).await.unwrap();
        assert!(!home.exists());
        let error = runtime.remove_session(&key("s"), true).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), ("session-missing", "invalid"));
        here.end().await;
    }
}

#[tokio::test]
async fn a_home_over_its_quota_takes_no_new_command() {
    let here = Here::new(BackendName::Namespaces);
    let quota = |bytes| {
        here.runtime_with(|config| {
            config.tools.exec.sandbox.home_quota = Some(Setting::new(bytes, moltis_sandbox::Origin::File));
        })
    };
    let runtime = quota(1 << 20);
    let mut session = open(&runtime, "s").await;
    out(&mut session, "head -c 2000000 /dev/urandom > big").await;
    let over = session.exec(shell("true")).await.map(drop).unwrap_err();
    assert_eq!((over.code(), over.kind()), ("home-over-quota", "refused"));
    // Its files can be reached, and with them removed it runs again.
    let big = moltis_sandbox::GuestPath::new("/home/sandbox/big").unwrap();
    session.sandbox.files().remove(&big, false).await.unwrap();
    assert_eq!(out(&mut session, "echo again").await, "again\n");
    // What cannot be measured may be anything.
    out(&mut session, "i=0; while [ $i -lt 130 ]; do mkdir d; cd d; i=$((i+1)); done").await;
    let deep = session.exec(shell("true")).await.map(drop).unwrap_err();
    assert_eq!((deep.code(), deep.kind()), ("home-not-measurable", "refused"));
    assert!(deep.diagnosis().cause.as_ref().unwrap().contains("deeper than 128"), "{deep:?}");
    let top = moltis_sandbox::GuestPath::new("/home/sandbox/d").unwrap();
    session.sandbox.files().remove(&top, true).await.unwrap();
    assert_eq!(out(&mut session, "echo again").await, "again\n");
    here.end().await;

    let host = Here::new(BackendName::RestrictedHost);
    let runtime = host.runtime_with(|config| {
        config.tools.exec.sandbox.home_quota = Some(Setting::new(1 << 30, moltis_sandbox::Origin::File));
    });
    let refused = runtime.open_session(&request("s")).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), "demand-not-kept");
    assert!(refused.to_string().contains("home_quota"), "{refused}");
}

#[tokio::test]
async fn variables_of_a_session_reach_its_commands_and_nothing_else() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    set(&runtime, "s", r#"{"env": {"TOKEN": "s3cret", "A": "session"}}"#).await;
    let mut session = open(&runtime, "s").await;
    let mut request = shell("echo $TOKEN $A; cat /proc/1/environ");
    request.env = vec![("A".into(), "command".into())];
    assert_eq!(ran(&mut session, request).await.0, "s3cret command\n");
    let page = runtime.history(&key("s"), None, 9).await.unwrap();
    assert!(!format!("{:?}", (page.entries[0].command.as_str(), &session.session)).contains("s3cret"));
    here.end().await;
}

#[tokio::test]
async fn a_session_may_be_switched_off_and_on() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    set(&runtime, "s", r#"{"sandboxEnabled": false}"#).await;
    let session = open(&runtime, "s").await;
    assert_eq!(session.backend, BackendName::None);
    assert_eq!(session.not_enforced[0].key, "sandbox");
    set(&runtime, "s", r#"{"sandboxEnabled": null}"#).await;
    let session = open(&runtime, "s").await;
    assert_eq!((session.backend, session.restarted), (BackendName::Namespaces, Some(Gone::Spec)));
    let off = here.runtime_with(|config| {
        config.tools.exec.sandbox.mode.value = moltis_config::words::Mode::Off;
    });
    assert_eq!(open(&off, "t").await.backend, BackendName::None);
    set(&off, "t", r#"{"sandboxEnabled": true}"#).await;
    assert_eq!(open(&off, "t").await.backend, BackendName::Namespaces);
    here.end().await;
}

#[tokio::test]
async fn dropping_a_command_ends_it_and_it_is_remembered_as_lost() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    let mut exec = session.exec(shell("sleep 1000")).await.unwrap();
    let Some(Ok(ExecEvent::Started(_))) = exec.events.next().await else { panic!("it does not start") };
    drop(exec);
    until("it is lost", async || {
        let page = runtime.history(&key("s"), None, 9).await.unwrap();
        page.entries[0].result == HistoryResult::Lost
    })
    .await;
    until("it has ended", async || out(&mut session, "pgrep -x sleep | wc -l").await.trim() == "0").await;
    let missing = session.exec(ExecRequest::new(Command::Argv(vec!["/no/such".into()]))).await;
    assert!(matches!(missing, Err(Error::Invalid(_))));
    let page = runtime.history(&key("s"), None, 9).await.unwrap();
    assert!(page.entries.iter().all(|entry| entry.command != "/no/such"), "what never ran is no history");
    here.end().await;
}

#[tokio::test]
async fn a_session_that_is_switched_on_again_is_isolated_again_whoever_chose() {
    let here = Here::new(BackendName::Namespaces);
    let auto = here.runtime_with(|config| config.tools.exec.sandbox.backend.value = BackendChoice::Auto);
    for (off, on) in [
        (r#"{"sandboxEnabled": false}"#, r#"{"sandboxEnabled": true}"#),
        (r#"{"sandboxEnabled": false}"#, r#"{"sandboxEnabled": null}"#),
        (r#"{"sandboxBackend": "none"}"#, r#"{"sandboxBackend": null}"#),
        (r#"{"sandboxBackend": "restricted-host"}"#, r#"{"sandboxBackend": "auto"}"#),
    ] {
        set(&auto, "s", off).await;
        assert_ne!(open(&auto, "s").await.backend, BackendName::Namespaces, "{off}");
        set(&auto, "s", on).await;
        assert_eq!(open(&auto, "s").await.backend, BackendName::Namespaces, "{on}");
        set(&auto, "s", r#"{"sandboxEnabled": null, "sandboxBackend": null}"#).await;
    }
    here.end().await;
}

#[tokio::test]
async fn a_flag_that_asks_for_the_default_is_a_demand_in_a_session_too() {
    let here = Here::new(BackendName::RestrictedHost);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    let flag = |settings: Overrides| SessionRequest { settings, ..request("s") };
    let network = Some(Setting::new(moltis_sandbox::Network::Blocked, moltis_sandbox::Origin::Flag));
    let asked = flag(Overrides { network, ..Overrides::default() });
    assert_eq!(runtime.open_session(&asked).await.map(drop).unwrap_err().code(), "demand-not-kept");
    // Without it the session goes on as it was.
    assert!(!open(&runtime, "s").await.sandbox.is_new());
    here.end().await;
}

#[tokio::test]
async fn what_a_session_asks_for_later_and_nothing_keeps_is_refused_though_its_sandbox_runs() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    set(&runtime, "s", r#"{"sandboxImage": "debian:12"}"#).await;
    assert_eq!(runtime.open_session(&request("s")).await.map(drop).unwrap_err().code(), "demand-not-kept");
    set(&runtime, "s", r#"{"sandboxImage": null}"#).await;
    assert!(!open(&runtime, "s").await.sandbox.is_new());
    here.end().await;
}

#[tokio::test]
async fn a_workspace_is_compared_with_how_it_is_mounted() {
    use moltis_config::words::MountAccess;
    use moltis_runtime::NamedWorkspace;
    use moltis_sandbox::MountMode;

    let here = Here::new(BackendName::RestrictedHost);
    let folder = here.temp.path().canonicalize().unwrap().join("w");
    std::fs::create_dir(&folder).unwrap();
    for (access, same, other) in [
        (MountAccess::Rw, MountMode::Rw, MountMode::Ro),
        (MountAccess::Ro, MountMode::Ro, MountMode::Rw),
        (MountAccess::None, MountMode::Ro, MountMode::Rw),
    ] {
        let runtime = here.runtime_with(|config| config.tools.exec.sandbox.workspace_mount.value = access);
        let name = format!("{access:?}");
        let asks = |mode| {
            let workspace = NamedWorkspace { source: folder.clone(), mode };
            let workspace = Some(Setting::new(workspace, moltis_sandbox::Origin::Flag));
            SessionRequest { settings: Overrides { workspace, ..Overrides::default() }, ..request(&name) }
        };
        runtime.open_session(&asks(None)).await.unwrap();
        runtime.open_session(&asks(None)).await.unwrap();
        let differs = runtime.open_session(&asks(Some(other))).await.map(drop).unwrap_err();
        assert_eq!(differs.code(), "session-differs", "{access:?}");
        // Read-only is refused where nothing can keep it, but not for being another than it is.
        let agreed = runtime.open_session(&asks(Some(same))).await.map(drop);
        assert!(agreed.is_ok() || agreed.unwrap_err().code() == "demand-not-kept");
    }
    here.end().await;
}

#[tokio::test]
async fn a_first_command_that_is_refused_leaves_no_session() {
    let here = Here::new(BackendName::RestrictedHost);
    let runtime = here.runtime();
    let network = Some(Setting::new(moltis_sandbox::Network::Trusted, moltis_sandbox::Origin::Flag));
    let asked = SessionRequest { settings: Overrides { network, ..Overrides::default() }, ..request("s") };
    assert_eq!(runtime.open_session(&asked).await.map(drop).unwrap_err().code(), "demand-not-kept");
    assert_eq!(runtime.session(&key("s")).await.unwrap(), None);
    here.end().await;
}

#[tokio::test]
async fn a_damaged_store_stops_the_command_that_finds_it() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    set(&runtime, "s", r#"{"limits": {"pids": 50}}"#).await;
    drop(runtime);
    // The log would mend it.
    std::fs::remove_file(here.data().join("moltis.db-wal")).unwrap();
    std::fs::write(here.data().join("moltis.db"), "no database at all, but long enough to be one").unwrap();
    let runtime = here.runtime();
    let error = runtime.open_session(&request("s")).await.map(drop).unwrap_err();
    assert_eq!((error.code(), error.kind()), ("store-corrupt", "unavailable"));
    assert!(error.diagnosis().fix.as_ref().unwrap().contains("moltis.db.corrupt-"), "{error:?}");
    open(&runtime, "s").await;
    here.end().await;
}

#[tokio::test]
async fn pruning_leaves_what_is_used_started_or_silent() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut busy = open(&runtime, "busy").await;
    let process = background(&mut busy, "sleep 1000").await;
    out(&mut open(&runtime, "idle").await, "true").await;
    let mut dead = open(&runtime, "dead").await;
    out(&mut dead, "true").await;
    dead.sandbox.close().await.unwrap();
    // Somebody is at it.
    open(&runtime, "starting").await;
    let number = stored(&runtime, "starting").await.number;
    let lock = Store::new(here.data()).lock_session(number, Duration::from_secs(5)).await.unwrap();

    let pruned = runtime.prune(false).await.unwrap();
    assert_eq!((pruned.removed.as_slice(), pruned.kept), (&[dead.session.sandbox_id.clone()][..], 3));
    let idle = stored(&runtime, "idle").await.sandbox_id;
    let pruned = runtime.prune(true).await.unwrap();
    assert_eq!((pruned.removed.as_slice(), pruned.kept), (&[idle][..], 2));
    assert!(busy.sandbox.processes().await.unwrap().iter().any(|one| one.id == process));
    drop(lock);
    busy.sandbox.stop(process).await.unwrap();
    here.end().await;
}

#[tokio::test]
async fn callers_that_ask_for_a_new_sandbox_at_once_share_it() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    let asked = SessionRequest { recreate: true, ..request("s") };
    let opened = futures_util::future::join_all((0..6).map(|_| {
        let (runtime, asked) = (here.runtime(), asked.clone());
        async move {
            let mut session = runtime.open_session(&asked).await.unwrap();
            out(&mut session, "sleep 0.3; echo done").await
        }
    }))
    .await;
    assert_eq!(opened, ["done\n"; 6]);
    here.end().await;
}

#[tokio::test]
async fn a_command_whose_sandbox_somebody_ends_says_so() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    let mut exec = session.exec(shell("sleep 1000")).await.unwrap();
    let Some(Ok(ExecEvent::Started(_))) = exec.events.next().await else { panic!("it does not start") };
    here.runtime().stop_sandbox(&key("s")).await.unwrap();
    let error = exec.events.next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.kind()), ("sandbox-ended", "lost"));
    here.end().await;
}

#[tokio::test]
async fn a_copy_of_the_data_directory_has_no_hold_on_the_sandboxes_of_the_original() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let mut session = open(&here.runtime(), "s").await;
        background(&mut session, "sleep 1000").await;
        let copy = Here::new(backend);
        let copied = std::process::Command::new("cp").arg("-a").args([here.data(), copy.data()]).status();
        assert!(copied.unwrap().success());
        let runtime = copy.runtime();
        assert!(runtime.find_sandbox(&key("s")).await.unwrap().is_none());
        runtime.prune(true).await.unwrap();
        open(&runtime, "s").await;
        runtime.remove_session(&key("s"), true).await.unwrap();
        assert_eq!(session.sandbox.activity().await.unwrap().operations, 1, "{backend}");
        assert!(!open(&here.runtime(), "s").await.sandbox.is_new());
        copy.end().await;
        here.end().await;
    }
}

#[tokio::test]
async fn no_command_is_lost_to_the_sandboxes_that_make_room_for_each_other() {
    let here = Here::new(BackendName::Namespaces);
    let one = |here: &Here| here.runtime_with(|config| config.tools.exec.sandbox.max_sandboxes.value = 1);
    let callers = (0..3).map(|caller| {
        let runtime = one(&here);
        async move {
            let (mut done, mut full) = (0, 0);
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                let mut session = match runtime.open_session(&request(&format!("s{caller}"))).await {
                    Ok(session) => session,
                    Err(error) if error.code() == "max-sandboxes" => {
                        full += 1;
                        continue;
                    }
                    Err(error) => panic!("{error:?}"),
                };
                match session.exec(shell("echo done")).await {
                    Ok(mut exec) => {
                        while let Some(event) = exec.events.next().await {
                            event.expect("a command that runs is not ended");
                        }
                        done += 1;
                    }
                    Err(error) => assert!(!matches!(error, Error::Lost(_)), "{error:?}"),
                }
            }
            (done, full)
        }
    });
    let counts = futures_util::future::join_all(callers).await;
    assert!(counts.iter().map(|(done, _)| done).sum::<i32>() > 5, "{counts:?}");
    here.end().await;
}
