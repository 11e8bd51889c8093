//! What commands find around them: the image's variables and ours, and where they run.

use std::ffi::OsString;

use moltis_agent::Place;
use moltis_sandbox::{GuestPath, SandboxSpec};

/// The home, inside.
pub const HOME: &str = "/home/sandbox";
/// The managed files, inside.
pub const FILES: &str = "/home/sandbox/files";
/// The workspace, inside.
pub const WORKSPACE: &str = "/workspace";

/// Directories of programs where the image names none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of an image that never reach a command: ours say it, or they change what programs load.
fn is_ignored(name: &str) -> bool {
    name.starts_with("LD_")
        || ["HOME", "PWD", "OLDPWD", "SHELL", "TERM", "TZ", "LANG", "USER", "LOGNAME", "HOSTNAME"]
            .contains(&name)
}

/// The place that a sandbox of this image is; of a spec where one is known. `more` are variables of the backend's own.
pub fn of(
    image_env: &[String],
    spec: Option<&SandboxSpec>,
    time_zone: Option<OsString>,
    more: &[(&str, &str)],
) -> Place {
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    let mut path = PATH.to_owned();
    for variable in image_env {
        let Some((name, value)) = variable.split_once('=') else { continue };
        match name {
            "PATH" if !value.is_empty() => path = without_homes_first(value),
            _ if name.is_empty() || is_ignored(name) || value.contains('\0') => {}
            _ => env.push((name.into(), value.into())),
        }
    }
    env.extend([("HOME", HOME), ("PATH", &path), ("LANG", "C.UTF-8")].map(|(n, v)| (n.into(), v.into())));
    env.extend(time_zone.map(|zone| ("TZ".into(), zone)));
    env.extend(more.iter().map(|(name, value)| (name.into(), value.into())));
    if spec.is_some_and(|spec| spec.managed_files.is_some()) {
        env.push(("MOLTIS_FILES_DIR".into(), FILES.into()));
    }
    let directory = if spec.is_some_and(|spec| spec.workspace.is_some()) { WORKSPACE } else { HOME };
    Place { env, cwd: GuestPath::new(directory), shell: "/bin/sh".into() }
}

/// The image's `PATH` with what code inside can write to, and relative parts, behind the rest.
fn without_homes_first(path: &str) -> String {
    let parts = || path.split(':').filter(|part| part.starts_with('/'));
    let writable =
        |part: &&str| ["/home/", "/tmp/", "/workspace"].iter().any(|place| part.starts_with(place));
    let order: Vec<&str> =
        parts().filter(|part| !writable(part)).chain(parts().filter(|part| writable(part))).collect();
    if order.is_empty() { PATH.to_owned() } else { order.join(":") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_variables_are_kept_but_for_those_that_are_ours() {
        let image = [
            "PATH=/home/x/bin:/opt/go/bin::/usr/bin:rel",
            "GOROOT=/opt/go",
            "LD_PRELOAD=/x.so",
            "HOME=/root",
            "odd",
        ];
        let place = of(&image.map(str::to_owned), None, Some("Europe/Paris".into()), &[("A", "b")]);
        let env: Vec<_> = place.env.iter().map(|(n, v)| format!("{}={}", n.display(), v.display())).collect();
        assert_eq!(
            env,
            [
                "GOROOT=/opt/go",
                "HOME=/home/sandbox",
                "PATH=/opt/go/bin:/usr/bin:/home/x/bin",
                "LANG=C.UTF-8",
                "TZ=Europe/Paris",
                "A=b"
            ]
        );
        assert_eq!(place.cwd, GuestPath::new(HOME));
    }
}
