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
    /// Take a snapshot of a session: of what was written to its sandbox
    Snapshot(Snapshot),
    /// The snapshots of a session, or of all
    Snapshots(Snapshots),
    /// Have a session begin from one of its snapshots
    Restore(Restore),
    /// Make a new session that begins where another one is
    Fork(Fork),
    /// Remove snapshots of a session
    RmSnapshot(RmSnapshot),
}

impl Session {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
            Self::Set(args) => args.json,
            Self::Rm(args) => args.json,
            Self::Snapshot(args) => args.json,
            Self::Snapshots(args) => args.json,
            Self::Restore(args) => args.json,
            Self::Fork(args) => args.json,
            Self::RmSnapshot(args) => args.json,
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
    /// Remove their homes and snapshots too; what other sessions share or begin from stays
    #[arg(long)]
    pub purge: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session snapshot`.
#[derive(Args)]
pub struct Snapshot {
    /// The session
    pub key: OsString,
    /// What to call it, beside its id
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session snapshots`.
#[derive(Args)]
pub struct Snapshots {
    /// The session, which need not be there any more
    pub key: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session restore`.
#[derive(Args)]
#[command(after_help = "\
The session's sandbox is ended, and each one after it begins from the snapshot. A home of its own is replaced by the one
in the snapshot.

Examples:
  moltis session restore build before-upgrade
  moltis session restore build --none")]
pub struct Restore {
    /// The session
    pub key: OsString,
    /// Id or name of the snapshot
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    pub snapshot: Option<String>,
    /// Begin from none any more; a home of its own stays as it is
    #[arg(long)]
    pub none: bool,
    /// End what runs in the sandbox
    #[arg(long)]
    pub recreate: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session fork`.
#[derive(Args)]
pub struct Fork {
    /// The session that is there
    pub key: OsString,
    /// The new one, which gets all that the other sets
    pub new: OsString,
    /// Id or name of a snapshot to begin from, instead of one that is taken now
    #[arg(long)]
    pub snapshot: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis session rm-snapshot`.
#[derive(Args)]
pub struct RmSnapshot {
    /// The session, which need not be there any more
    pub key: OsString,
    /// Ids or names
    #[arg(required = true)]
    pub snapshots: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
