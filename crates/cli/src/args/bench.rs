//! Arguments of `moltis bench`.

use clap::Args;

use super::words;

/// `moltis bench`.
#[derive(Args)]
#[command(after_help = "\
A ratio says how many times as long it takes as the baseline, or for output how much of its rate is left; a baseline \
takes turns with what it stands beside. It takes a few seconds a backend and leaves nothing.

Examples:
  moltis bench
  moltis bench --backend docker --backend namespaces --json")]
pub struct Bench {
    /// Only this backend; may be given again [default: all that are usable here without an account]
    #[arg(long, value_name = "NAME", value_parser = words::BACKEND_NAMES)]
    pub backend: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
