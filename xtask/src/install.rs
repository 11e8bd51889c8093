//! Installing what the tests need and a machine does not have, by Debian's package manager.

use std::process::Command;
use std::time::Duration;

use crate::command::{find, root, shown};

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
    ("java", "default-jre-headless"),
    ("vi", "vim-tiny"),
    ("awk", "mawk"),
];

/// Programs that are missing here, with their packages.
pub fn missing() -> Vec<(&'static str, &'static str)> {
    NEEDS.iter().filter(|(program, _)| find(program).is_none()).copied().collect()
}

/// Installs what is missing.
pub fn install() -> Result<(), String> {
    let mut packages: Vec<&str> = missing().into_iter().map(|(_, package)| package).collect();
    // A sandbox shows the system's python3, whatever else comes first on PATH.
    if !std::path::Path::new("/usr/bin/python3").exists() {
        packages.push("python3");
    }
    packages.sort_unstable();
    packages.dedup();
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
    arguments.extend(&packages);
    if apt(&["update"])? != 0 || apt(&arguments)? != 0 {
        return Err("apt-get failed".into());
    }
    let left = missing();
    if left.is_empty() { Ok(()) } else { Err(format!("still missing: {left:?}")) }
}
