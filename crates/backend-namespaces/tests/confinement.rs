//! What a command is: nobody, without rights, behind filters.

use std::fs;

use super::support::{Host, is_root, lasting, sh, spec};

#[tokio::test]
async fn a_command_has_no_rights_to_lose() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    let status = sh(&sandbox, "cat /proc/self/status").await.ok();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:")));
        line.unwrap().split_once(':').unwrap().1.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("Uid"), "1000 1000 1000 1000");
    assert_eq!(field("Gid"), "1000 1000 1000 1000");
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    if is_root() {
        assert_eq!(field("Groups"), "");
    }
    assert_eq!(sh(&sandbox, "cat /proc/self/oom_score_adj; ulimit -c").await.ok(), "500\n0\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn host_root_is_not_in_the_sandbox() {
    let host = Host::new();
    let spec = lasting("s");
    let sandbox = host.open(&spec).await;
    let map = sh(&sandbox, "cat /proc/self/uid_map /proc/self/gid_map").await.ok();
    for line in map.lines() {
        let words: Vec<u32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!((words[0], words[2]), (1000, 1));
        assert_ne!(words[1], 0);
    }
    let status = fs::read_to_string(format!("/proc/{}/status", host.agent_pid(&spec))).unwrap();
    let uids: Vec<_> =
        status.lines().find(|line| line.starts_with("Uid:")).unwrap().split_whitespace().collect();
    assert!(uids[1..].iter().all(|uid| *uid != "0"), "{uids:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn every_namespace_is_new() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let ours = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        let theirs = sh(&sandbox, &format!("readlink /proc/self/ns/{name}")).await.ok();
        assert_ne!(theirs.trim(), ours.to_str().unwrap());
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn the_kernels_files_are_hidden_or_read_only() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    for line in [
        "echo x > /proc/sys/kernel/hostname",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "test -s /proc/keys",
        "test -s /proc/timer_list",
        "head -c 1 /proc/kcore | grep -q .",
        "ls -A /proc/acpi | grep -q .",
        "mount -t tmpfs none /tmp",
        "unshare -U true",
        "unshare -m true",
        "ls /sys",
    ] {
        assert!(sh(&sandbox, line).await.failed(), "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn the_agent_is_out_of_reach() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    for line in [
        "ls /proc/1/fd",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "readlink /proc/1/exe",
        "ls /proc/1/root/",
    ] {
        assert!(sh(&sandbox, line).await.failed(), "{line}");
    }
    // The shell's own three, and the directory that `ls` reads.
    assert_eq!(sh(&sandbox, "ls /proc/self/fd | tr '\\n' ' '").await.ok(), "0 1 2 3 ");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn the_agent_holds_nothing_of_the_hosts() {
    if !is_root() {
        // Its descriptors are hidden from its own user too.
        return;
    }
    let host = Host::new();
    let spec = lasting("s");
    let sandbox = host.open(&spec).await;
    let fds = format!("/proc/{}/fd", host.agent_pid(&spec));
    for entry in fs::read_dir(&fds).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap().to_string_lossy().into_owned();
        let allowed = ["socket:", "pipe:", "anon_inode:", "/dev/null"];
        assert!(allowed.iter().any(|start| target.starts_with(start)), "{target}");
    }
    sandbox.close().await.unwrap();
}
