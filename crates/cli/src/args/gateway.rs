//! Arguments of `moltis gateway`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// `moltis gateway`.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
It runs until SIGTERM or Ctrl-C; sandboxes and what runs in their background go on. SIGHUP makes it read the \
configuration anew, as a change of the file does.

Examples:
  moltis gateway
  moltis gateway --bind 0.0.0.0 --port 443   # with tls_cert and tls_key in [gateway]
  moltis gateway key create ci --scope operator.write --session 'ci/*'"
)]
pub struct Gateway {
    #[command(subcommand)]
    pub command: Option<GatewayCommand>,
    /// Address to listen on [default: `bind` in [gateway], 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<String>,
    /// Port to listen on, 0 for any [default: `port` in [gateway], 13131]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Listen where other machines reach it though nothing is encrypted
    #[arg(long)]
    pub allow_unencrypted: bool,
    /// Time that requests have to end once it is told to end [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<String>,
    /// Print what is said at the start as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum GatewayCommand {
    /// Make another admin token; the one before, and every login, ends
    Token(Token),
    /// API keys: make, list, revoke them
    #[command(subcommand)]
    Key(Key),
}

/// `moltis gateway token`.
#[derive(Args)]
pub struct Token {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Key {
    /// Make an API key, which is printed once
    Create(Create),
    /// API keys, without what is secret of them
    List(List),
    /// Revoke API keys, at once
    Revoke(Revoke),
}

/// `moltis gateway key create`.
#[derive(Args)]
pub struct Create {
    /// Its name
    pub name: String,
    /// What it may do
    #[arg(
        long,
        value_name = "SCOPE",
        default_value = "operator.write",
        value_parser = ["operator.read", "operator.write", "operator.admin"]
    )]
    pub scope: String,
    /// Pattern of the sessions that it sees, in which `*` stands for any text [default: every session]
    #[arg(long, value_name = "PATTERN")]
    pub session: Vec<OsString>,
    /// Time until it is refused, as in 90d [default: never]
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis gateway key list`.
#[derive(Args)]
pub struct List {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis gateway key revoke`.
#[derive(Args)]
pub struct Revoke {
    /// Their names
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Gateway {
    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match &self.command {
            None => self.json,
            Some(GatewayCommand::Token(args)) => args.json,
            Some(GatewayCommand::Key(Key::Create(args))) => args.json,
            Some(GatewayCommand::Key(Key::List(args))) => args.json,
            Some(GatewayCommand::Key(Key::Revoke(args))) => args.json,
        }
    }

    /// Whether it is the server itself, which does many things at a time.
    pub fn serves(&self) -> bool {
        self.command.is_none()
    }
}
