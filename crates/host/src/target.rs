//! Which places inside a user may mount on.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crate::error::{Error, Result};
use crate::node_proxy;

/// The home, inside.
pub const HOME: &str = "/home/sandbox";
/// The managed files, inside.
pub const FILES: &str = "/home/sandbox/files";
/// The workspace, inside.
pub const WORKSPACE: &str = "/workspace";

/// Places of ours: a mount on them, or above them, would take the sandbox apart.
const OURS: &[&str] = &[
    node_proxy::FOLDER,
    "/bin",
    "/dev",
    "/etc",
    FILES,
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
    "/var/run",
    "/var/tmp",
    WORKSPACE,
];

/// Those of them beneath which nothing can be mounted either: they are the kernel's, read-only, or not ours to fill.
const CLOSED: &[&str] = &[
    node_proxy::FOLDER,
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/var/run",
    "/var/tmp",
];

/// Judges a target as text, and writes it plainly: absolute, without `.`, doubled or final slashes. That its directories
/// are what they seem is seen to when it is mounted.
///
/// # Errors
/// [`Error::TargetForbidden`].
pub fn judge(target: &Path) -> Result<Vec<u8>> {
    let refuse = |reason| Err(Error::TargetForbidden { path: target.to_owned(), reason });
    if !target.is_absolute() {
        return refuse("it is not an absolute path");
    }
    if target.as_os_str().as_bytes().contains(&0) || target.as_os_str().len() > 4000 {
        return refuse("it is not a path");
    }
    let mut plain = Vec::new();
    for component in target.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => {
                plain.push(b'/');
                plain.extend_from_slice(name.as_bytes());
            }
            _ => return refuse("it holds `..`"),
        }
    }
    if plain.is_empty() {
        return refuse("it is the root of the sandbox");
    }
    let covers = |place: &&str| is_within(place.as_bytes(), &plain);
    // The home itself belongs to `home`; a folder above one of ours would hide it.
    if OURS.iter().any(covers) || is_within(HOME.as_bytes(), &plain) {
        return refuse("it is, or covers, a place of the sandbox's own");
    }
    if CLOSED.iter().any(|place| is_within(&plain, place.as_bytes())) {
        return refuse("it lies in a system folder");
    }
    Ok(plain)
}

/// Whether `path` is `place` or lies beneath it.
fn is_within(path: &[u8], place: &[u8]) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_ours_are_refused() {
        for target in [
            "/",
            "//",
            "/.",
            "/usr",
            "/usr/local/x",
            "/home",
            "/home/sandbox",
            "/home/sandbox/",
            "/proc/1",
            "/dev/shm/x",
            "/sys",
            "/tmp",
            "/run",
            "/etc/ssl",
            "/nix",
            "/nix/store/x",
            "/var",
            "/workspace",
            "/home/sandbox/files",
            "relative",
            "/data/../usr",
            "/.moltis",
            "/.moltis/agent",
        ] {
            assert!(judge(Path::new(target)).is_err(), "{target}");
        }
    }

    #[test]
    fn other_places_are_the_users() {
        for (target, plain) in [
            ("/data", "/data"),
            ("/mnt//x/./y/", "/mnt/x/y"),
            ("/home/sandbox/.cargo", "/home/sandbox/.cargo"),
            ("/home/other", "/home/other"),
            ("/tmp/cache", "/tmp/cache"),
            ("/usrlocal", "/usrlocal"),
            ("/workspace/vendor", "/workspace/vendor"),
        ] {
            assert_eq!(judge(Path::new(target)).unwrap(), plain.as_bytes());
        }
    }
}
