//! The command line.

mod bench;
mod files;
mod forward;
mod gateway;
mod history;
mod mcp;
mod network;
mod process;
mod sandbox;
mod session;
mod usage;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};

use crate::failure::Statuses;

pub use bench::Bench;
pub use files::{Cp, Files, FilesFlags};
pub use forward::Forward;
pub use gateway::Gateway;
#[cfg(feature = "serve")]
pub use gateway::{Create as CreateKey, GatewayCommand, Key, Revoke as RevokeKeys};
pub use history::History;
pub use mcp::Mcp;
pub use network::{Audit, Export, Filters, Forget, Network, Pending, RuleCommand, Rules, Scope, Stats, Test};
pub use process::{Input, List, Output, Process, Stop, Which};
pub use sandbox::{Build, Explain, Images, Names, Prune, RemoveImages, Sandbox};
pub use session::{Fork, Restore, Rm, RmSnapshot, Session, Set, Show, Snapshot, Snapshots};
pub use usage::{status_at_fault, usage_error};

/// Runs shell commands that a language model wrote, without handing it the machine.
#[derive(Parser)]
#[command(name = "moltis", version, about, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Heading of the flags that every command takes.
const GLOBAL: &str = "Global options";

/// After all others.
const LAST: usize = 1000;

/// Flags that every command takes.
#[derive(Args, Clone)]
pub struct Global {
    /// Configuration file [default: moltis.toml in the user's configuration directory, if it is there]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        help_heading = GLOBAL,
        display_order = LAST
    )]
    pub config: Option<PathBuf>,
    /// Where Moltis keeps its state [default: $MOLTIS_DATA_DIR, else ~/.moltis]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        help_heading = GLOBAL,
        display_order = LAST
    )]
    pub data_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a command in a sandbox
    Exec(Box<Exec>),
    /// Work in a sandbox on a terminal
    Shell(Box<Shell>),
    /// Background commands: list, watch, feed, stop them
    #[command(subcommand)]
    Process(Process),
    /// Sessions: what they set, where their sandboxes are
    #[command(subcommand)]
    Session(Session),
    /// What a session ran, newest first
    History(History),
    /// Sandboxes and the backends that hold them
    #[command(subcommand)]
    Sandbox(Sandbox),
    /// What sandboxes reach: the log, questions that wait, rules
    #[command(subcommand)]
    Network(Network),
    /// The configuration: check it, show it, write a first one
    #[command(subcommand)]
    Config(Config),
    /// Managed files, or those of a session's sandbox
    #[command(subcommand)]
    Files(Files),
    /// Copy files and whole trees into or out of a session's sandbox
    Cp(Box<Cp>),
    /// Show ports of a session's sandbox on this machine's loopback
    Forward(Forward),
    /// Measure the backends beside what the machine itself offers
    Bench(Bench),
    /// Give a model's client the tools of a sandbox (MCP over standard input and output)
    Mcp(Box<Mcp>),
    /// Serve the HTTP API, until it is told to end
    Gateway(Box<Gateway>),
    /// Print what makes a shell complete this program's words
    Completions(Completions),
}

impl Command {
    /// Exit statuses for what is Moltis's or the caller's fault.
    pub fn statuses(&self) -> Statuses {
        match self {
            Self::Exec(_) | Self::Shell(_) => Statuses { usage: 125, fault: 125 },
            _ => Statuses { usage: 2, fault: 1 },
        }
    }

    /// Whether it does several things at once, for others.
    pub fn serves(&self) -> bool {
        matches!(self, Self::Mcp(_)) || self.is_gateway()
    }

    /// Whether it is the gateway, which uses all processors.
    pub fn is_gateway(&self) -> bool {
        matches!(self, Self::Gateway(args) if args.serves())
    }
}

/// `moltis exec`.
#[derive(Args)]
#[command(
    override_usage = "moltis exec [OPTIONS] 'LINE FOR THE SHELL'\n       moltis exec [OPTIONS] -- PROGRAM [ARGUMENT]...",
    after_help = "\
Exit status: the command's own; 128 + n when signal n ended it, 124 when its time was up, 126 or 127 when the \
program cannot be run or found, 125 when Moltis or its caller is at fault.

Examples:
  moltis exec 'ls -l | wc -l'
  moltis exec --workspace .:rw -- make test
  echo 'print(6 * 7)' | moltis exec -- python3 -"
)]
pub struct Exec {
    /// A line for the shell, quoted as one word
    #[arg(value_name = "LINE", required_unless_present = "program", conflicts_with = "program")]
    pub line: Option<OsString>,
    /// A program and its arguments, run without a shell
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    #[command(flatten)]
    pub session: SessionFlags,
    /// Start it in the session and leave it running; prints its number
    #[arg(long, requires = "session", conflicts_with_all = ["tty", "max_output"])]
    pub background: bool,
    /// Time until it is ended, from 1s to 30m [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Variable to set, or by name alone one to pass on
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// File of NAME=VALUE lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Vec<PathBuf>,
    /// Directory inside the sandbox to run it in, from the root
    #[arg(long, value_name = "PATH")]
    pub cwd: Option<OsString>,
    /// Print one JSON object when it is over, instead of its output as it comes
    #[arg(long)]
    pub json: bool,
    /// Keep at most this much of each stream: its head and its tail
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<String>,
    /// Run it on a terminal, and let it read from the keyboard
    #[arg(long, short = 't', conflicts_with = "json")]
    pub tty: bool,
    /// Do not read standard input, as in a loop that reads it
    #[arg(long, short = 'n', conflicts_with = "tty")]
    pub no_stdin: bool,
}

/// Which session a command is for.
#[derive(Args)]
pub struct SessionFlags {
    /// Session to run it in, made if it is missing: its sandbox, files and background commands stay
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// End the session's sandbox first, with all that runs in it
    #[arg(long, requires = "session")]
    pub recreate: bool,
}

/// What the sandbox of a command is to be. A session that is there already must agree with it.
#[derive(Args)]
pub struct SandboxFlags {
    /// Backend to run it in, `auto` for the strongest one here
    #[arg(long, value_name = "NAME", value_parser = words::BACKENDS)]
    pub backend: Option<String>,
    /// Finished image to run it in
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// What it may reach
    #[arg(long, value_name = "POLICY", value_parser = words::NETWORKS)]
    pub network: Option<String>,
    /// Directory to show at /workspace, read-only unless :rw is added
    #[arg(long, value_name = "DIR[:ro|rw]", value_hint = ValueHint::DirPath)]
    pub workspace: Option<OsString>,
    /// Memory for the whole sandbox, as in 512M
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Processor cores for the whole sandbox, as in 1.5
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<String>,
    /// Processes and threads in the whole sandbox
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<String>,
}

/// `moltis shell`.
#[derive(Args)]
#[command(
    override_usage = "moltis shell [OPTIONS] [-- PROGRAM [ARGUMENT]...]",
    after_help = "\
Without a program it is bash where the sandbox has it, else sh, which read their own files there.

Exit status: the shell's own; 128 + n when signal n ended it or moltis, 126 or 127 when the program cannot be run or \
found, 125 when Moltis or its caller is at fault.

Examples:
  moltis shell
  moltis shell --session work --workspace .:rw
  moltis shell -- python3"
)]
pub struct Shell {
    /// A program to run instead of a shell, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    #[command(flatten)]
    pub session: SessionFlags,
    /// Variable to set, or by name alone one to pass on
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// File of NAME=VALUE lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Vec<PathBuf>,
    /// Directory inside the sandbox to start in, from the root
    #[arg(long, value_name = "PATH")]
    pub cwd: Option<OsString>,
}

/// `moltis completions`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  source <(moltis completions bash)
  moltis completions zsh > ~/.zfunc/_moltis
  moltis completions fish > ~/.config/fish/completions/moltis.fish")]
pub struct Completions {
    /// The shell
    pub shell: CompletionShell,
}

/// Shells that can be told how to complete.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Subcommand)]
pub enum Config {
    /// Read the configuration and say what is wrong with it
    Check(Json),
    /// Every key with its value and where that came from
    Show(Json),
    /// Write a commented configuration file with every key
    Init(Json),
}

#[derive(Args)]
pub struct Json {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
