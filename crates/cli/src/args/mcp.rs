//! Arguments of `moltis mcp`.

use clap::Args;

use super::{SandboxFlags, SessionFlags};

/// `moltis mcp`.
#[derive(Args)]
#[command(after_help = "\
Speaks MCP on standard input and output until the input ends. A client starts it; docs/clients says how each is told to.
Without --session the sandbox ends with it, and nothing is stored.

Examples:
  moltis mcp --workspace .:rw
  moltis mcp --session work --network trusted")]
pub struct Mcp {
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    #[command(flatten)]
    pub session: SessionFlags,
}
