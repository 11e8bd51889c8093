//! The file that sends what Node fetches through the proxy: Node knows the proxy variables only from 22.21 and 24 on.

/// Where it lies in every sandbox with an agent. `NODE_OPTIONS` names it, so a sandbox without it starts no Node there.
pub const PATH: &str = "/.moltis/node-proxy.cjs";

/// The folder that it lies in, which is ours whole.
pub const FOLDER: &str = "/.moltis";

/// Its text.
pub const TEXT: &str = include_str!("node-proxy.cjs");
