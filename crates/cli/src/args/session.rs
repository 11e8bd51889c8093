//! Arguments of `moltis session`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{Json, SandboxFlags, words};

#[derive(Subcommand)]
pub enum Session {
    /// Every session: where its sandbox is, when it was last used, what it sets
    List(Json),
    /// All about one session but the values of its variables
    Show(Show),
    /// Change what a session sets over the configuration; it is made if it is missing
    Set(Box<Set>),
    /// Forget sessions, after their sandboxes were ended with all that runs in them
    Rm(Rm),
}

impl Session {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
            Self::Set(args) => args.json,
            Self::Rm(args) => args.json,
        }
    }
}

/// `moltis session show`.
#[derive(Args)]
pub struct Show {
    /// The session
    pub key: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session set`.
#[derive(Args)]
#[command(after_help = "\
What is not named stays as it is. Names to unset: backend, network, image, workspace, memory, cpus, pids, env, \
env.NAME, sandbox, idle-ttl, trusted-domains, denied-domains, on-unknown, wasm-fuel-limit.

Examples:
  moltis session set build --network blocked --memory 4G --env CI=1
  moltis session set build --unset memory --unset env.CI")]
pub struct Set {
    /// The session
    pub key: OsString,
    #[command(flatten)]
    pub flags: SandboxFlags,
    /// Variable that each of its commands gets, or by name alone one to pass on
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// File of NAME=VALUE lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Vec<PathBuf>,
    /// Whether its commands run in a sandbox at all
    #[arg(long = "sandbox", value_name = "WORD", value_parser = words::SWITCH)]
    pub enabled: Option<String>,
    /// Time without use after which its sandbox ends, as in 2h
    #[arg(long, value_name = "TIME")]
    pub idle_ttl: Option<String>,
    /// Domain that `trusted` lets through; all of them together are the session's list
    #[arg(long, value_name = "PATTERN")]
    pub trusted_domain: Vec<String>,
    /// Domain that `trusted` never lets through; all of them together are the session's list
    #[arg(long, value_name = "PATTERN")]
    pub denied_domain: Vec<String>,
    /// What happens to a domain on neither list
    #[arg(long, value_name = "WORD", value_parser = words::ON_UNKNOWN)]
    pub on_unknown: Option<String>,
    /// Instructions that a WASI module may execute
    #[arg(long, value_name = "N")]
    pub wasm_fuel_limit: Option<String>,
    /// Set nothing here any more: what the configuration says holds again
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session rm`.
#[derive(Args)]
pub struct Rm {
    /// The sessions
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Remove their homes too; one that all sessions share stays
    #[arg(long)]
    pub purge: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
