//! Processes of their own: this test binary, started again to do one job.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use moltis_runtime::store::{
    Caller, Database, Ended, Judged, Kept, NewCommand, NewSandbox, SandboxState, SessionNumber, SessionPatch,
    Store, StoreError, now_millis,
};
use moltis_sandbox::{BackendName, Ending, SessionKey, Status};

fn opening() -> NewSandbox {
    let backend = BackendName::Namespaces;
    NewSandbox { backend, fingerprint: "f".to_owned(), judged: Judged::default() }
}

const JOB: &str = "MOLTIS_TEST_STORE_JOB";
const PLACE: &str = "MOLTIS_TEST_STORE_PLACE";
const NAME: &str = "store::child::a_child_does_its_job";

/// A child process that is ended with its handle.
pub struct Job {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Job {
    /// Starts one; `wrapper` is a program and arguments to start it through.
    pub fn start(wrapper: &[&str], job: &str, place: &Path) -> Self {
        let mut words: Vec<_> = wrapper.iter().map(std::ffi::OsString::from).collect();
        words.push(std::env::current_exe().unwrap().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
        command.env(JOB, job).env(PLACE, place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// What it says next; `None` at the end.
    pub fn said(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            // A line that the kill has cut is not an acknowledgement.
            if let Some((_, said)) = line.strip_suffix('\n').and_then(|line| line.split_once("said: ")) {
                return Some(said.to_owned());
            }
            line.clear();
        }
        None
    }

    /// Kills it; what it has said is still to be read.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // One write, straight to the pipe.
    out.write_all(format!("said: {text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

#[test]
fn a_child_does_its_job() {
    let Ok(job) = std::env::var(JOB) else { return };
    let store = Store::new(std::env::var_os(PLACE).unwrap());
    match job.split_once(' ').unwrap_or((&job, "")) {
        ("write", _) => write(&store),
        ("hammer", key) => hammer(&store, key),
        ("open", key) => open_once(&store, key),
        ("fill", _) => fill(&store),
        ("try", _) => match store.run_blocking(|d| d.instance()) {
            Ok(_) => say("fine"),
            Err(error) => say(error.code()),
        },
        other => panic!("{other:?}"),
    }
}

pub fn key(text: &str) -> SessionKey {
    SessionKey::new(text).unwrap()
}

fn by() -> Caller {
    Caller::this_user()
}

fn session(database: &mut Database, name: &str) -> Result<SessionNumber, StoreError> {
    Ok(database.create_session(&key(name), &SessionPatch::default(), &by(), now_millis())?.0.number)
}

fn command(text: String) -> NewCommand {
    NewCommand {
        command: text,
        caller: by(),
        backend: BackendName::Namespaces,
        background: false,
        started_millis: now_millis(),
    }
}

fn ended() -> Ended {
    Ended {
        status: Status::Code(0),
        ending: Ending::Exited,
        micros: 1,
        stdout: Kept::whole(&[b'x'; 700]),
        stderr: Kept::default(),
    }
}

/// Writes without end and says what was acknowledged.
fn write(store: &Store) {
    let number = store.run_blocking(|d| session(d, "killed")).unwrap();
    say("session");
    for turn in 0_u64.. {
        let id = store.run_blocking(|d| d.begin_command(number, &command(format!("turn {turn}")))).unwrap();
        say(format_args!("begun {}", id.number()));
        assert!(store.run_blocking(|d| d.end_command(id, &ended())).unwrap());
        say(format_args!("ended {}", id.number()));
        store.run_blocking(|d| d.set_meta("turn", Some(&id.number().to_string()))).unwrap();
        say(format_args!("meta {}", id.number()));
    }
}

/// Runs 50 commands in a session, as 50 callers would.
fn hammer(store: &Store, name: &str) {
    say("ready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    for turn in 0..50 {
        let number = store.run_blocking(|d| session(d, name)).unwrap();
        let id = store
            .run_blocking(|d| {
                d.sweep_lost()?;
                d.begin_command(number, &command(format!("turn {turn}")))
            })
            .unwrap();
        assert!(store.run_blocking(|d| d.end_command(id, &ended())).unwrap());
    }
    say("done");
}

/// Opens a session's sandbox if nobody has, as the runtime does.
fn open_once(store: &Store, name: &str) {
    say("ready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let opened = runtime.block_on(async {
        let own = name.to_owned();
        let number = store.run(move |d| session(d, &own)).await?;
        let lock = store.lock_session(number, Duration::from_secs(30)).await?;
        let own = name.to_owned();
        let found = store.run(move |d| d.session(&key(&own))).await?.unwrap().sandbox;
        if let Some(sandbox) = found {
            return Ok(format!("found {:?} {}", sandbox.state, sandbox.generation));
        }
        let (lock, generation) = store
            .run(move |d| {
                let generation = d.sandbox_opening(&lock, &opening(), 64, &by(), now_millis())?;
                Ok((lock, generation))
            })
            .await?;
        // What starting one would take.
        tokio::time::sleep(Duration::from_millis(30)).await;
        store.run(move |d| d.sandbox_state(&lock, generation, SandboxState::Running)).await?;
        Ok::<_, StoreError>(format!("opened {generation}"))
    });
    say(opened.unwrap());
}

/// Writes until there is no room, and reads then.
fn fill(store: &Store) {
    let number = store.run_blocking(|d| session(d, "full")).unwrap();
    let error = loop {
        let long = command("x".repeat(4000));
        match store.run_blocking(|d| d.begin_command(number, &long)) {
            Ok(id) => say(format_args!("begun {}", id.number())),
            Err(error) => break error,
        }
    };
    say(format_args!("error {}", error.code()));
    let page = store.run_blocking(|d| d.history(number, None, 2000)).unwrap();
    say(format_args!("kept {} {}", page.entries.len(), page.entries[0].number));
}

impl Job {
    /// Lets a child that waits go on.
    pub fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
}
