//! What may not be shown in a sandbox, because it gives away the host or Moltis itself: refused by name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use moltis_sandbox::MountMode::Ro;
use moltis_sandbox::{Backend, Error};

use super::support::{Host, asked, mount, spec};

async fn of_workspace(host: &Host, path: &Path) -> Error {
    let mut with = spec("s");
    with.workspace = Some(asked(mount(path, "/workspace", Ro)));
    host.refusal(&with).await
}

#[tokio::test]
async fn dangerous_sources_are_refused_by_name() {
    let host = Host::new();
    host.folder("config/sub");
    host.folder("data/homes/x");
    let home = std::env::var("HOME").unwrap();
    symlink("data", host.path("link")).unwrap();
    let data = host.path("data");
    let below = |name: &str| data.join(name);
    for (path, names) in [
        (Path::new("/").to_owned(), "file system"),
        (Path::new(&home).to_owned(), "home folder"),
        (data.clone(), "data directory"),
        (below("run"), "data directory"),
        (below("homes/x"), "data directory"),
        (host.path(""), "data directory"),
        (host.path("link"), "data directory"),
        (host.path("link/homes"), "data directory"),
        (host.path("config"), "configuration directory"),
        (host.path("config/sub"), "configuration directory"),
        ("/proc".into(), "/proc"),
        ("/proc/self".into(), "process"),
        ("/proc/self/cwd/../../../../../../../../proc".into(), "process"),
        ("/sys".into(), "/sys"),
        ("/sys/kernel".into(), "kernel"),
        ("/dev".into(), "/dev"),
        ("/dev/shm".into(), "/dev"),
        ("/run".into(), "/run"),
        ("/var/run".into(), "/run"),
    ] {
        if !path.exists() {
            continue;
        }
        let error = of_workspace(&host, &path).await;
        assert!(matches!(error, Error::Refused(_)), "{}: {error:?}", path.display());
        assert_eq!(error.code(), "workspace-refused", "{}: {error:?}", path.display());
        assert!(error.diagnosis().message.contains(names), "{}: {error:?}", path.display());
        assert!(error.diagnosis().fix.is_some());
    }
}

#[tokio::test]
async fn every_role_is_judged() {
    let host = Host::new();
    let mut as_mount = spec("s");
    as_mount.mounts = vec![asked(mount("/proc", "/data", Ro))];
    let mut as_rootfs = spec("s");
    as_rootfs.rootfs = Some(asked("/".into()));
    let mut as_home = spec("s");
    as_home.home = Some(host.path("data"));
    let mut as_run = spec("s");
    as_run.home = Some(host.own_folder("run/x"));
    let mut as_files = spec("s");
    as_files.managed_files = Some(mount("/dev", "/home/sandbox/files", Ro));
    for (spec, code) in [
        (as_mount, "mount-refused"),
        (as_rootfs, "rootfs-refused"),
        (as_home, "home-refused"),
        (as_run, "home-refused"),
        (as_files, "managed-files-refused"),
    ] {
        let error = host.backend.open(&spec).await.err().unwrap();
        assert_eq!(error.code(), code, "{error:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_or_of_the_wrong_kind_is_invalid() {
    let host = Host::new();
    fs::write(host.path("file"), "").unwrap();
    symlink("nowhere", host.path("dangling")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        host.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for (path, code) in [
        (host.path("missing"), "workspace-missing"),
        (host.path("dangling"), "workspace-missing"),
        (host.path("file"), "workspace-not-directory"),
        (host.path("file/below"), "workspace-not-directory"),
        (host.path("fifo"), "workspace-not-directory"),
        ("relative".into(), "workspace-relative"),
    ] {
        let error = of_workspace(&host, &path).await;
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert_eq!(error.code(), code, "{error:?}");
    }
    let mut with = spec("s");
    with.mounts = vec![asked(mount(host.path("fifo"), "/data", Ro))];
    assert_eq!(host.refusal(&with).await.code(), "mount-wrong-kind");
}

#[tokio::test]
async fn system_places_are_no_mount_targets() {
    let host = Host::new();
    let source = host.folder("m");
    for target in [
        "/",
        "/proc/x",
        "/dev/x",
        "/sys",
        "/usr/lib",
        "/etc",
        "/home",
        "/home/sandbox",
        "/workspace",
        "/a/../usr",
    ] {
        let mut with = spec("s");
        with.mounts = vec![asked(mount(&source, target, Ro))];
        let error = host.refusal(&with).await;
        assert!(matches!(error, Error::Refused(_)), "{target}: {error:?}");
        assert_eq!(error.code(), "mount-target-refused");
        assert!(error.diagnosis().message.contains(target));
    }
}
