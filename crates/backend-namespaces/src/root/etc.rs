//! A small `/etc`: what is the same in every sandbox is written new, what programs need of the host is mounted.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use moltis_host::caller::INSIDE_ID;
use moltis_host::node_proxy;

use super::{Plan, system};
use crate::landlock::Access;

/// Names in `/etc` that programs need. A `*` at the end stands for any rest.
const NEEDED: &[&str] = &[
    "ImageMagick*",
    "alternatives",
    "ca-certificates*",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "java*",
    "ld.so.cache",
    "ld.so.conf*",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic*",
    "maven",
    "mime.types",
    "nanorc",
    "nsswitch.d",
    "os-release",
    "perl",
    "pki",
    "protocols",
    "python3*",
    "redhat-release",
    "rpc",
    "services",
    "sgml",
    "ssl",
    "static",
    "terminfo",
    "texmf",
    "timezone",
    "vim",
    "xml",
];

/// Whether a name in `/etc` is on the list.
pub fn is_needed(name: &[u8]) -> bool {
    NEEDED.iter().any(|needed| match needed.strip_suffix('*') {
        Some(start) => name.starts_with(start.as_bytes()),
        None => name == needed.as_bytes(),
    })
}

/// What is needed of the host's `/etc`.
pub fn host(plan: &mut Plan) {
    let Ok(entries) = fs::read_dir("/etc") else { return };
    let mut paths: Vec<_> = entries
        .flatten()
        .filter(|entry| is_needed(entry.file_name().as_bytes()))
        .map(|entry| entry.path())
        .collect();
    paths.sort_unstable();
    for path in paths {
        // One Landlock rule for all of `/etc` is enough.
        system::entry(plan, &path);
    }
}

/// What is the same in every sandbox.
pub fn generated(plan: &mut Plan, resolv_conf: &str) {
    plan.allow(b"/etc", Access::Read);
    plan.file(
        "/etc/passwd",
        format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\n\
             sandbox:x:{INSIDE_ID}:{INSIDE_ID}:sandbox:/home/sandbox:/bin/sh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
    );
    plan.file("/etc/group", format!("root:x:0:\ntty:x:5:\nsandbox:x:{INSIDE_ID}:\nnogroup:x:65534:\n"));
    plan.file("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n");
    plan.file("/etc/hostname", "sandbox\n");
    plan.file(
        "/etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\n\
         services: files\nethers: files\nrpc: files\n",
    );
    plan.file("/etc/resolv.conf", resolv_conf);
    plan.symlink("/etc/mtab", "/proc/self/mounts");
    plan.allow(node_proxy::FOLDER.as_bytes(), Access::Read);
    plan.directory(node_proxy::FOLDER, 0o755);
    plan.file(node_proxy::PATH, node_proxy::TEXT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_accounts_are_not_needed() {
        for name in [
            "shadow",
            "passwd",
            "ssh",
            "gitconfig",
            "npmrc",
            "pip.conf",
            "sudoers",
            "environment",
            "machine-id",
        ] {
            assert!(!is_needed(name.as_bytes()), "{name}");
        }
        for name in ["alternatives", "python3.11", "ca-certificates.conf", "ld.so.conf.d"] {
            assert!(is_needed(name.as_bytes()), "{name}");
        }
    }
}
