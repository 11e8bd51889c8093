//! The jailer, as root: a root of its own, a user that nobody else has, and all of it gone afterwards.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use moltis_backend_firecracker::{FirecrackerBackend, Step};
use moltis_sandbox::Backend;
use moltis_testkit::need;

use crate::support::{Host, firecracker, lasting, names};

/// What a process is, by the kernel's account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    user: u32,
    root: Vec<String>,
    disk: (u32, u32),
    seccomp: String,
    rootfs_mode: u32,
}

fn seen(host: &std::path::Path) -> Seen {
    let id = lasting("jailed").id();
    let folder = host.join("data/run/firecracker").join(id.as_str());
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("sandbox.json")).unwrap()).unwrap();
    let pid = record["pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let root = format!("/proc/{pid}/root");
    let disk = std::fs::metadata(format!("{root}/disk.ext4")).unwrap();
    // The thread that runs the machine's processor has the strictest filter; the first has one, too.
    Seen {
        user: field("Uid:").parse().unwrap(),
        root: names(std::path::Path::new(&root)),
        disk: (disk.uid(), disk.mode() & 0o777),
        seccomp: field("Seccomp:"),
        rootfs_mode: std::fs::metadata(format!("{root}/rootfs.ext4")).unwrap().mode() & 0o777,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_root_each_machine_is_jailed_with_a_user_of_its_own() {
    let name = "jail::as_root_each_machine_is_jailed_with_a_user_of_its_own";
    let Some(program) = firecracker(name) else { return };
    if !need::as_root(name, "the jailer must be root") {
        return;
    }
    let host = Host::new(program);
    let found = Arc::new(Mutex::new(None));
    let mut config = host.config();
    let (tells, path) = (Arc::clone(&found), host.path(""));
    config.watch = Some(Arc::new(move |step| {
        if step == Step::Started {
            *tells.lock().unwrap() = Some((seen(&path), names(&path.join("data/run/firecracker/.users"))));
        }
    }));
    let Err(error) = FirecrackerBackend::new(config).open(&lasting("jailed")).await else {
        panic!("it opened")
    };
    assert_eq!(error.code(), "firecracker-guest-silent", "{error:?}");
    let (seen, users) = found.lock().unwrap().clone().unwrap();
    assert!(seen.user >= 1_830_000_000, "{seen:?}");
    assert_eq!(users, [(seen.user - 1_830_000_000).to_string()]);
    assert_eq!(seen.disk, (seen.user, 0o600));
    assert_eq!((seen.seccomp.as_str(), seen.rootfs_mode), ("2", 0o444));
    for there in ["api.sock", "dev", "disk.ext4", "initrd", "kernel", "rootfs.ext4", "v.sock"] {
        assert!(seen.root.iter().any(|name| name == there), "{there}: {:?}", seen.root);
    }
    assert!(
        !seen.root.iter().any(|name| ["etc", "home", "usr", "proc"].contains(&name.as_str())),
        "{:?}",
        seen.root
    );
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert_eq!(host.processes(), Vec::<u32>::new());
}
