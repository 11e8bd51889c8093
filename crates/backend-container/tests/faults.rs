//! What goes wrong around a sandbox: engines that go away, containers that others pause, kill, rename and restart, images
//! of every kind, and commands that break what they can.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moltis_backend_container::engine::EngineKind;
use moltis_sandbox::{
    Backend, Command, Error, ExecEvent, ExecRequest, Lifetime, MountMode, Sandbox, SandboxSpec,
};
use serde_json::json;

use super::daemon::Daemon;
use super::rig::{Rig, SOON, asked, background, eventually, limiting, mount, rig, rigs, roots_rigs, run, sh};

async fn error_of(sandbox: &Arc<dyn Sandbox>) -> Error {
    run(sandbox, Command::Shell("true".into())).await.unwrap_err()
}

fn is_engine_failure<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.is_engine_failure())
}

/// Within a time in which nothing that hangs has ended.
async fn soon<T>(what: &str, doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, doing).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_takes_no_warm_sandbox_with_it() {
    let test = "a_killed_daemon_takes_no_warm_sandbox_with_it";
    let Some(mut daemon) = Daemon::start(test).await else { return };
    let rig = rig(test, EngineKind::Docker, daemon.environment()).await.unwrap();
    let spec = rig.spec("warm");
    let sandbox = rig.open(&spec).await;
    let mut request = ExecRequest::new(Command::Shell("echo on; cat; echo over".into()));
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    while !matches!(exec.events.next().await, Some(Ok(ExecEvent::Stdout(_)))) {}
    daemon.kill();

    // What runs, runs on, and what is warm stays so: for other processes too.
    assert_eq!(sh(&sandbox, "echo here").await.ok(), "here\n");
    let again = rig.again();
    let found = soon("adopting", again.adopt(&spec)).await.unwrap().unwrap();
    assert_eq!(sh(&found, "echo here").await.ok(), "here\n");
    exec.control.close_stdin().await.unwrap();
    let mut over = false;
    while let Some(event) = soon("a command", exec.events.next()).await {
        over |= matches!(event.unwrap(), ExecEvent::Exit(outcome) if outcome.exit_code() == 0);
    }
    assert!(over);
    // What needs the engine says so, and at once.
    let new = rig.spec("new");
    assert!(is_engine_failure(soon("opening", again.open(&new)).await));
    assert!(is_engine_failure(soon("opening", rig.backend.open(&new)).await));
    assert!(matches!(soon("detecting", again.detect()).await, moltis_sandbox::Detection::Failing(_)));
    assert_eq!(soon("listing", again.list()).await.unwrap().len(), 1);
    assert!(is_engine_failure(soon("removing", again.remove(&spec.id())).await));
    assert_eq!(sh(&sandbox, "echo here").await.ok(), "here\n", "a failed removal ended it");
    assert_eq!(rig.folders().len(), 1, "nothing is written down of what could not be made");

    daemon.restart().await;
    // Docker ends containers that it finds running when it comes back, unless it is told to let them live.
    let sandbox = soon("opening", again.open(&spec)).await.unwrap();
    assert_eq!(sh(&sandbox, "echo here").await.ok(), "here\n");
    soon("closing", sandbox.close()).await.unwrap();
    rig.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_dies_during_a_start_is_unreachable() {
    let test = "a_daemon_that_dies_during_a_start_is_unreachable";
    let Some(mut daemon) = Daemon::start(test).await else { return };
    let rig = rig(test, EngineKind::Docker, daemon.environment()).await.unwrap();
    let since = Instant::now();
    rig.open(&rig.spec("measure")).await.close().await.unwrap();
    let whole = since.elapsed();
    for moment in 1..4 {
        let backend = rig.again();
        let opening = tokio::spawn({
            let spec = rig.spec("during");
            async move { backend.open(&spec).await.map(|sandbox| sandbox.is_new()) }
        });
        tokio::time::sleep(whole * moment / 5).await;
        daemon.kill();
        match soon("opening", opening).await.unwrap() {
            // It was faster.
            Ok(new) => assert!(new),
            Err(error) => assert!(error.is_engine_failure(), "{moment}: {error:?}"),
        }
        daemon.restart().await;
        let sandbox = soon("opening", rig.again().open(&rig.spec("during"))).await.unwrap();
        assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
        soon("closing", sandbox.close()).await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_container_is_silent_and_says_why() {
    for rig in limiting("a_paused_container_is_silent_and_says_why").await {
        let spec = rig.spec("paused");
        let sandbox = rig.open(&spec).await;
        let name = rig.container().await.name;
        rig.cli(&["pause", &name]).await;
        for error in [
            soon("adopting", rig.again().adopt(&spec)).await.map(|_| ()).unwrap_err(),
            soon("opening", rig.again().open(&spec)).await.map(|_| ()).unwrap_err(),
            soon("finding", rig.again().find(&spec.id())).await.map(|_| ()).unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-silent"), "{}", rig.name);
            assert!(!error.is_engine_failure());
            let cause = error.diagnosis().cause.clone().unwrap_or_default();
            assert!(cause.contains("paused") && cause.contains(&name), "{}: {error:?}", rig.name);
        }
        rig.cli(&["unpause", &name]).await;
        assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
        assert!(!rig.open(&spec).await.is_new());
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_others_end_is_made_anew() {
    for rig in rigs("a_container_that_others_end_is_made_anew").await {
        let spec = rig.spec("ended");
        // A container that goes by itself when it ends is cleaned up by Podman while it starts it again: what is mounted then
        // stays so, and each later call of Podman's tries to take it away.
        let ways = if rig.kind == EngineKind::Docker { 3 } else { 2 };
        for how in [vec!["kill"], vec!["rm", "-f"], vec!["restart", "-t", "0"]].into_iter().take(ways) {
            let sandbox = rig.open(&spec).await;
            let mut exec =
                sandbox.exec(ExecRequest::new(Command::Shell("echo on; sleep 100".into()))).await.unwrap();
            while !matches!(exec.events.next().await, Some(Ok(ExecEvent::Stdout(_)))) {}
            let id = rig.container().await.id;
            // Nor can it always be restarted.
            let ended = rig.program().args(&how).arg(&id).output().await.unwrap();
            assert!(ended.status.success() || how[0] == "restart", "{} {ended:?}", rig.name);
            // The command may have done anything: it is lost, and not begun again.
            let error = loop {
                match soon("a command", exec.events.next()).await {
                    Some(Ok(ExecEvent::Exit(outcome))) => panic!("{} {how:?}: {outcome:?}", rig.name),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("{} {how:?}: it ended without a word", rig.name),
                }
            };
            assert_eq!(error.kind(), "lost", "{} {how:?}: {error:?}", rig.name);
            let error = soon("a command", error_of(&sandbox)).await;
            assert_eq!(error.kind(), "unavailable", "{} {how:?}: {error:?}", rig.name);
            assert!(!error.is_engine_failure(), "{} {how:?}: {error:?}", rig.name);
            let again = rig.open(&spec).await;
            assert!(again.is_new(), "{} {how:?}", rig.name);
            assert_ne!(rig.container().await.id, id);
            again.close().await.unwrap();
            rig.until_nothing_is_left().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_means_nothing() {
    for rig in rigs("a_name_means_nothing").await {
        let spec = rig.spec("renamed");
        let sandbox = rig.open(&spec).await;
        let container = rig.container().await;
        rig.cli(&["rename", &container.id, &format!("{}x", container.name)]).await;
        assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
        assert!(!rig.again().open(&spec).await.unwrap().is_new(), "{}", rig.name);
        rig.again().remove(&spec.id()).await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_that_cannot_be_used_are_told() {
    for rig in rigs("images_that_cannot_be_used_are_told").await {
        let error = rig.refusal(&rig.spec_of("missing", "localhost/moltis-rig-nowhere:1")).await;
        assert_eq!((error.kind(), error.code()), ("unavailable", "image-unavailable"), "{}", rig.name);
        assert!(error.is_image_failure() && !error.is_engine_failure());

        let foreign = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
        let image = rig.image(foreign, &json!({}), &[("etc", 0o755, None)]).await;
        let error = rig.refusal(&rig.spec_of("foreign", &image.name)).await;
        assert_eq!((error.kind(), error.code()), ("refused", "image-wrong-architecture"), "{}", rig.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_goes_is_missed_by_the_next_sandbox_alone() {
    for rig in rigs("an_image_that_goes_is_missed_by_the_next_sandbox_alone").await {
        let image = rig.image(ARCHITECTURE, &json!({}), &busybox()).await;
        let spec = rig.spec_of("going", &image.name);
        let sandbox = rig.open(&spec).await;
        // Without its name it is missing; what is made of it keeps what it needs.
        match rig.kind {
            EngineKind::Docker => rig.cli(&["rmi", "-f", &image.name]).await,
            _ => rig.cli(&["untag", &image.name]).await,
        }
        assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n", "{}", rig.name);
        let found = rig.again().adopt(&spec).await.unwrap();
        if let Some(found) = found {
            assert_eq!(sh(&found, "echo on").await.ok(), "on\n", "{}", rig.name);
        }
        rig.again().remove(&spec.id()).await.unwrap();
        rig.until_nothing_is_left().await;
        let error = rig.refusal(&spec).await;
        assert_eq!(error.code(), "image-unavailable", "{}", rig.name);
    }
}

const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };

/// The files of the smallest image with a shell.
fn busybox() -> Vec<(&'static str, u32, Option<Vec<u8>>)> {
    let program = std::fs::read(moltis_testkit::need::program("busybox").unwrap()).unwrap();
    vec![
        ("bin", 0o755, None),
        ("bin/busybox", 0o755, Some(program.clone())),
        ("bin/sh", 0o755, Some(program)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_without_a_shell_runs_its_programs() {
    for rig in rigs("an_image_without_a_shell_runs_its_programs").await {
        if moltis_testkit::need::program("busybox").is_none() {
            return moltis_testkit::need::skip("an_image_without_a_shell_runs_its_programs", "no busybox");
        }
        // Neither a home, nor /etc, nor /tmp, nor anything but one program.
        let program = std::fs::read(moltis_testkit::need::program("busybox").unwrap()).unwrap();
        let image = rig.image(ARCHITECTURE, &json!({}), &[("busybox", 0o755, Some(program))]).await;
        let spec = rig.spec_of("bare", &image.name);
        let sandbox = rig.open(&spec).await;
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).into()).collect());
        let said = run(&sandbox, argv(&["/busybox", "id"])).await.unwrap().ok();
        assert!(said.contains("uid=1000(sandbox)"), "{}: {said}", rig.name);
        let said =
            run(&sandbox, argv(&["/busybox", "ls", "-ld", "/tmp", "/home/sandbox"])).await.unwrap().ok();
        assert!(said.contains("drwxrwxrwt"), "{}: {said}", rig.name);
        for place in ["/tmp/x", "/home/sandbox/x"] {
            run(&sandbox, argv(&["/busybox", "touch", place])).await.unwrap().ok();
        }
        let error = run(&sandbox, Command::Shell("true".into())).await;
        match error {
            Ok(said) => assert_eq!(said.outcome.exit_code(), 127, "{}: {said:?}", rig.name),
            Err(error) => assert_ne!(error.kind(), "lost", "{}: {error:?}", rig.name),
        }
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_image_says_of_itself_does_not_matter() {
    for rig in rigs("what_an_image_says_of_itself_does_not_matter").await {
        if moltis_testkit::need::program("busybox").is_none() {
            return moltis_testkit::need::skip("what_an_image_says_of_itself_does_not_matter", "no busybox");
        }
        // Podman's file API shows a volume there instead of what the image has.
        let home = if rig.kind == EngineKind::Docker { "/home/sandbox" } else { "/var/other" };
        let config = json!({
            "Entrypoint": ["/nonexistent"],
            "Cmd": ["never"],
            "User": "nobody-here",
            "WorkingDir": "/nowhere/at/all",
            "Env": ["LD_PRELOAD=/evil.so", "HOME=/root", "KEPT=yes", "PATH=/bin"],
            "Volumes": { "/data": {}, home: {}, "/.moltis": {} },
            "Healthcheck": { "Test": ["CMD-SHELL", "touch /tmp/checked"], "Interval": 1_000_000_000 },
            "StopSignal": "SIGUSR1",
            "OnBuild": ["RUN false"],
            "ExposedPorts": { "80/tcp": {} },
        });
        let mut files = busybox();
        files.extend([
            ("home", 0o755, None),
            ("home/sandbox", 0o755, None),
            ("home/sandbox/theirs", 0o644, Some(b"x".to_vec())),
        ]);
        let image = rig.image(ARCHITECTURE, &config, &files).await;
        let sandbox = rig.open(&rig.spec_of("odd", &image.name)).await;
        let said =
            sh(&sandbox, "/bin/busybox id -u; pwd; echo $HOME $KEPT ${LD_PRELOAD-unset}; echo *; > mine")
                .await;
        let notes = said.outcome.notes.join("\n");
        assert!(notes.contains("theirs"), "{}: {notes}", rig.name);
        let outcome = said.ok();
        assert_eq!(outcome, "1000\n/home/sandbox\n/home/sandbox yes unset\n*\n", "{}", rig.name);
        // Told once.
        let said = sh(&sandbox, "/bin/busybox sleep 2; /bin/busybox ls /tmp").await;
        assert_eq!(said.outcome.notes, Vec::<String>::new());
        assert_eq!(said.ok(), "", "{}: its health was checked", rig.name);
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_is_taken_away() {
    for rig in rigs("a_fork_bomb_is_taken_away").await {
        let mut spec = rig.spec("bomb");
        spec.limits.pids = Some(asked(64));
        let sandbox = rig.open(&spec).await;
        background(&sandbox, "b() { b | b & }; b; sleep 1000").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let removing = tokio::time::timeout(SOON * 2, rig.again().remove(&spec.id())).await;
        removing.expect("removing hangs").unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_hog_is_said_to_be_one() {
    for rig in limiting("a_memory_hog_is_said_to_be_one").await {
        let mut spec = rig.spec("hog");
        spec.limits.memory = Some(asked(48 << 20));
        let sandbox = rig.open(&spec).await;
        let said = sh(&sandbox, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}").await;
        assert!(said.outcome.out_of_memory, "{}: {said:?}", rig.name);
        let said = sh(&sandbox, "echo on").await;
        assert!(!said.outcome.out_of_memory);
        assert_eq!(said.ok(), "on\n", "{}: the sandbox goes on", rig.name);
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_commands_replace_is_not_believed() {
    for rig in rigs("a_socket_that_commands_replace_is_not_believed").await {
        let spec = rig.spec("forged");
        let sandbox = rig.open(&spec).await;
        let agent = rig.run_folder(&spec).join("agent");
        // What a command can do with the folder, done as its user: another listener in the agent's place.
        std::fs::remove_file(agent.join("agent.sock")).unwrap();
        let forged = std::os::unix::net::UnixListener::bind(agent.join("agent.sock")).unwrap();
        let others = std::thread::spawn(move || forged.accept().map(|_| ()));
        let adopted = soon("adopting", rig.again().adopt(&spec)).await;
        assert!(matches!(adopted, Ok(None)), "{}: {:?}", rig.name, adopted.map(|_| ()));
        let again = rig.open(&spec).await;
        assert!(again.is_new(), "{}", rig.name);
        assert_eq!(sh(&again, "echo on").await.ok(), "on\n");
        drop(others);

        // It is removed, by a command this time.
        sh(&again, "rm /.moltis/agent/agent.sock").await;
        if !agent.join("agent.sock").exists() {
            assert!(soon("adopting", rig.again().adopt(&spec)).await.unwrap().is_none(), "{}", rig.name);
        }
        let last = rig.open(&spec).await;
        assert_eq!(sh(&last, "echo on").await.ok(), "on\n");
        last.close().await.unwrap();
        rig.until_nothing_is_left().await;
        drop(sandbox);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deep_tree_beside_the_socket_goes_with_the_sandbox() {
    for rig in rigs("a_deep_tree_beside_the_socket_goes_with_the_sandbox").await {
        let spec = rig.spec("deep");
        let sandbox = rig.open(&spec).await;
        let script = "cd /.moltis/agent && for i in $(seq 1 300); do mkdir d && \
                      cd d || exit 1; echo x > f; done; cd /.moltis/agent; \
                      ln -s /etc/passwd link; mkdir closed; echo x > closed/f; chmod 0 closed; mkfifo p";
        sh(&sandbox, script).await.ok();
        sandbox.close().await.unwrap();
        assert_eq!(rig.folders(), Vec::<String>::new(), "{}", rig.name);
        rig.until_nothing_is_left().await;
        assert!(std::path::Path::new("/etc/passwd").exists());
    }
}

/// Puts a link to `secret` in the place of a folder and the folder back, over and over, until it is told to stop.
fn swapping(place: PathBuf, secret: PathBuf, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (stop, aside) = (Arc::clone(stop), place.with_extension("aside"));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            std::fs::rename(&place, &aside).unwrap();
            std::os::unix::fs::symlink(&secret, &place).unwrap();
            std::thread::sleep(Duration::from_millis(7));
            std::fs::remove_file(&place).unwrap();
            std::fs::rename(&aside, &place).unwrap();
            std::thread::sleep(Duration::from_millis(7));
        }
    })
}

/// Opens until what is mounted was found to be something else than what was judged, which a few attempts do.
async fn until_noticed(rig: &Rig, spec: &SandboxSpec, look: &str) {
    for attempt in 0.. {
        assert!(attempt < 60, "{}: the race was never lost, so that nothing is shown by it", rig.name);
        match tokio::time::timeout(SOON * 2, rig.backend.open(spec)).await.unwrap() {
            Ok(sandbox) => {
                let seen = sh(&sandbox, look).await;
                assert_eq!(seen.stdout, "", "{}: what lies elsewhere is shown", rig.name);
                sandbox.close().await.unwrap();
            }
            Err(error) if error.to_string().contains("not what was to be mounted") => return,
            // The link was there when it was judged, or for a moment nothing was.
            Err(error) => assert!(!error.is_engine_failure(), "{}: {error:?}", rig.name),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_swapped_is_not_shown() {
    for rig in rigs("a_folder_that_is_swapped_is_not_shown").await {
        let outer = rig.folder("outer", 1000);
        // Nothing there may be shown, whoever names it: what is judged by the link is refused.
        let secret = rig.data().join("secret");
        for folder in [&outer.join("w"), &secret] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(secret.join("s"), "secret").unwrap();
        let mut spec = rig.spec("swapped");
        spec.workspace = Some(asked(mount(outer.join("w"), "/workspace", MountMode::Ro)));
        let stop = Arc::new(AtomicBool::new(false));
        let swapping = swapping(outer.join("w"), secret, &stop);
        until_noticed(&rig, &spec, "cat /workspace/s 2>/dev/null").await;
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_protected_folder_that_is_swapped_is_not_shown() {
    for rig in rigs("a_protected_folder_that_is_swapped_is_not_shown").await {
        let (workspace, secret) = (rig.folder("workspace", 1000), rig.folder("elsewhere", 1000));
        std::fs::create_dir(workspace.join(".vscode")).unwrap();
        std::fs::write(secret.join("s"), "secret").unwrap();
        let mut spec = rig.spec("protected");
        spec.workspace = Some(asked(mount(&workspace, "/workspace", MountMode::Rw)));
        spec.workspace_protect = vec![".vscode".to_owned()];
        let stop = Arc::new(AtomicBool::new(false));
        let swapping = swapping(workspace.join(".vscode"), secret, &stop);
        until_noticed(&rig, &spec, "cat /workspace/.vscode/s 2>/dev/null").await;
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_data_directory_is_told() {
    let test = "a_full_disk_of_the_data_directory_is_told";
    for rig in roots_rigs(test, "a small file system is mounted").await {
        let data = rig.path("small");
        std::fs::create_dir(&data).unwrap();
        let small = Mounted::tmpfs(&data, "size=16k,mode=700");
        let Some(_small) = small else { return moltis_testkit::need::skip(test, "nothing can be mounted") };
        let backend = rig.on(&data);
        let error = soon("opening", backend.open(&rig.spec("full"))).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), "unavailable", "{}: {error:?}", rig.name);
        assert!(!error.is_engine_failure(), "{}: {error:?}", rig.name);
        assert_eq!(rig.containers().await, Vec::new(), "{}", rig.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_engine_is_told() {
    let test = "a_full_disk_of_the_engine_is_told";
    if !moltis_testkit::need::as_root(test, "a second dockerd is started") {
        return;
    }
    let folder = tempfile::Builder::new().prefix("moltis-dockerd").tempdir().unwrap();
    let root = folder.path().join("data");
    std::fs::create_dir(&root).unwrap();
    let Some(_small) = Mounted::tmpfs(&root, "size=40m") else {
        return moltis_testkit::need::skip(test, "nothing can be mounted");
    };
    let Some(daemon) = Daemon::start_in(test, folder).await else { return };
    let rig = rig(test, EngineKind::Docker, daemon.environment()).await.unwrap();
    // What is left is less than a container of this engine's takes, which copies the image.
    std::fs::write(root.join("filler"), vec![0; 64 << 20]).unwrap_err();
    let error = rig.refusal(&rig.spec("full")).await;
    assert_eq!(error.kind(), "unavailable", "{error:?}");
    assert!(!error.is_engine_failure(), "{error:?}");
    assert!(format!("{error:?}").contains("no space left"), "{error:?}");
    std::fs::remove_file(root.join("filler")).unwrap();
    let sandbox = rig.open(&rig.spec("full")).await;
    sandbox.close().await.unwrap();
    drop(rig);
    drop(daemon);
}

/// A file system that is mounted until this is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(at: &std::path::Path, options: &str) -> Option<Self> {
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::NOSUID;
        rustix::mount::mount("tmpfs", at, "tmpfs", flags, options.as_c_str()).ok()?;
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_nobody_waits_for_any_more_is_not_left() {
    for rig in rigs("one_that_nobody_waits_for_any_more_is_not_left").await {
        for pause in [0, 50, 200, 500, 900, 1500] {
            let spec = SandboxSpec { lifetime: Lifetime::Idle(Duration::from_secs(300)), ..rig.spec("left") };
            let opening = rig.backend.open(&spec);
            let _ = tokio::time::timeout(Duration::from_millis(pause), opening).await;
            let what = format!("{}: after {pause} ms something is left", rig.name);
            let opening = tokio::time::timeout(SOON * 4, rig.again().open(&spec)).await;
            opening.expect("opening hangs").unwrap().close().await.unwrap();
            eventually(&what, async || rig.containers().await.is_empty() && rig.folders().is_empty()).await;
        }
    }
}
