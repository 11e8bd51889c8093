//! Arguments of `moltis history`.

use std::ffi::OsString;

use clap::Args;

/// `moltis history`.
#[derive(Args)]
pub struct History {
    /// The session
    pub key: OsString,
    /// Commands to show at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Only commands before this number
    #[arg(long, value_name = "N")]
    pub before: Option<u64>,
    /// Show what is remembered of their output
    #[arg(long)]
    pub output: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
