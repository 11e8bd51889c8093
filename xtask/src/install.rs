//! Installing what the tests need and a machine does not have, by Debian's package manager.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::command::{find, kept, root, shown};

/// Programs that tests use, and the packages that bring them.
const NEEDS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("make", "make"),
    ("git", "git"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("bwrap", "bubblewrap"),
    ("pasta", "passt"),
    ("slirp4netns", "slirp4netns"),
    ("newuidmap", "uidmap"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("strace", "strace"),
    ("tmux", "tmux"),
    ("ip", "iproute2"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("chromium", "chromium"),
    ("javac", "default-jdk-headless"),
    ("go", "golang-go"),
    ("curl", "curl"),
    ("docker-compose", "docker-compose"),
    ("wget", "wget"),
    ("openssl", "openssl"),
    ("systemd-analyze", "systemd"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("ssh", "openssh-client"),
    ("vi", "vim-tiny"),
    ("awk", "mawk"),
];

/// Files that tests use inside sandboxes, which show the system's and nothing else that comes first on PATH.
const FILES: &[(&str, &str)] = &[
    ("/usr/bin/python3", "python3"),
    ("/usr/bin/pip3", "python3-pip"),
    ("/usr/lib/python3/dist-packages/requests", "python3-requests"),
    ("/usr/lib/python3/dist-packages/httpx", "python3-httpx"),
];

/// Programs and files that are missing here, with their packages.
pub fn missing() -> Vec<(&'static str, &'static str)> {
    let programs = NEEDS.iter().filter(|(program, _)| find(program).is_none());
    programs.chain(FILES.iter().filter(|(file, _)| !Path::new(file).exists())).copied().collect()
}

/// Installs what is missing.
pub fn install() -> Result<(), String> {
    let mut packages: Vec<&str> = missing().into_iter().map(|(_, package)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    fetch(&packages)?;
    let left = missing();
    if left.is_empty() { Ok(()) } else { Err(format!("still missing: {left:?}")) }
}

/// Installs those of these packages that are not there.
pub fn packages(wanted: &[&str]) -> Result<(), String> {
    let there = |package: &str| {
        let mut query = Command::new("dpkg-query");
        query.args(["-W", "-f", "${db:Status-Status}", package]);
        kept(&mut query, None, Duration::from_secs(30)).is_ok_and(|ended| ended.text() == "installed")
    };
    fetch(&wanted.iter().copied().filter(|package| !there(package)).collect::<Vec<_>>())
}

fn fetch(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    if !root() || find("apt-get").is_none() {
        return Err(format!("missing: {}. Install them, or run this as root on Debian", packages.join(", ")));
    }
    println!("installing {}", packages.join(", "));
    let apt = |arguments: &[&str]| {
        shown(
            Command::new("apt-get")
                .args(["-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"])
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive"),
            Duration::from_secs(900),
        )
    };
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    if apt(&["update"])? != 0 || apt(&arguments)? != 0 {
        return Err("apt-get failed".into());
    }
    Ok(())
}
