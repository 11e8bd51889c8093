//! What commands find around them: their environment and their directory.

use std::ffi::OsString;

use moltis_agent::Place;
use moltis_host::caller;
use moltis_host::target::{FILES, HOME, WORKSPACE};
use moltis_sandbox::{GuestPath, SandboxSpec};

/// Directories of programs; the home's are never before the system's.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The place that a sandbox of this spec is.
pub fn of(spec: &SandboxSpec) -> Place {
    let mut place = common();
    if spec.managed_files.is_some() {
        place.env.push(("MOLTIS_FILES_DIR".into(), FILES.into()));
    }
    place.cwd = GuestPath::new(directory(spec));
    place
}

/// What all sandboxes have in common.
pub fn common() -> Place {
    let mut env: Vec<(OsString, OsString)> = [("HOME", HOME), ("PATH", PATH), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    if let Some(zone) = caller::time_zone() {
        env.push(("TZ".into(), zone));
    }
    Place { env, cwd: GuestPath::new(HOME), shell: "/bin/sh".into() }
}

/// Where commands run that name no directory.
pub fn directory(spec: &SandboxSpec) -> &'static str {
    if spec.workspace.is_some() { WORKSPACE } else { HOME }
}
