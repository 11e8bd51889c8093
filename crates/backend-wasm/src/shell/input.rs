//! Standard input that arrives while the command runs. The shell takes a whole text or a pipe of its own; so the script
//! becomes the reading end of a pipe whose other end is a command of ours.

use std::sync::Arc;

use bashkit::{BuiltinRegistry, Command, CommandContext, CommandStatus, Error, Result, async_trait};
use bytes::Bytes;
use tokio::sync::{Mutex, Notify, mpsc};

/// Names of our two commands.
const FEED: &str = "__moltis_input";
const OVER: &str = "__moltis_over";

/// Commands that never read their input, and that the shell, which knows that of few, would let wait for its end.
const READ_NOTHING: &[&str] = &[
    "basename", "chmod", "cp", "date", "df", "dirname", "du", "env", "expr", "file", "find", "getent",
    "hash", "hostname", "id", "jobs", "kill", "let", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv",
    "printenv", "pwd", "readlink", "realpath", "rm", "rmdir", "seq", "sleep", "stat", "touch", "trap",
    "tree", "truncate", "type", "umask", "unalias", "uname", "wait", "which", "whoami", "yes",
];

/// What is run before a script that has input: it gives those commands none.
pub fn prelude() -> String {
    let mut prelude = "shopt -s expand_aliases\n".to_owned();
    for name in READ_NOTHING {
        prelude.push_str(&format!("alias {name}='</dev/null \\{name}'\n"));
    }
    prelude
}

/// What a caller sends.
pub struct Input {
    bytes: mpsc::Receiver<Bytes>,
}

impl Input {
    /// These pieces.
    pub fn new(bytes: mpsc::Receiver<Bytes>) -> Self {
        Self { bytes }
    }

    /// The script, made to read it. What the script ends with stays what it ends with.
    pub fn wrap(self, script: String, registry: &BuiltinRegistry) -> String {
        let over = Arc::new(Notify::new());
        registry.insert_command(FEED, Feed { bytes: Mutex::new(self.bytes), over: Arc::clone(&over) });
        registry.insert_command(OVER, Over(over));
        format!("{FEED} | {{ ( {script}\n); {OVER} $?; }}")
    }
}

/// Hands the input on as the script reads it.
struct Feed {
    bytes: Mutex<mpsc::Receiver<Bytes>>,
    over: Arc<Notify>,
}

#[async_trait]
impl Command for Feed {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let mut bytes = self.bytes.lock().await;
        loop {
            let piece = tokio::select! {
                piece = bytes.recv() => piece,
                () = self.over.notified() => None,
            };
            let Some(piece) = piece else { break };
            crate::meter::taken_over(piece.len());
            match ctx.stdout.write_all(&piece).await {
                Ok(()) => {}
                // Nobody reads any more.
                Err(Error::Io(_)) => break,
                Err(error) => return Err(error),
            }
        }
        bytes.close();
        Ok(CommandStatus::success())
    }
}

/// Says that the script is over, and repeats what it ended with.
struct Over(Arc<Notify>);

#[async_trait]
impl Command for Over {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        self.0.notify_one();
        let code = ctx.args.first().and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok(CommandStatus::with_code(code))
    }
}
