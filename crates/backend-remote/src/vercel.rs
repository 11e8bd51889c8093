//! Vercel Sandbox: one microVM for each sandbox.

mod backend;
mod client;
mod machine;
mod provision;
mod shelf;
mod wire;

pub use backend::{VercelConfig, backend};
