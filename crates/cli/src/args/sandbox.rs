//! Arguments of `moltis sandbox`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::{Json, SandboxFlags, words};

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
    /// Fetch the configuration's image and build its packages on it, as the first command would
    Build(Build),
    /// The images that were built
    List(Images),
    /// Remove images that were built
    Remove(RemoveImages),
    /// Remove the images that were built and that neither a session nor a container uses
    Clean(Images),
}

impl Sandbox {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::Status(args) | Self::Ps(args) | Self::Disk(args) => args.json,
            Self::Explain(args) => args.json,
            Self::Stop(args) | Self::Rm(args) => args.json,
            Self::Prune(args) => args.json,
            Self::Build(args) => args.json,
            Self::List(args) | Self::Clean(args) => args.json,
            Self::Remove(args) => args.json,
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
    /// List what merely has a name as an earlier version gave its containers, and remove it if that is confirmed
    #[arg(long)]
    pub legacy: bool,
    /// Remove what `--legacy` lists without asking
    #[arg(long, requires = "legacy")]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis sandbox build`.
#[derive(Args)]
#[command(after_help = "\
What it prints while it works goes to standard error. Ctrl-C gives it up and leaves nothing.

Examples:
  moltis sandbox build
  moltis sandbox build --backend podman --image docker.io/library/debian:12")]
pub struct Build {
    /// Backend to build for [default: the one that a command would run on]
    #[arg(long, value_name = "NAME", value_parser = words::BACKENDS)]
    pub backend: Option<String>,
    /// Base to build on instead of the configuration's
    #[arg(long, value_name = "BASE")]
    pub image: Option<String>,
    /// Fetch the base and build although both are there
    #[arg(long)]
    pub fresh: bool,
    /// Print one JSON object when it is over, and what happens until then as JSON lines on standard error
    #[arg(long)]
    pub json: bool,
}

/// `moltis sandbox list` and `clean`.
#[derive(Args)]
pub struct Images {
    /// Backend to ask [default: all that have images]
    #[arg(long, value_name = "NAME", value_parser = words::BACKENDS)]
    pub backend: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis sandbox remove`.
#[derive(Args)]
pub struct RemoveImages {
    /// Tags as `list` prints them, or what stands behind their colon
    #[arg(required = true, value_name = "TAG")]
    pub tags: Vec<String>,
    /// Backend to remove them from [default: all that have them]
    #[arg(long, value_name = "NAME", value_parser = words::BACKENDS)]
    pub backend: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
