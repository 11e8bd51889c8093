//! What keys must be together.

use std::collections::BTreeMap;

use moltis_sandbox::BackendName;

use crate::error::{Place, Problem};
use crate::schema::Config;
use crate::words::BackendChoice;

pub(crate) fn check(config: &Config, places: &BTreeMap<&'static str, Place>, problems: &mut Vec<Problem>) {
    let sandbox = &config.tools.exec.sandbox;
    let at = |key: &str| places.get(key).map(|place| format!("{place}: ")).unwrap_or_default();
    let mut conflict = |key: &str, message: &str, fix: &str| {
        problems.push(Problem::Conflict { message: format!("{}{message}", at(key)), fix: fix.to_owned() });
    };

    let hatches = [
        ("allow_host_podman", "tools.exec.sandbox.allow_host_podman", sandbox.allow_host_podman.value),
        ("allow_nested_podman", "tools.exec.sandbox.allow_nested_podman", sandbox.allow_nested_podman.value),
    ];
    if hatches.iter().all(|(_, _, on)| *on) {
        conflict(
            hatches[1].1,
            "`allow_host_podman` and `allow_nested_podman` exclude each other",
            "remove one of them",
        );
    }
    if sandbox.backend.value != BackendChoice::Named(BackendName::Podman) {
        for (name, path, _) in hatches.iter().filter(|(_, _, on)| *on) {
            let message =
                format!("`{name}` needs `backend = \"podman\"`, and it is `{}`", sandbox.backend.value);
            conflict(path, &message, &format!("set `backend = \"podman\"`, or remove `{name}`"));
        }
    }
    if sandbox.allow_host_podman.value && !cfg!(target_os = "linux") {
        let message = "`allow_host_podman` works on Linux only";
        conflict(hatches[0].1, message, "remove it: elsewhere Podman runs in a machine of its own");
    }
    if sandbox.pool.value > sandbox.max_sandboxes.value {
        let message = format!(
            "`pool` = {} is more than `max_sandboxes` = {}",
            sandbox.pool.value, sandbox.max_sandboxes.value
        );
        conflict("tools.exec.sandbox.pool", &message, "lower `pool`, or raise `max_sandboxes`");
    }
    let gateway = &config.gateway;
    match (&gateway.tls_cert, &gateway.tls_key) {
        (Some(_), None) => {
            conflict("gateway.tls_cert", "`tls_cert` is set without `tls_key`", "set both, or neither");
        }
        (None, Some(_)) => {
            conflict("gateway.tls_key", "`tls_key` is set without `tls_cert`", "set both, or neither");
        }
        _ => {}
    }
}
