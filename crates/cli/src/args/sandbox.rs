//! Arguments of `moltis sandbox`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::{Json, SandboxFlags};

#[derive(Subcommand)]
pub enum Sandbox {
    /// What each backend is, whether it is usable here, and what it enforces
    Status(Json),
    /// What would happen to a command with these flags, and why, without running anything
    Explain(Box<Explain>),
    /// The sandboxes of the data directory, whoever started them
    Ps(Json),
    /// End sandboxes with all that runs in them
    Stop(Names),
    /// End sandboxes and remove what is left of them but homes
    Rm(Names),
    /// Remove what is left of dead sandboxes, and those that no session knows
    Prune(Prune),
    /// What the data directory takes, and what is free around it
    Disk(Json),
}

impl Sandbox {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::Status(args) | Self::Ps(args) | Self::Disk(args) => args.json,
            Self::Explain(args) => args.json,
            Self::Stop(args) | Self::Rm(args) => args.json,
            Self::Prune(args) => args.json,
        }
    }
}

/// `moltis sandbox explain`.
#[derive(Args)]
#[command(after_help = "Exit status: 1 when the command would be refused, else 0.")]
pub struct Explain {
    #[command(flatten)]
    pub flags: SandboxFlags,
    /// Session that the command would be for
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which sandboxes.
#[derive(Args)]
pub struct Names {
    /// Sessions, or ids of sandboxes as `ps` prints them, shortened or not
    #[arg(required = true, value_name = "SESSION|ID")]
    pub names: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis sandbox prune`.
#[derive(Args)]
pub struct Prune {
    /// Also end sandboxes of sessions in which nothing runs
    #[arg(long)]
    pub idle: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
