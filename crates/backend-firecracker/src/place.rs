//! What commands find around them: their environment and their directory.

use std::ffi::OsString;

use moltis_agent::Place;
use moltis_host::caller;
use moltis_host::target::HOME;
use moltis_sandbox::GuestPath;

/// Directories of programs; the home's are never before the system's.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The same in a machine of somebody's own, whose user's home this is.
pub fn at(home: &str) -> Place {
    let mut place = common();
    for (name, value) in &mut place.env {
        if name == "HOME" {
            *value = home.into();
        }
    }
    place.cwd = GuestPath::new(home);
    place
}

/// The place that every machine is.
pub fn common() -> Place {
    let mut env: Vec<(OsString, OsString)> = [("HOME", HOME), ("PATH", PATH), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    if let Some(zone) = caller::time_zone() {
        env.push(("TZ".into(), zone));
    }
    Place { env, cwd: GuestPath::new(HOME), shell: "/bin/sh".into() }
}
