//! A workspace of this machine at a provider: carried there before a command runs, and back after it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{
    Command, Error, ExecEvent, ExecRequest, GuestPath, Lifetime, Mount, MountMode, Origin, Outcome, Sandbox,
    SandboxSpec, SessionKey, Setting,
};
use moltis_testkit::remote::Fault;

use crate::rig::Rig;

const IDLE: Lifetime = Lifetime::Idle(Duration::from_secs(1800));

struct World {
    rig: Rig,
    folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self { rig: Rig::new().await, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    fn spec(&self, key: &str, mode: MountMode) -> SandboxSpec {
        let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), IDLE);
        let (source, target) = (self.folder.path().canonicalize().unwrap(), "/workspace".into());
        spec.workspace = Some(Setting::new(Mount { source, target, mode }, Origin::Flag));
        spec.workspace_mode = Origin::Flag;
        spec.workspace_protect = vec![".git/hooks".into(), ".git/config".into(), ".moltis*".into()];
        spec
    }

    fn sent(&self) -> usize {
        self.rig.vercel.calls().iter().filter(|call| call.contains("/fs/write")).count()
    }
}

async fn run(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<(String, Outcome), Error> {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(60));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_on_the_folder_and_their_changes_come_back() {
    let world = World::new().await;
    world.put("src/a.txt", "one");
    world.put(".env", "SECRET=1");
    world.put(".git/config", "[core]");
    world.put("gone", "x");
    symlink("/etc/passwd", world.path("link")).unwrap();
    let spec = world.spec("s", MountMode::Rw);
    let backend = world.rig.backend();
    backend.check(&spec).await.unwrap();
    let sandbox = backend.open(&spec).await.unwrap();
    assert_eq!(world.sent(), 0, "nothing is sent before the first command");
    let (out, outcome) = run(&sandbox, "cat src/a.txt; readlink link; ls -A").await.unwrap();
    assert_eq!(out, "one/etc/passwd\n.git\ngone\nlink\nsrc\n");
    assert!(outcome.notes.len() == 1 && outcome.notes[0].contains("`.env`"), "{:?}", outcome.notes);
    let line = "printf two >src/a.txt; mkdir -p new/deep; echo x >new/deep/y; chmod 750 new/deep/y; rm gone; \
                mkdir .git/hooks; echo evil >.git/hooks/post-checkout; echo evil >>.git/config";
    let (_, outcome) = run(&sandbox, line).await.unwrap();
    assert_eq!(world.read("src/a.txt").as_deref(), Some("two"));
    assert_eq!(world.read("new/deep/y").as_deref(), Some("x\n"));
    assert_eq!((world.read("gone"), world.read(".git/hooks/post-checkout")), (None, None));
    assert_eq!(world.read(".git/config").as_deref(), Some("[core]"));
    assert!(outcome.notes.iter().any(|note| note.contains("workspace_protect")), "{:?}", outcome.notes);
    // Nothing changed: nothing is sent.
    let before = world.sent();
    run(&sandbox, "true").await.unwrap();
    assert_eq!(world.sent(), before);
    // A change here is there before the next command, and another process goes on where this one was.
    world.put("src/a.txt", "three");
    drop(sandbox);
    let other = world.rig.backend();
    let sandbox = other.adopt(&spec).await.unwrap().unwrap();
    assert_eq!(run(&sandbox, "cat src/a.txt; cat new/deep/y").await.unwrap().0, "threex\n");
    // What a command leaves running changes something after its end: it comes back when the sandbox ends, whoever ends it.
    run(&sandbox, "(sleep 1; echo late >late) >/dev/null 2>&1 &").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    world.rig.backend().remove(&spec.id()).await.unwrap();
    assert_eq!(world.read("late").as_deref(), Some("late\n"));
    assert_eq!(world.rig.vercel.machines(), Vec::<String>::new());
    assert_eq!(world.rig.vercel.wrong(), Vec::<String>::new());
    let left = world.rig.data.path().join("remote/vercel/workspace");
    let left: Vec<_> = fs::read_dir(left).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_one_is_sent_and_stays_as_it_is() {
    let world = World::new().await;
    world.put("a", "one");
    let sandbox = world.rig.backend().open(&world.spec("s", MountMode::Ro)).await.unwrap();
    let (out, outcome) = run(&sandbox, "cat a; echo two >a; echo new >b").await.unwrap();
    assert_eq!(out, "one");
    assert!(outcome.notes.iter().any(|note| note.contains("read-only")), "{:?}", outcome.notes);
    assert_eq!((world.read("a").as_deref(), world.read("b")), (Some("one"), None));
    let path = sandbox.directory().unwrap();
    let path = GuestPath::new([path.as_bytes(), b"/a"].concat()).unwrap();
    let options = WriteOptions { mode: None, overwrite: true, parents: false };
    let content = || Box::pin(futures_util::stream::iter([Ok(Bytes::from("x"))]));
    let error = sandbox.files().write(&path, options.clone(), content()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("refused", "file-read-only"));
    assert!(error.diagnosis().fix.as_deref().unwrap().contains(":rw"));
    let elsewhere = GuestPath::new("/tmp/x").unwrap();
    sandbox.files().write(&elsewhere, options, content()).await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!(world.read("a").as_deref(), Some("one"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_operations_are_carried_too() {
    let world = World::new().await;
    world.put("a", "one");
    let sandbox = world.rig.backend().open(&world.spec("s", MountMode::Rw)).await.unwrap();
    let directory = sandbox.directory().unwrap();
    let at = |name: &str| GuestPath::new([directory.as_bytes(), b"/", name.as_bytes()].concat()).unwrap();
    let mut content = sandbox.files().read(&at("a"), 0, None).await.unwrap().content;
    let mut read = Vec::new();
    while let Some(piece) = futures_util::StreamExt::next(&mut content).await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(read, b"one");
    let options = WriteOptions { mode: None, overwrite: true, parents: true };
    let content = Box::pin(futures_util::stream::iter([Ok(Bytes::from("two"))]));
    sandbox.files().write(&at("made/b"), options, content).await.unwrap();
    assert_eq!(world.read("made/b").as_deref(), Some("two"));
    sandbox.files().rename(&at("a"), &at("made/c"), false).await.unwrap();
    assert_eq!((world.read("a"), world.read("made/c").as_deref()), (None, Some("one")));
    sandbox.files().remove(&at("made"), true).await.unwrap();
    assert!(!world.path("made").exists());
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_ended_is_replaced_by_one_that_has_the_folder() {
    let world = World::new().await;
    world.put("a", "one");
    let (backend, spec) = (world.rig.backend(), world.spec("s", MountMode::Rw));
    let sandbox = backend.open(&spec).await.unwrap();
    run(&sandbox, "echo two >a").await.unwrap();
    world.rig.vercel.expire().await;
    world.put("b", "mine");
    let sandbox = backend.open(&spec).await.unwrap();
    assert!(sandbox.is_new());
    assert_eq!(run(&sandbox, "cat a b").await.unwrap().0, "two\nmine");
    assert_eq!((world.read("a").as_deref(), world.read("b").as_deref()), (Some("two\n"), Some("mine")));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_off_on_the_way_is_told_and_gone_on_with() {
    let world = World::new().await;
    for number in 0..50 {
        world.put(&format!("f{number}"), &"x".repeat(5000));
    }
    let sandbox = world.rig.backend().open(&world.spec("s", MountMode::Rw)).await.unwrap();
    world.rig.vercel.fail("POST", "/fs/write", Fault::Status(400, "bad_request", None), 1);
    let error = run(&sandbox, "echo ran >/tmp/ran").await.err();
    if let Some(error) = &error {
        assert_ne!(error.kind(), "lost", "nothing of the command ran: {error}");
    }
    let (out, outcome) = run(&sandbox, "ls | wc -l; cat f49 | wc -c").await.unwrap();
    assert_eq!((out.as_str(), outcome.notes.as_slice()), ("50\n5000\n", &[][..]));
    // After the command: it has run, and its answer says what was not carried.
    run(&sandbox, "true").await.unwrap();
    let mut request = ExecRequest::new(Command::Shell("echo new >new; sleep 1".into()));
    request.timeout = Some(Duration::from_secs(60));
    let mut exec = sandbox.exec(request).await.unwrap();
    world.rig.vercel.fail("POST", "/cmd", Fault::Status(400, "bad_request", None), 1);
    let mut last = None;
    while let Some(event) = exec.events.next().await {
        last = Some(event.unwrap());
    }
    let Some(ExecEvent::Exit(outcome)) = last else { panic!("{last:?}") };
    assert!(outcome.notes.iter().any(|note| note.contains("not carried back")), "{:?}", outcome.notes);
    run(&sandbox, "true").await.unwrap();
    assert_eq!(world.read("new").as_deref(), Some("new\n"));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_shown_is_refused_before_anything_is_made() {
    let world = World::new().await;
    let backend = world.rig.backend();
    let mut spec = world.spec("s", MountMode::Rw);
    let mut with = |source: &Path| {
        spec.workspace.as_mut().unwrap().value.source = source.to_owned();
        spec.clone()
    };
    for (source, code) in [
        (Path::new("/"), "workspace-refused"),
        (Path::new("/proc"), "workspace-refused"),
        (world.rig.data.path(), "workspace-refused"),
        (Path::new("/nowhere-at-all"), "workspace-missing"),
    ] {
        let spec = with(source);
        assert_eq!(backend.check(&spec).await.unwrap_err().code(), code, "{}", source.display());
        assert_eq!(backend.open(&spec).await.err().unwrap().code(), code, "{}", source.display());
    }
    let mut mounts = world.spec("s", MountMode::Ro);
    let source = world.folder.path().to_owned();
    mounts.mounts =
        vec![Setting::new(Mount { source, target: "/mnt".into(), mode: MountMode::Ro }, Origin::File)];
    assert_eq!(backend.open(&mounts).await.err().unwrap().code(), "demand-not-kept");
    // Too large by one file, whose content takes no room.
    let huge = fs::File::create(world.path("huge.bin")).unwrap();
    huge.set_len(3 << 30).unwrap();
    let error = backend.open(&world.spec("s", MountMode::Rw)).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("refused", "workspace-too-large"));
    assert!(format!("{error:?}").contains("huge.bin"));
    assert_eq!((world.rig.vercel.made(), world.rig.vercel.machines()), (0, vec![]));
}
