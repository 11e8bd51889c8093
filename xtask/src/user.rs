//! Running a program as an ordinary user when this one is root: sandboxes have to hold for both.
//!
//! What was built may lie below a folder that others cannot enter, such as root's home. It is shown to the user at its
//! own path in a mount namespace made for that run; nothing of the machine is changed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::Scratch;

/// The user: one that no Debian system gives to anybody.
pub const UID: u32 = 61_234;

/// The script that makes the namespace: folders to show, folders to cover, then the program.
const SCRIPT: &str = r#"
hold=$1; shift
shows=$1; shift
covers=$1; shift
n=0
printf '%s' "$shows" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    n=$((n+1)); mkdir "$hold/$n"; mount --bind "$path" "$hold/$n"
done
printf '%s' "$covers" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    mount -t tmpfs -o mode=755 none "$path"
done
n=0
printf '%s' "$shows" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    n=$((n+1)); [ -e "$path" ] || { mkdir -p "$path"; mount --bind "$hold/$n" "$path"; }
    # Where cargo lets tests keep their own things.
    [ ! -d "$path/tmp" ] || mount -t tmpfs -o mode=1777 none "$path/tmp"
done
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- "$@"
"#;

/// The topmost folder above a path that others cannot enter.
fn closed_above(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    above
        .into_iter()
        .find(|folder| {
            std::fs::metadata(folder).is_ok_and(|m| m.is_dir() && m.permissions().mode() & 0o001 == 0)
        })
        .map(Path::to_owned)
}

/// A command that runs `program` as the ordinary user, who sees these folders whatever lies above them, with a home in
/// `scratch`.
pub fn command(program: &Path, shows: &[PathBuf], scratch: &Scratch) -> Result<Command, String> {
    let say = |e: std::io::Error| format!("{}: {e}", scratch.0.display());
    let home = scratch.0.join("home");
    let hold = scratch.0.join("hold");
    for folder in [&home, &hold] {
        if !folder.exists() {
            std::fs::create_dir(folder).map_err(say)?;
        }
    }
    // The places to bind onto are made anew each time, in the namespace's own tmpfs below.
    std::os::unix::fs::chown(&home, Some(UID), Some(UID)).map_err(say)?;
    let mut covers: Vec<PathBuf> = shows.iter().filter_map(|path| closed_above(path)).collect();
    covers.sort();
    covers.dedup();
    let lines =
        |paths: &[PathBuf]| -> String { paths.iter().map(|p| format!("{}\n", p.display())).collect() };
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-euc"])
        .arg(format!("uid={UID}; mount -t tmpfs none \"$1\"\n{SCRIPT}"))
        .arg("sh")
        .arg(&hold)
        .arg(lines(shows))
        .arg(lines(&covers))
        .arg(program);
    command.env_clear();
    for name in ["PATH", "LANG", "TERM", "RUST_BACKTRACE"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("HOME", &home).env("USER", "moltis-test");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_folder_above_is_found() {
        let scratch = Scratch::new("user").unwrap();
        let (outer, inner) = (scratch.0.join("a"), scratch.0.join("a/b"));
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(closed_above(&inner), None);
        std::fs::set_permissions(&outer, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(closed_above(&inner), Some(outer));
    }
}
