//! Running the program with a data directory and an environment of its own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A data directory, a home and a configuration directory that end with the test, and with them every sandbox of the
/// data directory. A test whose sandboxes leave anything behind fails.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        for folder in [place.home(), place.config(), place.path("state")] {
            std::fs::create_dir(folder).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("state").join("data")
    }

    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    pub fn config(&self) -> PathBuf {
        self.path("config")
    }

    /// A folder to use as a workspace.
    pub fn workspace(&self) -> PathBuf {
        let folder = self.path("workspace");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// `moltis` with these arguments and nothing of our environment.
    pub fn moltis<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moltis"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home())
            .env("MOLTIS_DATA_DIR", self.data())
            .env("MOLTIS_CONFIG_DIR", self.config())
            // Whatever engines run on this machine, these tests are about the built-in sandbox.
            .env("DOCKER_HOST", "unix:///nonexistent/docker.sock")
            .env("CONTAINER_HOST", "unix:///nonexistent/podman.sock")
            .stdin(Stdio::null());
        command
    }

    /// A line for a shell, which has the same environment and knows the program as `$moltis`.
    pub fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.env_clear().args(["-c", line]).env("moltis", env!("CARGO_BIN_EXE_moltis")).stdin(Stdio::null());
        let moltis = self.moltis([] as [&str; 0]);
        shell.envs(moltis.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    }

    /// Runs it; gives the exit status and what it printed.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.moltis(args).output().unwrap().into()
    }

    /// `moltis exec --backend namespaces` with these further arguments.
    pub fn exec<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.exec_command(args).output().unwrap().into()
    }

    pub fn exec_command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.moltis(["exec", "--backend", "namespaces"]);
        command.args(args);
        command
    }

    /// Runs a line in a session, which succeeds.
    #[track_caller]
    pub fn in_session(&self, key: &str, line: &str) -> String {
        let ran = self.run(["exec", "--session", key, line]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        ran.stdout
    }

    /// Starts a background command in a session and gives its number.
    #[track_caller]
    pub fn background(&self, key: &str, line: &str) -> String {
        let ran = self.run(["exec", "--session", key, "--background", line]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        ran.stdout.trim().to_owned()
    }

    /// Runs it with this input.
    pub fn fed<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Ran {
        let mut command = self.moltis(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // Whoever does not read it all has its reasons.
            scope.spawn(move || drop(stdin.write_all(input)));
            child.wait_with_output().unwrap().into()
        })
    }

    /// What is left below `run` once every sandbox has ended.
    pub fn left_running(&self) -> Vec<String> {
        ["run", "run-host"].iter().flat_map(|folder| names(&self.data().join(folder))).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.left_running();
        if left.is_empty() {
            return;
        }
        // The configuration may be wrong on purpose, and a session may say where its sandbox is.
        let _ = std::fs::remove_file(self.config().join("moltis.toml"));
        let ids: BTreeSet<_> = left.into_iter().filter(|name| name.len() == 40).collect();
        // What the engines' sandboxes have in common stays.
        if ids.is_empty() && !std::thread::panicking() {
            return assert_eq!(processes_with(&self.data()), Vec::<String>::new());
        }
        let ended = self.run(["sandbox", "rm"].map(str::to_owned).into_iter().chain(ids));
        if std::thread::panicking() {
            return;
        }
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(self.left_running(), Vec::<String>::new());
        assert_eq!(processes_with(&self.data()), Vec::<String>::new());
    }
}

impl Place {
    /// Processes that have a file of the data directory open, or work there.
    pub fn processes(&self) -> Vec<String> {
        processes_with(&self.data())
    }
}

/// Command lines of processes that have a file or their current directory below this folder.
fn processes_with(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let process = entry.path();
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|fd| fd.path());
        let mut seen = open.chain([process.join("cwd"), process.join("root")]);
        // One that ends meanwhile has nothing open.
        // What runs in a sandbox shows by its mounts, to those who may look.
        let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        let below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(folder));
        if seen.any(below) || mounts.contains(&*folder.to_string_lossy()) {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// What one run of the program gave.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Without what an ordinary user is told of limits that are not kept for it.
    pub fn without_promises(mut self) -> Self {
        self.stderr = self
            .stderr
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("moltis: not enforced: "))
            .collect();
        self
    }

    #[track_caller]
    pub fn is(self, status: i32, stdout: &str, stderr: &str) {
        let want = Ran { status: Some(status), stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        assert_eq!(self.without_promises(), want);
    }

    /// It failed like this, with an error of this code and nothing on standard output.
    #[track_caller]
    pub fn fails(&self, status: i32, code: &str) {
        assert_eq!((self.status, self.stdout.as_str()), (Some(status), ""), "{self:?}");
        assert!(self.stderr.starts_with(&format!("error[{code}]: ")), "{self:?}");
    }

    /// The same with `--json`.
    #[track_caller]
    pub fn fails_in_json(&self, status: i32, code: &str) {
        assert_eq!((self.status, self.stderr.as_str()), (Some(status), ""), "{self:?}");
        assert_eq!(self.json()["error"]["code"], code, "{self:?}");
    }

    /// The one JSON value that it printed.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}
