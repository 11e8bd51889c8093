//! Limits on real groups with plain processes in them. As root on cgroup v1 or v2; elsewhere there is nothing to try.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use moltis_sandbox::{Limits, SessionKey, Setting};

use super::*;

fn id(name: &str) -> SandboxId {
    SandboxId::of(&SessionKey::new(name).unwrap())
}

/// A limiter of its own data directory, or none where this machine cannot limit.
fn limiter() -> Option<(tempfile::TempDir, Limiter)> {
    let data = tempfile::tempdir().unwrap();
    let limiter = Limiter::discover(data.path(), 0);
    if matches!(limiter.way, Way::Nothing(_) | Way::Scope(_)) {
        eprintln!("not tried: {:?}", limiter.promises().memory);
        return None;
    }
    Some((data, limiter))
}

fn limits(memory: Option<u64>, cpus: Option<f64>, pids: Option<u64>) -> Limits {
    Limits {
        memory: memory.map(Setting::built_in),
        cpus: cpus.map(Setting::built_in),
        pids: pids.map(Setting::built_in),
    }
}

/// A shell that waits for a line before it goes on, inside the group from the start.
fn inside(group: &Group, script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("read go; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: setpgid and write are system calls only.
    unsafe {
        command.pre_exec(|| {
            // As commands have it: the first to go when memory runs out.
            let _ = std::fs::write("/proc/self/oom_score_adj", "500");
            Ok(())
        })
    };
    let child = command.spawn().unwrap();
    group.attach(child.id()).unwrap();
    child
}

fn go(mut child: Child) -> std::process::Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

/// Python that touches so many MiB.
fn touch(mebibytes: u32) -> String {
    format!("python3 -c 'x = bytearray({mebibytes} << 20)'")
}

#[test]
fn a_memory_bomb_dies_and_its_neighbour_in_the_sandbox_lives() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("memory"), &limits(Some(64 << 20), None, None)).unwrap().unwrap();
    // The control fits; the bomb does not; the shell around both lives on and says so.
    let output = go(inside(&group, &format!("{}; echo $?; {}; echo $?; echo alive", touch(8), touch(200))));
    let lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert_eq!(lines, ["0", "137", "alive"]);
    assert_eq!(OomKills::open(&group.directories()).unwrap().count(), 1);
    group.remove().unwrap();
    assert!(limiter.find(&id("memory"), &[]).is_none());
}

#[test]
fn tmpfs_counts_as_memory() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("tmpfs"), &limits(Some(32 << 20), None, None)).unwrap().unwrap();
    let file = format!("/dev/shm/moltis-limit-{}", std::process::id());
    let script = format!("head -c 100M /dev/zero > {file}; echo $?; rm -f {file}");
    let output = go(inside(&group, &script));
    let _ = std::fs::remove_file(&file);
    // Who is killed is the kernel's choice: pages of a tmpfs are nobody's.
    assert!(OomKills::open(&group.directories()).unwrap().count() >= 1);
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), "0");
    group.remove().unwrap();
}

#[test]
fn swap_is_counted() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("swap"), &limits(Some(64 << 20), None, None)).unwrap().unwrap();
    let read = |file: &str| {
        let directory = &group.directories()[0];
        std::fs::read_to_string(directory.join(file)).ok().map(|text| text.trim().to_owned())
    };
    let counted = match limiter.way {
        Way::V1(_) => read("memory.memsw.limit_in_bytes") == Some((64 << 20).to_string()),
        _ => read("memory.swap.max") == Some("0".to_owned()),
    };
    assert!(counted || !v1::swap_is_on());
    group.remove().unwrap();
}

#[test]
fn the_cpu_quota_bounds_all_processes_together() {
    let Some((_data, limiter)) = limiter() else { return };
    // Cores that two busy loops use together for one second.
    let busy = "import os,time\nfor _ in range(2):\n  if os.fork()==0:\n    end=time.time()+1\n    while time.time()<end: pass\n    os._exit(0)\n\
        start=time.time()\nos.wait();os.wait()\nt=os.times();print((t[2]+t[3])/(time.time()-start))";
    let busy = format!("exec python3 -c '{busy}'");
    let used = |group: Option<&Group>| {
        let output = match group {
            Some(group) => go(inside(group, &busy)),
            None => Command::new("sh").args(["-c", &busy]).output().unwrap(),
        };
        String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap()
    };
    let group = limiter.create(&id("cpu"), &limits(None, Some(0.25), None)).unwrap().unwrap();
    let limited = used(Some(&group));
    let statistics = std::fs::read_to_string(group.directories()[0].join("cpu.stat")).unwrap();
    group.remove().unwrap();
    let free = used(None);
    eprintln!("cores used: {limited:.2} under a quota of 0.25, {free:.2} without");
    assert!(limited < 0.38, "{limited}");
    // On a busy machine the control gets little, too; that the quota was felt is the kernel's word.
    let throttled = statistics.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
    assert_ne!(throttled, "0", "{statistics}");
}

#[test]
fn a_fork_bomb_stops_at_the_limit() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("pids"), &limits(None, None, Some(20))).unwrap().unwrap();
    let bomb = "import os,time\nn=0\ntry:\n  while n<200:\n    if os.fork()==0: time.sleep(60)\n    n+=1\nexcept OSError as e:\n  print(n, e.errno)";
    let mut child = inside(&group, &format!("exec python3 -c '{bomb}'"));
    drop(child.stdin.take());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line.trim(), format!("19 {}", libc::EAGAIN));
    // The sleepers are still there: removal ends them.
    let start = Instant::now();
    group.remove().unwrap();
    eprintln!("20 processes ended and their group removed in {:?}", start.elapsed());
    let _ = child.wait();
}

#[test]
fn removal_ends_what_is_inside() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("end"), &limits(Some(64 << 20), Some(1.0), Some(9))).unwrap().unwrap();
    let mut child = inside(&group, "sleep 100");
    group.remove().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    for directory in group.directories() {
        assert!(!directory.exists());
    }
}

#[test]
fn sweeping_takes_abandoned_groups_of_this_data_directory_only() {
    let (Some((_a, ours)), Some((_b, theirs))) = (limiter(), limiter()) else { return };
    let some = limits(Some(64 << 20), Some(1.0), None);
    let (dead, live, held) = (id("dead"), id("live"), id("held"));
    let made = |limiter: &Limiter, id| limiter.create(id, &some).unwrap().unwrap();
    let paths = |group: &Group| group.directories();
    let abandoned = made(&ours, &dead);
    let mut child = inside(&abandoned, "sleep 100");
    let abandoned_paths = paths(&abandoned);
    drop(abandoned);
    drop(made(&ours, &live));
    let _held = made(&ours, &held);
    drop(made(&theirs, &dead));

    assert_eq!(ours.sweep(|id| *id != live), [id("dead")]);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(abandoned_paths.iter().all(|path| !path.exists()));
    assert!(theirs.find(&dead, &[]).is_some(), "another data directory's group was swept");
    assert!(ours.find(&live, &[]).is_some() && ours.find(&held, &[]).is_some());

    _held.remove().unwrap();
    assert_eq!(ours.sweep(|_| true), [live]);
    assert_eq!(theirs.sweep(|_| true), [dead]);
}

#[test]
fn a_leftover_of_the_same_sandbox_is_replaced_but_a_held_one_is_not() {
    let Some((_data, limiter)) = limiter() else { return };
    let some = limits(Some(64 << 20), None, None);
    drop(limiter.create(&id("again"), &some).unwrap());
    let group = limiter.create(&id("again"), &some).unwrap().unwrap();
    assert_eq!(limiter.create(&id("again"), &some).unwrap_err().code(), "cgroup-busy");
    let reopened = limiter.find(&id("again"), &[]).unwrap();
    assert_eq!(reopened.directories(), group.directories());
    assert!(limiter.find(&id("other"), &group.directories()).is_none());
    reopened.remove().unwrap();
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let Some((_data, limiter)) = limiter() else { return };
    let error = limiter.create(&id("tiny"), &limits(Some(64 << 20), Some(0.0001), None)).unwrap_err();
    assert_eq!(error.code(), "cpu-quota-too-small");
    assert!(limiter.find(&id("tiny"), &[]).is_none());
}

#[test]
fn a_group_made_elsewhere_is_found_by_its_record() {
    let Some((_data, limiter)) = limiter() else { return };
    let Way::V1(_) = limiter.way else { return };
    let group = limiter.create(&id("moved"), &limits(Some(64 << 20), None, None)).unwrap().unwrap();
    let [made] = group.directories().try_into().unwrap();
    // As if whoever made it had been in another group than we are.
    let elsewhere =
        made.parent().unwrap().parent().unwrap().join(format!("moltis-test-{}", std::process::id()));
    std::fs::create_dir(&elsewhere).unwrap();
    let moved = elsewhere.join(made.file_name().unwrap());
    std::fs::create_dir(&moved).unwrap();
    group.remove().unwrap();
    assert!(limiter.find(&id("moved"), &[]).is_none());
    let recorded = [moved.clone()];
    assert!(limiter.find(&id("other"), &recorded).is_none());
    limiter.find(&id("moved"), &recorded).unwrap().remove().unwrap();
    assert!(!moved.exists());
    std::fs::remove_dir(&elsewhere).unwrap();
}

#[test]
fn rlimits_hold_for_processes_only_below_a_uid_that_is_not_root() {
    let data = tempfile::tempdir().unwrap();
    let asked = limits(None, None, Some(7));
    let user = Limiter::discover(data.path(), 1000);
    assert_eq!((user.promises().pids, user.nproc(&asked)), (Promise::Held, Some(7)));
    assert_eq!(Limiter::discover(data.path(), 0).nproc(&asked), None);
}

#[test]
fn nothing_to_keep_makes_no_group() {
    let Some((_data, limiter)) = limiter() else { return };
    assert!(limiter.create(&id("nothing"), &Limits::default()).unwrap().is_none());
}

#[test]
fn quotas_are_what_the_kernel_takes() {
    assert_eq!(Values::cpu_quota(1.0).unwrap(), (100_000, 100_000));
    assert_eq!(Values::cpu_quota(0.25).unwrap(), (25_000, 100_000));
    assert_eq!(Values::cpu_quota(0.001).unwrap(), (1_000, 1_000_000));
    assert_eq!(Values::cpu_quota(f64::MAX).unwrap().1, 100_000);
    assert!(Values::cpu_quota(0.0).is_err());
}

/// Not asserted: what one entry costs on this machine.
#[test]
fn entering_is_measured() {
    let Some((_data, limiter)) = limiter() else { return };
    let group = limiter.create(&id("cost"), &limits(Some(64 << 20), None, None)).unwrap().unwrap();
    for pause in [500, 500, 0, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let start = Instant::now();
        group.attach(child.id()).unwrap();
        eprintln!("entered after {pause} ms of rest in {:?}", start.elapsed());
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    group.remove().unwrap();
}

/// All of it again where systemd makes the groups.
#[test]
fn a_scope_keeps_what_a_group_keeps() {
    let data = tempfile::tempdir().unwrap();
    let limiter = Limiter::discover(data.path(), 0);
    let Way::Scope(_) = limiter.way else { return };
    let all = limits(Some(64 << 20), Some(0.25), Some(30));
    let group = limiter.create(&id("scope"), &all).unwrap().unwrap();
    let bomb = "import os,time\nn=0\ntry:\n  while n<200:\n    if os.fork()==0: time.sleep(60)\n    n+=1\nexcept OSError as e:\n  print(n, e.errno)";
    let busy = "timeout 1 sh -c 'while :; do :; done'; times";
    let start = Instant::now();
    let mut child = inside(&group, &format!("{}; echo $?; {busy}; exec python3 -c '{bomb}'", touch(200)));
    eprintln!("entered a scope in {:?}", start.elapsed());
    drop(child.stdin.take());
    let lines: Vec<_> = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()))
        .take(4)
        .map(Result::unwrap)
        .collect();
    assert_eq!((lines[0].as_str(), lines[3].as_str()), ("137", "29 11"), "{lines:?}");
    eprintln!("a busy second under a quota of 0.25: {}", lines[2]);
    assert_eq!(OomKills::open(&group.directories()).unwrap().count(), 1);

    // Seen from another process, and swept unless it is live.
    let directories = group.directories();
    assert_eq!(limiter.find(&id("scope"), &[]).unwrap().directories(), directories);
    assert_eq!(limiter.sweep(|other| *other != id("scope")), []);
    drop(group);
    assert_eq!(limiter.sweep(|_| true), [id("scope")]);
    let _ = child.wait();
    let deadline = Instant::now() + Duration::from_secs(5);
    while directories[0].exists() {
        assert!(Instant::now() < deadline, "systemd keeps {directories:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where this runs, for the eye.
#[test]
fn the_mechanism_is_named() {
    let data = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let limiter = Limiter::discover(data.path(), 1000);
    eprintln!("{} found in {:?}: {:?}", limiter.mechanism(), start.elapsed(), limiter.promises());
}
