//! Opening, finding and ending sandboxes, and that nothing is left of them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{Backend, Detection, Lifetime, MountMode, Network, Setting};

use super::support::{Host, asked, cgroups, eventually, is_root, lasting, lives, mount, names, sh, spec};

#[tokio::test]
async fn a_closed_sandbox_leaves_nothing() {
    let host = Host::new();
    // Its groups are looked for by its id, which others of this name on this machine would share.
    let mut with = lasting(&format!("closed {}", std::process::id()));
    with.limits.pids = Some(Setting::built_in(100));
    with.limits.memory = Some(Setting::built_in(1 << 30));
    let sandbox = host.open(&with).await;
    let pid = host.agent_pid(&with);
    sh(&sandbox, "setsid sleep 1000 > /dev/null 2>&1 &").await.ok();
    sandbox.close().await.unwrap();
    assert!(!lives(pid));
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert!(eventually(|| cgroups(with.id().as_str()).is_empty()).await);
    sandbox.close().await.unwrap();
    assert_eq!(host.backend.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_second_opener_finds_it_running() {
    let host = Host::new();
    let with = lasting("s");
    let first = host.open(&with).await;
    assert!(first.is_new());
    sh(&first, "echo kept > /tmp/f").await.ok();
    let other = host.other();
    let second = other.open(&with).await.unwrap();
    assert!(!second.is_new());
    assert_eq!(sh(&second, "cat /tmp/f").await.ok(), "kept\n");
    let listed = other.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].running && listed[0].id == with.id() && listed[0].fingerprint == with.fingerprint());
    second.close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
    // The one who opened it first notices, and gets a new one.
    let third = host.open(&with).await;
    assert!(third.is_new());
    assert!(sh(&third, "cat /tmp/f").await.failed());
    third.close().await.unwrap();
}

#[tokio::test]
async fn another_spec_makes_another_sandbox() {
    let host = Host::new();
    let first = host.open(&lasting("s")).await;
    let pid = host.agent_pid(&lasting("s"));
    sh(&first, "echo old > /tmp/f").await.ok();
    let mut changed = lasting("s");
    changed.home = Some(host.own_folder("home"));
    let second = host.open(&changed).await;
    assert!(second.is_new() && !lives(pid));
    assert!(sh(&second, "cat /tmp/f").await.failed());
    second.close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn openers_at_the_same_moment_share_one() {
    let host = Arc::new(Host::new());
    let mut opening = Vec::new();
    for _ in 0..6 {
        let backend = host.other();
        opening.push(tokio::spawn(async move { backend.open(&lasting("s")).await.unwrap() }));
    }
    let mut sandboxes = Vec::new();
    for one in opening {
        sandboxes.push(one.await.unwrap());
    }
    assert_eq!(sandboxes.iter().filter(|sandbox| sandbox.is_new()).count(), 1);
    sh(&sandboxes[0], "echo shared > /tmp/f").await.ok();
    for sandbox in &sandboxes {
        assert_eq!(sh(sandbox, "cat /tmp/f").await.ok(), "shared\n");
    }
    sandboxes[0].close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn an_ephemeral_one_ends_with_its_handle() {
    let host = Host::new();
    let with = spec("s");
    let sandbox = host.open(&with).await;
    let pid = host.agent_pid(&with);
    assert!(lives(pid));
    drop(sandbox);
    assert!(eventually(|| !lives(pid)).await);
    assert!(eventually(|| host.left_behind().is_empty()).await);
}

#[tokio::test]
async fn a_lasting_one_outlives_its_handle_and_ends_when_idle() {
    let host = Host::new();
    let mut with = lasting("s");
    with.lifetime = Lifetime::Idle(Duration::from_millis(800));
    let sandbox = host.open(&with).await;
    let pid = host.agent_pid(&with);
    drop(sandbox);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(lives(pid));
    assert!(eventually(|| !lives(pid)).await);
    assert!(eventually(|| host.left_behind().is_empty()).await);
}

#[tokio::test]
async fn what_nobody_holds_can_be_removed() {
    let host = Host::new();
    let with = lasting("s");
    drop(host.open(&with).await);
    let pid = host.agent_pid(&with);
    host.other().remove(&with.id()).await.unwrap();
    assert!(!lives(pid));
    assert_eq!(host.left_behind(), Vec::<String>::new());
    host.backend.remove(&with.id()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once() {
    let host = Arc::new(Host::new());
    let mut opening = Vec::new();
    for number in 0..50 {
        let host = Arc::clone(&host);
        opening.push(tokio::spawn(async move {
            let sandbox = host.open(&spec(&format!("s{number}"))).await;
            assert_eq!(sh(&sandbox, &format!("echo {number}")).await.ok(), format!("{number}\n"));
            sandbox
        }));
    }
    let mut sandboxes = Vec::new();
    for one in opening {
        sandboxes.push(one.await.unwrap());
    }
    assert_eq!(host.backend.list().await.unwrap().iter().filter(|found| found.running).count(), 50);
    for sandbox in sandboxes {
        sandbox.close().await.unwrap();
    }
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn it_is_usable_here_and_says_what_it_keeps() {
    let host = Host::new();
    let usable = match host.backend.detect().await {
        Detection::Usable(usable) => usable,
        Detection::Unusable(why) | Detection::Failing(why) => panic!("{why:?}"),
    };
    assert!(usable.version.starts_with("Linux "));
    assert!(usable.guarantees.filesystem.is_held() && usable.guarantees.network_blocked.is_held());
    assert!(!usable.guarantees.kernel.is_held() && usable.guarantees.network_trusted.is_held());
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn a_long_path_is_no_obstacle() {
    let host = Host::new();
    let data_dir = host.path(&"d".repeat(200)).join("e".repeat(200));
    let backend = NamespacesBackend::new(Config { data_dir: data_dir.clone(), config_dir: None });
    let sandbox = backend.open(&lasting("s")).await.unwrap();
    assert_eq!(sh(&sandbox, "echo here").await.ok(), "here\n");
    for path in [&data_dir, &data_dir.join("run"), &data_dir.join("run").join(lasting("s").id().as_str())] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o700);
    }
    sandbox.close().await.unwrap();
    assert_eq!(names(&data_dir.join("run")), Vec::<String>::new());
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_written_is_named() {
    let host = Host::new();
    let file = host.path("file");
    std::fs::write(&file, "").unwrap();
    let locked = host.folder("locked");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).unwrap();
    let mut places = vec![file.join("data"), "/proc/moltis".into()];
    if !is_root() {
        places.push(locked.join("data"));
    }
    for data_dir in places {
        let backend = NamespacesBackend::new(Config { data_dir: data_dir.clone(), config_dir: None });
        let error = backend.open(&spec("s")).await.err().unwrap();
        assert_eq!(error.code(), "data-dir-unwritable", "{error:?}");
        assert!(error.diagnosis().message.contains(data_dir.to_str().unwrap()), "{error:?}");
        assert!(error.diagnosis().fix.is_some());
    }
}

#[tokio::test]
async fn a_broken_record_is_no_obstacle() {
    let host = Host::new();
    let with = lasting("s");
    let folder = host.folder(&format!("data/run/{}", with.id()));
    std::fs::write(folder.join("sandbox.json"), "{").unwrap();
    std::fs::write(folder.join("agent.sock"), "").unwrap();
    let sandbox = host.open(&with).await;
    assert!(sandbox.is_new());
    sandbox.close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn another_backends_folder_is_not_swept() {
    let host = Host::new();
    let theirs = host.folder(&format!("data/run/{}", lasting("theirs").id()));
    std::fs::write(theirs.join("host.json"), "{}").unwrap();
    let dead = host.folder(&format!("data/run/{}", lasting("dead").id()));
    std::fs::write(dead.join("sandbox.json"), "{").unwrap();
    // The first opening sweeps, and so does every list.
    host.open(&spec("s")).await.close().await.unwrap();
    assert_eq!(host.backend.list().await.unwrap(), []);
    assert!(!dead.exists());
    assert_eq!(names(&theirs), ["host.json"]);
}

#[tokio::test]
async fn groups_that_were_made_elsewhere_go_with_their_sandbox() {
    let host = Host::new();
    let mut with = lasting(&format!("elsewhere {}", std::process::id()));
    with.limits.memory = Some(Setting::built_in(1 << 30));
    let sandbox = host.open(&with).await;
    let path = host.path("data/run").join(with.id().as_str()).join("sandbox.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let groups = record["groups"].as_array_mut().unwrap();
    // Without a way to limit memory, or with a scope, there is nothing to make elsewhere.
    let Some(made) = groups.first().map(|group| PathBuf::from(group.as_str().unwrap())) else { return };
    let elsewhere = made.parent().unwrap().with_file_name(format!("moltis-test-{}", std::process::id()));
    let other = elsewhere.join(made.file_name().unwrap());
    if std::fs::create_dir(&elsewhere).is_err() {
        return;
    }
    std::fs::create_dir(&other).unwrap();
    groups.push(other.to_str().unwrap().into());
    std::fs::write(&path, record.to_string()).unwrap();
    let pid = i32::try_from(host.agent_pid(&with)).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    drop(sandbox);
    // Whoever comes first clears away: the one who made it, or the sweep of another.
    for _ in 0..1000 {
        if host.other().list().await.unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(eventually(|| !other.exists() && !made.exists()).await);
    std::fs::remove_dir(&elsewhere).unwrap();
}

/// Processes that have this host's folders mounted.
fn processes_of(host: &Host) -> Vec<String> {
    let home = host.path("home");
    let home = home.to_str().unwrap();
    names("/proc".as_ref())
        .into_iter()
        .filter(|name| name.parse::<u32>().is_ok())
        .filter(|pid| {
            let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            mounts.lines().any(|line| line.split(' ').nth(3).is_some_and(|root| root.ends_with(home)))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_is_given_up_leaves_nothing() {
    let host = Arc::new(Host::new());
    let workspace = host.folder("home");
    // How long one takes here.
    let start = std::time::Instant::now();
    host.open(&spec("measured")).await.close().await.unwrap();
    let whole = start.elapsed();
    let mut handed_out = 0;
    for number in 0..50_u32 {
        let mut with = lasting(&format!("s{number}"));
        with.limits.pids = Some(Setting::built_in(100));
        with.workspace = Some(asked(mount(&workspace, "/workspace", MountMode::Ro)));
        let id = with.id();
        let mut opening = Box::pin(host.backend.open(&with));
        // Moments spread over the whole of it, and a little beyond; never twice the same.
        let moment = whole * number / 40;
        match tokio::time::timeout(moment, &mut opening).await {
            Ok(sandbox) => {
                handed_out += 1;
                sandbox.unwrap().close().await.unwrap();
            }
            Err(_) => {
                // Let it come to its end unseen, for half of them: then it is the answer that is dropped.
                if number % 2 == 0 {
                    std::thread::sleep(whole);
                }
                drop(opening);
            }
        }
        let gone = || host.left_behind().is_empty() && cgroups(id.as_str()).is_empty();
        let start = std::time::Instant::now();
        while !gone() || !processes_of(&host).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(2), "{number}: {:?}", host.left_behind());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    assert!(handed_out < 50);
}

#[tokio::test]
async fn sandbox_uid_zero_is_refused() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    let mut with = spec("s");
    with.sandbox_uid = Some(0);
    let error = host.backend.open(&with).await.err().unwrap();
    assert_eq!(error.code(), "sandbox-uid");
    with.sandbox_uid = Some(54_321);
    let sandbox = host.open(&with).await;
    assert_eq!(sh(&sandbox, "cat /proc/self/uid_map").await.ok().split_whitespace().nth(1), Some("54321"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn an_open_network_is_connected_or_refused_with_what_is_missing() {
    let host = Host::new();
    let mut with = spec("s");
    with.network = asked(Network::Open);
    match host.backend.open(&with).await {
        Ok(sandbox) => {
            let devices =
                sh(&sandbox, "tail -n +3 /proc/net/dev | wc -l; wc -c < /etc/resolv.conf").await.ok();
            assert!(devices.starts_with("2\n") && !devices.ends_with("\n0\n"), "{devices}");
            sandbox.close().await.unwrap();
        }
        Err(error) => assert!(error.diagnosis().fix.is_some(), "{error:?}"),
    }
    assert!(eventually(|| host.left_behind().is_empty()).await);
}
