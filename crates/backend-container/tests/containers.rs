//! Containers: made, started, described, ended and removed, with what each option does seen from inside.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{
    Bind, Container, ContainerSpec, ContainerState, EngineError, ExecSpec, NetworkMode, Relabel, Tmpfs,
};

use super::support::{LABEL, engines, exec, unique, words};

#[tokio::test]
async fn a_container_lives_and_goes() {
    for tested in engines("a_container_lives_and_goes").await {
        let engine = &tested.engine;
        let spec = ContainerSpec { auto_remove: false, ..tested.spec() };
        let made = tested.create(&spec).await;
        let before = engine.inspect(&made.id).await.unwrap().unwrap();
        let want = Container {
            id: made.id.clone(),
            name: spec.name.clone(),
            state: ContainerState::Created,
            labels: before.labels.clone(),
            image: tested.image.clone(),
            created_secs: before.created_secs,
            ..Container::default()
        };
        assert_eq!(before, want, "{}", tested.name);
        assert_eq!(before.labels.get(LABEL), spec.labels.get(LABEL));
        assert!(before.created_secs > 1_700_000_000, "{}: {before:?}", tested.name);

        engine.start(&made.id).await.unwrap();
        let running = engine.inspect(&spec.name).await.unwrap().unwrap();
        assert_eq!(running.state, ContainerState::Running, "{}", tested.name);
        let command = std::fs::read(format!("/proc/{}/cmdline", running.pid)).unwrap();
        assert_eq!(command, b"/bin/sleep\x0060\0", "{}", tested.name);

        engine.remove(&made.id).await.unwrap();
        assert_eq!(engine.inspect(&made.id).await.unwrap(), None, "{}", tested.name);
        assert!(!PathBuf::from(format!("/proc/{}", running.pid)).exists(), "{}", tested.name);
        // Once more is no error, and neither is waiting for what is gone.
        engine.remove(&made.id).await.unwrap();
        engine.wait(&made.id).await.unwrap();
        let gone = EngineError::NoSuchContainer { id: made.id.clone() };
        assert_eq!(engine.start(&made.id).await, Err(gone.clone()), "{}", tested.name);
        assert_eq!(engine.logs(&made.id, 10).await, Err(gone.clone()), "{}", tested.name);
    }
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    for tested in engines("what_is_wrong_is_said").await {
        let engine = &tested.engine;
        let name = tested.name;
        let made = tested.create(&tested.spec()).await;
        let taken = engine.inspect(&made.id).await.unwrap().unwrap().name;
        let conflict = engine.create(&ContainerSpec { name: taken, ..tested.spec() }).await;
        assert!(matches!(conflict, Err(EngineError::Conflict { .. })), "{name}: {conflict:?}");

        let reference = format!("sha256:{}", "0".repeat(64));
        let error = engine.create(&ContainerSpec { image: reference.clone(), ..tested.spec() }).await;
        assert_eq!(error, Err(EngineError::NoSuchImage { reference }), "{name}");

        let bind = Bind {
            source: "/nonexistent".into(),
            target: "/x".to_owned(),
            read_only: true,
            relabel: Relabel::Not,
        };
        let error = engine.create(&ContainerSpec { binds: vec![bind], ..tested.spec() }).await;
        assert!(matches!(error, Err(EngineError::Refused { .. })), "{name}: {error:?}");

        let broken = tested.create(&ContainerSpec { argv: words(&["/nonexistent"]), ..tested.spec() }).await;
        let error = engine.start(&broken.id).await;
        assert!(matches!(error, Err(EngineError::CannotStart { .. })), "{name}: {error:?}");
    }
}

#[tokio::test]
async fn options_hold_inside() {
    for tested in engines("options_hold_inside").await {
        let shared = tempfile::tempdir().unwrap();
        std::fs::write(shared.path().join("f"), "shared").unwrap();
        let bind = |target: &str, read_only| Bind {
            source: shared.path().to_owned(),
            target: target.to_owned(),
            read_only,
            relabel: Relabel::Not,
        };
        let spec = ContainerSpec {
            env: vec![("A".to_owned(), "1 =2".to_owned()), ("EMPTY".to_owned(), String::new())],
            directory: "/tmp".to_owned(),
            binds: vec![bind("/ro", true), bind("/rw", false)],
            volumes: vec!["/vol".to_owned()],
            tmpfs: vec![
                Tmpfs {
                    target: "/tmp".to_owned(),
                    options: "rw,nosuid,nodev,exec,size=1m,mode=1777".to_owned(),
                },
                Tmpfs { target: "/etc".to_owned(), options: "ro,nosuid,nodev,noexec,size=64k".to_owned() },
            ],
            read_only_root: true,
            drop_capabilities: true,
            no_new_privileges: true,
            memory: Some(64 << 20),
            cpus: Some(0.5),
            pids: Some(32),
            ..tested.spec()
        };
        let made = tested.run(&spec).await;
        let inside = async |command: &str| tested.shell(&made.id, command).await.0.trim().to_owned();
        let name = tested.name;
        assert_eq!(inside("id -u; id -g").await, "1000\n1000", "{name}");
        assert_eq!(
            inside("hostname; pwd; echo \"$A,${EMPTY-unset}.\"").await,
            "sandbox\n/tmp\n1 =2,.",
            "{name}"
        );
        let status = inside("grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status").await;
        let zero = "0000000000000000";
        let want = format!(
            "CapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t{zero}\nCapAmb:\t{zero}\n\
             NoNewPrivs:\t1\nSeccomp:\t2"
        );
        assert_eq!(status, want, "{name}");
        // Nothing is writable but what was asked for.
        let writable = inside(
            "for d in / /run /var/tmp /dev /home /etc /ro /rw /tmp /proc /sys /sys/fs/cgroup; do \
             (touch $d/.w) 2>/dev/null && echo $d; done",
        )
        .await;
        assert_eq!(writable, "/tmp", "{name}: the folder of the host belongs to root");
        // Docker's volumes belong to root, Podman's to the user of the first process.
        let root =
            ExecSpec { user: Some((0, 0)), ..exec(&["/bin/sh", "-c", "touch /rw/w; stat -c %u /vol"]) };
        let run = tested.engine.exec(&made.id, &root).await.unwrap();
        let owner = tested.finish(run).await.0;
        assert_eq!(owner, if name == "docker" { "0\n" } else { "1000\n" }, "{name}");
        assert!(shared.path().join("w").exists(), "{name}");
        std::fs::remove_file(shared.path().join("w")).unwrap();
        assert_eq!(inside("cat /ro/f /rw/f; ls /etc | grep -c passwd").await, "sharedshared0", "{name}");
        assert!(inside("ls /sys/class/net").await == "lo", "{name}");
        let mount = inside("grep ' /tmp ' /proc/mounts").await;
        assert!(
            mount.contains("nosuid") && mount.contains("size=1024k") && !mount.contains("noexec"),
            "{mount}"
        );
        // A first process that is none of an engine's own.
        assert_eq!(inside("tr '\\0' ' ' < /proc/1/cmdline").await, "/bin/sleep 60", "{name}");

        let found = tested.engine.inspect(&made.id).await.unwrap().unwrap();
        let mut mounts = found.mounts.clone();
        mounts.retain(|(_, target)| target != "/tmp" && target != "/etc");
        mounts.sort_by(|a, b| a.1.cmp(&b.1));
        let want = [
            (shared.path().to_owned(), "/ro".to_owned()),
            (shared.path().to_owned(), "/rw".to_owned()),
            (PathBuf::new(), "/vol".to_owned()),
        ];
        assert_eq!(mounts, want, "{name}");
        // What an engine says that it cannot limit, it does not.
        if !tested.engine.info().await.unwrap().pids.is_yes() {
            continue;
        }
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", found.pid)).unwrap();
        assert_eq!(limits(&cgroup), (64 << 20, 64 << 20, 0.5, 32), "{name}");
    }
}

/// Memory, memory with swap, processors and processes that a cgroup of version 1 or 2 is limited to.
fn limits(cgroup: &str) -> (u64, u64, f64, u64) {
    let read = |path: String| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let number = |text: String| text.trim().parse::<u64>().unwrap();
    let v1 = |controller: &str| {
        cgroup.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let names = fields.nth(1)?;
            let path = fields.next()?;
            names.split(',').any(|name| name == controller).then(|| format!("/sys/fs/cgroup/{names}{path}"))
        })
    };
    if let Some(memory) = v1("memory") {
        let cpu = v1("cpu").unwrap();
        let quota = number(read(format!("{cpu}/cpu.cfs_quota_us"))) as f64;
        let period = number(read(format!("{cpu}/cpu.cfs_period_us"))) as f64;
        let limit = number(read(format!("{memory}/memory.limit_in_bytes")));
        // Where the kernel counts no swap, the file is not there, and there is nothing to swap to.
        let swap = std::fs::read_to_string(format!("{memory}/memory.memsw.limit_in_bytes"));
        let swap = swap.map_or(limit, number);
        return (limit, swap, quota / period, number(read(format!("{}/pids.max", v1("pids").unwrap()))));
    }
    let path = format!("/sys/fs/cgroup{}", cgroup.trim().trim_start_matches("0::"));
    let memory = number(read(format!("{path}/memory.max")));
    let swap = memory + number(read(format!("{path}/memory.swap.max")));
    let cpu = read(format!("{path}/cpu.max"));
    let (quota, period) = cpu.trim().split_once(' ').unwrap();
    let cpus = quota.parse::<f64>().unwrap() / period.parse::<f64>().unwrap();
    (memory, swap, cpus, number(read(format!("{path}/pids.max"))))
}

#[tokio::test]
async fn containers_are_listed_by_their_labels() {
    for tested in engines("containers_are_listed_by_their_labels").await {
        let key = unique("label");
        let mut spec = tested.spec();
        spec.labels.insert(key.clone(), "one".to_owned());
        let first = tested.run(&spec).await;
        let mut spec = ContainerSpec { auto_remove: false, ..tested.spec() };
        spec.labels.insert(key.clone(), "two,=x".to_owned());
        let second = tested.create(&spec).await;
        let listed = async |labels: &[(&str, &str)]| {
            let mut found: Vec<(String, ContainerState)> = tested
                .engine
                .containers(labels)
                .await
                .unwrap()
                .into_iter()
                .inspect(|container| assert_eq!(container.image, tested.image, "{}", tested.name))
                .map(|container| (container.id, container.state))
                .collect();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found
        };
        let mut both =
            vec![(first.id.clone(), ContainerState::Running), (second.id.clone(), ContainerState::Created)];
        both.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(listed(&[(&key, "")]).await, both, "{}", tested.name);
        assert_eq!(listed(&[(&key, "two,=x")]).await, [(second.id.clone(), ContainerState::Created)]);
        assert_eq!(
            listed(&[(&key, "one"), (LABEL, "")]).await,
            [(first.id.clone(), ContainerState::Running)]
        );
        assert_eq!(listed(&[(&key, "three")]).await, []);
    }
}

#[tokio::test]
async fn ends_are_waited_for() {
    for tested in engines("ends_are_waited_for").await {
        let engine = &tested.engine;
        let short = ContainerSpec { argv: words(&["/bin/sh", "-c", "sleep 0.5; exit 3"]), ..tested.spec() };
        let kept = tested.run(&ContainerSpec { auto_remove: false, ..short.clone() }).await;
        engine.wait(&kept.id).await.unwrap();
        let over = engine.inspect(&kept.id).await.unwrap().unwrap();
        assert_eq!(
            (over.state, over.pid, over.exit_code),
            (ContainerState::Exited, 0, Some(3)),
            "{}",
            tested.name
        );
        // Waiting for what is over returns at once.
        engine.wait(&kept.id).await.unwrap();

        let passing = tested.run(&ContainerSpec { name: unique("passing"), ..short }).await;
        engine.wait(&passing.id).await.unwrap();
        let since = Instant::now();
        while engine.inspect(&passing.id).await.unwrap().is_some() {
            assert!(since.elapsed() < Duration::from_secs(20), "{}: it is not removed", tested.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }

        // Somebody else removes it meanwhile, and again at once.
        let removed = tested.run(&tested.spec()).await;
        let (one, two, waited) =
            tokio::join!(engine.remove(&removed.id), engine.remove(&removed.id), engine.wait(&removed.id),);
        assert_eq!((one, two, waited), (Ok(()), Ok(()), Ok(())), "{}", tested.name);
        assert_eq!(engine.inspect(&removed.id).await.unwrap(), None, "{}", tested.name);
    }
}

#[tokio::test]
async fn volumes_go_with_their_container() {
    for tested in engines("volumes_go_with_their_container").await {
        let volumes = async || {
            let program = if tested.name == "docker" { "docker" } else { "podman" };
            let output =
                tokio::process::Command::new(program).args(["volume", "ls", "-q"]).output().await.unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        for auto_remove in [true, false] {
            let spec = ContainerSpec { volumes: vec!["/vol".to_owned()], auto_remove, ..tested.spec() };
            let made = tested.run(&spec).await;
            let source = tested.shell(&made.id, "grep ' /vol ' /proc/self/mountinfo | cut -d' ' -f4").await.0;
            let volume = source.trim().rsplit('/').nth(1).unwrap().to_owned();
            assert!(volumes().await.contains(&volume), "{}: {source}", tested.name);
            tested.engine.remove(&made.id).await.unwrap();
            assert!(!volumes().await.contains(&volume), "{} ({auto_remove}): {volume}", tested.name);
        }
    }
}

#[tokio::test]
async fn logs_are_kept_where_that_is_asked_for() {
    for tested in engines("logs_are_kept_where_that_is_asked_for").await {
        let argv = words(&["/bin/sh", "-c", "printf abc; echo err >&2; printf 'x\\0\\377z'"]);
        for keep_logs in [true, false] {
            let spec = ContainerSpec { argv: argv.clone(), keep_logs, auto_remove: false, ..tested.spec() };
            let made = tested.run(&spec).await;
            tested.engine.wait(&made.id).await.unwrap();
            let all = tested.engine.logs(&made.id, 1000).await.unwrap();
            if !keep_logs {
                assert_eq!(all, b"", "{}", tested.name);
                continue;
            }
            let text = String::from_utf8_lossy(&all).into_owned();
            assert!(text.contains("abc") && text.contains("err"), "{}: {text:?}", tested.name);
            let last = tested.engine.logs(&made.id, 2).await.unwrap();
            assert_eq!(last, all[all.len() - 2..], "{}", tested.name);
        }
    }
}

#[tokio::test]
async fn a_fork_bomb_is_removed() {
    for tested in engines("a_fork_bomb_is_removed").await {
        let bomb = "f() { f | f & f; }; f";
        let mut spec =
            ContainerSpec { argv: words(&["/bin/sh", "-c", bomb]), pids: Some(100), ..tested.spec() };
        if !tested.engine.info().await.unwrap().pids.is_yes() {
            // It would take every process that the user may have, and all that this user's tests start would fail.
            (spec.pids, spec.nproc) = (None, Some(100));
        }
        let made = tested.run(&spec).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        tested.engine.remove(&made.id).await.unwrap();
        assert_eq!(tested.engine.inspect(&made.id).await.unwrap(), None, "{}", tested.name);
    }
}

#[tokio::test]
async fn the_engines_network_is_not_the_hosts() {
    for tested in engines("the_engines_network_is_not_the_hosts").await {
        let made = tested.run(&ContainerSpec { network: NetworkMode::Engine, ..tested.spec() }).await;
        let (links, ..) = tested.shell(&made.id, "ls /sys/class/net").await;
        // Without root Podman's is a tap device.
        assert!(links.contains("eth0") || links.contains("tap0"), "{}: {links}", tested.name);
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        let (theirs, ..) = tested.shell(&made.id, "readlink /proc/self/ns/net").await;
        assert_ne!(theirs.trim(), ours.to_str().unwrap(), "{}", tested.name);
    }
}
