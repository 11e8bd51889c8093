//! Daytona: what fails there, and what becomes of it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_remote::{DaytonaConfig, daytona};
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, Command, Detection, Error, ExecEvent, ExecRequest, ImageChoice, Lifetime, Network, Origin,
    Outcome, Sandbox, SandboxSpec, SessionKey, Setting, Status,
};
use moltis_testkit::remote::Fault;
use moltis_testkit::remote::daytona::{Age, Daytona};
use serde_json::json;

use crate::faults::{keep_logs, logged};

/// A stand-in whose sandboxes are this machine's, and a data directory.
pub struct Rig {
    pub daytona: Daytona,
    pub data: tempfile::TempDir,
    _machines: tempfile::TempDir,
}

impl Rig {
    pub async fn new(age: Age) -> Self {
        let machines = tempfile::tempdir().unwrap();
        let backend = NamespacesBackend::new(moltis_backend_namespaces::Config {
            data_dir: machines.path().to_owned(),
            config_dir: None,
        });
        let daytona = Daytona::start(Arc::new(backend), age).await;
        Self { daytona, data: tempfile::tempdir().unwrap(), _machines: machines }
    }

    pub fn config(&self) -> DaytonaConfig {
        config(&self.daytona.url(), self.data.path())
    }

    /// As another process would make one.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(daytona::backend(self.config()))
    }

    /// Nothing is left, and nothing was asked that no record knows.
    async fn is_clean(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.daytona.sessions() > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(self.daytona.wrong(), Vec::<String>::new());
        assert_eq!(self.daytona.machines(), Vec::<String>::new());
    }

    fn count(&self, call: &str, ends: &str) -> usize {
        self.daytona.calls().iter().filter(|one| one.starts_with(call) && one.ends_with(ends)).count()
    }
}

pub fn config(url: &str, data: &Path) -> DaytonaConfig {
    DaytonaConfig {
        data_dir: data.to_owned(),
        config_dir: None,
        api_url: url.to_owned(),
        key: Some(Secret::new(Daytona::KEY)),
        target: Some("us".to_owned()),
        image: None,
    }
}

fn spec(key: &str, lifetime: Lifetime) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), lifetime)
}

const IDLE: Lifetime = Lifetime::Idle(Duration::from_secs(1800));

/// Runs a line to its end: both outputs.
async fn run(sandbox: &Arc<dyn Sandbox>, line: &str, limit: u64) -> Result<(String, String, Outcome), Error> {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(limit));
    let mut exec = sandbox.exec(request).await?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => out.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => err.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => return Ok((text(&out), text(&err), outcome)),
            _ => {}
        }
    }
    panic!("no end");
}

async fn out(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    run(sandbox, line, 30).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_come_apart_on_newer_and_older_servers() {
    for age in [Age::Newer, Age::Older] {
        let rig = Rig::new(age).await;
        let sandbox = rig.backend().open(&spec("s", Lifetime::Ephemeral)).await.unwrap();
        let line = "printf 'no end'; echo two >&2; printf '\\001\\001\\001\\377' >&2; exit 3";
        let (told, complained, outcome) = run(&sandbox, line, 30).await.unwrap();
        assert_eq!((told.as_str(), outcome.status), ("no end", Status::Code(3)), "{age:?}");
        assert_eq!(complained, "two\n\u{1}\u{1}\u{1}\u{fffd}", "{age:?}");
        assert_eq!(sandbox.directory().unwrap().to_string(), "/home/sandbox");
        assert_eq!(out(&sandbox, "pwd").await, "/home/sandbox\n");
        sandbox.close().await.unwrap();
        let sockets = rig.daytona.calls().iter().filter(|call| call.contains("/logs")).count();
        assert!(sockets > 0);
        rig.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_is_what_the_specification_says() {
    let rig = Rig::new(Age::Newer).await;
    let backend = rig.backend();
    let mut open = spec("open", Lifetime::Idle(Duration::from_secs(601)));
    open.network = Setting::new(Network::Open, Origin::Flag);
    open.image =
        Some(ImageChoice::Finished { reference: Setting::new("debian:12".to_owned(), Origin::Flag) });
    let kept = backend.open(&open).await.unwrap();
    let ephemeral = backend.open(&spec("gone", Lifetime::Ephemeral)).await.unwrap();
    let asked = rig.daytona.asked();
    let of = |image: bool| asked.values().find(|body| body["buildInfo"].is_object() == image).unwrap();
    let (built, plain) = (of(true), of(false));
    let keys = ["target", "public", "networkBlockAll", "autoStopInterval", "autoDeleteInterval", "env"];
    let told = |body: &serde_json::Value| keys.map(|key| body[key].clone());
    assert_eq!(told(built), [json!("us"), json!(false), json!(false), json!(11), json!(60), json!({})]);
    assert_eq!(told(plain), [json!("us"), json!(false), json!(true), json!(15), json!(0), json!({})]);
    assert_eq!(built["buildInfo"], json!({ "dockerfileContent": "FROM debian:12\n" }));
    assert!(plain["snapshot"].is_null());
    assert!(!plain.to_string().contains("gone"), "names and labels say nothing of the session");
    for sandbox in [kept, ephemeral] {
        sandbox.close().await.unwrap();
    }
    let mut snapshot = rig.config();
    snapshot.image = Some(Daytona::SNAPSHOTS[1].to_owned());
    let sandbox = daytona::backend(snapshot).open(&spec("s", IDLE)).await.unwrap();
    assert_eq!(rig.daytona.asked().values().next().unwrap()["snapshot"], json!(Daytona::SNAPSHOTS[1]));
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_hosts_is_told_and_must_be_told_back() {
    let rig = Rig::new(Age::Newer).await;
    let mut trusted = spec("t", IDLE);
    trusted.network = Setting::new(Network::Trusted, Origin::Flag);
    let backend = rig.backend();
    let sandbox = backend.open(&trusted).await.unwrap();
    assert!(sandbox.takes_list());
    assert_eq!(rig.daytona.reach(), ["nothing"], "before the list is told");
    let hosts = ["*.a.org".to_owned(), "b.org".to_owned()];
    sandbox.allow(&hosts).await.unwrap();
    sandbox.allow(&hosts).await.unwrap();
    assert_eq!(rig.daytona.reach(), ["*.a.org,b.org"]);
    assert_eq!(rig.count("POST", "/network-settings"), 1, "the same again costs nothing");
    // A list that the provider forgets would let everything through.
    rig.daytona.fail("POST", "/network-settings", Fault::OtherPolicy, 1);
    let error = sandbox.allow(&hosts[..1]).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "provider-protocol"));
    assert_eq!(rig.daytona.reach(), ["nothing"]);
    sandbox.allow(&hosts[1..]).await.unwrap();
    assert_eq!(rig.daytona.reach(), ["b.org"]);
    let found = backend.adopt(&trusted).await.unwrap().unwrap();
    assert!(found.takes_list());
    found.allow(&[]).await.unwrap();
    assert_eq!(rig.daytona.reach(), ["nothing"]);
    sandbox.close().await.unwrap();
    let mut open = spec("o", IDLE);
    open.network = Setting::new(Network::Open, Origin::Flag);
    let sandbox = backend.open(&open).await.unwrap();
    assert_eq!((sandbox.takes_list(), rig.daytona.reach()), (false, vec!["everything".to_owned()]));
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_key_is_told_and_not_shown() {
    let rig = Rig::new(Age::Newer).await;
    let mut bad = rig.config();
    bad.key = Some(Secret::new("bad-secret-1"));
    let backend = daytona::backend(bad);
    let Detection::Failing(why) = backend.detect().await else { panic!() };
    assert_eq!(why.code, "provider-token");
    assert!(!format!("{why:?}").contains("bad-secret-1"));
    let error = backend.open(&spec("s", IDLE)).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "provider-token"));
    let mut none = rig.config();
    none.key = None;
    let Detection::Unusable(why) = daytona::backend(none).detect().await else { panic!() };
    assert_eq!(why.code, "daytona-not-configured");
    assert!(why.message.contains("DAYTONA_API_KEY"), "{why}");
    assert!(matches!(rig.backend().detect().await, Detection::Usable(_)));
    let before = rig.daytona.calls().len();
    assert!(matches!(rig.backend().detect().await, Detection::Usable(_)));
    assert_eq!(rig.daytona.calls().len(), before, "a good answer is remembered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_made_once_whatever_becomes_of_the_answer() {
    let rig = Rig::new(Age::Newer).await;
    let backend = rig.backend();
    let faults = [
        Fault::CutAfter,
        Fault::CutBefore,
        Fault::Status(502, "Bad Gateway", None),
        Fault::Status(429, "Too Many Requests", Some(1)),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        rig.daytona.fail("POST", "/api/sandbox", fault, 1);
        let began = Instant::now();
        let sandbox = backend.open(&spec(&format!("s{number}"), IDLE)).await.unwrap();
        assert_eq!((rig.daytona.made(), rig.daytona.machines().len()), (number as u64 + 1, 1));
        assert!(number < 3 || began.elapsed() >= Duration::from_secs(1), "it asked to be left alone");
        assert_eq!(out(&sandbox, "echo here").await, "here\n");
        sandbox.close().await.unwrap();
    }
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_told_in_its_own_words_and_leaves_nothing() {
    let rig = Rig::new(Age::Newer).await;
    let backend = rig.backend();
    let told = [
        (Fault::Status(401, "Unauthorized", None), "provider-token"),
        (Fault::Status(403, "Organization is suspended", None), "provider-forbidden"),
        (Fault::Status(400, "Total CPU limit exceeded", None), "provider-quota"),
        (Fault::Status(400, "Snapshot x not found", None), "daytona-snapshot-missing"),
        (Fault::Status(400, "Invalid region", None), "daytona-region"),
        (Fault::Status(429, "Too Many Requests", Some(3600)), "provider-busy"),
        (Fault::Junk("<html>not JSON</html>"), "provider-protocol"),
        (Fault::OtherPolicy, "provider-other-terms"),
        (Fault::Fails, "provider-start-failed"),
    ];
    for (fault, code) in told {
        rig.daytona.fail("POST", "/api/sandbox", fault, 1);
        let error = backend.open(&spec("s", IDLE)).await.err().unwrap();
        assert_eq!((error.kind(), error.code()), ("unavailable", code), "{error}");
        assert!(!format!("{error:?}").contains(Daytona::KEY), "{error:?}");
        assert!(error.diagnosis().fix.is_some());
        assert_eq!(rig.daytona.machines(), Vec::<String>::new(), "{code}");
        assert_eq!(backend.list().await.unwrap(), [], "{code}");
    }
    let mut elsewhere = rig.config();
    elsewhere.target = Some("mars".to_owned());
    let error = daytona::backend(elsewhere).open(&spec("s", IDLE)).await.err().unwrap();
    assert_eq!(error.code(), "daytona-region");
    let mut missing = rig.config();
    missing.image = Some("no-such-snapshot".to_owned());
    let error = daytona::backend(missing).open(&spec("s", IDLE)).await.err().unwrap();
    assert_eq!(error.code(), "daytona-snapshot-missing");
    assert!(error.to_string().contains("no-such-snapshot"), "{error}");
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_goes_on_where_it_was() {
    let rig = Rig::new(Age::Newer).await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    rig.daytona.fail("GET", "/logs", Fault::CutStream(2), 1);
    rig.daytona.fail("GET", "/logs", Fault::Status(502, "Bad Gateway", None), 1);
    rig.daytona.fail("GET", "/logs", Fault::CutStream(4), 1);
    let line = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done; echo x >>/tmp/ran; cat /tmp/ran";
    let (told, _, outcome) = run(&sandbox, line, 30).await.unwrap();
    assert_eq!(told, "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\nx\n");
    assert_eq!(outcome.status, Status::Code(0));
    assert!(rig.count("GET", "/logs") >= 4);
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_a_command_is_made_good_and_nothing_runs_twice() {
    let rig = Rig::new(Age::Newer).await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    rig.daytona.fail("POST", "/exec", Fault::CutAfter, 1);
    assert_eq!(out(&sandbox, "echo x >>/tmp/ran; cat /tmp/ran").await, "x\n");
    // It did not arrive, and is not sent again.
    rig.daytona.fail("POST", "/exec", Fault::CutBefore, 1);
    let error = run(&sandbox, "echo x >>/tmp/ran", 30).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("lost", "agent-lost"));
    assert_eq!(out(&sandbox, "cat /tmp/ran").await, "x\n");
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_upload_is_no_upload() {
    let rig = Rig::new(Age::Newer).await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    rig.daytona.fail("POST", "/bulk-upload", Fault::Partial, 1);
    let mut request = ExecRequest::new(Command::Shell("cat".into()));
    request.timeout = Some(Duration::from_secs(5));
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    exec.control.stdin("half".into()).await.unwrap();
    exec.control.close_stdin().await.unwrap();
    let mut ended = None;
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => panic!("{bytes:?}"),
            ExecEvent::Exit(outcome) => ended = Some(outcome.ending),
            _ => {}
        }
    }
    assert_eq!(ended, Some(moltis_sandbox::Ending::TimedOut), "input that did not arrive is none");
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_without_use_follows_whoever_takes_it_up() {
    let rig = Rig::new(Age::Newer).await;
    let minutes = |count: u64| spec("s", Lifetime::Idle(Duration::from_secs(60 * count)));
    let first = rig.backend().open(&minutes(30)).await.unwrap();
    assert_eq!(rig.daytona.stops_after(), [30]);
    let again = rig.backend().open(&minutes(30)).await.unwrap();
    assert_eq!(rig.count("POST", "/autostop/30"), 0, "the same costs nothing");
    let other = rig.backend().open(&minutes(7)).await.unwrap();
    assert_eq!((other.is_new(), rig.daytona.stops_after()), (false, vec![7]));
    let adopted = rig.backend().adopt(&minutes(8)).await.unwrap().unwrap();
    assert_eq!(rig.daytona.stops_after(), [8]);
    // To look for it by name is nobody's wish.
    rig.backend().find(&minutes(9).id()).await.unwrap().unwrap();
    assert_eq!(rig.daytona.stops_after(), [8]);
    rig.daytona.expire().await;
    let revived = rig.backend().revive(&minutes(10)).await.unwrap().unwrap();
    assert_eq!(rig.daytona.stops_after(), [10]);
    // One that cannot be told would stop at another time than was asked for.
    rig.daytona.fail("POST", "/autostop/11", Fault::Status(403, "forbidden", None), 1);
    let error = rig.backend().open(&minutes(11)).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), rig.daytona.stops_after()), ("unavailable", vec![10]));
    for sandbox in [first, again, other, adopted] {
        drop(sandbox);
    }
    revived.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_looks_at_one_with_a_background_command_reminds_daytona_of_it() {
    let rig = Rig::new(Age::Newer).await;
    let spec = spec("s", IDLE);
    let sandbox = rig.backend().open(&spec).await.unwrap();
    let looks = async || {
        let found = rig.backend().find(&spec.id()).await.unwrap().unwrap();
        found.activity().await.unwrap();
    };
    looks().await;
    assert_eq!(rig.count("POST", "/last-activity"), 0, "nothing runs there");
    let mut request = ExecRequest::new(Command::Shell("exec sleep 1000".into()));
    request.background = true;
    drop(sandbox.exec(request).await.unwrap());
    // Another process than the one that started it, which may have gone.
    for count in 1..3 {
        looks().await;
        assert_eq!(rig.count("POST", "/last-activity"), count);
    }
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stopped_is_started_again_with_its_files() {
    let rig = Rig::new(Age::Newer).await;
    let (backend, spec) = (rig.backend(), spec("s", IDLE));
    let sandbox = backend.open(&spec).await.unwrap();
    out(&sandbox, "echo kept >/tmp/kept").await;
    let running = tokio::spawn({
        let sandbox = Arc::clone(&sandbox);
        async move { run(&sandbox, "echo begun; sleep 60", 100).await }
    });
    while rig.count("POST", "/exec") < 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    rig.daytona.expire().await;
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), "lost", "{error}");
    let error = run(&sandbox, "true", 10).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-gone"));
    assert!(backend.adopt(&spec).await.unwrap().is_none());
    assert!(!backend.list().await.unwrap()[0].running);
    assert!(backend.revives() && backend.is_stopped(&spec.id()).await.unwrap());
    let again = backend.open(&spec).await.unwrap();
    assert_eq!(out(&again, "cat /tmp/kept").await, "kept\n");
    assert!(!backend.is_stopped(&spec.id()).await.unwrap());
    assert!(backend.revive(&spec).await.unwrap().is_none(), "it runs");
    rig.daytona.expire().await;
    let mut other = spec.clone();
    other.network = Setting::new(Network::Open, Origin::Flag);
    assert!(backend.revive(&other).await.unwrap().is_none(), "that is another one");
    rig.daytona.fail("POST", "/start", Fault::Status(409, "Conflict", None), 2);
    let revived = backend.revive(&spec).await.unwrap().unwrap();
    assert_eq!((out(&revived, "cat /tmp/kept").await.as_str(), revived.is_new()), ("kept\n", false));
    assert_eq!(rig.daytona.made(), 1);
    again.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_removed_is_made_anew() {
    let rig = Rig::new(Age::Newer).await;
    let (backend, spec) = (rig.backend(), spec("s", IDLE));
    let sandbox = backend.open(&spec).await.unwrap();
    rig.daytona.remove_all().await;
    assert!(!backend.is_stopped(&spec.id()).await.unwrap());
    assert!(backend.revive(&spec).await.unwrap().is_none());
    let error = run(&sandbox, "true", 10).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-gone"));
    let again = backend.open(&spec).await.unwrap();
    assert!(again.is_new());
    assert_eq!((out(&again, "echo anew").await.as_str(), rig.daytona.made()), ("anew\n", 2));
    again.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_waits_for_a_change_of_state_and_for_a_slow_answer() {
    let rig = Rig::new(Age::Newer).await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    rig.daytona.put_into("stopping");
    rig.daytona.fail("DELETE", "/api/sandbox", Fault::Slow(Duration::from_millis(300)), 1);
    let removing = tokio::spawn(async move { sandbox.close().await });
    while rig.count("DELETE", "") < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rig.daytona.put_into("stopped");
    removing.await.unwrap().unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_state_is_looked_at_again() {
    let rig = Rig::new(Age::Newer).await;
    rig.daytona.fail("GET", "/api/sandbox/", Fault::State("creating"), 3);
    rig.daytona.fail("GET", "/api/sandbox/", Fault::State("a-new-state"), 2);
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    assert_eq!(out(&sandbox, "echo here").await, "here\n");
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_is_no_use_and_a_long_command_is() {
    let rig = Rig::new(Age::Newer).await;
    let sandbox = rig.backend().open(&spec("s", Lifetime::Idle(Duration::from_secs(60)))).await.unwrap();
    out(&sandbox, "true").await;
    // What ran it may end a moment after its answer came.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let activity = sandbox.activity().await.unwrap();
        assert_eq!(activity.commands, 1);
        if activity.operations == 0 {
            break;
        }
        assert!(Instant::now() < end, "{activity:?}");
    }
    // Longer than it may be without use; the shell is silent all the time.
    let (told, _, outcome) = run(&sandbox, "sleep 75; echo still", 120).await.unwrap();
    assert_eq!((told.as_str(), outcome.status), ("still\n", Status::Code(0)));
    assert!(rig.count("POST", "/last-activity") >= 1);
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packages_that_somebody_asked_for_and_cannot_be_had_are_an_error() {
    let rig = Rig::new(Age::Newer).await;
    let packages = |origin| {
        let mut spec = spec("s", IDLE);
        spec.image = Some(ImageChoice::Base {
            reference: Setting::built_in("docker.io/library/ubuntu:24.04".to_owned()),
            packages: Setting::new(vec!["moltis-no-such-package".to_owned()], origin),
        });
        spec
    };
    let backend = rig.backend();
    // Its user may not install any, and nothing can be reached.
    let error = backend.open(&packages(Origin::File)).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "packages-failed"), "{error}");
    assert!(error.to_string().contains("packages"), "{error}");
    let sandbox = backend.open(&packages(Origin::Default)).await.unwrap();
    assert_eq!(out(&sandbox, "echo here").await, "here\n");
    sandbox.close().await.unwrap();
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_logged_told_or_written() {
    keep_logs();
    let rig = Rig::new(Age::Newer).await;
    let backend = rig.backend();
    // The provider itself says the key in its errors.
    for (method, path) in [
        ("GET", "/api/sandbox"),
        ("POST", "/api/sandbox"),
        ("DELETE", "/api/sandbox"),
        ("POST", "/process/session"),
    ] {
        rig.daytona.fail(method, path, Fault::Status(500, "Internal Server Error", None), 1);
    }
    let mut said = format!("{:?} {:?}", backend.detect().await, rig.config());
    let sandbox = backend.open(&spec("s", IDLE)).await.unwrap();
    rig.daytona.fail("POST", "/exec", Fault::Status(500, "Internal Server Error", None), 1);
    said.push_str(&format!("{:?}", run(&sandbox, "true", 20).await.err()));
    said.push_str(&out(&sandbox, "env; cat /proc/*/cmdline /proc/*/environ | tr '\\0' '\\n'").await);
    // What a command's own variables hold is on no command line, and in no file of ours.
    let mut request = ExecRequest::new(Command::Shell("cat /proc/*/cmdline | tr '\\0' '\\n'".into()));
    request.timeout = Some(Duration::from_secs(20));
    request.env = vec![("OWN".into(), "own-secret-5".into())];
    let mut exec = sandbox.exec(request).await.unwrap();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Stdout(bytes) = event.unwrap() {
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    rig.daytona.fail("DELETE", "/api/sandbox", Fault::Status(403, "Forbidden", None), 1);
    said.push_str(&format!("{:?}", sandbox.close().await));
    let mut folders = vec![rig.data.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap().flatten() {
            match file.file_type().unwrap().is_dir() {
                true => folders.push(file.path()),
                false => said.push_str(&String::from_utf8_lossy(&std::fs::read(file.path()).unwrap())),
            }
        }
    }
    said.push_str(&logged().lock().unwrap());
    assert!(said.contains("a provider is asked again"), "the log is kept");
    assert!(said.contains("/bin/sh"), "command lines are seen");
    assert!(!said.contains(Daytona::KEY) && !said.contains("own-secret-5"), "a secret is told");
    backend.remove(&spec("s", IDLE).id()).await.unwrap();
    rig.is_clean().await;
}

const CHILD: &str = "MOLTIS_DAYTONA_CHILD";

/// A process that is killed: it makes and uses sandboxes until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test, as another process"]
async fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (url, data) = what.split_once(' ').unwrap();
    let backend = daytona::backend(config(url, Path::new(data)));
    for number in 0.. {
        let spec = spec(&format!("child {}", number % 3), Lifetime::Ephemeral);
        let opened = backend.open(&spec).await.unwrap();
        run(&opened, "sleep 0.05", 20).await.unwrap();
        opened.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_at_any_moment_leaves_nothing() {
    let rig = Rig::new(Age::Newer).await;
    let program = std::env::current_exe().unwrap();
    let what = format!("{} {}", rig.daytona.url(), rig.data.path().display());
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    for round in 0..6 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let before = rig.daytona.calls().len();
        let mut child = tokio::process::Command::new(&program)
            .args(["daytona::child", "--exact", "--ignored"])
            .env(CHILD, &what)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while rig.daytona.calls().len() < before + 2 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(random % 900)).await;
        child.kill().await.unwrap();
        // The next start looks for it. What the provider was still making then is found by the one after that.
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let next = rig.backend();
            next.open(&spec("next", Lifetime::Ephemeral)).await.unwrap().close().await.unwrap();
            let left = rig.daytona.machines();
            if left.is_empty() && next.list().await.unwrap().is_empty() {
                break;
            }
            assert!(Instant::now() < end, "round {round}: {left:?}");
        }
    }
    assert!(rig.daytona.made() >= 6);
    rig.is_clean().await;
}
