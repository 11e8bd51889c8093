//! Running programs as an ordinary user when this one is root: sandboxes have to hold for both.
//!
//! What was built may lie below a folder that others cannot enter, such as root's home. It is shown to the user at its
//! own path in a mount namespace made for that; nothing of the machine is changed. One who uses engines has a name and
//! ids to give away there too, which Podman without root needs.

mod podman;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::Scratch;
use podman::Podman;

/// The user: one that no Debian system gives to anybody.
pub const UID: u32 = 61_234;

/// The user's name, where it has one.
const NAME: &str = "moltis-test";

/// First of the ids that the user may give away, above all that Debian gives to anybody, and how many they are.
const SUBORDINATE: (u32, u32) = (612_340_000, 65_536);

/// How long making the namespace and clearing away may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Docker's socket, which its group may use.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// What makes the namespace, holds it until its input ends, and then ends what Podman has left in it.
const HOLDER: &str = include_str!("user/holder.sh");

/// What runs a program in it: a folder, then the program and its arguments.
const RUNNER: &str = r#"cd "$1"; shift; exec "$@""#;

/// What the user is to container engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// In the group of Docker's socket, and with what Podman needs, as people are who use them without being root.
    Used,
    /// No more than what every process has.
    Strange,
}

/// The ordinary user, with a home, in a mount namespace that goes with this value.
pub struct User {
    scratch: Scratch,
    holder: Child,
    engines: Engines,
    podman: Option<Podman>,
}

impl User {
    /// One who sees these folders whatever lies above them.
    pub fn new(shows: &[PathBuf], engines: Engines) -> Result<Self, String> {
        // Short, since sockets lie below it.
        let scratch = Scratch::new("user")?;
        let say = |e: std::io::Error| format!("{}: {e}", scratch.0.display());
        for (folder, mode) in [("home", 0o755), ("run", 0o700), ("hold", 0o755)] {
            let path = scratch.0.join(folder);
            std::fs::create_dir(&path).map_err(say)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).map_err(say)?;
        }
        if engines == Engines::Used {
            podman::configure(&scratch.0.join("home"), &scratch.0.join("run"))?;
        }
        let mut covers: Vec<PathBuf> = shows.iter().filter_map(|path| closed_above(path)).collect();
        covers.sort();
        covers.dedup();
        let lines =
            |paths: &[PathBuf]| -> String { paths.iter().map(|p| format!("{}\n", p.display())).collect() };
        let mut holder = Command::new("unshare");
        holder
            .args(["--mount", "--propagation", "private", "sh", "-euc", HOLDER, "sh"])
            .arg(&scratch.0)
            .arg(lines(shows))
            .arg(lines(&covers))
            .args([UID.to_string(), SUBORDINATE.0.to_string(), SUBORDINATE.1.to_string()])
            .arg(if engines == Engines::Used { NAME } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What ends this program must not end it before it has cleared away.
            .process_group(0);
        let mut holder = holder.spawn().map_err(|e| format!("unshare: {e}"))?;
        let mut said = String::new();
        if let Some(out) = holder.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut said);
        }
        let user = Self { scratch, holder, engines, podman: None };
        if said == "ready\n" { Ok(user) } else { Err("the ordinary user's namespace cannot be made".into()) }
    }

    /// Gives the user's own Podman the images of the tests, if it is one that can be used and the images are at hand.
    pub fn fill_podman(&mut self) -> Result<(), String> {
        let command = |program: &str| self.command(Path::new(program), Path::new("/"));
        self.podman = Podman::filled(&command)?;
        Ok(())
    }

    /// A command that runs `program` as the user in `folder`.
    pub fn command(&self, program: &Path, folder: &Path) -> Command {
        let id = UID.to_string();
        let docker = std::fs::metadata(DOCKER_SOCKET).map(|found| found.gid()).ok();
        let groups = match docker.filter(|gid| *gid != 0 && self.engines == Engines::Used) {
            Some(gid) => format!("--groups={gid}"),
            None => "--clear-groups".to_owned(),
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(["sh", "-euc", RUNNER, "sh"])
            .arg(folder)
            .args(["setpriv", "--reuid", &id, "--regid", &id, &groups, "--inh-caps=-all", "--"])
            .arg(program);
        command.env_clear();
        for name in ["PATH", "LANG", "TERM", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("HOME", self.scratch.0.join("home")).env("USER", NAME);
        if self.engines == Engines::Used {
            command.env("XDG_RUNTIME_DIR", self.scratch.0.join("run"));
        }
        command
    }

    /// Ends all that there is of the user; fails if programs have left something in its Podman.
    pub fn close(self) -> Result<(), String> {
        let command = |program: &str| self.command(Path::new(program), Path::new("/"));
        self.podman.as_ref().map_or(Ok(()), |podman| podman.same_again(&command))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let end = Instant::now() + PATIENCE;
        loop {
            match self.holder.try_wait() {
                Ok(Some(status)) if status.success() => return,
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                other => {
                    eprintln!("xtask: what the ordinary user had is not all gone: {other:?}");
                    let _ = self.holder.kill();
                    let _ = self.holder.wait();
                    return;
                }
            }
        }
    }
}

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

    fn said(user: &User, script: &str) -> String {
        let mut command = user.command(Path::new("sh"), Path::new("/var"));
        let output = command.args(["-c", script]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_user_is_ordinary_and_nothing_stays() {
        if !crate::command::root() {
            return;
        }
        let outer = Scratch::new("user").unwrap();
        let closed = outer.0.join("closed");
        std::fs::create_dir_all(closed.join("shown")).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        for file in ["shown/a", "b"] {
            std::fs::write(closed.join(file), "").unwrap();
        }
        let before = std::fs::read_to_string("/etc/passwd").unwrap();
        for (engines, name) in [(Engines::Used, "moltis-test\n"), (Engines::Strange, "")] {
            let user = User::new(&[closed.join("shown")], engines).unwrap();
            assert_eq!(said(&user, "id -u; id -g; pwd"), "61234\n61234\n/var\n");
            assert_eq!(said(&user, "getent passwd 61234 | cut -d: -f1"), name);
            let named = if name.is_empty() { "" } else { "moltis-test:612340000:65536\n" };
            assert_eq!(said(&user, "grep -h ^moltis-test: /etc/subuid || :"), named);
            assert_eq!(said(&user, &format!("ls {}", closed.display())), "shown\n");
            assert_eq!(said(&user, &format!("ls {}/shown", closed.display())), "a\n");
            assert_eq!(said(&user, "touch ~/x && stat -c %u ~/x"), "61234\n");
            let (scratch, holder) = (user.scratch.0.clone(), user.holder.id());
            user.close().unwrap();
            assert!(!scratch.exists() && !Path::new(&format!("/proc/{holder}")).exists());
        }
        assert_eq!(std::fs::read_to_string("/etc/passwd").unwrap(), before);
    }
}
