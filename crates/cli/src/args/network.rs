//! Arguments of `moltis network`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::words;

#[derive(Subcommand)]
pub enum Network {
    /// What the proxy let through and what not, the latest last
    Audit(Audit),
    /// The same counted, by host
    Stats(Stats),
    /// The same for other programs, all of it
    Export(Export),
    /// Questions about unknown hosts that wait for an answer
    Pending(Pending),
    /// Let a host through, or say yes to a question
    Allow(Allow),
    /// Let a host never through, or say no to a question
    Deny(Deny),
    /// What would be said of a host, by which rule, and where it leads; nothing is connected to
    Test(Test),
    /// Who may be reached: the configuration's patterns, what was said for good, a session's own
    Rules(Rules),
}

impl Network {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::Audit(args) => args.json,
            Self::Stats(args) => args.json,
            Self::Export(args) => args.json,
            Self::Pending(args) => args.json,
            Self::Allow(args) => args.scope.json,
            Self::Deny(args) => args.scope.json,
            Self::Test(args) => args.json,
            Self::Rules(args) => match &args.command {
                Some(RuleCommand::Remove(args)) => args.json,
                None => args.json,
            },
        }
    }
}

/// Which entries.
#[derive(Args)]
pub struct Filters {
    /// Only this host and those below it; with :PORT only that port
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Only what was asked in this way
    #[arg(long, value_name = "PROTOCOL", value_parser = words::PROTOCOLS)]
    pub protocol: Option<String>,
    /// Only what was let through, or what was not
    #[arg(long, value_name = "ACTION", value_parser = words::ACTIONS)]
    pub action: Option<String>,
    /// Only of this session
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Only from then on: a length of time until now as in 10m, or a point in time as in 2026-01-31T12:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

/// `moltis network audit`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moltis network audit --action denied --since 1h
  moltis network audit --follow --domain example.com")]
pub struct Audit {
    #[command(flatten)]
    pub filters: Filters,
    /// Entries to show at most: the latest [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub limit: Option<u32>,
    /// Go on with what comes, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Print JSON; with --follow an object for each entry
    #[arg(long)]
    pub json: bool,
}

/// `moltis network stats`.
#[derive(Args)]
pub struct Stats {
    #[command(flatten)]
    pub filters: Filters,
    /// Hosts to show at most: the most used
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis network export`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moltis network export --since 24h > yesterday.jsonl
  moltis network export --format csv --output audit.csv")]
pub struct Export {
    #[command(flatten)]
    pub filters: Filters,
    /// A JSON object a line, or comma-separated values
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", value_parser = words::FORMATS)]
    pub format: String,
    /// File to write to, which must not be there yet [default: standard output]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print as JSON what was written to the file
    #[arg(long, requires = "output")]
    pub json: bool,
}

/// `moltis network pending`.
#[derive(Args)]
pub struct Pending {
    /// Only of this session
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Go on with those that come, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Print JSON; with --follow an object for each question
    #[arg(long)]
    pub json: bool,
}

/// For how long something is said.
#[derive(Args)]
pub struct Scope {
    /// For this session; with a question's number, for the one that asks
    #[arg(long, value_name = "KEY", num_args = 0..=1, conflicts_with_all = ["once", "always"])]
    pub session: Option<Option<OsString>>,
    /// Only for what waits now: what a question's number alone means
    #[arg(long, conflicts_with = "always")]
    pub once: bool,
    /// For good and every session: what a domain alone means
    #[arg(long)]
    pub always: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis network allow`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moltis network allow '*.example.com:443'
  moltis network allow pypi.org --session build
  moltis network allow 7 --session")]
pub struct Allow {
    /// A domain pattern, or the number of a question as `pending` shows it
    #[arg(value_name = "DOMAIN|ID")]
    pub what: String,
    #[command(flatten)]
    pub scope: Scope,
}

/// `moltis network deny`.
#[derive(Args)]
#[command(after_help = "\
What is denied stays so whatever else allows it.

Examples:
  moltis network deny '*.example.org'
  moltis network deny 7")]
pub struct Deny {
    /// A domain pattern, or the number of a question as `pending` shows it
    #[arg(value_name = "DOMAIN|ID")]
    pub what: String,
    #[command(flatten)]
    pub scope: Scope,
}

/// `moltis network test`.
#[derive(Args)]
#[command(after_help = "\
It says what holds where the network is `trusted`. Exit status: 0 when the host would be let through, 1 when not.

Examples:
  moltis network test example.com
  moltis network test 10.0.0.7:5432 --session build")]
pub struct Test {
    /// A host; the port is 443 unless one is named
    #[arg(value_name = "HOST[:PORT]")]
    pub host: String,
    /// Session that would ask
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis network rules`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Rules {
    #[command(subcommand)]
    pub command: Option<RuleCommand>,
    /// Those that hold for this session
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum RuleCommand {
    /// Forget what was said for good about a pattern
    #[command(visible_alias = "forget")]
    Remove(Forget),
}

/// `moltis network rules remove`.
#[derive(Args)]
pub struct Forget {
    /// Patterns as `rules` shows them
    #[arg(required = true, value_name = "DOMAIN")]
    pub patterns: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
