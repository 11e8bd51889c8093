//! Arguments of `moltis forward`.

use std::ffi::OsString;

use clap::Args;

/// `moltis forward`.
#[derive(Args)]
#[command(after_help = "\
It says where it listens once it does, and goes on until Ctrl-C.

Examples:
  moltis forward --session work 3000           port 3000 of the sandbox, at 127.0.0.1:3000
  moltis forward --session work 3000:8080      the same at 127.0.0.1:8080
  moltis forward --session work 3000:0 5432:0  two of them, at ports that are free")]
pub struct Forward {
    /// A port of the sandbox; after the colon where it is to be on this machine, 0 for any that is free [default: the
    /// same port]
    #[arg(required = true, value_name = "PORT[:HOST_PORT]")]
    pub ports: Vec<String>,
    /// Session whose sandbox it is
    #[arg(long, value_name = "KEY", required = true)]
    pub session: OsString,
    /// Print one JSON object once it listens
    #[arg(long)]
    pub json: bool,
}
