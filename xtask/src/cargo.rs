//! What cargo builds, and where it puts it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cargo that runs this.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What the outer cargo set for this program says nothing to an inner one.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO_BIN_NAME" {
            command.env_remove(&name);
        }
    }
    command
}

/// The workspace's folder.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// A test program.
#[derive(Clone, Debug)]
pub struct TestProgram {
    /// Package and target, as `moltis-agent::main`.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// Folder of its package, where tests run.
    pub folder: PathBuf,
    /// Whether it is an integration test, which runs sandboxes and so runs as each kind of user.
    pub integration: bool,
}

/// Text of a string field of one line of cargo's JSON. Its paths need no unescaping on the systems we build on.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let start = line.find(&format!("\"{name}\":\""))? + name.len() + 4;
    let rest = &line[start..];
    rest.find('"').map(|end| &rest[..end])
}

/// Tests, and the programs and examples that were built along with them.
#[derive(Debug)]
pub struct Built {
    /// The tests, by name.
    pub tests: Vec<TestProgram>,
    programs: Vec<PathBuf>,
}

impl Built {
    /// A program or an example. Another build of it would compile again all that depends on what only tests ask for.
    pub fn program(&self, name: &str) -> Result<&Path, String> {
        let found = self.programs.iter().find(|path| path.file_name().is_some_and(|n| n == name));
        found.map(PathBuf::as_path).ok_or_else(|| format!("cargo built no {name} with the tests"))
    }
}

/// Builds every test of the workspace and says where they are.
pub fn build_tests() -> Result<Built, String> {
    let output = cargo()
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err("the tests do not build".into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut tests, mut programs) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|l| l.contains("\"reason\":\"compiler-artifact\"")) {
        let (Some(path), Some(manifest)) = (field(line, "executable"), field(line, "manifest_path")) else {
            continue;
        };
        // The profile's flag, not the target's: what was built as a test.
        let profile = line.find("\"profile\":").map(|at| &line[at..]).unwrap_or_default();
        if !profile[..profile.find('}').unwrap_or(0)].contains("\"test\":true") {
            programs.push(PathBuf::from(path));
            continue;
        }
        let folder = Path::new(manifest).parent().unwrap_or(Path::new("/")).to_owned();
        let package = field(line, "package_id").unwrap_or_default();
        let package =
            package.rsplit(['/', '#']).next().unwrap_or(package).split('@').next().unwrap_or(package);
        let package = if package.contains('.') {
            folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
        } else {
            package.to_owned()
        };
        let target = line.find("\"target\":").map(|at| &line[at..]).unwrap_or_default();
        let name = field(target, "name").unwrap_or_default();
        let integration = target.contains("\"kind\":[\"test\"]");
        tests.push(TestProgram {
            name: format!("{package}::{name}{}", if integration { "" } else { " (unit)" }),
            path: path.into(),
            folder,
            integration,
        });
    }
    if tests.is_empty() {
        return Err("cargo named no test programs".into());
    }
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Built { tests, programs })
}

/// Builds something and returns the path of the executable of this name.
pub fn build(arguments: &[&str], name: &str) -> Result<PathBuf, String> {
    let output = cargo()
        .arg("build")
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name} does not build"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| field(line, "executable"))
        .map(PathBuf::from)
        .find(|path| path.file_name().is_some_and(|n| n == name))
        .ok_or_else(|| format!("cargo built no {name}"))
}

/// The `moltis` program.
pub fn moltis(release: bool) -> Result<PathBuf, String> {
    let mut arguments = vec!["-p", "moltis", "--bin", "moltis"];
    if release {
        arguments.push("--release");
    }
    build(&arguments, "moltis")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let line = r#"{"reason":"x","manifest_path":"/a/Cargo.toml","executable":"/t/a-1"}"#;
        assert_eq!(field(line, "executable"), Some("/t/a-1"));
        assert_eq!(field(line, "manifest_path"), Some("/a/Cargo.toml"));
        assert_eq!(field(line, "none"), None);
    }
}
