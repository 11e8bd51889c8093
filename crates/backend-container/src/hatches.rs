//! The two ways in which Podman can be had inside a Podman sandbox, each of which takes its boundary away.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Error, Result, SandboxSpec};

use crate::engine::{EngineKind, Environment, Place};
use crate::hardening::Hatch;
use crate::identity::Identity;

/// Where the host's Podman socket shows inside.
pub const SOCKET: &str = "/run/podman/podman.sock";

/// Variables by which programs find it.
pub const VARIABLES: [(&str, &str); 2] =
    [("CONTAINER_HOST", "unix:///run/podman/podman.sock"), ("DOCKER_HOST", "unix:///run/podman/podman.sock")];

/// Which hatch a spec opens on this engine.
///
/// # Errors
/// `hatch-needs-podman`, `hatches-exclusive`.
pub fn of(spec: &SandboxSpec, kind: EngineKind) -> Result<Hatch> {
    let (host, nested) = (spec.host_podman.value, spec.nested_podman.value);
    let key = if host { "allow_host_podman" } else { "allow_nested_podman" };
    match (host, nested) {
        (false, false) => return Ok(Hatch::Shut),
        (true, true) => {
            return Err(refused(
                "hatches-exclusive",
                "`allow_host_podman` and `allow_nested_podman` are both set".to_owned(),
                "set one of them",
            ));
        }
        _ => {}
    }
    if kind != EngineKind::Podman {
        return Err(refused(
            "hatch-needs-podman",
            format!("`{key}` is for Podman, and this is {kind}"),
            "set backend = \"podman\"",
        ));
    }
    Ok(if host { Hatch::HostPodman } else { Hatch::NestedPodman })
}

/// The host's Podman socket, which must be there, live, and open to the sandbox's user. Blocks on a connection.
///
/// # Errors
/// `host-podman-linux-only`, `host-podman-missing`, `host-podman-closed`.
pub fn host_socket(
    endpoint: &str,
    place: Place,
    candidates: &[PathBuf],
    identity: &Identity,
) -> Result<PathBuf> {
    if place != Place::Here {
        return Err(refused(
            "host-podman-linux-only",
            "`allow_host_podman` needs a Podman on this machine".to_owned(),
            "remove `allow_host_podman`",
        ));
    }
    let own = endpoint.strip_prefix("unix://").map(PathBuf::from);
    let found = own.into_iter().chain(candidates.iter().cloned()).find(|path| is_live(path));
    let Some(path) = found else {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(Error::Unavailable(
            Diagnosis::new(
                "host-podman-missing",
                "`allow_host_podman` needs Podman's socket, and none answers",
            )
            .cause(format!("looked at {}", looked.join(", ")))
            .fix(
                "systemctl --user enable --now podman.socket (as root: systemctl enable --now podman.socket)",
            ),
        ));
    };
    let open = std::fs::metadata(&path).is_ok_and(|found| {
        let (uid, gid) = identity.outside;
        let mode = found.mode();
        (found.uid() == uid && mode & 0o200 != 0)
            || (found.gid() == gid && mode & 0o020 != 0)
            || mode & 0o002 != 0
    });
    if !open {
        let (uid, gid) = identity.outside;
        return Err(refused(
            "host-podman-closed",
            format!("{} is closed to the sandbox's user ({uid}:{gid})", path.display()),
            "run Moltis as the user whose Podman it is, or give that user's group the socket",
        ));
    }
    Ok(path)
}

/// Why nothing bounds the processes of a nested Podman where no control group does.
pub const UNBOUNDED: &str =
    "without control groups the processes of each user are bounded, and a nested Podman has many users";

/// Refuses what would not be bounded.
pub fn unbounded() -> Error {
    Error::Refused(
        Diagnosis::new("demand-not-kept", "`pids_max` cannot be kept with `allow_nested_podman` here")
            .cause(UNBOUNDED)
            .fix("remove one of them, run Moltis as root, or boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"),
    )
}

/// Where Podman's socket may be.
pub fn sockets(environment: &Environment) -> Vec<PathBuf> {
    let own = environment.vars.get("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.unwrap_or_else(|| PathBuf::from(format!("/run/user/{}", environment.uid)));
    let system = (environment.uid == 0).then(|| PathBuf::from("/run/podman/podman.sock"));
    [own.join("podman/podman.sock")].into_iter().chain(system).collect()
}

fn is_live(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path).is_ok()
}

fn refused(code: &'static str, message: String, fix: &str) -> Error {
    Error::Refused(Diagnosis::new(code, message).fix(fix))
}
