//! What a command sees of the host: what is listed here and nothing else.

use super::support::{Host, asked, is_root, sh, spec};

#[tokio::test]
async fn the_root_holds_what_was_put_there() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    let names = sh(&sandbox, "ls -A /").await.ok();
    let expected = [
        "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "run", "sbin", "tmp",
        "usr", "var", "nix", ".moltis",
    ];
    for name in names.lines() {
        assert!(expected.contains(&name), "{name}");
    }
    assert_eq!(
        sh(&sandbox, "ls -A /home /home/sandbox /tmp /run /var").await.ok(),
        "/home:\nsandbox\n\n/home/sandbox:\n\n/run:\nlock\n\n/tmp:\n\n/var:\nrun\ntmp\n"
    );
    assert_eq!(
        sh(&sandbox, "ls /dev").await.ok().split_whitespace().collect::<Vec<_>>(),
        [
            "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
            "urandom", "zero"
        ]
    );
    assert!(sh(&sandbox, "cat /etc/shadow /etc/machine-id /etc/gitconfig").await.failed());
    assert!(sh(&sandbox, &format!("ls {}", host.path("").display())).await.failed());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn names_and_users_are_the_sandboxes_own() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    let said = sh(&sandbox, "hostname; cat /etc/hostname; id -u; id -g; id -un; stat -c %U /home/sandbox")
        .await
        .ok();
    assert_eq!(said, "sandbox\nsandbox\n1000\n1000\nsandbox\nsandbox\n");
    assert_eq!(sh(&sandbox, "wc -c < /etc/resolv.conf; getent hosts localhost | wc -l").await.ok(), "0\n1\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn the_environment_is_the_places() {
    let host = Host::new();
    let mut with_files = spec("s");
    let files = host.own_folder("files");
    with_files.managed_files = Some(super::support::mount(files, "/home/sandbox/files", Default::default()));
    let sandbox = host.open(&with_files).await;
    let said = sh(
        &sandbox,
        "pwd; env | grep -v ^PWD= | cut -d= -f1 | sort | tr '\\n' ' '; echo; echo $MOLTIS_FILES_DIR",
    )
    .await;
    let said = said.ok();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "/home/sandbox");
    for name in lines[1].split_whitespace() {
        assert!(
            ["HOME", "LANG", "MOLTIS_FILES_DIR", "PATH", "TZ", "SHLVL", "_", "OLDPWD"].contains(&name),
            "{name}"
        );
    }
    assert_eq!(lines[2], "/home/sandbox/files");
    sandbox.close().await.unwrap();
    let mut with_workspace = spec("w");
    with_workspace.workspace =
        Some(asked(super::support::mount(host.folder("w"), "/workspace", Default::default())));
    let sandbox = host.open(&with_workspace).await;
    assert_eq!(sh(&sandbox, "pwd; echo ${MOLTIS_FILES_DIR-unset}").await.ok(), "/workspace\nunset\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn there_is_only_loopback_and_it_is_up() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    assert_eq!(sh(&sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await.ok(), "lo\n");
    let listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
                  socket.create_connection(s.getsockname()); print('up')";
    assert_eq!(sh(&sandbox, &format!("python3 -c \"{listen}\"")).await.ok(), "up\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn system_folders_are_read_only_and_scratch_is_not() {
    let host = Host::new();
    let sandbox = host.open(&spec("s")).await;
    for path in ["/usr/x", "/etc/x", "/x", "/opt/x", "/dev/x", "/home/x", "/var/x"] {
        assert!(sh(&sandbox, &format!("touch {path}")).await.failed(), "{path}");
    }
    let mounts = sh(&sandbox, "cat /proc/self/mountinfo").await.ok();
    for line in mounts.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let (target, options) = (fields[4], fields[5]);
        let writable = ["/tmp", "/run", "/dev/shm", "/dev/pts", "/proc", "/home/sandbox"].contains(&target)
            || target.starts_with("/dev/")
            || fields[3] == "/null";
        assert!(options.contains("nosuid"), "{line}");
        // A hidden file of `/proc` shows `/dev/null`, which is a device.
        let device = target.starts_with("/dev/") || fields[3] == "/null";
        assert!(options.contains("nodev") || device, "{line}");
        assert_eq!(options.starts_with("rw"), writable, "{line}");
        assert!(!fields[6].starts_with("shared") && !fields[6].starts_with("master"), "{line}");
    }
    let script = "printf '#!/bin/sh\\necho ran\\n' > $D/s && chmod +x $D/s && $D/s";
    assert_eq!(sh(&sandbox, &format!("D=/tmp; {script}")).await.ok(), "ran\n");
    assert_eq!(sh(&sandbox, &format!("D=/var/tmp; {script}")).await.ok(), "ran\n");
    assert_eq!(sh(&sandbox, &format!("D=/home/sandbox; {script}")).await.ok(), "ran\n");
    assert!(sh(&sandbox, &format!("D=/run; {script}")).await.failed());
    assert!(sh(&sandbox, &format!("D=/dev/shm; {script}")).await.failed());
    assert!(sh(&sandbox, "head -c 300M /dev/zero > /tmp/big").await.failed());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_rootfs_takes_the_place_of_the_hosts_folders() {
    let host = Host::new();
    let root = host.folder("rootfs");
    // A shell, and whatever it is linked with.
    let linked = std::process::Command::new("ldd").arg("/bin/sh").output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.chain(["/bin/sh"]) {
        let target = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(path, target).unwrap();
    }
    std::fs::create_dir_all(root.join("etc/ssl")).unwrap();
    std::fs::create_dir_all(root.join("app")).unwrap();
    std::fs::create_dir_all(root.join("root")).unwrap();
    std::fs::write(root.join("etc/shadow"), "secret").unwrap();
    std::os::unix::fs::symlink("/app", root.join("link")).unwrap();
    let mut with_root = spec("s");
    with_root.rootfs = Some(asked(root.clone()));
    let sandbox = host.open(&with_root).await;
    let said = sh(&sandbox, "for f in /* /etc/*; do echo $f; done").await.ok();
    let names: Vec<_> = said.lines().collect();
    for name in ["/app", "/bin", "/link", "/etc/ssl", "/etc/passwd"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for name in ["/usr", "/root", "/etc/shadow", "/opt"] {
        assert!(!names.contains(&name), "{name} in {names:?}");
    }
    assert!(sh(&sandbox, "echo > /app/x").await.failed());
    sandbox.close().await.unwrap();
    let _ = is_root();
}
