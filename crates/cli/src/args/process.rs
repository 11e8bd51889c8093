//! Arguments of `moltis process`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Process {
    /// Background commands, those that run and the latest that are over
    List(List),
    /// What a background command has printed
    Output(Output),
    /// Pass our standard input on to a background command
    Input(Input),
    /// End a background command with all that it started, or send it a signal
    Stop(Stop),
}

impl Process {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Output(args) => args.json,
            Self::Input(args) => args.json,
            Self::Stop(args) => args.json,
        }
    }
}

/// Which background command.
#[derive(Args)]
pub struct Which {
    /// The session
    pub key: OsString,
    /// Its number, as `process list` and `exec --background` print it
    pub process: u32,
}

/// `moltis process list`.
#[derive(Args)]
pub struct List {
    /// Only those of this session [default: of all sessions whose sandbox runs]
    pub key: Option<OsString>,
    /// The same, as a flag
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    pub session: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis process output`.
#[derive(Args)]
#[command(after_help = "\
The sandbox keeps the last MiB of each stream. Exit status: 0; with --follow the command's own, as with `moltis exec`.")]
pub struct Output {
    #[command(flatten)]
    pub which: Which,
    /// Go on until it is over; Ctrl-C ends only the watching
    #[arg(long, short = 'f')]
    pub follow: bool,
    /// First byte of its standard output that is wanted
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stdout_from: u64,
    /// First byte of its standard error that is wanted
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stderr_from: u64,
    /// Print one JSON object with the offsets to go on from
    #[arg(long)]
    pub json: bool,
}

/// `moltis process input`.
#[derive(Args)]
pub struct Input {
    #[command(flatten)]
    pub which: Which,
    /// Send nothing, only close its input
    #[arg(long, conflicts_with = "keep_open")]
    pub eof: bool,
    /// Leave its input open when ours ends, for more to be sent later
    #[arg(long)]
    pub keep_open: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis process stop`.
#[derive(Args)]
pub struct Stop {
    #[command(flatten)]
    pub which: Which,
    /// Only send this signal to its process group, as in INT or 2
    #[arg(long, value_name = "NAME")]
    pub signal: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
