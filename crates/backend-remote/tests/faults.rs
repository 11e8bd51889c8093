//! What fails at a provider, and what becomes of it: nothing runs twice, nothing is left there, no secret is told.

use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use moltis_backend_remote::vercel;
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, Command, Detection, Error, ExecEvent, ExecRequest, Lifetime, Outcome, Sandbox, SandboxSpec,
    SessionKey, Status,
};
use moltis_testkit::remote::Fault;
use moltis_testkit::remote::vercel::Vercel;

use crate::rig::{Rig, config};

fn spec(key: &str, lifetime: Lifetime) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), lifetime)
}

const IDLE: Lifetime = Lifetime::Idle(Duration::from_secs(1800));

/// Runs a line to its end.
async fn run(sandbox: &Arc<dyn Sandbox>, line: &str, limit: u64) -> Result<(String, Outcome), Error> {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(limit));
    let mut exec = sandbox.exec(request).await?;
    let mut out = Vec::new();
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => out.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => return Ok((String::from_utf8_lossy(&out).into_owned(), outcome)),
            _ => {}
        }
    }
    panic!("no end");
}

/// How often something was asked.
fn count(vercel: &Vercel, call: &str) -> usize {
    vercel.calls().iter().filter(|one| one.starts_with(call)).count()
}

const CREATE: &str = "POST /api/v2/sandboxes";

fn creations(vercel: &Vercel) -> usize {
    vercel.calls().iter().filter(|one| *one == CREATE).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_token_is_told_and_not_shown() {
    let rig = Rig::new().await;
    let mut bad = rig.config();
    bad.token = Some(Secret::new("bad-secret-1"));
    let backend = vercel::backend(bad);
    let Detection::Failing(why) = backend.detect().await else { panic!() };
    assert_eq!(why.code, "provider-forbidden");
    assert!(!format!("{why:?}").contains("bad-secret-1"));
    let error = backend.open(&spec("s", IDLE)).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "provider-forbidden"));
    let mut none = rig.config();
    (none.token, none.project) = (None, None);
    let Detection::Unusable(why) = vercel::backend(none).detect().await else { panic!() };
    assert_eq!(why.code, "vercel-not-configured");
    assert!(why.message.contains("VERCEL_TOKEN") && why.message.contains("VERCEL_PROJECT_ID"), "{why}");
    assert!(matches!(rig.backend().detect().await, Detection::Usable(_)));
    let before = rig.vercel.calls().len();
    assert!(matches!(rig.backend().detect().await, Detection::Usable(_)));
    assert_eq!(rig.vercel.calls().len(), before, "a good answer is remembered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_made_once_whatever_becomes_of_the_answer() {
    let rig = Rig::new().await;
    rig.vercel.fail("POST", "/v2/sandboxes", Fault::CutAfter, 1);
    let backend = rig.backend();
    let sandbox = backend.open(&spec("s", IDLE)).await.unwrap();
    assert_eq!((rig.vercel.made(), rig.vercel.machines().len()), (1, 1));
    assert_eq!(run(&sandbox, "echo here", 20).await.unwrap().0, "here\n");
    sandbox.close().await.unwrap();
    rig.vercel.fail("POST", "/v2/sandboxes", Fault::CutBefore, 1);
    let sandbox = backend.open(&spec("t", IDLE)).await.unwrap();
    assert_eq!(rig.vercel.made(), 2);
    sandbox.close().await.unwrap();
    rig.vercel.fail("POST", "/v2/sandboxes", Fault::Status(502, "bad_gateway", None), 1);
    backend.open(&spec("u", IDLE)).await.unwrap().close().await.unwrap();
    let before = creations(&rig.vercel);
    rig.vercel.fail("POST", "/v2/sandboxes", Fault::Status(429, "rate_limited", Some(1)), 1);
    let began = Instant::now();
    backend.open(&spec("v", IDLE)).await.unwrap().close().await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1), "it asked to be left alone for a second");
    assert_eq!(creations(&rig.vercel), before + 2);
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_told_in_its_own_words_and_leaves_nothing() {
    let rig = Rig::new().await;
    let backend = rig.backend();
    let told = [
        (Fault::Status(401, "unauthorized", None), "provider-token"),
        (Fault::Status(402, "payment_required", None), "provider-quota"),
        (Fault::Status(403, "forbidden", None), "provider-forbidden"),
        (Fault::Status(400, "bad_region", None), "provider-refused"),
        (Fault::Status(429, "rate_limited", Some(3600)), "provider-busy"),
        (Fault::Junk("<html>not JSON</html>"), "provider-protocol"),
        (Fault::OtherPolicy, "provider-other-terms"),
    ];
    for (fault, code) in told {
        rig.vercel.fail("POST", "/v2/sandboxes", fault, 1);
        let error = backend.open(&spec("s", IDLE)).await.err().unwrap();
        assert_eq!((error.kind(), error.code()), ("unavailable", code), "{error}");
        assert!(!format!("{error:?}").contains(Vercel::TOKEN), "{error:?}");
        assert!(error.diagnosis().fix.is_some());
        assert_eq!(rig.vercel.machines(), Vec::<String>::new(), "{code}");
        assert_eq!(backend.list().await.unwrap(), [], "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_goes_on_where_it_was() {
    let rig = Rig::new().await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    // The first line comes before the cut, and the rest later.
    rig.vercel.fail("POST", "/cmd", Fault::CutStream(2), 1);
    rig.vercel.fail("GET", "/logs", Fault::CutStream(3), 1);
    let line = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done; echo x >>/tmp/ran; cat /tmp/ran";
    let (out, outcome) = run(&sandbox, line, 30).await.unwrap();
    assert_eq!(out, "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\nx\n");
    assert_eq!(outcome.status, Status::Code(0));
    assert!(rig.vercel.calls().iter().filter(|call| call.ends_with("/logs")).count() >= 2);
    sandbox.close().await.unwrap();
    assert_eq!(rig.vercel.wrong(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_start_is_uncertain_is_lost_and_ended_and_not_run_again() {
    let rig = Rig::new().await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    rig.vercel.fail("POST", "/cmd", Fault::CutAfter, 1);
    let error = run(&sandbox, "echo x >>/tmp/ran; sleep 600", 900).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("lost", "agent-lost"));
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (out, _) = run(&sandbox, "cat /tmp/ran; pgrep -f 'sleep 60[0]' || echo none", 30).await.unwrap();
        // It may have been ended before it wrote anything; it never writes twice.
        assert!(!out.contains("x\nx"), "{out:?}");
        if out.ends_with("none\n") {
            break;
        }
        assert!(Instant::now() < end, "{out:?}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_in_the_middle_is_noticed_and_a_new_machine_is_made() {
    let rig = Rig::new().await;
    let (backend, spec) = (rig.backend(), spec("s", IDLE));
    let sandbox = backend.open(&spec).await.unwrap();
    let running = tokio::spawn({
        let sandbox = Arc::clone(&sandbox);
        async move { run(&sandbox, "echo begun; sleep 60", 100).await }
    });
    while count(&rig.vercel, "POST /api/v2/sandboxes/sessions") < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    rig.vercel.expire().await;
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), "lost", "{error}");
    let error = run(&sandbox, "true", 10).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-gone"));
    assert!(backend.adopt(&spec).await.unwrap().is_none());
    let again = backend.open(&spec).await.unwrap();
    assert!(again.is_new());
    assert_eq!(run(&again, "echo anew", 20).await.unwrap().0, "anew\n");
    assert_eq!(rig.vercel.machines().len(), 1, "the old record is removed");
    again.close().await.unwrap();
    assert_eq!(rig.vercel.machines(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_life_is_made_longer_while_it_is_used() {
    let rig = Rig::new().await;
    let sandbox = rig.backend().open(&spec("s", IDLE)).await.unwrap();
    run(&sandbox, "true", 30).await.unwrap();
    let extended = || rig.vercel.calls().iter().filter(|call| call.ends_with("/extend-timeout")).count();
    assert_eq!(extended(), 0, "five minutes are enough for half a one");
    run(&sandbox, "true", 1200).await.unwrap();
    assert_eq!(extended(), 1);
    rig.vercel.fail("POST", "/extend-timeout", Fault::Status(400, "sandbox_timeout_invalid", None), 1);
    run(&sandbox, "true", 1700).await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_finds_it_and_ends_it() {
    let rig = Rig::new().await;
    let spec = spec("s", IDLE);
    let sandbox = rig.backend().open(&spec).await.unwrap();
    run(&sandbox, "echo kept >/tmp/kept", 20).await.unwrap();
    drop(sandbox);
    let other = rig.backend();
    let found = other.adopt(&spec).await.unwrap().expect("it runs");
    assert!(!found.is_new());
    assert_eq!(run(&found, "cat /tmp/kept", 20).await.unwrap().0, "kept\n");
    let listed = other.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].running), (1, true));
    other.remove(&spec.id()).await.unwrap();
    assert_eq!((rig.vercel.machines(), other.list().await.unwrap()), (vec![], vec![]));
    other.remove(&spec.id()).await.unwrap();
}

const CHILD: &str = "MOLTIS_REMOTE_CHILD";

/// A process that is killed: it makes and uses machines until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test, as another process"]
async fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (url, data) = what.split_once(' ').unwrap();
    let backend = vercel::backend(config(url, std::path::Path::new(data)));
    for number in 0.. {
        let opened =
            backend.open(&spec(&format!("child {}", number % 3), Lifetime::Ephemeral)).await.unwrap();
        run(&opened, "sleep 0.05", 20).await.unwrap();
        opened.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_at_any_moment_leaves_nothing() {
    let rig = Rig::new().await;
    let program = std::env::current_exe().unwrap();
    let what = format!("{} {}", rig.vercel.url(), rig.data.path().display());
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    for round in 0..8 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let before = rig.vercel.calls().len();
        let mut child = tokio::process::Command::new(&program)
            .args(["faults::child", "--exact", "--ignored"])
            .env(CHILD, &what)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while rig.vercel.calls().len() < before + 2 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(random % 700)).await;
        child.kill().await.unwrap();
        // The next start looks for it. What the provider was still making then is found by the one after that.
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let next = rig.backend();
            next.open(&spec("next", Lifetime::Ephemeral)).await.unwrap().close().await.unwrap();
            let left = rig.vercel.machines();
            if left.is_empty() && next.list().await.unwrap().is_empty() {
                break;
            }
            assert!(Instant::now() < end, "round {round}: {left:?}");
        }
    }
    assert!(rig.vercel.made() >= 8);
    assert_eq!(rig.vercel.wrong(), Vec::<String>::new());
}

/// Keeps all that is logged from now on.
pub fn keep_logs() {
    let _ = tracing::subscriber::set_global_default(Everything);
}

struct Everything;

/// What was logged so far.
pub fn logged() -> &'static Mutex<String> {
    static LOGGED: OnceLock<Mutex<String>> = OnceLock::new();
    LOGGED.get_or_init(Mutex::default)
}

struct Fields;

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        logged().lock().unwrap().push_str(&format!("{field}={value:?}\n"));
    }
}

impl tracing::Subscriber for Everything {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        attributes.record(&mut Fields);
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Fields);
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Fields);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_logged_told_or_written() {
    keep_logs();
    let rig = Rig::new().await;
    let backend = rig.backend();
    // The provider itself says the token in its errors.
    for (method, path) in [("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes"), ("DELETE", "/v2/sandboxes")] {
        rig.vercel.fail(method, path, Fault::Status(500, "internal", None), 1);
    }
    let mut said = format!("{:?} {:?}", backend.detect().await, rig.config());
    let sandbox = backend.open(&spec("s", IDLE)).await.unwrap();
    rig.vercel.fail("POST", "/cmd", Fault::Status(500, "internal", None), 1);
    let mut request =
        ExecRequest::new(Command::Shell("env; cat /proc/*/cmdline /proc/*/environ 2>/dev/null".into()));
    request.timeout = Some(Duration::from_secs(20));
    said.push_str(&format!("{:?}", sandbox.exec(request).await.err()));
    said.push_str(
        &run(&sandbox, "env; cat /proc/*/cmdline /proc/*/environ | tr '\\0' '\\n'", 20).await.unwrap().0,
    );
    for number in 0..5 {
        rig.vercel.fail("POST", "/stop", Fault::Status(500 + number, "internal", None), 1);
    }
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
    assert!(!said.contains(Vercel::TOKEN), "the token is told");
    backend.remove(&spec("s", IDLE).id()).await.unwrap();
    assert_eq!(rig.vercel.machines(), Vec::<String>::new());
}
